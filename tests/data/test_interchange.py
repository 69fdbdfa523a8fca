"""Manifests as other tools write them, and there and back; what a format cannot hold is told."""

from __future__ import annotations

import csv
import gzip
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings, strategies as st

from asr.cli import main
from asr.data import (
    COLUMNS,
    KINDS,
    Kind,
    Utterance,
    guess_source_kind,
    guess_target_kind,
    read_csv,
    read_manifest,
    read_nemo,
    read_tsv,
    read_utterances,
    write_csv,
    write_nemo,
    write_tsv,
    write_utterances,
)
from asr.errors import UserError
from asr.transcripts import read_transcripts


def write_silence(path: Path, seconds: float) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.zeros(round(seconds * 8000)), 8000)
    return str(path)


# --- NeMo ---------------------------------------------------------------------------------------


def test_a_nemo_manifest_as_its_scripts_write_it(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text(
        '{"audio_filepath": "/data/1355-0000.wav", "duration": 11.3, "text": "psychotherapy and"}\n'
        '{"audio_filepath": "clips/tape.wav", "offset": 3.45, "duration": 1.45, "text": "", "speaker": 7,'
        ' "lang": "en", "pnc": "yes", "score": 0.5, "words": [1, 2], "orig_sr": 48000, "label": null}\n'
        '{"audio_filepath": "clips/tape.wav", "offset": null, "duration": 1, "text": "x", "id": "mine"}\n'
    )
    assert list(read_nemo(path)) == [
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
    ]


def test_fields_that_cannot_be_kept_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = {"audio_filepath": "/a.wav", "duration": 1, "words": [1], "alignment": {}}
    (tmp_path / "a.json").write_text(f"{json.dumps(record)}\n" * 2)
    ids = [utterance.id for utterance in read_nemo(tmp_path / "a.json")]
    assert ids == ["a", "a-2"]
    assert "2 utterances lose 'words', a list or an object" in caplog.text
    assert "2 utterances lose 'alignment'" in caplog.text


def test_a_missing_duration_is_measured(tmp_path: Path) -> None:
    audio = write_silence(tmp_path / "a.wav", 2.5)
    record = {"audio_filepath": "a.wav", "duration": None, "offset": 0.5}
    (tmp_path / "a.json").write_text(json.dumps(record))
    (utterance,) = read_nemo(tmp_path / "a.json")
    assert (utterance.audio, utterance.start, utterance.duration) == (audio, 0.5, 2.0)
    (tmp_path / "a.json").write_text('{"audio_filepath": "no.wav"}')
    with pytest.raises(UserError, match=r"a\.json:1: the duration is not given, and .*no\.wav"):
        list(read_nemo(tmp_path / "a.json"))


def test_a_nemo_manifest_is_written_with_its_own_names(tmp_path: Path) -> None:
    utterance = Utterance(
        id="a", audio=f"{tmp_path}/a.wav", start=1.0, duration=2.0, text="é", language="fr", extras={"pnc": "no"}
    )  # fmt: skip
    assert write_nemo(tmp_path / "a.json", [utterance]) == 1
    assert json.loads((tmp_path / "a.json").read_text()) == {
        "id": "a",
        "audio_filepath": f"{tmp_path}/a.wav",
        "offset": 1.0,
        "duration": 2.0,
        "text": "é",
        "lang": "fr",
        "pnc": "no",
    }
    clash = Utterance(id="a", audio="/a.wav", duration=1.0, extras={"offset": 1})
    with pytest.raises(UserError, match=r"utterance a: extras\.offset cannot be a column"):
        write_nemo(tmp_path / "b.json", [clash])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "a.json:1: not a JSON object on one line; it begins with '[1]'"),
        ("{", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ('{"text": "x", "duration": 1}', "a.json:1: the path of the audio file is missing"),
        ('{"audio_filepath": 3, "duration": 1}', "audio = 3: expected the path"),
        ('{"audio_filepath": "a\\u0000.wav"}', "a.json:1: the duration is not given, and"),
        ('{"audio_filepath": "a.wav", "duration": "1s"}', "duration = '1s': expected seconds"),
        ('{"audio_filepath": "a.wav", "duration": NaN}', "duration = nan: expected seconds"),
        ('{"audio_filepath": "a.wav", "duration": 1, "x": "\\ud800"}', "extras: half a character"),
        (
            '{"audio_filepath": "a.wav", "duration": 1, "text": "' + "a" * 1_000_001 + '"}',
            "expected a string of at most 1,000,000 characters",
        ),
    ],
)
def test_a_bad_nemo_record_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.json").write_text(line)
    with pytest.raises(UserError) as caught:
        list(read_nemo(tmp_path / "a.json"))
    assert message in str(caught.value)


