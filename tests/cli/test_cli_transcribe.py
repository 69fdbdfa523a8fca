"""`asr transcribe`: what each option does, bad files, resuming, standard input and output."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import soundfile
import torch
from hostile_audio import HOSTILE_AUDIO, make_speechlike
from system_examples import WORDS, save_talker

from asr import cli
from asr.audio import Recording
from asr.cli.transcribe_command import Tally, TranscriptionJob
from asr.scale import output_folder
from asr.scale.output_folder import JOURNAL, STATE
from asr.transcription import transcribe as sequence
from asr.transcription.transcribe import Recognizer
from asr.transcripts.transcript import Segment, Transcript
from asr.transcripts.writers import WRITERS

pytestmark = pytest.mark.usefixtures("loud_is_speech")


class Done(NamedTuple):
    """Exit status, standard output and standard error."""

    status: int
    out: str
    said: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Done]
BELIEVE = ["--set=checks=off"]  # what random weights say would rightly be doubted


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_talker(tmp_path_factory.mktemp("talker") / "model", decoder=False, seed=9))


@pytest.fixture
def audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """a.wav and b.wav in the current folder, sub/a.wav and sub/c.flac below it."""
    for seed, name in enumerate(("a.wav", "b.wav", "sub/a.wav", "sub/c.flac")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, make_speechlike(0.6 + 0.2 * seed, seed=seed), 16_000)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(
    talker: str, audio: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Run:
    def transcribe(*arguments: str, model: str = talker) -> Done:
        caplog.set_level("INFO")
        caplog.handler.setLevel("DEBUG")
        caplog.clear()
        status = cli.main(["transcribe", *arguments, "--model", model, *BELIEVE])
        shown = capsys.readouterr()
        return Done(status, shown.out, shown.err + "\n".join(caplog.messages))

    return transcribe


def is_text(line: str) -> bool:
    return bool(line.strip()) and set(line.split()) <= set(WORDS)


# --- standard output ------------------------------------------------------------------------------


def test_one_file_is_its_text_and_several_say_which_is_which(run: Run) -> None:
    done = run("a.wav")
    assert done.status == 0 and is_text(done.out) and len(done.lines) == 1
    assert "device" not in done.said
    lines = [line.split(": ") for line in run("b.wav", "a.wav").lines]
    assert [name for name, _ in lines] == ["b.wav", "a.wav"] and all(is_text(text) for _, text in lines)
    shown = [line.split(": ")[0] for line in run("a.wav", "b.wav", "sub", "--recursive").lines]
    assert shown == ["a.wav", "b.wav", "sub/a.wav", "sub/c.flac"]


def test_verbose_tells_model_and_device(run: Run, talker: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "asr"):
        said = run("a.wav", "-v", "--device", "cpu").said
    assert f"model: {talker}" in said and "device: cpu (1 thread), float32" in said


def test_what_the_model_was_not_trained_for_is_said(run: Run, talker: str, tmp_path: Path) -> None:
    """Once for each recording, and in JSON; the transcript is there, and it is no failure."""
    model = tmp_path / "narrow"
    shutil.copytree(talker, model)
    for limit, is_narrow in ((-1e-6, True), (-1000.0, False)):
        (model / "decoding.yaml").write_text(f"min_log_probability: {limit}\ntrained_for: digits\n")
        done = run("a.wav", "b.wav", "--format", "jsonl", model=str(model))
        records = [json.loads(line) for line in done.lines]
        assert done.status == 0
        for record in records:
            assert ("out_of_domain" in record) is is_narrow
            warning = f"{record['audio']}: probably not what the model was trained for (digits)"
            assert (warning in done.said) is is_narrow
        assert ("2 out of domain" in done.said) is is_narrow


def test_json_of_several_is_one_array_even_with_a_bad_file(run: Run) -> None:
    done = run("a.wav", "none.wav", "b.wav", "--format", "json")
    assert done.status == 1 and [record["id"] for record in json.loads(done.out)] == ["a", "b"]


def test_a_terminal_without_our_letters(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    os.rename("a.wav", "字.wav")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert run("字.wav", "b.wav").status == 0
    assert out.buffer.getvalue().startswith(b"\\u5b57.wav: ")  # type: ignore[attr-defined]


def test_text_comes_while_a_recording_is_being_decoded(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_four_phrases(Path("long.wav"))
    decode, shown = Recognizer.recognize, []

    def look(*arguments: Any) -> Any:
        shown.append(capsys.readouterr().out)
        return decode(*arguments)

    monkeypatch.setattr(Recognizer, "recognize", look)
    text = run("long.wav", *ONE_BY_ONE).out
    assert [bool(text) for text in shown] == [False, True, True, True]
    text = "".join(shown) + text
    monkeypatch.setattr(Recognizer, "recognize", decode)
    run("long.wav", *ONE_BY_ONE, "--output-dir", "out")
    assert Path("out", "long.txt").read_text() == text


# --- settings -------------------------------------------------------------------------------------


def read_record(run: Run, *arguments: str) -> Any:
    return json.loads(run("b.wav", "--format", "jsonl", *arguments).out)


def test_decoding_beam_and_set(run: Run) -> None:
    for method in ("ctc_greedy", "ctc_beam"):
        record = read_record(run, "--decoding", method)
        assert [segment["decoding"] for segment in record["segments"]] == [method]
    narrow, wide = (
        read_record(run, "--decoding", "ctc_beam", "--beam", beam)["text"] for beam in ("1", "10")
    )
    assert narrow == read_record(run, "--decoding", "ctc_greedy")["text"] != wide
    same = read_record(run, "--set", "decoding.method=ctc_beam", "--set", "decoding.beam=1")
    assert same == read_record(run, "--decoding", "ctc_beam", "--beam", "1")
    for width in (8, 20):
        lines = run("b.wav", "--format", "srt", "--set", f"subtitles.line_width={width}").lines
        assert width - 7 < max(len(line) for line in lines if re.match("[a-z]", line)) <= width


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a.wav --set decoding.beem=3", "did you mean decoding.beam?"),
        ("a.wav --set decoding.beam=0", "decoding.beam"),
        ("a.wav --set subtitles.line_width", "expected key=value"),
        ("a.wav --set decoding.language_model_weight=1", "there is no language model"),
        ("a.wav --language-model none.arpa", "none.arpa"),
        ("a.wav --channels left", "channels"),
        *((f"a.wav {option}=x", f"{option}: native models do not") for option in ("--language", "--prompt")),
        ("a.wav --task=translate", "They support --beam, --decoding, --hotwords, --language-model, --words"),
        ("a.wav --set=whisper.prompt=a", "need a Whisper model"),
        ("a.wav --format srt --format txt", "use --output-dir"),
        ("a.wav --format all", "use --output-dir"),
        ("a.wav b.wav --format srt", "use --output-dir"),
        ("", "expected AUDIO..."),
        ("sub", "--recursive"),
        ("a.wav --stream", "--stream"),
        ("--stream --output-dir out", "--stream"),
        ("--stream --format txt --format jsonl", "--stream"),
        ("--stream --channels separate", "--channels separate"),
        ("a.wav --plot-attention a.png --channels separate", "--channels separate"),
        ("a.wav --device cudo", "device cudo: "),
    ],
)
def test_what_is_refused(words: str, message: str, run: Run) -> None:
    done = run(*words.split())
    assert done.status == 2 and message in done.said and not done.out and not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a.wav --model nowhere", "nowhere: no model found"),
        ("a.wav --model larg-v3", "larg-v3: no model found; did you mean large-v3?"),
        (
            "a.wav --model turbo --language Englsh",
            "'Englsh': not a language of Whisper; did you mean english?",
        ),
        ("none.wav --model turbo", "none.wav: no such file"),
        ("none.wav no.mp3 --model turbo --output-dir texts", "none.wav: no such file, nor any of 1 more"),
    ],
)
def test_wrong_names_are_told_before_weights_are_fetched(
    words: str, message: str, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("fetched"))
    assert cli.main(["transcribe", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_threads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    assert run("a.wav", "--threads", "2").status == run("a.wav", "--threads", "1").status == 0
    assert found[0] == 2 and 1 in found


def test_clip(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """A part of a recording, with the times of the whole; another one is done again."""
    soundfile.write("long.wav", make_speechlike(3.0, seed=3), 16_000)
    records = []
    for clip in ("0,1.5", "1.5,2.5", "0:01.5", "9"):
        done = run("long.wav", "--format", "jsonl", "--clip", clip)
        assert done.status == (clip == "9")
        records.append([json.loads(line) for line in done.lines])
    assert [one["duration"] for record in records for one in record] == [1.5, 1.0, 1.5]
    (middle,) = records[1]
    words = [word for one in middle["segments"] for word in one["words"]]
    assert words and all(1.5 <= word["start"] <= 2.5 for word in words)
    for clip, expected in (("0,0.3", "1 transcribed; "), ("0,0.3", "0 transcribed, 1 f"), ("0,0.4", "1 tr")):
        done = run("a.wav", "--output-dir", "out", "--clip_timestamps", clip)
        assert done.said.splitlines()[-1].startswith(expected)
    for clip in ("5,2", "a,b", "1:2:3:4", ""):
        with pytest.raises(SystemExit):
            run("a.wav", f"--clip={clip}")
        assert f"{clip!r}: expected" in capsys.readouterr().err
    Path("m.jsonl").write_text('{"id": "u", "audio": "a.wav", "duration": 0.6}\n')
    assert "manifest has its own times" in run("m.jsonl", "--clip", "0,1").said


def test_what_there_is_is_listed(run: Run) -> None:
    lines = run("--language", "list").lines
    assert len(lines) == 100 and "de   german" in lines


def test_the_settings_explain_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["transcribe", "--set", "list"]) == 0
    out = capsys.readouterr().out
    for key in ("decoding.beam = 10", "subtitles.line_width = 42", "segmentation.max_seconds", "precision"):
        assert key in out
    assert " = null\n" in out and " = None\n" not in out  # as in YAML


def test_language_model(run: Run) -> None:
    """An ARPA file in which only "one" is likely: enough weight turns every word into it."""
    others = "".join(f"-8\t{word}\n" for word in ("</s>", "<unk>", *WORDS[1:]))
    Path("one.arpa").write_text(
        f"\\data\\\nngram 1={len(WORDS) + 3}\n\n\\1-grams:\n-99\t<s>\n-0.001\tone\n{others}\n\\end\\\n"
    )
    weight = ["--set", "decoding.language_model_weight=3"]
    texts = [
        read_record(run, "--decoding", "ctc_beam", *arguments)["text"].split()
        for arguments in ([], ["--language-model", "one.arpa"], ["--language-model", "one.arpa", *weight])
    ]
    ones = [text.count("one") / len(text) for text in texts if text]
    assert texts[0] != texts[2] and ones == sorted(ones) and ones[-1] > ones[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(run: Run) -> None:
    done = run("a.wav", "--device", "cuda")
    assert done.status == 2 and "device cuda: cannot be used here" in done.said


def test_channels(run: Run) -> None:
    write_four_phrases(Path("left.wav"))
    left = soundfile.read("left.wav")[0]
    right = np.roll(left, 12_800)  # speaks while the other one is silent
    soundfile.write("right.wav", right, 16_000)
    soundfile.write("call.wav", np.stack([left, right], axis=1), 16_000)

    def hear(path: str, *arguments: str) -> list[str]:
        return run(path, *ONE_BY_ONE, *arguments).lines

    by_channel = [hear("left.wav"), hear("right.wav")]
    assert hear("call.wav", "--channels", "1") == by_channel[0]
    assert hear("call.wav", "--channels", "2") == by_channel[1] != by_channel[0]
    called = hear("call.wav", "--channels", "separate")
    assert [line[:10] for line in called] == ["speaker1: ", "speaker2: "] * 4
    assert [line[10:] for line in called[::2]] == by_channel[0]
    assert [line[10:] for line in called[1::2]] == by_channel[1]
    assert hear("left.wav", "--channels", "separate") == by_channel[0], "of one channel nobody is a speaker"
    assert hear("call.wav", "--channels", "mix") == hear("call.wav") != by_channel[0]
    done = run("call.wav", "--channels", "3")
    assert done.status == 1 and "has 2" in done.said


# --- standard input -------------------------------------------------------------------------------


def pipe_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


@pytest.mark.parametrize("container", ["WAV", "OGG"])
def test_standard_input(container: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = io.BytesIO()
    soundfile.write(sound, make_speechlike(0.8, seed=1), 16_000, format=container)
    pipe_in(monkeypatch, sound.getvalue())
    record = json.loads(run("-", "--format", "jsonl").out)
    assert (record["id"], record["audio"]) == ("stdin", "-") and is_text(record["text"])
    assert container == "OGG" or record["text"] == read_record(run)["text"]


@pytest.mark.parametrize("data", [b"", b"no sound"])
def test_bad_standard_input(data: bytes, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_in(monkeypatch, data)
    done = run("-")
    assert done.status == 1 and "standard input" in done.said
    assert "/tmp" not in done.said and "asr-" not in done.said


# --- a folder of outputs --------------------------------------------------------------------------


def listing(folder: str | Path = "out") -> dict[str, str]:
    folder = Path(folder)
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in sorted(paths.items()) if name[0] != "."}


def test_a_file_for_each_recording_and_format(run: Run) -> None:
    done = run(".", "-r", "--output-dir", "out", "--format", "srt", "--format", "jsonl")
    assert (done.status, done.out) == (0, "")
    written, names = listing(), ("a", "b", "sub/a", "sub/c")
    assert list(written) == [f"{name}.{suffix}" for name in names for suffix in ("jsonl", "srt")]
    assert [json.loads(written[f"{name}.jsonl"])["id"] for name in names] == list(names)
    assert all(written[f"{name}.srt"].startswith("1\n00:00:0") for name in names)
    assert run("a.wav", "-o", "all", "--output_format", "all").status == 0
    without_speakers = {*WRITERS} - {"rttm"}
    assert sorted(name[2:] for name in listing("all")) == sorted(without_speakers)


def test_an_interrupted_folder_is_resumed(
    run: Run, talker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written stays as it is; another setting or another model makes all again."""
    whole, num_files = output_folder.replace_file, 0

    def break_down(path: Path) -> Any:
        nonlocal num_files
        num_files += 1
        if num_files == 3:
            raise KeyboardInterrupt
        return whole(path)

    monkeypatch.setattr(output_folder, "replace_file", break_down)
    arguments = [".", "-r", "--output-dir", "out"]
    assert run(*arguments).status == 130
    stamps = {name: Path("out", name).stat().st_mtime_ns for name in listing()}
    assert len(stamps) == 2
    done = run(*arguments)
    assert "2 transcribed, 2 finished before; " in done.said and len(listing()) == 4
    assert stamps == {name: Path("out", name).stat().st_mtime_ns for name in stamps}
    assert run(*arguments).said.endswith("0 transcribed, 4 finished before")
    assert "4 transcribed; " in run(*arguments, "--beam", "1").said
    other = str(save_talker(tmp_path / "other", seed=1))
    assert "4 transcribed; " in run(*arguments, "--beam", "1", model=other).said


