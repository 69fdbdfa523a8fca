"""Every problem is reported with its numbers; a bad record hides no other; statistics add up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import example, given, settings, strategies as st
from shard_examples import write_noise

from asr.data import (
    Manifest,
    Utterance,
    compute_statistics,
    count_records,
    read_data,
    validate,
    write_manifest,
)
from asr.errors import UserError
from asr.shards.packing import PackSettings, pack
from asr.shards.shards import ShardFolder
from asr.text.tokenizer import Tokenizer, TokenizerConfig

SAMPLE_RATE = 8000


def write_tone(path: Path, seconds: float) -> str:
    times = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, 0.5 * np.sin(2 * np.pi * 440 * times), SAMPLE_RATE)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tone(tmp_path / "one.wav", 1.0)
    write_tone(tmp_path / "ten.wav", 10.0)
    (tmp_path / "broken.wav").write_bytes(b"RIFF and no more")
    return tmp_path


def problems_of(folder: Path, *records: dict, **options) -> list[tuple[int, str | None, str, str]]:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [
        (problem.line, problem.id, problem.kind, problem.message) for problem in validate(path, **options)
    ]


def record(id: str, audio: str = "one.wav", duration: float = 1.0, **fields: object) -> dict:
    return {"id": id, "audio": audio, "duration": duration, **fields}


def test_a_good_manifest_has_no_problems(folder: Path) -> None:
    good = [
        record("a", text="hello"),
        record("b", duration=1.009),  # rounded
        record("e", duration=0.91),  # the padding of a codec is left out
        record("c", "ten.wav", 4.0),
        record("d", "ten.wav", 6.0, start=4.0),
    ]
    assert problems_of(folder, *good) == []
    assert problems_of(folder, *good, check_audio="decode") == []


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        (record("a", "no.wav"), "missing-audio", "no.wav: no such file"),
        (record("a", "broken.wav"), "broken-audio", "broken.wav"),
        (record("a", duration=1.02), "wrong-duration", "ends at 1.020 s, but {folder}/one.wav has 1.000 s"),
        (record("a", "ten.wav", 2.0), "wrong-duration", "ends at 2.000 s, but {folder}/ten.wav has 10.000 s"),
        (record("a", "ten.wav", 2.0, start=9.0), "wrong-duration", "ends at 11.000 s, but {folder}/ten.wav has 10.000 s"),
        (record("a", text=" \u3000"), "empty-text", "no words"),
        (record("a", speeker="x"), "unreadable-record", "did you mean speaker?"),
    ],
)  # fmt: skip
def test_each_problem_is_reported(folder: Path, bad: dict, kind: str, message: str) -> None:
    (problem,) = problems_of(folder, bad)
    assert problem[:3] == (1, "a", kind)
    assert message.format(folder=folder) in problem[3]


def test_a_bad_record_hides_no_other(folder: Path) -> None:
    path = folder / "a.jsonl"
    lines = [
        b"\xff",
        b'{"id": "\\ud800"}',
        b"a" * 2_000_000,
        *(json.dumps(record("b", "no.wav", text="")).encode() for _ in range(2)),
    ]
    path.write_bytes(b"\n\n".join(lines))
    problems = [(problem.line, problem.id, problem.kind) for problem in validate(path)]
    assert problems == [
        *((line, None, "unreadable-record") for line in (1, 3, 5)),
        *((7, "b", kind) for kind in ("missing-audio", "empty-text")),
        *((9, "b", kind) for kind in ("duplicate-id", "missing-audio", "empty-text")),
    ]
    assert [problem.kind for problem in validate(path, check_audio="no")].count("missing-audio") == 0


def test_decoding_finds_what_the_header_hides(folder: Path) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, SAMPLE_RATE * 4)
    soundfile.write(folder / "cut.flac", samples, SAMPLE_RATE)
    data = (folder / "cut.flac").read_bytes()
    (folder / "cut.flac").write_bytes(data[: len(data) // 2])
    assert problems_of(folder, record("a", "cut.flac", 4.0)) == []
    ((_, _, kind, message),) = problems_of(folder, record("a", "cut.flac", 4.0), check_audio="decode")
    assert kind == "broken-audio"
    assert "cut.flac" in message


def test_texts_are_held_against_a_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(), ["ab ba"])
    texts = ("ab ba", "aé\tb?é", None, "  ", "AB, BA!")
    records = [record(str(number), text=text) for number, text in enumerate(texts)]
    problems = [problem[1:] for problem in problems_of(folder, *records, tokenizer=tokenizer)]
    assert [(id, kind) for id, kind, _ in problems] == [
        ("1", "unknown-characters"), ("2", "empty-text"), ("3", "empty-text"), ("4", "unknown-characters"),
    ]  # fmt: skip
    assert "'é' (U+00E9), '?' (U+003F)" in problems[0][2]
    rules = ("lowercase", "strip_punctuation", "collapse_spaces")  # of the training texts
    assert problems_of(folder, records[4], tokenizer=tokenizer, rules=rules) == []


@settings(max_examples=50)
@given(data=st.binary(max_size=300))
@example(data=b"\x1f\x8b")
@example(data=b"RIFF\0\0")
def test_any_bytes_give_problems_or_are_told_to_be_no_text(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("manifest") / "a.jsonl"
    path.write_bytes(data)
    try:
        for problem in validate(path):
            assert problem.message
    except UserError as error:
        if data.startswith(b"\x1f\x8b"):
            assert "damaged gzip file" in str(error)
        else:
            assert f"NUL at byte {data.index(0) + 1}; expected UTF-8" in str(error)
            assert 0 in data.split(b"\n")[0]


def test_statistics_of_a_known_manifest() -> None:
    utterances = [
        Utterance(id="a", audio="a.wav", duration=1800.0, text="one two", speaker="x", language="en"),
        Utterance(id="b", audio="b.wav", duration=3600.0, text="three", speaker="y"),
        Utterance(id="c", audio="c.wav", duration=5400.0, speaker="x"),
        Utterance(id="d", audio="d.wav", duration=3600.0, text=""),
    ]
    statistics = compute_statistics(utterances)
    assert (statistics.utterances, statistics.words, statistics.without_text) == (4, 3, 1)
    assert statistics.hours == 4.0
    assert list(statistics.hours_by_speaker.items()) == [("x", 2.0), ("y", 1.0)]
    assert statistics.hours_by_language == {"en": 0.5}
    assert [statistics.seconds[name] for name in ("0 %", "mean", "50 %", "100 %")] == [1800, 3600, 3600, 5400]


def test_problems_of_shards_are_those_of_a_manifest(tmp_path: Path) -> None:
    manifest = write_noise(tmp_path, 6)
    items = [item.model_copy(update={"text": ""}) if item.id == "u002" else item for item in manifest]
    write_manifest(tmp_path / "m.jsonl", items)
    folder = tmp_path / "shards"
    pack(Manifest.open(tmp_path / "m.jsonl"), folder, PackSettings("copy", hours=0.25 / 3600))

    def find(**options: object) -> list[tuple[str | None, str]]:
        return sorted((problem.id or "", problem.kind) for problem in validate(folder, **options))  # type: ignore[arg-type]

    assert count_records(folder) == 6
    wrong = [("u002", "empty-text")]
    assert find() == find(check_audio="decode") == find(check_audio="no") == wrong

    order = [item.id for item in read_data(folder)]
    [position] = (problem.line for problem in validate(folder) if problem.kind == "empty-text")
    assert order[position - 1] == "u002"

    whole = ShardFolder(folder).shards
    with open(whole[-1].address, "r+b") as file:  # a sample of the last shard: only its hash tells
        file.seek(list(whole[-1].utterances())[-1].offset + 100)
        (old,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([old ^ 1]))
        file.flush()
        assert find() == sorted([*wrong, ("", "changed-shard")]) and find(check_audio="no") == wrong
        file.seek(-1, 1)
        file.write(bytes([old]))
    with open(whole[0].address, "r+b") as file:  # the first file of the first shard
        file.seek(next(whole[0].utterances()).offset)
        file.write(b"RIFF, but not really")
    assert find() == sorted([*wrong, ("", "changed-shard"), (order[0], "broken-audio")])
    assert find(check_audio="no") == wrong
    last = Path(folder / whole[-1].info.index)
    last.write_bytes(last.read_bytes().replace(b"speaker", b"SPEAKER"))
    lost = [problem for problem in validate(folder, check_audio="no") if problem.id is None]
    assert [problem.kind for problem in lost] == ["unreadable-record"]
    assert lost[0].line == 1 + sum(shard.info.utterances for shard in whole[:-1])