# --- tables -------------------------------------------------------------------------------------

COMMON_VOICE = (
    "client_id\tpath\tsentence_id\tsentence\tsentence_domain\tup_votes\tdown_votes\tage\tgender\taccents\tvariant\tlocale\tsegment\n"
    'ab12\tcommon_voice_en_1.mp3\ts1\tHe said "no.\t\t2\t0\ttwenties\t\tScottish, "Glasgow"\t\ten\t\n'
    "cd34\tcommon_voice_en_2.mp3\ts2\t\"Yes\"\t\t3\t1\t\t\t\t\ten\t\n"
)  # fmt: skip


def test_a_common_voice_table(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(COMMON_VOICE)
    durations = "clip\tduration[ms]\ncommon_voice_en_1.mp3\t4728\ncommon_voice_en_2.mp3\t3500\n"
    (tmp_path / "clip_durations.tsv").write_text(durations)
    first, second = read_tsv(tmp_path / "train.tsv")
    assert first == Utterance(
        id="common_voice_en_1",
        audio=f"{tmp_path}/clips/common_voice_en_1.mp3",
        duration=4.728,
        text='He said "no.',
        speaker="ab12",
        language="en",
        extras={
            "sentence_id": "s1",
            "up_votes": "2",
            "down_votes": "0",
            "age": "twenties",
            "accents": 'Scottish, "Glasgow"',
        },
    )
    assert (second.text, second.duration) == ('"Yes"', 3.5)


CLIPS = {  # release 25: the columns that its bundler writes, of a clip each
    "client_id": ("ab12", "cd34", "ab12"),
    "path": tuple(f"common_voice_sl_{number}.mp3" for number in (1, 2, 3)),
    "sentence_id": ("5e", "6f", "70"),
    "sentence": ('Rekel je: "Ne."', "Kdo?", "'Ja', je rekla ona"),
    "sentence_domain": ("general,finance,news_current_affairs", "", "agriculture_food"),
    "up_votes": ("2", "3", "2"),
    "down_votes": ("0", "1", "0"),
    "age": ("twenties", "", "twenties"),
    "gender": ("female_feminine", "", "female_feminine"),
    "accents": ("Ljubljana, osrednja Slovenija", "", ""),
    "variant": ("", "", ""),
    "locale": ("sl", "sl", "sl"),
    "segment": ("", "", ""),
}


@pytest.mark.parametrize("heading", ["clip", "filename"])
def test_a_whole_folder_of_common_voice(tmp_path: Path, heading: str) -> None:
    """The archive of a language as release 25 is given out; its tables are written by pandas without quotes."""
    folder = tmp_path / "cv-corpus-25.0-2026-03-09" / "sl"
    (folder / "clips").mkdir(parents=True)
    (folder / "README.md").write_text("# Slovenian")
    columns = {"validated": list(CLIPS), "train": sorted(CLIPS)}  # some releases sort them by name
    rows = {"validated": (0, 1, 2), "train": (0, 2), "dev": ()}
    for name, chosen in rows.items():
        with (folder / f"{name}.tsv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(
                file,
                delimiter="\t",
                lineterminator="\n",
                quoting=csv.QUOTE_NONE,
                quotechar=None,
                escapechar="\\",
            )
            names = columns.get(name, list(CLIPS))
            writer.writerows([names, *([CLIPS[column][row] for column in names] for row in chosen)])
    durations = "".join(f"{path}\t{1000 + row}\n" for row, path in enumerate(CLIPS["path"]))
    (folder / "clip_durations.tsv").write_text(f"{heading}\tduration[ms]\n{durations}")
    out = tmp_path / "out.jsonl"
    for name, chosen in rows.items():
        assert main(["manifest", "convert", str(folder / f"{name}.tsv"), str(out)]) == 0
        found = list(read_manifest(out))
        assert [utterance.text for utterance in found] == [CLIPS["sentence"][row] for row in chosen]
        assert [utterance.audio for utterance in found] == [
            str(folder / "clips" / CLIPS["path"][row]) for row in chosen
        ]
        assert [utterance.duration for utterance in found] == [(1000 + row) / 1000 for row in chosen]
        assert [utterance.speaker for utterance in found] == [CLIPS["client_id"][row] for row in chosen]
        assert {utterance.language for utterance in found} <= {"sl"}
        known = ("client_id", "path", "sentence", "locale")
        assert [utterance.extras for utterance in found] == [
            {column: cells[row] for column, cells in CLIPS.items() if column not in known and cells[row]}
            for row in chosen
        ]


def test_spontaneous_speech_of_common_voice(tmp_path: Path) -> None:
    """Release 5: what nobody has written down has no text; the code of the language is in the name of the file."""
    folder = tmp_path / "sps-corpus-5.0-2026-09-11-gv"
    (folder / "audios").mkdir(parents=True)
    names = (
        *(
            "client_id",
            "audio_id",
            "audio_file",
            "duration_ms",
            "prompt_id",
            "prompt",
            "transcription",
            "votes",
        ),
        *("age", "gender", "accents", "variant", "language", "prompt_upvotes", "prompt_reports", "is_edited"),
        *("split", "char_per_sec", "quality_tags"),
    )
    first = {"transcription": "ta mee [disfluency] toiggal", "split": "train", "quality_tags": "short-audio"}
    rows = []
    for number, own in enumerate((first, {"split": "unassigned"}), start=1):
        cells = {
            "client_id": "ab12",
            "audio_id": str(number),
            "audio_file": f"spontaneous-speech-gv-{number}.mp3",
        }
        cells |= {"duration_ms": "6120", "language": "Manx", "prompt": "What do you do?", **own}
        rows.append("\t".join(cells.get(name, "") for name in names))
    (folder / "ss-corpus-gv.tsv").write_text("\n".join(["\t".join(names), *rows]) + "\n")
    told, untold = read_tsv(folder / "ss-corpus-gv.tsv")
    assert (told.id, told.text, told.language) == ("spontaneous-speech-gv-1", first["transcription"], "gv")
    assert (told.audio, told.duration) == (f"{folder}/audios/spontaneous-speech-gv-1.mp3", 6.12)
    assert (told.speaker, told.extras["split"], told.extras["quality_tags"]) == (
        "ab12",
        "train",
        "short-audio",
    )
    assert untold.text is None and untold.extras == {
        "audio_id": "2",
        "prompt": "What do you do?",
        "split": "unassigned",
    }


def test_common_voice_without_its_durations_is_measured(tmp_path: Path) -> None:
    audio = write_silence(tmp_path / "clips" / "a.wav", 1.25)
    (tmp_path / "dev.tsv").write_text("client_id\tpath\tsentence\tlocale\nx\ta.wav\thello\ten\n")
    (utterance,) = read_tsv(tmp_path / "dev.tsv")
    assert (utterance.audio, utterance.duration) == (audio, 1.25)


def test_a_plain_csv_table(tmp_path: Path) -> None:
    audio = write_silence(tmp_path / "audio" / "a.wav", 0.5)
    (tmp_path / "a.csv").write_bytes(
        b'\xef\xbb\xbfPath,Text,accent\r\naudio/a.wav,"one, ""two""\r\n\r\nthree",north\r\n\r\naudio/a.wav,,\r\n'
    )
    assert list(read_csv(tmp_path / "a.csv")) == [
        Utterance(
            id="a", audio=audio, duration=0.5, text='one, "two"\r\n\r\nthree', extras={"accent": "north"}
        ),
        Utterance(id="a-2", audio=audio, duration=0.5, text=""),
    ]


@pytest.mark.parametrize(
    ("name", "cell"), [("duration", "2.5"), ("duration_ms", "2500"), ("duration[ms]", "2500")]
)
def test_durations_in_a_table(tmp_path: Path, name: str, cell: str) -> None:
    (tmp_path / "a.csv").write_text(
        f"id,wav_filename,wav_filesize,{name},transcript\nx,/a.wav,99,{cell},yes\n"
    )
    (utterance,) = read_csv(tmp_path / "a.csv")
    expected = Utterance(id="x", audio="/a.wav", duration=2.5, text="yes", extras={"wav_filesize": "99"})
    assert utterance == expected


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        ("csv", b"", "no column for the audio; the header has nothing"),
        ("csv", b"a.wav\n", "the header has 'a.wav'. Known are id"),
        ("csv", b"path,audio\n", "the columns path and audio mean the same"),
        ("csv", b"path,x,x\n", "two columns are named 'x'"),
        ("csv", b"path,duration,duration_ms\n", "the columns duration and duration_ms mean the same"),
        ("csv", b"path,,text\n", "column 2 has no name"),
        ("csv", b"path,text\na.wav\n", "a.csv:2: 1 cells, but the header names 2 columns"),
        ("csv", b"path,text\na.wav,x,y\n", "a.csv:2: 3 cells"),
        ("csv", b'path,text\na.wav,"x"y\n', "a.csv:2: not a row of a CSV table"),
        ("csv", b'path,text\na.wav,"' + b"x" * 200_000, "not a row of a CSV table (field larger than field limit"),
        ("csv", b'path,text\na.wav,"' + b"x\n" * 200_000, "not a row of a CSV table (field larger than field limit"),
        ("csv", b"path,text\n" + b"x" * 3_000_000, "a.csv:2: not a row of a CSV table (field larger than field limit"),
        ("tsv", b"path\tx\n" + b"x" * 3_000_000, "a.tsv:2: 1 cells, but the header names 2 columns"),
        ("csv", b"path,text\na.wav,\xff\n", "a.csv:2: byte 7 is not UTF-8"),
        ("csv", b"path,duration\na.wav,1s\n", "a.csv:2: duration = '1s': expected seconds"),
        ("csv", b"path,duration\na.wav,inf\n", "a.csv:2: duration = 'inf': expected seconds"),
        ("csv", b"path,duration\n,1\n", "a.csv:2: the path of the audio file is missing"),
        ("tsv", b"path\ttext\na.wav\n", "a.tsv:2: 1 cells"),
        ("tsv", b"path\ttext\n\xff\tx\n", "a.tsv:2: byte 1 is not UTF-8"),
    ],
)  # fmt: skip
def test_a_bad_table_is_named_by_line(tmp_path: Path, suffix: str, content: bytes, message: str) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        list(read_csv(path) if suffix == "csv" else read_tsv(path))
    assert message in str(caught.value)


