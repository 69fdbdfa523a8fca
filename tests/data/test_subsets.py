"""A split loses nothing, keeps speakers apart and does not depend on the order of the lines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from asr.data import (
    Utterance,
    assign_units,
    choose_unit,
    name_speakers,
    parse_share,
    read_manifest,
    split_manifest,
    write_manifest,
)
from asr.errors import UserError


def corpus(speakers: int = 10, each: int = 5) -> list[Utterance]:
    return [
        Utterance(id=f"s{s}-{u}", audio=f"/a/{s}/{u}.wav", duration=1.0 + s / 10, speaker=f"s{s}")
        for s in range(speakers)
        for u in range(each)
    ]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    write_manifest(tmp_path / "all.jsonl", corpus())
    return tmp_path / "all.jsonl"


def read_parts(folder: Path, *names: str) -> dict[str, list[Utterance]]:
    return {name: list(read_manifest(folder / f"{name}.jsonl")) for name in names}


SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}


def test_a_split_keeps_speakers_apart_and_everything(manifest: Path, tmp_path: Path) -> None:
    counts = split_manifest(manifest, SHARES, tmp_path / "out")
    parts = read_parts(tmp_path / "out", *SHARES)
    assert counts == {name: len(part) for name, part in parts.items()} == {"train": 40, "dev": 5, "test": 5}
    assert sorted((u for part in parts.values() for u in part), key=lambda u: u.id) == corpus()
    speakers = [{u.speaker for u in part} for part in parts.values()]
    assert sum(map(len, speakers)) == len(set.union(*speakers)) == 10


def test_a_split_depends_on_the_seed_and_not_on_the_order(tmp_path: Path) -> None:
    chosen = []
    for seed, utterances in ((0, corpus()), (0, corpus()[::-1]), (1, corpus())):
        write_manifest(tmp_path / "all.jsonl", utterances)
        split_manifest(tmp_path / "all.jsonl", SHARES, tmp_path / "out", seed=seed)
        chosen.append({u.speaker for u in read_parts(tmp_path / "out", "test")["test"]})
    assert chosen[0] == chosen[1] != chosen[2]


def test_a_split_is_the_same_for_ever() -> None:
    """A new release must not move anybody's test set."""
    chosen = assign_units({f"s{i}": 1 for i in range(10)}, SHARES, seed=0)
    # By SHA-256 of "0:s0" ... "0:s9": s0 s3 s5 s6 s4 s1 s8 s7 s9 s2. The last two fill dev and test.
    assert [unit for unit, name in sorted(chosen.items()) if name != "train"] == ["s2", "s9"]


def test_counts_and_the_rest(manifest: Path, tmp_path: Path) -> None:
    counts = split_manifest(manifest, {"dev": 2, "test": 3, "train": "rest"}, tmp_path / "out")
    assert counts == {"dev": 10, "test": 15, "train": 25}


@settings(max_examples=40)
@given(
    durations=st.dictionaries(st.text(max_size=5), st.integers(1, 1000), min_size=4, max_size=40),
    shares=st.sampled_from([SHARES, {"a": 0.5, "b": 0.5}, {"a": 1, "b": 0.3, "c": "rest"}, {"a": "rest"}]),
)
def test_each_unit_goes_to_one_part_and_no_part_is_empty(durations: dict[str, int], shares: dict) -> None:
    try:
        chosen = assign_units(durations, shares, seed=0)
        again = assign_units(dict(reversed(durations.items())), shares, seed=0)
    except UserError as error:
        assert "nothing is left" in str(error)
        return
    assert chosen == again
    assert chosen.keys() == durations.keys()
    assert set(chosen.values()) == set(shares)
    if len(shares) == 2:  # halves differ by one unit at most
        halves = Counter()
        for unit, name in chosen.items():
            halves[name] += durations[unit]
        assert abs(halves["a"] - halves["b"]) <= max(durations.values())


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"a": 0.8, "b": 0.1}, "fractions add up to 0.9"),
        ({"a": 0.8, "b": 0.4}, "fractions add up to 1.2"),
        ({"a": 3, "b": 4}, "fractions add up to 0"),
        ({"a": "rest", "b": "rest"}, "2 are rest"),
        ({"a": 0.6, "b": 0.4, "c": "rest"}, "fractions add up to 1"),
        ({"a": 11, "b": "rest"}, "part a: needs 11 speakers or utterances, but 10 are left"),
        ({"a": 10, "b": "rest"}, "nothing is left for b"),
        ({"a": 9, "b": 0.5, "c": "rest"}, "nothing is left for c"),
        ({f"p{i}": 1 for i in range(10)} | {"rest": "rest"}, "10 speakers or utterances cannot fill 11 parts"),
        ({"../a": 0.5, "b": 0.5}, "part '../a': expected a plain word"),
        ({"all": 0.5, "b": 0.5}, "would overwrite the input"),
    ],
)  # fmt: skip
def test_impossible_splits_are_refused(manifest: Path, shares: dict, message: str) -> None:
    before = manifest.read_bytes()
    with pytest.raises(UserError) as caught:
        split_manifest(manifest, shares, manifest.parent)
    assert message in str(caught.value)
    assert [path.name for path in manifest.parent.iterdir()] == ["all.jsonl"]
    assert manifest.read_bytes() == before


