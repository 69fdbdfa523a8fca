"""Pictures of rows over time: labels that can be read, and one time axis for both parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asr.evaluation import END, Picture, Strip, choose_labels, draw, join_words

STEP, FRAME = 0.04, 0.01


def make_picture(**changes: object) -> Picture:
    rows = Strip(np.zeros((6, 50)), 5.0 + STEP / 2, STEP)
    spectrogram = Strip(np.zeros((20, 200)), 5.0 + FRAME / 2, FRAME)
    spectrogram.values_NT[0, 0] = 1  # so that the scale is always the same
    picture = {"rows": rows, "names": "abcdef", "spectrogram": spectrogram, "title": "abc", "most": 1.0}
    return Picture(**(picture | changes))  # type: ignore[arg-type]


def read_pixels(path: Path, picture: Picture) -> np.ndarray:
    from matplotlib.image import imread

    draw(path, picture)
    return np.asarray(imread(path))[..., :3]


def test_both_parts_have_one_time_axis(tmp_path: Path) -> None:
    """A token at 6 s lies exactly over the sound at 6 s."""
    plain = read_pixels(tmp_path / "plain.png", make_picture())
    rows, spectrogram = make_picture().rows, make_picture().spectrogram
    rows.values_NT[2, 25] = 1
    spectrogram.values_NT[:, 100:104] = 1
    token = read_pixels(tmp_path / "token.png", make_picture(rows=rows))
    sound = read_pixels(tmp_path / "sound.png", make_picture(spectrogram=spectrogram))
    places = [np.argwhere(np.abs(changed - plain).max(-1) > 0.3) for changed in (token, sound)]
    assert all(len(place) for place in places)
    for edge in (np.min, np.max):
        assert edge(places[0][:, 1]) == pytest.approx(edge(places[1][:, 1]), abs=1.5)
    assert places[0][:, 0].max() < places[1][:, 0].min(), "the spectrogram is beneath"


@pytest.mark.parametrize(
    "changes", [{"title": "$_{$ and $"}, {"names": ["$_{$", "_{", "$^$", "^", "\\", " "]}]
)
def test_any_text_can_be_written(tmp_path: Path, changes: dict[str, object]) -> None:
    """Matplotlib would read formulas into it, and fail."""
    draw(tmp_path / "a.png", make_picture(**changes))


@pytest.mark.slow
def test_long_texts_stay_within_a_page(tmp_path: Path) -> None:
    rows = Strip(np.eye(500), 0.0, STEP)
    pixels = read_pixels(tmp_path / "a.png", make_picture(rows=rows, names="x" * 500, title="word " * 300))
    height, width, _ = pixels.shape
    assert height < 1600 and width < 2000


def test_nothing_is_a_picture_too(tmp_path: Path) -> None:
    rows = Strip(np.zeros((1, 3)), 0.0, STEP)
    read_pixels(tmp_path / "a.png", make_picture(rows=rows, names=[END], most=None))


@pytest.mark.parametrize(
    ("names", "most", "expected"),
    [
        ("A B", 3, {0: "A", 1: "␣", 2: "B"}),
        ([*"TWO ONE", END], 7, {0: "TWO", 4: "ONE", 7: END}),
        (["▁tw", "o", "▁one", END], 3, {0: "two", 2: "one", 3: END}),
        ([*"TWO ONE", END], 2, {0: "TWO", 7: END}),
        ("一二三四", 2, {0: "一", 2: "三"}),  # a writing without spaces
        (["one", "two", "six"], 2, {0: "one", 2: "six"}),  # tokens that are words
    ],
)
def test_labels_are_never_too_many(names: list[str], most: int, expected: dict[int, str]) -> None:
    found = choose_labels(names, most)
    assert found == expected and len(found) <= most


def test_words_begin_at_their_first_token() -> None:
    assert join_words([" ", *"AB", " ", " ", *"CD", " "]) == {1: "AB", 5: "CD"}