@pytest.mark.parametrize(("header", "is_told"), [("path,duration,word", True), ("path,text,word", False)])
def test_a_table_whose_texts_are_not_found_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, header: str, is_told: bool
) -> None:
    write_silence(tmp_path / "a.wav", 1)
    (tmp_path / "a.csv").write_text(f"{header}\na.wav,1,yes\n")
    list(read_csv(tmp_path / "a.csv"))
    assert is_told == ("no utterance has a text" in caplog.text and "'word'" in caplog.text)


def test_a_folder_of_recordings_is_answered_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it has no wav\.scp; folders of other kinds"):
        list(read_utterances(tmp_path, guess_source_kind(tmp_path)))


def test_a_row_of_endless_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asr.data.records.MAX_TEXT_LINE_BYTES", 1000)
    (tmp_path / "a.csv").write_bytes(b"path,text\n" + b'"x\n",' * 300)
    for read in (read_csv, lambda path: read_transcripts(f"csv:{path}").entries):
        with pytest.raises(UserError, match=r"a\.csv:\d+: the row is longer than 1,000 characters"):
            list(read(tmp_path / "a.csv"))


def test_a_bad_table_of_durations_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(COMMON_VOICE)
    for content, message in (
        ("a\tb\n", "expected the columns clip"),
        ("clip\tduration[ms]\nx\n", ":2: 1 cells"),
    ):
        (tmp_path / "clip_durations.tsv").write_text(content)
        with pytest.raises(UserError, match=rf"clip_durations\.tsv.*{message}"):
            list(read_tsv(tmp_path / "a.tsv"))