ONE_BY_ONE = ("--batch-size", "1")


def write_four_phrases(path: Path) -> None:
    phrases = [np.append(make_speechlike(0.6, seed=seed), np.zeros(16_000)) for seed in range(4)]
    soundfile.write(path, np.concatenate(phrases), 16_000)


def test_an_interrupted_recording_goes_on_where_it_stopped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_four_phrases(Path("long.wav"))
    short = ["long.wav", *ONE_BY_ONE, "--format", "json", "--output-dir"]
    assert run(*short, "whole").status == 0
    decode, num_batches = Recognizer.recognize, 0

    def break_down(*arguments: Any) -> Any:
        nonlocal num_batches
        num_batches += 1
        if num_batches == 3:
            raise KeyboardInterrupt
        return decode(*arguments)

    monkeypatch.setattr(Recognizer, "recognize", break_down)
    assert run(*short, "out").status == 130
    assert not listing() and len(list(Path("out", STATE).iterdir())) == 1
    assert "long.wav: 2 segments were finished by an earlier call" in run(*short, "out").said
    assert listing() == listing("whole")
    assert list(Path("out", STATE).iterdir()) == [Path("out", JOURNAL)]


def test_files_of_others_are_not_written_over(run: Run) -> None:
    Path("a.txt").write_text("what was really said")
    done = run("a.wav", "b.wav", "--output-dir", ".")
    assert done.status == 1 and "a.txt: already exists" in done.said
    assert Path("a.txt").read_text() == "what was really said" and is_text(Path("b.txt").read_text())
    os.rename("a.wav", "c.txt")
    before = Path("c.txt").read_bytes()
    done = run("c.txt", "--output-dir", ".")
    assert done.status == 1 and "c.txt: already exists" in done.said
    assert Path("c.txt").read_bytes() == before


