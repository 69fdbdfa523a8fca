"""Manifests as other tools write them; information that a format cannot hold is reported."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings, strategies as st

from asr.cli import main
from asr.data import COLUMNS, SOURCES, Utterance, read_manifest
from asr.errors import UserError
from asr.formats.foreign_manifests import guess_source_kind, read_utterances
from asr.transcripts.readers import read_transcripts


def write_silence(path: Path, seconds: float) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.zeros(round(seconds * 8000)), 8000)
    return str(path)


def convert(path: Path, content: str | None = None, **options: Any) -> dict[str, Utterance]:
    if content is not None:
        path.write_text(content)
    return {item.id: item for item in read_utterances(path, guess_source_kind(path), **options)}


# --- NeMo ---------------------------------------------------------------------------------------


def test_a_nemo_manifest_as_its_scripts_write_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "train.json"
    path.write_text(
        '{"audio_filepath": "/data/1355-0000.wav", "duration": 11.3, "text": "psychotherapy and"}\n'
        '{"audio_filepath": "clips/tape.wav", "offset": 3.45, "duration": 1.45, "text": "", "speaker": 7,'
        ' "lang": "en", "pnc": "yes", "score": 0.5, "words": [1, 2], "orig_sr": 48000, "label": null}\n'
        '{"audio_filepath": "clips/tape.wav", "offset": null, "duration": 1, "text": "x", "id": "mine"}\n'
        '{"audio_filepath": "/data/1355-0000.wav", "duration": 1, "words": []}\n'
    )
    assert list(read_utterances(path, "nemo")) == [
        Utterance(id="1355-0000", audio="/data/1355-0000.wav", duration=11.3, text="psychotherapy and"),
        Utterance(
            id="tape-0003450-0004900",
            audio=f"{tmp_path}/clips/tape.wav",
            start=3.45,
            duration=1.45,
            text="",
            speaker="7",
            language="en",
            extras={"pnc": "yes", "score": 0.5, "orig_sr": 48000, "label": None},
        ),
        Utterance(id="mine", audio=f"{tmp_path}/clips/tape.wav", duration=1.0, text="x"),
        Utterance(id="1355-0000-2", audio="/data/1355-0000.wav", duration=1.0),
    ]
    assert "2 utterances lose 'words', a list or an object" in caplog.text


def test_a_missing_duration_is_measured(tmp_path: Path) -> None:
    audio = write_silence(tmp_path / "a.wav", 2.5)
    record = {"audio_filepath": "a.wav", "duration": None, "offset": 0.5}
    (utterance,) = convert(tmp_path / "a.json", json.dumps(record)).values()
    assert (utterance.audio, utterance.start, utterance.duration) == (audio, 0.5, 2.0)
    with pytest.raises(UserError, match=r"a\.json:1: the duration is missing, and .*no\.wav"):
        convert(tmp_path / "a.json", '{"audio_filepath": "no.wav"}')


# --- tables -------------------------------------------------------------------------------------

CLIPS = {  # release 25: the columns that its bundler writes, of a clip each
    "client_id": ("ab12", "cd34", "ab12"),
    "path": tuple(f"common_voice_sl_{number}.wav" for number in (1, 2, 3)),
    "sentence_id": ("5e", "6f", "70"),
    "sentence": ('Rekel je: "Ne."', '"Kdo?"', "'Ja', je rekla ona"),
    "sentence_domain": ("general,finance,news_current_affairs", "", "agriculture_food"),
    "up_votes": ("2", "3", "2"),
    "gender": ("female_feminine", "", "female_feminine"),
    "accents": ("Ljubljana, osrednja Slovenija", "", ""),
    "locale": ("sl", "sl", "sl"),
    "segment": ("", "", ""),
}


def test_a_whole_folder_of_common_voice(tmp_path: Path) -> None:
    """The archive of a language as release 25 is given out; its tables are written by pandas without quotes."""
    folder = tmp_path / "cv-corpus-25.0-2026-03-09" / "sl"
    for row, path in enumerate(CLIPS["path"]):
        write_silence(folder / "clips" / path, 1 + row)
    columns = {"validated": list(CLIPS), "train": sorted(CLIPS), "dev": list(CLIPS)}  # some sort them by name
    rows = {"validated": (0, 1, 2), "train": (0, 2), "dev": ()}
    known = ("client_id", "path", "sentence", "locale")
    for name, chosen in rows.items():
        lines = [columns[name], *([CLIPS[column][row] for column in columns[name]] for row in chosen)]
        (folder / f"{name}.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
        assert main(["manifest", "convert", str(folder / f"{name}.tsv"), str(tmp_path / "out.jsonl")]) == 0
        assert list(read_manifest(tmp_path / "out.jsonl")) == [
            Utterance(
                id=CLIPS["path"][row].removesuffix(".wav"),
                audio=str(folder / "clips" / CLIPS["path"][row]),
                duration=1 + row,
                text=CLIPS["sentence"][row],
                speaker=CLIPS["client_id"][row],
                language="sl",
                extras={
                    column: cells[row]
                    for column, cells in CLIPS.items()
                    if column not in known and cells[row]
                },
            )
            for row in chosen
        ]


def test_a_plain_csv_table(tmp_path: Path) -> None:
    audio = write_silence(tmp_path / "audio" / "a.wav", 0.5)
    (tmp_path / "a.csv").write_bytes(
        b'\xef\xbb\xbfPath,Text,accent\r\naudio/a.wav,"one, ""two""\r\n\r\nthree",north\r\n\r\naudio/a.wav,,\r\n'
    )
    extras = {"accent": "north"}
    assert list(convert(tmp_path / "a.csv").values()) == [
        Utterance(id="a", audio=audio, duration=0.5, text='one, "two"\r\n\r\nthree', extras=extras),
        Utterance(id="a-2", audio=audio, duration=0.5, text=""),
    ]


def test_a_speechbrain_table(tmp_path: Path) -> None:
    content = "ID,duration,start,stop,wav,spk_id,wrd\n84-1,2.5,1.0,3.5,a/84-1.flac,84,GO ON\n"
    assert convert(tmp_path / "train.csv", content)["84-1"] == Utterance(
        id="84-1",
        audio=f"{tmp_path}/a/84-1.flac",
        start=1,
        duration=2.5,
        text="GO ON",
        speaker="84",
        extras={"stop": "3.5"},
    )
    content = "ID,start,stop,wav,wrd\n84-1,1.0,3.5,84-1.flac,GO\n"
    assert convert(tmp_path / "train.csv", content)["84-1"].duration == 2.5


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "no audio column among nothing"),
        ("a.csv", b"sound,transcript\n", r"among 'sound', 'transcript'; known names are .*file.*wav.*wrd"),
        ("a.csv", b"path,x,x\n", "two have the same name"),
        ("a.csv", b"path,,text\n", "a column has no name"),
        ("a.csv", b"path,text\na.wav\n", "a.csv:2: 1 cells, but the header names 2 columns"),
        ("a.csv", b'path,text\na.wav,"x"y\n', "a.csv:2: not a row of a CSV table"),
        ("a.csv", b'path,text\na.wav,"' + b"x\n" * 200_000, "field larger than field limit"),
        ("a.csv", b"path,text\n" + b"x" * 3_000_000, "a.csv:2: .*field larger than field limit"),
        ("a.csv", b"path,text\na.wav,\xff\n", "a.csv:2: byte 7 is not UTF-8"),
        ("a.csv", b"path,duration\na.wav,1s\n", "a.csv:2: duration = '1s': expected a number of seconds"),
        ("a.csv", b"path,duration\n,1\n", "a.csv:2: the path of the audio file is missing"),
        ("a.tsv", b"path\tx\n" + b"x" * 3_000_000, "a.tsv:2: 1 cells, but the header names 2 columns"),
        ("a.json", b'{"audio": 1}\n[1]', "a.json:1: .*audio"),
        ("a.json", b'{"audio": "a", "duration": 1}\n{', "a.json:2: not a JSON object"),
        ("a.json", b'{"audio": "a", "duration": 1}\n' + b"[" * 100_000, "a.json:2: not a JSON object"),
        ("a.json", b'{"audio": "a\\u0000.wav"}', "a.json:1: the duration is missing, and"),
        ("a.json", b'{"audio": "a.wav", "duration": NaN}', "duration = NaN: expected a number of seconds"),
        ("a.json", b'{"audio": "a.wav", "duration": 1, "x": "\\ud800"}', "a.json:1: .*extras"),
        ("a.json", b'{"audio": "a", "duration": 1, "text": "' + b"a" * 1_000_001 + b'"}', "a.json:1: .*text"),
    ],
)  # fmt: skip
def test_a_bad_record_is_named_by_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        convert(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value) and len(str(caught.value)) < 1000


def test_a_row_of_endless_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asr.data.tables.MAX_TEXT_LINE_BYTES", 1000)
    (tmp_path / "a.csv").write_bytes(b"path,text\n" + b'"x\n",' * 300)
    for read in (convert, lambda path: read_transcripts(f"csv:{path}").entries):
        with pytest.raises(UserError, match=r"a\.csv:\d+: the row is longer than 1,000 characters"):
            list(read(tmp_path / "a.csv"))


@settings(max_examples=50)
@given(
    data=st.binary(max_size=100),
    head=st.sampled_from([b"", b"path,text\n", b"path\ttext\n", b'{"audio_filepath":']),
)
def test_any_bytes_give_utterances_or_a_user_error(
    tmp_path_factory: pytest.TempPathFactory, head: bytes, data: bytes
) -> None:
    logging.disable(logging.WARNING)
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "a").write_bytes(head + data)
    (folder / "wav.scp").write_bytes(data)
    (folder / "text").write_bytes(data)
    for kind in SOURCES:
        try:
            list(read_utterances(folder if kind == "kaldi" else folder / "a", kind))
        except UserError as error:
            assert str(error)
    logging.disable(logging.NOTSET)


# --- folders and tables that people have ---------------------------------------------------------


def test_recordings_with_a_text_beside_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserError, match=r"has no wav\.scp, tables"):
        convert(tmp_path)
    audio = write_silence(tmp_path / "anna" / "a 1.WAV", 1)
    (tmp_path / "anna" / "a 1.TXT").write_text("lights on\n")
    write_silence(tmp_path / "test" / "b.wav", 1)
    found = convert(tmp_path)
    assert found["anna-a_1"] == Utterance(id="anna-a_1", audio=audio, duration=1, text="lights on")
    assert (found["test-b"].text, found["test-b"].extras) == (None, {"split": "test"})
    assert "1 utterances have no text, because there is no .txt" in caplog.text


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
def test_an_audiofolder_of_hugging_face(tmp_path: Path, name: str) -> None:
    for split in ("train", "test"):
        audio = write_silence(tmp_path / split / "data" / f"{split}.wav", 1)
        record = {"file_name": f"data/{split}.wav", "transcription": "yes", "age": "30"}
        lines = {
            "metadata.jsonl": json.dumps(record),
            "metadata.csv": ",".join(record) + "\n" + ",".join(record.values()),
        }
        (tmp_path / split / name).write_text(lines[name])
    found = convert(tmp_path)
    extras = {"age": "30", "split": "test"}
    assert found["test"] == Utterance(id="test", audio=audio, duration=1, text="yes", extras=extras)
    assert found["train"].extras["split"] == "train"
    assert convert(tmp_path / "test" / name)["test"].text == "yes"


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
def test_an_audiofolder_with_one_table(tmp_path: Path, name: str) -> None:
    """The folder of the audio is the split; folders above the data set say nothing."""
    root = tmp_path / "test" / "corpus"
    names = ("train/x.wav", "test/y.wav", "other/z.wav", str(tmp_path / "test" / "far.wav"))
    for file in names:
        write_silence(root / file, 1)
    lines = {
        "metadata.jsonl": [json.dumps({"file_name": file, "transcription": "yes"}) for file in names],
        "metadata.csv": ["file_name,transcription", *(f"{file},yes" for file in names)],
    }
    (root / name).write_text("\n".join(lines[name]))
    splits = {id: item.extras.get("split") for id, item in convert(root).items()}
    assert splits == {"x": "train", "y": "test", "z": None, "far": None}


def test_ljspeech(tmp_path: Path) -> None:
    audio = write_silence(tmp_path / "wavs" / "LJ001-0007.wav", 1)
    (tmp_path / "metadata.csv").write_text('LJ001-0007|"in 1455, he|"in fourteen fifty-five, he\n')
    for path in (tmp_path, tmp_path / "metadata.csv"):
        (found,) = convert(path).values()
        assert (found.id, found.audio, found.text) == ("LJ001-0007", audio, '"in fourteen fifty-five, he')
        assert convert(path, text_column="raw_text")[found.id].text == '"in 1455, he'
    (tmp_path / "metadata.csv").write_text("wavs/LJ001-0007.wav|in 1455\n")
    assert convert(tmp_path)["LJ001-0007"].text == "in 1455"


def test_the_separator_is_found(tmp_path: Path) -> None:
    for separator, suffix in itertools.product(",;\t|", ("csv", "tsv")):
        rows = ("path", "text", "duration"), ("a.wav", "x", "1")
        assert convert(tmp_path / f"a.{suffix}", "\n".join(map(separator.join, rows)))["a"].text == "x"


def test_the_column_of_the_texts_may_be_chosen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = "path,duration,Words,text,sentence\na.wav,1,one,two,three\n"
    assert convert(tmp_path / "a.csv", content)["a"].text == "two"
    assert "using text as text, not sentence; choose with --text-column" in caplog.text
    (tmp_path / "a.json").write_text('{"audio": "a.wav", "duration": 1, "Words": "one", "text": "two"}\n')
    for name in ("a.csv", "a.json"):
        found = convert(tmp_path / name, text_column="words")["a"]
        assert (found.text, found.extras["text"]) == ("one", "two")
        with pytest.raises(UserError, match=r"no column 'verse' among .*'Words'"):
            convert(tmp_path / name, text_column="verse")
    convert(tmp_path / "b.csv", "path,duration,verse\na.wav,1,yes\n")
    assert "no utterance has a text" in caplog.text and "'verse'" in caplog.text


@pytest.mark.parametrize("meaning", COLUMNS)
def test_manifests_and_scoring_know_every_name(meaning: str, tmp_path: Path) -> None:
    for name in COLUMNS[meaning]:
        needed = {"id": "id", "audio": "path", "text": "text", "duration": "duration"}
        needed.pop({"milliseconds": "duration", "end": "duration"}.get(meaning, meaning), None)
        row = {column: {"duration": "2"}.get(column, "x") for column in needed.values()} | {name.upper(): "3"}
        (found,) = convert(tmp_path / "t.csv", f"{','.join(row)}\n{','.join(row.values())}\n").values()
        assert found.extras == {}, name
        if meaning in ("id", "audio", "text", "speaker"):
            ((id, entry),) = read_transcripts(tmp_path / "t.csv").entries.items()
            assert id == found.id and entry.text == found.text and entry.speaker == found.speaker
            assert name == "client_id" or entry.audio == found.audio  # Common Voice's lies in clips/


def test_kinds_are_guessed(tmp_path: Path) -> None:
    (tmp_path / "ours.jsonl").write_text('{"id": "a"}\n')
    for name in ("nemo.jsonl", "nemo.json"):
        (tmp_path / name).write_text('\n{"audio_filepath": "a.wav"}\n')
    for name in ("a.csv", "a.TSV", "a.txt"):
        (tmp_path / name).touch()
    with gzip.open(tmp_path / "packed.csv.gz", "wt") as file:
        file.write("path,duration\na.wav,1\n")
    sources = {"": "kaldi", "a.csv": "csv", "a.TSV": "tsv", "packed.csv.gz": "csv", "ours.jsonl": "jsonl"}
    sources |= {"nemo.jsonl": "nemo", "nemo.json": "nemo"}
    assert {name: guess_source_kind(tmp_path / name) for name in sources} == sources
    assert convert(tmp_path / "packed.csv.gz").keys() == {"a"}
    with pytest.raises(UserError, match=r"a\.txt: unknown kind of manifest"):
        guess_source_kind(tmp_path / "a.txt")
    with pytest.raises(UserError, match="no such file or folder"):
        guess_source_kind(tmp_path / "lost")