def test_tables_are_written_with_a_header(tmp_path: Path) -> None:
    utterance = Utterance(
        id="a", audio=f"{tmp_path}/x/a.wav", duration=1.5, text='say "yes", please', speaker="s", extras={"age": "9"}
    )  # fmt: skip
    assert write_csv(tmp_path / "a.csv", [utterance]) == write_tsv(tmp_path / "a.tsv", [utterance]) == 1
    assert (tmp_path / "a.csv").read_bytes().splitlines() == [
        b"id,path,start,duration,text,speaker,language,age",
        b'a,x/a.wav,0.0,1.5,"say ""yes"", please",s,,9',
    ]
    assert (tmp_path / "a.tsv").read_bytes().splitlines() == [
        b"id\tpath\tstart\tduration\ttext\tspeaker\tlanguage\tage",
        b'a\tx/a.wav\t0.0\t1.5\tsay "yes", please\ts\t\t9',
    ]
    with open(tmp_path / "a.csv", newline="") as file:  # as the standard library reads it
        assert next(csv.DictReader(file))["text"] == utterance.text


@pytest.mark.parametrize(
    ("write", "changes", "message"),
    [
        (write_tsv, {"text": "a\tb"}, "utterance a: 'a\\tb' has the control character U+0009"),
        (write_tsv, {"text": "a\nb"}, "has the control character U+000A"),
        (write_tsv, {"extras": {"x": "\r"}}, "has the control character U+000D"),
        (write_tsv, {"extras": {"x\ty": "a"}}, "has the control character U+0009"),
        (write_tsv, {"text": "a" * 1_000_000}, "utterance a: the line is longer than 1,000,000 bytes"),
        (write_nemo, {"text": "a" * 1_000_000}, "utterance a: the line is longer than 1,000,000 bytes"),
        (write_csv, {"text": "a\0b"}, "utterance a: a cell of a CSV table has at most"),
        (write_csv, {"text": "a" * 200_000}, "a cell of a CSV table has at most 131,072 characters"),
        (write_csv, {"extras": {"Path": "x"}}, "extras.Path cannot be a column"),
        (write_csv, {"extras": {" x": "x"}}, "extras. x cannot be a column"),
    ],
)
def test_what_a_table_cannot_hold_is_refused(tmp_path: Path, write, changes: dict, message: str) -> None:
    utterance = Utterance(**{"id": "a", "audio": "/a.wav", "duration": 1.0} | changes)
    with pytest.raises(UserError) as caught:
        write(tmp_path / "a", [utterance])
    assert message in str(caught.value)
    assert not (tmp_path / "a").exists()