def test_a_name_too_long_for_an_output_is_said_before_decoding(run: Run) -> None:
    os.rename("b.wav", "ä" * 116 + ".wav")  # 232 bytes, with .json and what is added 257
    done = run("a.wav", "ä" * 116 + ".wav", "--format", "json", "--output-dir", "out")
    assert done.status == 1 and list(listing()) == ["a.json"]
    assert "bytes; rename the recording" in done.said


def test_a_folder_that_cannot_be_written_is_refused_before_decoding(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence, "load_recognizer", lambda *_, **__: pytest.fail("too late"))
    os.symlink("/proc", "out")
    assert "out/new: cannot write to it" in run("a.wav", "--output-dir", "out/new").said


def test_a_disk_that_fills_up_loses_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that found no room is named, the others are written, and the next call makes up for it."""
    whole, calls = os.fsync, []

    def fail_once(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(descriptor)

    monkeypatch.setattr("asr.files.os.fsync", fail_once)
    done = run("a.wav", "b.wav", "--output-dir", "out")
    assert done.status == 1 and list(listing()) == ["b.txt"]
    assert "a.txt: cannot write the file (No space left on device)" in done.said
    assert run("a.wav", "b.wav", "--output-dir", "out").status == 0
    assert list(listing()) == ["a.txt", "b.txt"]


def test_addresses_and_shards_are_as_files(run: Run, audio: Path) -> None:
    """Outputs are the same, problems are told under the name of the address, and what is done stays so."""
    import fsspec

    from asr.data import Manifest, Utterance, write_manifest
    from asr.shards.packing import PackSettings, pack

    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    for name in ("a.wav", "sub/c.flac"):
        filesystem.pipe(f"/bucket/{name}", (audio / name).read_bytes())
    filesystem.pipe("/bucket/none.wav", b"no audio")
    rows = [
        Utterance(id="a", audio="a.wav", duration=0.6),
        Utterance(id="c", audio="sub/c.flac", duration=1.2),
    ]
    write_manifest(audio / "list.jsonl", rows)
    pack(Manifest.open(audio / "list.jsonl"), audio / "shards", PackSettings("copy"))
    table = ["--format", "tsv", "--output-dir"]
    assert run("a.wav", "sub/c.flac", *table, "files").status == 0
    assert run("shards", *table, "packed").status == 0
    done = run("memory://bucket", "-r", *table, "bucket")
    assert done.status == 1 and "memory://bucket/none.wav: is text" in done.said
    assert listing("files") == listing("packed")
    assert listing("files")["a.tsv"] == listing("bucket")["a.tsv"]
    before = (audio / "bucket/a.tsv").stat().st_mtime_ns
    run("memory://bucket/a.wav", *table, "bucket")
    assert (audio / "bucket/a.tsv").stat().st_mtime_ns == before
    filesystem.pipe("/bucket/a.wav", (audio / "b.wav").read_bytes())
    run("memory://bucket/a.wav", *table, "bucket")
    assert (audio / "bucket/a.tsv").stat().st_mtime_ns != before


# --- bad files ------------------------------------------------------------------------------------


def test_hostile_among_good_files(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As many of each: transcripts, clear errors, nothing lost."""
    partly = "^folder$|long name|cut|lying length|silent|NaN|infinity|integers|hole|rates"
    chosen = [name for name in HOSTILE_AUDIO if not re.search(partly, name)][:30]
    paths, bad = [], {}
    for number, name in enumerate(chosen):
        good = tmp_path / f"good{number}.wav"
        soundfile.write(good, make_speechlike(0.5, seed=number), 16_000)
        folder = tmp_path / f"bad{number}"
        folder.mkdir()
        hostile = str(HOSTILE_AUDIO[name].build(folder))
        bad[hostile] = HOSTILE_AUDIO[name].message
        paths += [hostile, str(good)]
    done = run(*paths, "--output-dir", "out")
    written = listing()
    assert done.status == 1 and set(written) == {f"good{number}.txt" for number in range(len(chosen))}
    assert all(map(is_text, written.values())) and "Traceback" not in done.said
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    for (path, message), error in zip(bad.items(), errors, strict=True):
        assert path in error and message in error
    assert f"{len(chosen)} transcribed, {len(chosen)} failed; " in done.said


