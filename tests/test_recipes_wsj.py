"""Recipes of the Wall Street Journal and of what was made from it, each on a small corpus in its layout."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from corpus_examples import (
    Corpus,
    Damage,
    edit,
    load,
    prepare,
    remove,
    rename,
    texts,
    write_audio,
    write_text,
)

from asr.errors import UserError
from asr.recipe.wsj import normalize_prompt, read_dots

EXAMPLES = [  # as Kaldi's normalize_transcript.pl writes them
    (
        r"Shares of Example Corp\. rose <the> two \.POINT three %PERCENT [door_slam]",
        "SHARES OF EXAMPLE CORP. ROSE THE TWO POINT THREE PERCENT <NOISE>",
    ),
    (
        r"~ the I\. B\. M\. unit [<cough] *Kwame* said wo:rds . ended --DASH today ,COMMA",
        "THE I. B. M. UNIT *KWAME* SAID WO:RDS ENDED -DASH TODAY ,COMMA",
    ),
    ("[/noise] \"DOUBLE-QUOTE yes [noise/] th- [laugh>]", '"DOUBLE-QUOTE YES TH-'),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "text"), EXAMPLES)
def test_prompts_are_normalised(prompt: str, text: str) -> None:
    assert normalize_prompt(prompt) == text


def test_a_damaged_dot_file(tmp_path: Path) -> None:
    write_text(tmp_path / "01ic0200.dot", "One (01ic0201)", "Two 01ic0202")
    with pytest.raises(
        UserError, match=r"01ic0200\.dot:2: expected a text and its id in parentheses, found 'Two"
    ):
        read_dots(tmp_path / "01ic0200.dot")


# --- WSJ ------------------------------------------------------------------------------------------


def write_prompts(folder: Path, ids: Iterable[str]) -> None:
    for id in ids:
        path = folder / f"{id[:6]}00.dot"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="latin-1") as file:
            file.write(f"Text of the \\.POINT {id[0]} [<noise] ({id.upper() if id[0] == '4' else id})\n")


@pytest.fixture
def wsj(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """With folders of discs, one of them in capitals, as in some copies."""
    root = tmp_path / "ldc"
    zero, one = root / "LDC93S6B", root / "LDC94S13B"
    write_text(
        zero / "11-13.1/wsj0/doc/indices/train/tr_s_wv1.ndx",
        "; a comment",
        "11_1_1:wsj0/si_tr_s/01i/01ic0201.wv1",
        "11_1_1:wsj0/si_tr_s/401/401c0201.wv1",
    )
    write_text(zero / "11-13.1/wsj0/doc/indices/test/nvp/si_et_20.ndx", "11_14_1:wsj0/si_et_20/440/440c0401")
    write_text(one / "13-34.1/wsj1/doc/indices/si_tr_s.ndx", "13_1_1: wsj1/si_tr_s/46a/46ac0201.wv1")
    write_text(one / "13-34.1/wsj1/doc/indices/h1_p0.ndx", "13_16_1:wsj1/si_dt_20/4k0/4k0c0301.wv1")
    for path in (
        zero / "11-1.1/wsj0/si_tr_s/01i/01ic0201.wv1",
        zero / "11-1.1/wsj0/si_tr_s/01i/01ic0201.wv2",
        zero / "11-1.1/wsj0/si_tr_s/401/401c0201.wv1",
        zero / "11-14.1/wsj0/si_et_20/440/440c0401.wv1",
        one / "13-1.1/wsj1/si_tr_s/46a/46ac0201.wv1",
        one / "13-16.1/WSJ1/SI_DT_20/4K0/4K0C0301.WV1",
    ):
        write_audio(path)
    write_prompts(zero / "11-10.1/wsj0/transcrp/dots/si_tr_s/01i", ["01ic0201", "01ic0202"])
    write_prompts(zero / "11-14.1/wsj0/si_et_20/440", ["440c0401"])
    write_prompts(one / "13-34.1/wsj1/trans/wsj1/si_tr_s/46a", ["46ac0201"])
    write_prompts(one / "13-16.1/WSJ1/SI_DT_20/4K0", ["4k0c0301"])
    counts = {"train": 2, "train_si84": 1, "dev": 1, "test": 1}
    return load("wsj", monkeypatch, COUNTS=counts), root


def check_wsj(corpus: Corpus, output_dir: Path) -> None:
    sets = prepare(corpus, output_dir)
    assert {name: list(found) for name, found in sets.items()} == {
        "train": ["01ic0201", "46ac0201"],
        "train_si84": ["01ic0201"],
        "dev": ["4k0c0301"],
        "test": ["440c0401"],
    }
    assert texts(sets["train"]) == {"01ic0201": "TEXT OF THE POINT 0", "46ac0201": "TEXT OF THE POINT 4"}
    assert sets["dev"]["4k0c0301"].speaker == "4k0"
    assert sets["train"]["01ic0201"].audio.endswith("01ic0201.wv1")


def test_wsj(wsj: Corpus, tmp_path: Path) -> None:
    check_wsj(wsj, tmp_path / "out")


def test_wsj_without_folders_of_discs(wsj: Corpus, tmp_path: Path) -> None:
    recipe, root = wsj
    merged = tmp_path / "merged"
    for path in sorted(root.rglob("*")):
        if path.is_file():
            parts = path.relative_to(root).parts[2:]  # without LDC93S6B/11-1.1
            target = merged.joinpath(parts[0].lower(), *parts[1:])
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    check_wsj((recipe, merged), tmp_path / "out")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rename("LDC94S13B/13-34.1", "../13-34.1"), r"wsj1/doc/indices/si_tr_s\.ndx is missing, the list of train_si284; is"),
        (rename("LDC93S6B/11-10.1", "../11-10.1"), r"01ic0200\.dot is missing, the transcripts of 01ic02\.\.; is a disc"),
        (rename("LDC94S13B/13-16.1", "../13-16.1"), "found 0 utterances of dev, expected 1"),
        (edit("LDC93S6B/11-14.1/wsj0/si_et_20/440/440c0400.dot", "0401", "0402"), "no transcript of 440c0401"),
        (edit("LDC94S13B/13-34.1/wsj1/doc/indices/h1_p0.ndx", ":", " "), r"h1_p0\.ndx:1: expected a disc and a file"),
        (lambda root: (root / "LDC93S6B/11-14.1/wsj0/si_et_20/440/440c0401.wv1").write_bytes(b"NIST_1A\n"), r"440c0401\.wv1"),
    ],
)  # fmt: skip
def test_wsj_damaged(wsj: Corpus, tmp_path: Path, damage: Damage, message: str) -> None:
    recipe, root = wsj
    damage(root)
    with pytest.raises(UserError, match=message):
        recipe.prepare(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_half_a_wsj_is_told(wsj: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    remove("LDC94S13B/13-1.1/wsj1/si_tr_s/46a/46ac0201.wv1")(wsj[1])
    prepare(wsj, tmp_path / "out")
    assert "train_si284 lacks 1 files: wsj1/si_tr_s/46a/46ac0201.wv1" in caplog.text
    assert "train has 1 utterances, 2 were published" in caplog.text


def test_wsj_from_inside(wsj: Corpus, tmp_path: Path) -> None:
    recipe, root = wsj
    with pytest.raises(UserError, match="no file in a folder wsj0 or wsj1; expected the folder above them"):
        recipe.prepare(root / "LDC93S6B/11-1.1/wsj0", tmp_path / "out")