def test_losses_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    utterances = [
        Utterance(id="a", audio="/a.wav", duration=1.0, text="x", extras={"n": 1, "none": None}),
        Utterance(id="b", audio="/b.wav", duration=1.0, extras={"empty": ""}),
    ]
    write_csv(tmp_path / "a.csv", utterances)
    assert sorted(record.getMessage().removeprefix(f"{tmp_path}/a.csv: ") for record in caplog.records) == [
        "1 utterances have extras that come back as text",
        "1 utterances without a text get an empty one",
        "2 utterances lose an extra that is empty",
    ]


# --- there and back -----------------------------------------------------------------------------

LINES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
TEXTS = LINES | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
IDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=8)
KEYS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5).map(
    lambda key: f"x{key}x"
)


def utterances(texts: st.SearchStrategy[str], values: st.SearchStrategy) -> st.SearchStrategy[Utterance]:
    return st.builds(
        Utterance,
        id=IDS,
        audio=LINES.map(lambda name: f"/x/{name}.wav"),
        start=st.floats(0, 1e6),
        duration=st.floats(1e-6, 1e6),
        channel=st.none() | st.integers(1, 8),
        text=texts,
        speaker=st.none() | LINES.filter(bool),
        language=st.none() | LINES.filter(bool),
        extras=st.dictionaries(KEYS, values, max_size=3),
    )


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("jsonl", utterances(TEXTS, VALUES)),
        ("nemo", utterances(TEXTS, VALUES)),
        ("csv", utterances(TEXTS, TEXTS.filter(bool))),
        ("tsv", utterances(LINES, LINES.filter(bool))),
    ],
)
def test_there_and_back(
    tmp_path_factory: pytest.TempPathFactory, kind: str, strategy: st.SearchStrategy
) -> None:
    @settings(max_examples=25)
    @given(st.lists(strategy, min_size=1, max_size=3))
    def check(records: list[Utterance]) -> None:
        path = tmp_path_factory.mktemp("back") / "a"
        write_utterances(path, kind, records)
        assert list(read_utterances(path, kind)) == records

    check()