DAMAGED = {
    "WAV cut short": "its header promises 2.000 s, but the audio ends at 1.4",
    "Opus cut short": "is cut short, or damaged at its end: the audio ends at",
    "FLAC with a hole": "to 1.280 s cannot be decoded",
    "NaN": "is damaged: 1.000 to 1.000 s cannot be decoded",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_recording(name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is written, and what is missing is said, by later calls too, which do not read it again."""
    message, path = DAMAGED[name], HOSTILE_AUDIO[name].build(tmp_path)
    words = [str(path), "--output-dir", "out", "--format", "json"]
    done = run(*words)
    assert done.status == 1 and message in done.said
    assert "0 transcribed, 1 incomplete; " in done.said
    (record,) = map(json.loads, listing().values())
    assert is_text(record["text"]) and message in record["warnings"][0]
    with monkeypatch.context() as patched:
        patched.setattr(TranscriptionJob, "load", lambda *_: pytest.fail("read again"))
        again = run(*words)
    assert again.status == 1 and "0 transcribed, 1 failed before" in again.said
    assert message in again.said and "skipped because the file has not changed" in again.said
    for change in (lambda: os.utime(path), lambda: next(Path("out").glob("*.json")).unlink()):
        change()
        assert "0 transcribed, 1 incomplete; " in run(*words).said
    assert "0 transcribed, 1 incomplete; " in run(*words, "--format", "txt").said


def test_what_cannot_be_read_is_not_read_again_until_it_changes(run: Run, audio: Path) -> None:
    good = Path("a.wav").read_bytes()
    Path("a.wav").write_bytes(b"RIFF")
    words = ["a.wav", "none.wav", "--output-dir", "out"]
    assert "0 transcribed, 2 failed" in run(*words).said
    again = run(*words)
    assert again.status == 1 and "0 transcribed, 1 failed, 1 failed before" in again.said
    assert "a.wav: " in again.said and "none.wav: cannot read the file" in again.said
    Path("a.wav").write_bytes(good)
    Path("none.wav").write_bytes(good)
    assert "2 transcribed" in run(*words).said


@pytest.mark.parametrize(
    ("warnings", "reason"),
    [((), "no speech was found"), (("no clear speech: 'A' was dropped",), "was dropped; --set checks=off")],
)
def test_a_recording_without_text_is_said(
    warnings: tuple[str, ...], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    tally = Tally(0)
    segments = tuple(Segment(0, 1, "", warnings=(warning,)) for warning in warnings)
    tally.take(Recording("weak.wav", "weak"), Transcript("", "", 1.0, segments))
    tally.take(Recording("good.wav", "good"), Transcript("", "", 1.0, (Segment(0, 1, "A"),)))
    (message,) = caplog.messages
    assert message.startswith("weak.wav: no text (") and reason in message


@pytest.mark.parametrize(
    ("language", "count", "hint"),
    [
        (("en", None), 2, "; another language than en?)"),
        *((("en", None), 1, ")"), (("en", 0.9), 2, ")"), ((None, None), 2, ")")),  # few; detected; unknown
    ],
)
def test_doubt_is_named(
    language: tuple[Any, Any], count: int, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    unlikely = "greedy at temperature 0: the decoder finds it unlikely: mean log-probability -1.20"
    segments = [Segment(start, start + 1, "A") for start in (0.0, 4.0, 9.0)]
    segments[1:] = [replace(segment, warnings=(unlikely,)) for segment in segments[1 : 1 + count]]
    segments += [Segment(20.0, 21.0, "A")] * (3 - len(segments))
    transcript = Transcript("", "", 10.0, tuple(segments))
    spoken = dict(zip(("language", "language_probability"), language, strict=True))
    tally, where = Tally(0), f"{count} of 3 segments, first at 4.0 s"
    tally.take(Recording("talk.wav", "talk"), replace(transcript, **spoken))
    assert caplog.messages == [f"talk.wav: doubtful ({where}: {unlikely}{hint}"]
    caplog.set_level("INFO")
    assert tally.finish(1.0) == 0 and "1 transcribed, 1 doubtful; " in caplog.messages[-1]


# --- live -----------------------------------------------------------------------------------------


def make_wav(seconds: float) -> bytes:
    """A pause before, between and after two that are speechlike."""
    quiet, file = 1e-3 * make_speechlike(1.0), io.BytesIO()
    parts = [quiet, make_speechlike(seconds), quiet, make_speechlike(seconds, seed=1), quiet]
    soundfile.write(file, (np.concatenate(parts) * 32767).astype("<i2"), 16_000, format="WAV")
    return file.getvalue()


def test_stream(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asr.serve.live.PipeReader.is_late", False)  # as if it came by and by
    settings = ["--set=segmentation.max_seconds=2"]
    pipe_in(monkeypatch, make_wav(1.5))
    lines = run("--stream", *settings).lines
    assert lines and all(map(is_text, lines))
    pipe_in(monkeypatch, make_wav(1.5))
    done = run("--stream", *settings, "--format", "jsonl")
    records = [json.loads(line) for line in done.lines]
    final = [word["text"] for record in records for word in record["final"]]
    assert final == " ".join(lines).split()
    assert len([record for record in records if record["segment_ends"] and record["text"]]) == len(lines)
    assert any(record["partial"] for record in records)


def test_a_segment_is_written_while_the_pipe_is_open(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    is_written, waits = threading.Event(), []

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            is_written.set()
            return super().write(text)

    class Pipe(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if content := super().read(size):
                return content
            waits.append(is_written.wait(10))
            return b""

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Pipe(make_wav(1.0))))
    monkeypatch.setattr(sys, "stdout", Out())
    assert run("--stream").status == 0
    assert waits[0] and len(sys.stdout.getvalue().splitlines()) == 2  # type: ignore[attr-defined]


def test_a_recorder_does_not_wait_for_the_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    is_read, seen = threading.Event(), list[bool]()

    class Pipe(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            is_read.set()
            return super().read(size)

    load = sequence.load_recognizer

    def load_late(*arguments: Any, **named: Any) -> Any:
        seen.append(is_read.wait(10))
        return load(*arguments, **named)

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Pipe(make_wav(0.5))))
    monkeypatch.setattr(sequence, "load_recognizer", load_late)
    assert run("--stream").status == 0 and seen == [True]


# --- as a program ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pipe_in_a_shell(talker: str, audio: Path) -> None:
    """Real streams: results on standard output, all else on standard error, no bar without a terminal."""
    command = f"cat a.wav | {sys.executable} -m asr transcribe - --model {talker} {' '.join(BELIEVE)}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=100, cwd=audio)
    assert done.returncode == 0 and is_text(done.stdout) and len(done.stdout.splitlines()) == 1
    assert "1 transcribed; " in done.stderr and "%|" not in done.stderr