def test_shares_are_parsed() -> None:
    assert [parse_share(text) for text in ("0.1", "20", "rest")] == [0.1, 20, "rest"]
    for text in ("0", "1.0", "-1", "x", ""):
        with pytest.raises(UserError, match="expected a fraction such as"):
            parse_share(text)


def test_the_unit_is_the_speaker_where_speakers_are_known(tmp_path: Path) -> None:
    nobody = [Utterance(id="x", audio="x.wav", duration=1.0)]
    for utterances, unit in ((corpus(), "speaker"), (nobody, "utterance")):
        write_manifest(tmp_path / "a.jsonl", utterances)
        assert choose_unit(tmp_path / "a.jsonl", SHARES) == unit
    write_manifest(tmp_path / "a.jsonl", corpus() + nobody)
    with pytest.raises(UserError, match="1 utterances have no speaker"):
        choose_unit(tmp_path / "a.jsonl", SHARES)
    with pytest.raises(UserError, match="utterance x has no speaker"):
        split_manifest(tmp_path / "a.jsonl", SHARES, tmp_path / "out", by="speaker")


def test_numbers_are_speakers_and_need_them(tmp_path: Path) -> None:
    write_manifest(tmp_path / "a.jsonl", [u.model_copy(update={"speaker": None}) for u in corpus()])
    message = "no speakers are known, so test=2 would be 2 of 50 utterances. test=0.1 takes a tenth"
    with pytest.raises(UserError, match=message):
        split_manifest(tmp_path / "a.jsonl", {"train": "rest", "test": 2}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    counts = split_manifest(
        tmp_path / "a.jsonl", {"test": 2, "train": "rest"}, tmp_path / "out", by="utterance"
    )
    assert counts == {"test": 2, "train": 48}
    counts = split_manifest(tmp_path / "a.jsonl", {"test": 0.1, "train": "rest"}, tmp_path / "out")
    assert counts["test"] == 5


@pytest.mark.parametrize(
    ("rule", "speakers"),
    [("folder", "b d"), (r"/(\w)_", "x y"), (r"[*+{)]*/(.)/[^/]*$", "b d"), (r"(?<=/)([a-d])", "a c")],
)
def test_speakers_from_paths(rule: str, speakers: str) -> None:
    """Existing speakers are replaced, and everything else is unchanged."""
    paths = "/a/b/x_1.wav", "/c/d/y_2.wav"
    items = [Utterance(id=f"u{len(p)}", audio=p, duration=1, text="t", speaker="old") for p in paths]
    expected = [i.model_copy(update={"speaker": s}) for i, s in zip(items, speakers.split(), strict=True)]
    assert list(name_speakers(items, rule)) == expected


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("(", "expected folder, or a regular expression (missing )"),
        ("folders", "with one group"),
        ("(a)(b)", "with one group"),
        (r"((?:a+)+)!", "not repeated"),
        (r"(a)*", "not repeated"),
        (r"(a|a){40}!", "not repeated"),
        (r"(.*a.*a.*a.*)!", "at most 3 of"),
        ("(q)", "--speaker-from (q): does not match /a/b.wav"),
        ("/(q?)a", "does not match /a/b.wav"),
    ],
)  # fmt: skip
def test_patterns_of_speakers_that_do_not_work(rule: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        list(name_speakers([Utterance(id="a", audio="/a/b.wav", duration=1)], rule))
    assert message in str(caught.value)