@settings(max_examples=100)
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
    for kind in KINDS:
        try:
            list(read_utterances(folder if kind == "kaldi" else folder / "a", kind))
        except UserError as error:
            assert str(error)
    logging.disable(logging.NOTSET)


# --- folders and tables that people have ---------------------------------------------------------


def convert(path: Path, **options: Any) -> dict[str, Utterance]:
    found = list(read_utterances(path, guess_source_kind(path), **options))
    return {utterance.id: utterance for utterance in found}


def test_recordings_with_a_text_beside_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audio = write_silence(tmp_path / "anna" / "a 1.WAV", 1)
    (tmp_path / "anna" / "a 1.txt").write_text("lights on\n")
    write_silence(tmp_path / "test" / "b.wav", 1)
    found = convert(tmp_path)
    assert found["anna-a_1"] == Utterance(id="anna-a_1", audio=audio, duration=1, text="lights on")
    assert (found["test-b"].text, found["test-b"].extras) == (None, {"split": "test"})
    assert "1 utterances have no text, for no .txt" in caplog.text


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
def test_an_audiofolder_of_hugging_face(tmp_path: Path, name: str) -> None:
    for split in ("train", "test"):
        audio = write_silence(tmp_path / split / "data" / f"{split}.wav", 1)
        record = {"file_name": f"data/{split}.wav", "transcription": "yes", "age": "30"}
        lines = {
            "metadata.jsonl": [json.dumps(record)],
            "metadata.csv": [",".join(record), ",".join(record.values())],
        }
        (tmp_path / split / name).write_text("\n".join(lines[name]))
    found = convert(tmp_path)
    extras = {"age": "30", "split": "test"}
    assert found["test"] == Utterance(id="test", audio=audio, duration=1, text="yes", extras=extras)
    assert found["train"].extras["split"] == "train"
    assert convert(tmp_path / "test" / name)["test"].text == "yes"


