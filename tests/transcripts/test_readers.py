"""Formats are recognized by content; hostile files are read correctly or give an error message."""

from __future__ import annotations

import gzip
import io
import json
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from asr.errors import UserError
from asr.transcripts.readers import TranscriptFile, read_transcripts
from asr.transcripts.transcript import Segment, Transcript, Word
from asr.transcripts.writers import format_transcript

TEXTS = {"spk1-u1": "the cat sat", "spk1-u2": "", "spk2-u3": "naïve café"}


def write(folder: Path, content: str | bytes, name: str = "file.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def texts(file: TranscriptFile) -> dict[str, str | None]:
    return {id: entry.text for id, entry in file.entries.items()}


def jsonl(*records: dict[str, object]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


AS_RECORDS = [{"id": id, "text": text} for id, text in TEXTS.items()]

FORMATS = {
    "trn": "".join(f"{text} ({id})\n" for id, text in TEXTS.items()),
    "kaldi": "".join(f"{id} {text}\n" for id, text in TEXTS.items()),
    "jsonl": jsonl(*AS_RECORDS),
    "tsv": "path\tclient\tsentence\n" + "".join(f"{id}.mp3\tx\t{text}\n" for id, text in TEXTS.items()),
    "csv": "id,text\n" + "".join(f'{id},"{text}"\n' for id, text in TEXTS.items()),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_formats_with_ids_are_recognized(kind: str, line_end: str, tmp_path: Path) -> None:
    file = read_transcripts(write(tmp_path, FORMATS[kind].replace("\n", line_end)))
    assert file.format == kind
    assert texts(file) == TEXTS


def test_a_field_of_a_table_is_read_by_its_name(tmp_path: Path) -> None:
    """A record without the field has no text of that system, which differs from an empty text."""
    path = write(
        tmp_path, jsonl({"id": "a", "text": "x", "run.joint": ""}, {"id": "b", "text": "y", "other": "z"})
    )
    assert texts(read_transcripts(f"{path}#run.joint")) == {"a": ""}
    assert texts(read_transcripts(f"jsonl:{path}#other")) == {"b": "z"}
    with pytest.raises(UserError, match=r"no field 'nothing'; it has other, run\.joint"):
        read_transcripts(f"{path}#nothing")
    (tmp_path / "a#b.jsonl").write_text(path.read_text())
    assert texts(read_transcripts(tmp_path / "a#b.jsonl")) == {"a": "x", "b": "y"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("kind", FORMATS)
def test_encodings_and_gzip(kind: str, encoding: str, tmp_path: Path) -> None:
    last = FORMATS[kind].split("\n")[-2].replace("spk2-u3", "spk2-u4")
    content = FORMATS[kind] + last.replace("é", "\u0a0a")  # a letter whose bytes include a line end
    packed = write(tmp_path, gzip.compress(content.encode(encoding)), "file.gz")
    for path in (write(tmp_path, content.encode(encoding)), packed):
        file = read_transcripts(path)
        assert (file.format, texts(file)) == (kind, TEXTS | {"spk2-u4": "naïve caf\u0a0a"})


def test_plain_text_compares_line_with_line(tmp_path: Path) -> None:
    file = read_transcripts(write(tmp_path, "the cat sat\n\nhello world\n"))
    assert file.format == "plain"
    assert texts(file) == {"1": "the cat sat", "2": "", "3": "hello world"}
    assert any("line N" in note for note in file.notes)


def test_first_words_are_recognized_as_ids(tmp_path: Path) -> None:
    assert read_transcripts(write(tmp_path, "1 2 3\n4 5\n10:30 is late\n1,000 more\n")).format == "plain"
    path = write(tmp_path, "alpha one two\nbeta three\n")
    assert read_transcripts(path).format == "plain"
    expected = {"alpha": "one two", "beta": "three"}
    assert texts(read_transcripts(path, known_ids=expected)) == expected
    assert texts(read_transcripts(f"kaldi:{path}")) == expected
    with pytest.raises(UserError, match=r"file.txt:1: 'alpha one two'"):
        read_transcripts(f"trn:{path}")


def test_kaldi_folder_with_speakers(tmp_path: Path) -> None:
    write(tmp_path, "alpha one two\nbeta three\n", "text")
    write(tmp_path, "alpha s1\nbeta s2\n", "utt2spk")
    for path in (tmp_path, f"kaldi:{tmp_path / 'text'}"):
        file = read_transcripts(path)
        assert [entry.speaker for entry in file.entries.values()] == ["s1", "s2"]
        assert any("utt2spk" in note for note in file.notes)


STM = """;; CATEGORY "0" "" ""
rec1 1 01 0.00 2.00 <o,f0,male> hello big world
rec1 1 02 3.00 5.25 good morning
rec1 1 01 6.00 8.00 <o> IGNORE_TIME_SEGMENT_IN_SCORING
rec2 A 03 0.5 1
"""


def test_stm(tmp_path: Path) -> None:
    file = read_transcripts(write(tmp_path, STM))
    assert file.format == "stm"
    assert [entry.text for entry in file.entries.values()] == ["hello big world", "good morning", None, ""]
    first, second, _, last = file.entries.values()
    assert (first.speaker, first.start, first.duration, first.recording) == ("01", 0.0, 2.0, "rec1")
    assert (second.start, second.duration) == (3.0, 2.25)
    assert first.fields == {"label": "o,f0,male"}
    assert last.channel == "A"
    assert any("1 segments" in note and "ignored" in note for note in file.notes)


CTM = """;; comment
rec2 1 0.10 0.3 hello 0.9
rec1 1 0.60 0.25 world 0.8
rec1 1 0.10 0.3 hello
rec1 1 0.60 0.3 5 1.0
"""


def test_ctm_joins_the_words_of_a_recording_in_order_of_time(tmp_path: Path) -> None:
    file = read_transcripts(write(tmp_path, CTM))
    assert file.format == "ctm"
    assert texts(file) == {"rec2": "hello", "rec1": "hello world 5"}
    assert file.entries["rec1"].words[1] == Word("world", 0.6, 0.85, 0.8)
    two = read_transcripts(write(tmp_path, "r A 0.1 0.2 left\nr B 0.1 0.2 right\n"))
    assert texts(two) == {"r-A": "left", "r-B": "right"}


def test_manifest_fields(tmp_path: Path) -> None:
    record = {
        "id": "a", "audio": "x/a.wav", "start": 1.5, "duration": 2.0, "text": "hi", "speaker": "s",
        "language": "en", "extras": {"gender": "f", "age": 30},
    }  # fmt: skip
    entry = read_transcripts(write(tmp_path, jsonl(record, {"id": "b", "text": None}))).entries["a"]
    assert entry.audio == str(tmp_path / "x/a.wav")
    assert (entry.speaker, entry.start, entry.duration) == ("s", 1.5, 2.0)
    assert entry.fields == {"language": "en", "gender": "f", "age": "30"}


def test_both_sides_in_one_record(tmp_path: Path) -> None:
    path = write(tmp_path, jsonl({"audio_filepath": "/x/a.wav", "text": "right", "pred_text": "wrong"}))
    assert texts(read_transcripts(path)) == {"a": "right"}
    hypothesis = read_transcripts(path, "hypothesis")
    assert texts(hypothesis) == {"a": "wrong"}
    assert any("pred_text" in note for note in hypothesis.notes)


@pytest.mark.parametrize(("indent", "wrap"), [(None, False), (2, True)])
def test_transcripts_with_words(indent: int | None, wrap: bool, tmp_path: Path) -> None:
    word = {"text": "hi", "start": 0.5, "end": 0.7, "confidence": 0.25}
    record = {"id": "a", "segments": [{"start": 0.5, "end": 0.7, "text": "hi", "words": [word]}]}
    path = write(tmp_path, json.dumps([record] if wrap else record, indent=indent))
    entry = read_transcripts(path, "hypothesis").entries["a"]
    assert (entry.text, entry.words) == ("hi", (Word("hi", 0.5, 0.7, 0.25),))


def test_csv_with_quoted_line_ends(tmp_path: Path) -> None:
    file = read_transcripts(write(tmp_path, 'id,text,room\na,"one, two\nthree",hall\nb,"say ""x""",\n'))
    assert texts(file) == {"a": "one, two\nthree", "b": 'say "x"'}
    assert file.entries["a"].fields == {"room": "hall"}


WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=5)


@example(utterances={"a-1": [";;"]}, kind="trn")
@given(
    utterances=st.dictionaries(
        st.from_regex(r"[a-z]{1,3}-[0-9]{1,4}", fullmatch=True),
        st.lists(WORDS | st.just(";;"), max_size=5),
        min_size=1,
        max_size=8,
    ),
    kind=st.sampled_from(["trn", "kaldi", "jsonl", "tsv"]),
)
def test_any_text_survives_any_format(
    utterances: dict[str, list[str]], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spoken = {id: " ".join(words) for id, words in utterances.items()}
    content = {
        "trn": "".join(
            format_transcript("trn", Transcript(id, "", 1.0, (Segment(0.0, 1.0, text),)))
            for id, text in spoken.items()
        ),
        "kaldi": "".join(f"{id} {text}\n" for id, text in spoken.items()),
        "jsonl": jsonl(*({"id": id, "text": text} for id, text in spoken.items())),
        "tsv": "id\ttext\n" + "".join(f"{id}\t{text}\n" for id, text in spoken.items()),
    }[kind]
    path = write(tmp_path_factory.mktemp("any"), content)
    assert texts(read_transcripts(f"{kind}:{path}")) == spoken


# --- hostile input ------------------------------------------------------------------------------

DEFECTS = {
    "nul": (b"u_1 one\nu_2 t\0wo\n", r"file.txt:2: NUL at byte 6, .*binary"),
    "utf16_without_mark": ("u_1 one\nu_2 two\n".encode("utf-16-le"), r"file.txt:1: NUL .*UTF-16.*iconv"),
    "latin1": ("u_1 one\nu_2 caf\u00e9\n".encode("latin-1"), r"file.txt:2: byte 8 is not UTF-8 .*iconv -f latin1"),
    "mixed": (b"u_1 caf\xc3\xa9\nu_2 caf\xe9\n", r"file.txt:2: byte 8 is not UTF-8"),
    "half_utf16": (b"\xff\xfea\0b", r"file.txt:1: not UTF-16-LE, although its first bytes say so"),
    "gzip": (b"\x1f\x8b\x08\0abc", "damaged gzip file"),
    "empty": (b"", "contains no utterances"),
    "only_mark": (b"\xef\xbb\xbf", "contains no utterances"),
    "twice": (b"u_1 one\nu_2 two\nu_1 three\n", r"file.txt:3: duplicate id 'u_1', with another text"),
    "twice_same": (b"u_1 one\nu_1 one\n", r"with the same text"),
    "broken_json": (b'{"id": "a", "text": "x"}\n{"id": "b", "te\n', r"file.txt:2: not a JSON object"),
    "broken_first": (b'{"id": "a", "text": \n', "neither JSON Lines nor one JSON value"),
    "json_list": (b'{"id": "a", "text": "x"}\n[1]\n', r"file.txt:2: not a JSON object"),
    "no_text": (b'{"id": "a", "tekst": "x"}\n', r"file.txt:1: no text among id, tekst"),
    "no_id": (b'{"text": "x"}\n', r"file.txt:1: no id"),
    "text_number": (b'{"id": "a", "text": 5}\n', r"file.txt:1: text = 5: expected a string"),
    "surrogate": (b'{"id": "a", "text": "\\ud800"}\n', r"file.txt:1: utterance 'a' .*surrogate"),
    "id_with_newline": (b'{"id": "a\\nb", "text": "x"}\n', r"file.txt:1: utterance .*control character"),
    "deep": (b'{"id": "a", "text": "x", "y": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "neither JSON Lines nor one JSON value"),
    "bad_times": (b'{"id": "a", "text": "x", "start": "soon"}\n', r"file.txt:1: start = 'soon': expected a number of seconds"),
    "short_row": (b"id\ttext\na\tone\nb\n", r"file.txt:3: 1 cells, but the header names 2 columns"),
    "broken_csv": (b'id,text\na,"one\n', r"file.txt:2: not a row of a CSV table"),
    "alternatives": (b"r 1 1.0 0.5 one\nr 1 * * <ALT_BEGIN>\n", r"file.txt:2: alternatives"),
    "stm_backwards": (
        b"".join(b"r 1 s %d %d a\n" % (i, i + 1) for i in range(200)) + b"r 1 s 5 4 b\n",
        r"file.txt:201: 'r 1 s 5 4 b'",
    ),
    "stm_broken_late": (b"".join(b"r 1 s %d %d a\n" % (i, i + 1) for i in range(250)) + b"oops\n", r"file.txt:251: 'oops'"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_unreadable_files_are_explained(name: str, tmp_path: Path) -> None:
    content, message = DEFECTS[name]
    with pytest.raises(UserError, match=message):
        read_transcripts(write(tmp_path, content))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for kind in ("jsonl", "tsv", "csv", "kaldi"):
        with pytest.raises(UserError, match=r"contains no utterances|neither JSON Lines nor one JSON value"):
            read_transcripts(f"{kind}:{write(tmp_path, '')}")
    with pytest.raises(UserError, match="cannot read the file"):
        read_transcripts(tmp_path / "nothing")
    with pytest.raises(UserError, match="not a Kaldi data folder"):
        read_transcripts(tmp_path)


def test_100_megabytes_on_one_line_are_refused_early(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    with open(path, "wb") as file:
        for _ in range(100):
            file.write(b"word " * 200_000)
    started = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"long.txt:1: the line is longer than 50,000,000 bytes"):
            read_transcripts(path)
        assert tracemalloc.get_traced_memory()[1] < 130e6  # the pieces and their sum
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started < 5
    path.write_bytes(b"word " * 1_000_000)
    with pytest.raises(UserError, match=r"long.txt:1: a text of 4,999,999 characters"):
        read_transcripts(path)


def test_a_pipe_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FORMATS["trn"].encode())))
    file = read_transcripts("-")
    assert (file.path, texts(file)) == ("standard input", TEXTS)


def test_subtitles_are_refused(tmp_path: Path) -> None:
    """As plain text, their numbers and times would be scored."""
    for content in (
        "1\n00:00:00,000 --> 00:00:01,500\nThe cat\n",
        "WEBVTT\n\n00:00.000 --> 00:01.500\nThe cat\n",
    ):
        with pytest.raises(UserError, match="subtitles"):
            read_transcripts(write(tmp_path, content))