def test_ljspeech(tmp_path: Path) -> None:
    audio = write_silence(tmp_path / "wavs" / "LJ001-0007.wav", 1)
    (tmp_path / "metadata.csv").write_text('LJ001-0007|"in 1455, he|"in fourteen fifty-five, he\n')
    for path in (tmp_path, tmp_path / "metadata.csv"):
        (found,) = convert(path).values()
        assert (found.id, found.audio, found.text) == ("LJ001-0007", audio, '"in fourteen fifty-five, he')
        assert convert(path, text_column="raw_text")[found.id].text == '"in 1455, he'
    (tmp_path / "metadata.csv").write_text("wavs/LJ001-0007.wav|in 1455\n")
    assert convert(tmp_path)["LJ001-0007"].text == "in 1455"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_the_separator_is_found(tmp_path: Path, separator: str, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_text(separator.join(("path", "text", "duration")) + "\n" + separator.join(("a.wav", "x", "1")))
    assert convert(path)["a"].text == "x"


def test_the_column_of_the_texts_may_be_chosen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.csv").write_text("path,duration,Words,text,sentence\na.wav,1,one,two,three\n")
    (tmp_path / "a.json").write_text('{"audio": "a.wav", "duration": 1, "Words": "one", "text": "two"}\n')
    assert convert(tmp_path / "a.csv")["a"].text == "two"
    assert "the text is text, and sentence goes into the extras" in caplog.text
    for name in ("a.csv", "a.json"):
        found = convert(tmp_path / name, text_column="words")["a"]
        assert (found.text, found.extras["text"]) == ("one", "two")
        with pytest.raises(UserError, match=r"no column 'verse' among .*'Words'"):
            convert(tmp_path / name, text_column="verse")
    with pytest.raises(UserError, match="only tables have a column of texts to choose"):
        read_utterances(tmp_path / "a.jsonl", "jsonl", text_column="words")


# --- kinds --------------------------------------------------------------------------------------


def test_kinds_are_guessed(tmp_path: Path) -> None:
    (tmp_path / "ours.jsonl").write_text('{"id": "a"}\n')
    (tmp_path / "nemo.jsonl").write_text('{"audio_filepath": "a.wav"}\n')
    (tmp_path / "nemo.json").write_text('\n{"audio_filepath": "a.wav"}\n')
    names = {
        "": "kaldi",
        "a.csv": "csv",
        "a.TSV": "tsv",
        "ours.jsonl": "jsonl",
        "nemo.jsonl": "nemo",
        "nemo.json": "nemo",
    }
    for name in ("a.csv", "a.TSV", "a.txt"):
        (tmp_path / name).touch()
    assert {name: guess_source_kind(tmp_path / name) for name in names} == names
    targets = {
        "": "kaldi",
        "data": "kaldi",
        "a.csv": "csv",
        "a.tsv": "tsv",
        "a.jsonl": "jsonl",
        "a.json": "nemo",
    }
    assert {name: guess_target_kind(tmp_path / name) for name in targets} == targets
    for guess in (guess_source_kind, guess_target_kind):
        with pytest.raises(UserError, match=r"a\.txt: cannot tell the kind"):
            guess(tmp_path / "a.txt")


def test_only_kaldi_has_pipes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="only Kaldi folders have pipes"):
        read_utterances(tmp_path / "a.jsonl", "jsonl", allow_pipes=True)


# --- other people's data ------------------------------------------------------------------------


def test_a_speechbrain_table(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(
        "ID,duration,start,stop,wav,spk_id,wrd\n84-1,2.5,1.0,3.5,a/84-1.flac,84,GO ON\n"
    )
    (found,) = read_csv(tmp_path / "train.csv")
    audio = f"{tmp_path}/a/84-1.flac"
    assert found == Utterance(
        id="84-1", audio=audio, start=1, duration=2.5, text="GO ON", speaker="84", extras={"stop": "3.5"}
    )
    (tmp_path / "train.csv").write_text("ID,start,stop,wav,wrd\n84-1,1.0,3.5,$data_root/84-1.flac,GO\n")
    with pytest.raises(UserError, match=r"train\.csv:2: .*placeholder; put the corpus's folder"):
        list(read_csv(tmp_path / "train.csv"))
    (tmp_path / "train.csv").write_text("ID,start,stop,wav,wrd\n84-1,1.0,3.5,84-1.flac,GO\n")
    assert [item.duration for item in read_csv(tmp_path / "train.csv")] == [2.5]


def test_a_table_of_files_and_transcripts(tmp_path: Path) -> None:
    audio = write_silence(tmp_path / "a.wav", 2)
    (tmp_path / "t.csv").write_text("file,transcript\na.wav,hello\n")
    assert list(read_csv(tmp_path / "t.csv")) == [Utterance(id="a", audio=audio, duration=2, text="hello")]
    entry = read_transcripts(tmp_path / "t.csv").entries["a"]  # the other reader knows the same names
    assert (entry.text, entry.audio) == ("hello", audio)
    (tmp_path / "t.csv").write_text("sound,transcript\na.wav,hello\n")
    with pytest.raises(UserError, match=r"has 'sound', 'transcript'\. Known are .*file.*wav.*wrd"):
        list(read_csv(tmp_path / "t.csv"))


@pytest.mark.parametrize("meaning", COLUMNS)
def test_manifests_and_scoring_know_every_name(meaning: str, tmp_path: Path) -> None:
    for name in COLUMNS[meaning]:
        needed = {"id": "id", "audio": "path", "text": "text", "duration": "duration"}
        needed.pop({"milliseconds": "duration", "end": "duration"}.get(meaning, meaning), None)
        row = {
            **{column: {"duration": "2"}.get(column, "x") for column in needed.values()},
            name.upper(): "3",
        }
        (tmp_path / "t.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
        (found,) = read_csv(tmp_path / "t.csv")
        assert found.extras == {}, name
        if meaning in ("id", "audio", "text", "speaker"):
            ((id, entry),) = read_transcripts(tmp_path / "t.csv").entries.items()
            assert id == found.id and entry.text == found.text and entry.speaker == found.speaker
            assert name == "client_id" or entry.audio == found.audio  # Common Voice's lies in clips/


def test_librispeech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audio = write_silence(tmp_path / "84/121123/84-121123-0000.wav", 3)
    table = tmp_path / "84/121123/84-121123.trans.txt"
    table.write_text("84-121123-0000 GO DO YOU HEAR\n")
    expected = [Utterance(id="84-121123-0000", audio=audio, duration=3, text="GO DO YOU HEAR", speaker="84")]
    monkeypatch.chdir(tmp_path.parent)
    assert list(read_utterances(tmp_path.name, "librispeech")) == expected  # absolute, whatever is given
    for path in (tmp_path, table):
        assert guess_source_kind(path) == "librispeech"
        assert list(read_utterances(path, "librispeech")) == expected
    for line in ("84-121123-0001 LOST\n", "../84-121123-0000 LEFT\n"):
        table.write_text(line)
        with pytest.raises(UserError, match=r"trans\.txt:1: no audio for"):
            list(read_utterances(table, "librispeech"))


@pytest.mark.parametrize("kind", ["jsonl", "nemo", "csv", "tsv"])
def test_tables_may_be_packed(kind: Kind, tmp_path: Path) -> None:
    source = tmp_path / {"jsonl": "m.jsonl", "nemo": "m.json"}.get(kind, f"m.{kind}")
    write_utterances(source, kind, [Utterance(id="u1", audio="/a.wav", duration=1, text="hi")])
    packed = source.with_name(source.name + ".gz")
    packed.write_bytes(gzip.compress(source.read_bytes()))
    assert guess_source_kind(packed) == kind
    assert list(read_utterances(packed, kind)) == list(read_utterances(source, kind))


def test_a_missing_path_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder; check the path"):
        guess_source_kind(tmp_path / "lost")
