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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hostile_audio import HOSTILE_AUDIO, make_speechlike
from system_examples import WORDS, save_talker

from asr import cli
from asr.audio import Recording
from asr.cli.transcribe import Tally
from asr.scale import JOURNAL, STATE
from asr.transcripts import WRITERS, Segment, Transcript


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_talker(tmp_path_factory.mktemp("talker") / "model"))


@pytest.fixture
def audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """a.wav and b.wav in the current folder, sub/a.wav and sub/c.flac below it."""
    for seed, name in enumerate(("a.wav", "b.wav", "sub/a.wav", "sub/c.flac")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, make_speechlike(0.6 + 0.2 * seed, seed=seed), 16_000)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# What random weights say would rightly be doubted.
BELIEVE = ["--set=checks=off"]


def transcribe(talker: str, *arguments: str) -> int:
    return cli.main(["transcribe", *arguments, "--model", talker, *BELIEVE])


def is_text(line: str) -> bool:
    return bool(line) and set(line.split()) <= set(WORDS)


# --- standard output ------------------------------------------------------------------------------


@pytest.mark.usefixtures("audio")
def test_one_file_is_its_text(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert transcribe(talker, "a.wav") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert is_text(line)


@pytest.mark.usefixtures("audio")
def test_several_files_say_which_is_which(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert transcribe(talker, "b.wav", "a.wav") == 0
    lines = [line.split(": ") for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in lines] == ["b.wav", "a.wav"]
    assert all(is_text(text) for _, text in lines)


@pytest.mark.usefixtures("audio")
def test_patterns_and_folders(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert transcribe(talker, "*.wav", "sub", "--recursive") == 0
    shown = [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["a.wav", "b.wav", "sub/a.wav", "sub/c.flac"]
    assert transcribe(talker, "sub") == 2
    assert "--recursive" in capsys.readouterr().err


@pytest.mark.usefixtures("audio")
@pytest.mark.parametrize("name", WRITERS)
def test_formats(name: str, talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert transcribe(talker, "a.wav", "--format", name) == 0
    out = capsys.readouterr().out
    if name in ("json", "jsonl"):
        record = json.loads(out)
        record = record[0] if name == "json" else record
        assert (record["id"], record["audio"], record["duration"]) == ("a", "a.wav", 0.6)
        assert is_text(record["text"]) and len(record["segments"][0]["words"]) == len(record["text"].split())
    else:
        assert out.startswith(WRITERS[name].header) and any(word in out for word in WORDS)


@pytest.mark.usefixtures("audio")
def test_what_the_model_was_not_trained_for_is_said(
    talker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """On standard error, once for each recording, and in JSON; the transcript is there, and it is no failure."""
    caplog.set_level("INFO")
    model = tmp_path / "narrow"
    shutil.copytree(talker, model)
    for limit, is_narrow in ((-1e-6, True), (-1000.0, False)):
        (model / "decoding.yaml").write_text(f"min_log_probability: {limit}\ntrained_for: digits\n")
        assert transcribe(str(model), "a.wav", "b.wav", "--format", "jsonl", "--set", "tokens=true") == 0
        logged, shown = caplog.text, capsys.readouterr()
        caplog.clear()
        records = [json.loads(line) for line in shown.out.splitlines()]
        assert [record["segments"][0]["tokens"] != [] for record in records] == [True, True]
        for record in records:
            assert ("out_of_domain" in record) is is_narrow
            assert (
                f"{record['audio']}: probably not what the model was trained for (digits)" in logged
            ) is is_narrow
        assert ("2 are probably not what the model was trained for" in logged) is is_narrow


@pytest.mark.usefixtures("audio")
def test_json_of_several_is_one_array_even_with_a_bad_file(
    talker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transcribe(talker, "a.wav", "none.wav", "b.wav", "--format", "json") == 1
    assert [record["id"] for record in json.loads(capsys.readouterr().out)] == ["a", "b"]


@pytest.mark.usefixtures("audio")
def test_what_does_not_fit_standard_output(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert transcribe(talker, "a.wav", "--format", "srt", "--format", "txt") == 2
    assert "give --output-dir" in capsys.readouterr().err
    assert transcribe(talker, "a.wav", "b.wav", "--format", "srt") == 2
    assert "give --output-dir" in capsys.readouterr().err


def test_a_terminal_without_our_letters(
    talker: str, audio: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.rename("a.wav", "字.wav")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert transcribe(talker, "字.wav", "b.wav") == 0
    assert out.buffer.getvalue().startswith(b"\\u5b57.wav: ")  # type: ignore[attr-defined]


# --- settings -------------------------------------------------------------------------------------


def read_record(talker: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert transcribe(talker, "b.wav", "--format", "jsonl", *arguments) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("audio")
@pytest.mark.parametrize("method", ["ctc_greedy", "ctc_beam"])
def test_decoding(method: str, talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = read_record(talker, capsys, "--decoding", method)
    assert [segment["decoding"] for segment in record["segments"]] == [method]


@pytest.mark.usefixtures("audio")
def test_beam(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [
        read_record(talker, capsys, "--decoding", "ctc_beam", "--beam", beam)["text"] for beam in ("1", "10")
    ]
    greedy = read_record(talker, capsys, "--decoding", "ctc_greedy")["text"]
    assert texts[0] == greedy != texts[1]


@pytest.mark.usefixtures("audio")
def test_set(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    same = ["--set", "decoding.method=ctc_beam", "--set", "decoding.beam=1"]
    assert read_record(talker, capsys, *same) == read_record(
        talker, capsys, "--decoding", "ctc_beam", "--beam", "1"
    )
    for width in (8, 20):
        assert transcribe(talker, "b.wav", "--format", "srt", "--set", f"subtitles.line_width={width}") == 0
        lines = capsys.readouterr().out.splitlines()
        texts = [line for line in lines if re.match("[a-z]", line)]
        assert width - 7 < max(map(len, texts)) <= width


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "decoding.beem=3"], "did you mean decoding.beam?"),
        (["--set", "decoding.beam=0"], "greater than 0"),
        (["--beam", "3", "--set", "decoding.beam=3"], "given already"),
        (["--set", "subtitles.line_width"], "expected key=value"),
    ],
)
def test_wrong_settings(
    arguments: list[str], message: str, talker: str, audio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transcribe(talker, "a.wav", *arguments) == 2
    assert message in capsys.readouterr().err


def test_threads(talker: str, audio: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    assert transcribe(talker, "a.wav", "--threads", "2") == transcribe(talker, "a.wav", "--threads", "0") == 0
    assert found == [2]


@pytest.mark.parametrize(
    "option", ["--threads=-1", "--threads=two", "--batch-size=0", "--batch-size=9999999999"]
)
def test_numbers_out_of_range(option: str, talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        transcribe(talker, "a.wav", option)
    assert caught.value.code == 2
    name, _, value = option.partition("=")
    assert f"argument {name}: '{value}': expected a whole number from" in capsys.readouterr().err


@pytest.mark.usefixtures("audio")
def test_clip(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A part of a recording, with the times of the whole."""
    soundfile.write("long.wav", make_speechlike(3.0, seed=3), 16_000)
    records = []
    for clip in ("0,1.5", "1.5,2.5", "0:01.5", "9"):
        assert transcribe(talker, "long.wav", "--format", "jsonl", "--clip", clip) == (clip == "9")
        records.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert [one["duration"] for record in records for one in record] == [1.5, 1.0, 1.5]
    (middle,) = records[1]
    assert all(1.5 <= word["start"] <= 2.5 for one in middle["segments"] for word in one["words"])
    assert middle["segments"]


@pytest.mark.parametrize("clip", ["5,2", "a,b", "1,2,3,4", "", "-1,2", "1:2:3:4"])
def test_a_wrong_clip(clip: str, talker: str, audio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert transcribe(talker, "a.wav", f"--clip={clip}") == 2
    assert f"--clip {clip}: expected" in capsys.readouterr().err


def test_another_clip_is_done_anew(talker: str, audio: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for clip, expected in (("0,0.3", "1 transcribed; "), ("0,0.3", "0 transcribed, 1 f"), ("0,0.4", "1 tr")):
        assert transcribe(talker, "a.wav", "--output-dir", "out", "--clip", clip) == 0
        assert caplog.messages[-1].startswith(expected)


@pytest.mark.usefixtures("audio")
def test_all_formats(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert transcribe(talker, "a.wav", "-o", "out", "--output_format", "all") == 0
    assert sorted(path.name[2:] for path in Path("out").glob("a.*")) == sorted(WRITERS)
    assert transcribe(talker, "a.wav", "--format", "all") == 2
    assert "give --output-dir" in capsys.readouterr().err


def test_languages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["transcribe", "--language", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 100 and "de   german" in lines


def test_a_misspelt_model_is_told_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["transcribe", "a.wav", "--model", "larg-v3"]) == 2
    assert "larg-v3: no model here; did you mean large-v3?" in capsys.readouterr().err
    assert cli.main(["transcribe", "a.wav", "--model", "mine"]) == 2
    assert "or the name of a Whisper model: tiny, " in capsys.readouterr().err
    assert cli.main(["transcribe", "a.wav", "--model", "turbo", "--language", "Englsh"]) == 2
    assert "'Englsh': not a language of Whisper; did you mean english?" in capsys.readouterr().err


def test_the_settings_explain_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["transcribe", "--set", "list"]) == 0
    out = capsys.readouterr().out
    for key in ("decoding.beam = 10", "subtitles.line_width = 42", "segmentation.max_seconds", "precision"):
        assert key in out
    assert " = null\n" in out and " = None\n" not in out  # as in YAML


def test_what_is_missing_is_said(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--model", talker], ["a.wav", "--model", "nowhere"]):
        assert cli.main(["transcribe", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("expected AUDIO...") == 2 and "nowhere: no model here" in err


def test_settings_of_whisper_are_for_whisper(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--language=de", "--task=translate", "--prompt=Hello: no", "--set=whisper.samples=3"):
        assert cli.main(["transcribe", "a.wav", "--model", talker, option]) == 2
        assert (
            "the settings of whisper (language, task, prompt ...) are for Whisper" in capsys.readouterr().err
        )


@pytest.mark.usefixtures("audio")
def test_language_model(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An ARPA file in which only "one" is likely: enough weight turns every word into it."""
    others = "".join(f"-8\t{word}\n" for word in ("</s>", "<unk>", *WORDS[1:]))
    Path("one.arpa").write_text(
        f"\\data\\\nngram 1={len(WORDS) + 3}\n\n\\1-grams:\n-99\t<s>\n-0.001\tone\n{others}\n\\end\\\n"
    )
    plain, fused, heavy = (
        read_record(talker, capsys, "--decoding", "ctc_beam", *arguments)["text"]
        for arguments in (
            [],
            ["--language-model", "one.arpa"],
            ["--language-model", "one.arpa", "--set", "decoding.language_model_weight=3"],
        )
    )
    ones = [text.split().count("one") / len(text.split()) for text in (plain, fused, heavy) if text]
    assert len({plain, fused, heavy}) > 1 and ones == sorted(ones) and ones[-1] > ones[0]
    assert transcribe(talker, "a.wav", "--set", "decoding.language_model_weight=1") == 2
    assert "there is no language model" in capsys.readouterr().err
    assert transcribe(talker, "a.wav", "--language-model", "none.arpa") == 2


@pytest.mark.usefixtures("audio")
def test_device_is_said(talker: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert transcribe(talker, "a.wav", "--device", "cpu") == 0
    assert "device: cpu (1 thread), float32" in caplog.messages


@pytest.mark.usefixtures("audio")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert transcribe(talker, "a.wav", "--device", "cuda") == 2
    assert "device cuda: cannot be used here" in capsys.readouterr().err


@pytest.mark.usefixtures("audio")
def test_batch_size(talker: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The text does not depend on it; how many segments the model gets at once does."""
    from asr.transcription import Recognizer

    sizes: list[int] = []
    recognize = Recognizer.recognize

    def count(self: Recognizer, segments: Any, request: Any) -> Any:
        sizes.append(len(segments))
        return recognize(self, segments, request)

    monkeypatch.setattr(Recognizer, "recognize", count)
    for name in "def":
        soundfile.write(f"{name}.wav", make_speechlike(0.9, seed=ord(name)), 16_000)
    texts = []
    for batch_size in (1, 3):
        assert transcribe(talker, "d.wav", "e.wav", "f.wav", "--batch-size", str(batch_size)) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and sizes == [1, 1, 1, 3]


# --- standard input -------------------------------------------------------------------------------


def pipe_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


@pytest.mark.parametrize("container", ["WAV", "FLAC", "OGG"])
def test_standard_input(
    container: str,
    talker: str,
    audio: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sound = io.BytesIO()
    soundfile.write(sound, make_speechlike(0.8, seed=1), 16_000, format=container)
    pipe_in(monkeypatch, sound.getvalue())
    assert transcribe(talker, "-", "--format", "jsonl") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["id"], record["audio"]) == ("stdin", "-") and is_text(record["text"])
    if container != "OGG":
        assert record["text"] == read_record(talker, capsys)["text"]


@pytest.mark.parametrize("data", [b"", b"no sound"])
def test_bad_standard_input(
    data: bytes, talker: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pipe_in(monkeypatch, data)
    assert transcribe(talker, "-") == 1
    assert "standard input" in caplog.text and "/tmp" not in caplog.text and "asr-" not in caplog.text


# --- a folder of outputs --------------------------------------------------------------------------


def listing(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.relative_to(folder).as_posix().startswith(".")
    }


@pytest.mark.usefixtures("audio")
def test_a_file_for_each_recording_and_format(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert transcribe(talker, ".", "-r", "--output-dir", "out", "--format", "srt", "--format", "jsonl") == 0
    assert capsys.readouterr().out == ""
    written = listing(Path("out"))
    names = ("a", "b", "sub/a", "sub/c")
    assert list(written) == [f"{name}.{suffix}" for name in names for suffix in ("jsonl", "srt")]
    assert [json.loads(written[f"{name}.jsonl"])["id"] for name in names] == list(names)
    assert all(written[f"{name}.srt"].startswith("1\n00:00:0") for name in names)


@pytest.mark.usefixtures("audio")
def test_an_interrupted_folder_is_resumed(
    talker: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from asr.scale import output_folder

    caplog.set_level("INFO")
    whole = output_folder.replace_file
    num_files = 0

    def break_down(path: Path) -> Any:
        nonlocal num_files
        num_files += 1
        if num_files == 3:
            raise KeyboardInterrupt
        return whole(path)

    monkeypatch.setattr(output_folder, "replace_file", break_down)
    arguments = [".", "-r", "--output-dir", "out"]
    assert transcribe(talker, *arguments) == 130
    before = listing(Path("out"))
    assert len(before) == 2
    stamps = {name: (Path("out") / name).stat().st_mtime_ns for name in before}
    assert transcribe(talker, *arguments) == 0
    assert "2 of 4 were finished by an earlier call" in caplog.messages
    assert any(message.startswith("2 transcribed, 2 finished before; ") for message in caplog.messages)
    assert len(listing(Path("out"))) == 4
    assert stamps == {name: (Path("out") / name).stat().st_mtime_ns for name in before}
    caplog.clear()
    assert transcribe(talker, *arguments) == 0
    assert caplog.messages[-1] == "0 transcribed, 4 finished before"
    assert transcribe(talker, *arguments, "--beam", "1") == 0
    assert caplog.messages[-1].startswith("4 transcribed; ")


ONE_BY_ONE = ("--batch-size", "1", "--set", "segmentation.method=energy")


def write_four_phrases(path: Path) -> None:
    phrases = [np.append(make_speechlike(0.6, seed=seed), np.zeros(16_000)) for seed in range(4)]
    soundfile.write(path, np.concatenate(phrases), 16_000)


def test_an_interrupted_recording_goes_on_where_it_stopped(
    talker: str, audio: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from asr.transcription import Recognizer

    caplog.set_level("INFO")
    write_four_phrases(audio / "long.wav")
    short = ["long.wav", *ONE_BY_ONE, "--format", "json"]
    assert transcribe(talker, *short, "--output-dir", "whole") == 0
    decode, num_batches = Recognizer.recognize, 0

    def break_down(*arguments: Any) -> Any:
        nonlocal num_batches
        num_batches += 1
        if num_batches == 3:
            raise KeyboardInterrupt
        return decode(*arguments)

    monkeypatch.setattr(Recognizer, "recognize", break_down)
    assert transcribe(talker, *short, "--output-dir", "out") == 130
    assert (
        list(Path("out").iterdir()) == [Path("out", STATE)] and len(list(Path("out", STATE).iterdir())) == 2
    )
    caplog.clear()
    assert transcribe(talker, *short, "--output-dir", "out") == 0
    assert "long.wav: 2 segments were finished by an earlier call" in caplog.messages
    assert listing(Path("out")) == listing(Path("whole"))
    assert list(Path("out", STATE).iterdir()) == [Path("out", JOURNAL)]


@pytest.mark.parametrize("name", ["txt", "srt"])
def test_text_comes_while_a_recording_is_being_decoded(
    talker: str, audio: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from asr.transcription import Recognizer

    write_four_phrases(audio / "long.wav")
    decode, shown = Recognizer.recognize, []

    def look(*arguments: Any) -> Any:
        shown.append(capsys.readouterr().out)
        return decode(*arguments)

    monkeypatch.setattr(Recognizer, "recognize", look)
    assert transcribe(talker, "long.wav", *ONE_BY_ONE, "--format", name) == 0
    num_held = {"txt": 0, "srt": 1}[name]  # a cue may stay until the next one begins
    assert [bool(text) for text in shown] == [False] * (1 + num_held) + [True] * (3 - num_held)
    text = "".join(shown) + capsys.readouterr().out
    monkeypatch.setattr(Recognizer, "recognize", decode)
    assert transcribe(talker, "long.wav", *ONE_BY_ONE, "--format", name, "--output-dir", "out") == 0
    assert Path("out", f"long.{name}").read_text() == text


def test_channels(
    talker: str, audio: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    write_four_phrases(audio / "left.wav")
    left = soundfile.read(audio / "left.wav")[0]
    right = np.roll(left, 12_800)  # speaks while the other one is silent
    soundfile.write(audio / "right.wav", right, 16_000)
    soundfile.write(audio / "call.wav", np.stack([left, right], axis=1), 16_000)

    def hear(path: str, *arguments: str) -> list[str]:
        assert transcribe(talker, path, *ONE_BY_ONE, *arguments) == 0
        return capsys.readouterr().out.splitlines()

    by_channel = [hear("left.wav"), hear("right.wav")]
    assert hear("call.wav", "--channels", "1") == by_channel[0]
    assert hear("call.wav", "--channels", "2") == by_channel[1] != by_channel[0]
    called = hear("call.wav", "--channels", "separate")
    assert [line[:10] for line in called] == ["speaker1: ", "speaker2: "] * 4
    assert [line[10:] for line in called[::2]] == by_channel[0]
    assert [line[10:] for line in called[1::2]] == by_channel[1]
    assert hear("left.wav", "--channels", "separate") == by_channel[0], "of one channel nobody is a speaker"
    assert hear("call.wav", "--channels", "mix") == hear("call.wav") != by_channel[0]
    wrong = {"3": "has 2", "0": "channels", "left": "channels"}
    for value, message in wrong.items():
        assert transcribe(talker, "call.wav", "--channels", value) != 0
        assert message in capsys.readouterr().err + caplog.text
    for option in (("--stream",), ("--plot-attention", "a.png")):
        assert (
            transcribe(
                talker, *(() if option[0] == "--stream" else ("call.wav",)), *option, "--channels", "separate"
            )
            == 2
        )
        assert "--channels separate" in capsys.readouterr().err


@pytest.mark.usefixtures("audio")
def test_a_new_model_makes_all_anew(talker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert transcribe(talker, "a.wav", "--output-dir", "out") == 0
    other = save_talker(tmp_path / "other", seed=1)
    assert transcribe(str(other), "a.wav", "--output-dir", "out") == 0
    assert caplog.messages[-1].startswith("1 transcribed; ")


@pytest.mark.usefixtures("audio")
def test_references_beside_the_audio_are_kept(talker: str, caplog: pytest.LogCaptureFixture) -> None:
    Path("a.txt").write_text("what was really said")
    assert transcribe(talker, "a.wav", "b.wav", "--output-dir", ".") == 1
    assert Path("a.txt").read_text() == "what was really said" and is_text(Path("b.txt").read_text().strip())
    assert "a.txt: is there already" in caplog.text


@pytest.mark.usefixtures("audio")
def test_the_audio_is_not_written_over(talker: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.rename("a.wav", "a.txt")
    before = Path("a.txt").read_bytes()
    assert transcribe(talker, "a.txt", "--output-dir", ".") == 2
    assert (
        "would be written over a recording" in capsys.readouterr().err
        and Path("a.txt").read_bytes() == before
    )


@pytest.mark.usefixtures("audio")
def test_a_folder_or_a_pattern_without_files_does_not_stop_the_others(
    talker: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transcribe(talker, "a.wav", "sub", "none*.wav", "b.wav") == 1
    assert [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()] == ["a.wav", "b.wav"]
    assert "sub: is a folder" in caplog.text and "none*.wav: cannot read the file" in caplog.text


@pytest.mark.usefixtures("audio")
def test_a_name_too_long_for_an_output_is_said_before_decoding(
    talker: str, caplog: pytest.LogCaptureFixture
) -> None:
    os.rename("b.wav", "ä" * 116 + ".wav")  # 232 bytes, with .json and what is added 257
    assert transcribe(talker, "a.wav", "ä" * 116 + ".wav", "--format", "json", "--output-dir", "out") == 1
    assert list(listing(Path("out"))) == ["a.json"]
    assert "too long for an output; rename the recording" in caplog.text


@pytest.mark.usefixtures("audio")
def test_a_folder_that_cannot_be_written_is_refused_before_decoding(
    talker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("asr.transcription.transcribe.load_model", lambda *_, **__: pytest.fail("too late"))
    os.symlink("/proc", "out")
    assert transcribe(talker, "a.wav", "--output-dir", "out/new") == 2
    assert "out/new: cannot write there" in capsys.readouterr().err
    os.unlink("out")
    full = SimpleNamespace(free=0)
    monkeypatch.setattr("asr.scale.output_folder.shutil.disk_usage", lambda path: full)
    assert transcribe(talker, "a.wav", "--output-dir", "out") == 2
    assert "out: cannot write there (No space left on device)" in capsys.readouterr().err


@pytest.mark.usefixtures("audio")
def test_a_disk_that_fills_up_loses_nothing(
    talker: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file that found no room is named, the others are written, and the next call makes up for it."""
    whole = os.fsync
    calls: list[int] = []

    def fail_once(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(descriptor)

    monkeypatch.setattr("asr.files.os.fsync", fail_once)
    assert transcribe(talker, "a.wav", "b.wav", "--output-dir", "out") == 1
    assert list(listing(Path("out"))) == ["b.txt"]
    assert "a.txt: cannot write the file (No space left on device)" in caplog.text
    assert transcribe(talker, "a.wav", "b.wav", "--output-dir", "out") == 0
    assert list(listing(Path("out"))) == ["a.txt", "b.txt"]


# --- bad files ------------------------------------------------------------------------------------


def test_hostile_among_good_files(talker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """30 of each: 30 transcripts, 30 clear errors, nothing lost."""
    caplog.set_level("INFO")
    chosen = [
        name
        for name in HOSTILE_AUDIO
        if not re.search("^folder$|long name|cut|silent|NaN|infinity|integers|hole|rates", name)
    ]
    paths, bad = [], {}
    for number in range(30):
        good = tmp_path / f"good{number}.wav"
        soundfile.write(good, make_speechlike(0.5, seed=number), 16_000)
        folder = tmp_path / f"bad{number}"
        folder.mkdir()
        hostile = str(HOSTILE_AUDIO[chosen[number]].build(folder))
        bad[hostile] = HOSTILE_AUDIO[chosen[number]].message
        paths += [hostile, str(good)]
    assert transcribe(talker, *paths, "--output-dir", str(tmp_path / "out")) == 1
    written = listing(tmp_path / "out")
    assert sorted(written) == sorted(f"good{number}.txt" for number in range(30))
    assert all(is_text(text.strip()) for text in written.values())
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 30
    for (path, message), error in zip(bad.items(), errors, strict=True):
        assert path in error and message in error and "Traceback" not in error
    assert any(message.startswith("30 transcribed, 30 failed; ") for message in caplog.messages)
    assert caplog.messages[-1] == "  and 10 more, see above"


DAMAGED = {
    "WAV cut short": ("its header promises 2.000 s, but the sound ends at 1.4", 2.0, 1.4),
    "Opus cut short": ("is cut short, or damaged at its end: the sound ends at", None, None),
    "FLAC with a hole": ("is damaged: 0.768 to 1.280 s cannot be decoded", 2.0, 1.488),
    "NaN": ("is damaged: 1.000 to 1.000 s cannot be decoded", 2.0, 2.0),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_recording(
    name: str,
    talker: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is there is written, what is missing is said, and the next call tries again."""
    caplog.set_level("INFO")
    message, promised, found = DAMAGED[name]
    path = HOSTILE_AUDIO[name].build(tmp_path)
    for _ in range(2):
        caplog.clear()
        assert transcribe(talker, str(path), "--output-dir", str(tmp_path / "out"), "--format", "json") == 1
        assert message in caplog.text and "s that are there" in caplog.text
        assert any(line.startswith("0 transcribed, 1 incomplete; ") for line in caplog.messages)
    written = listing(tmp_path / "out")
    (record,) = map(json.loads, written.values())
    assert is_text(record["text"]) and message in record["warnings"][0]
    incomplete = record["incomplete"]
    assert incomplete["promised"] == promised and len(incomplete["missing"]) == 1
    assert found is None or incomplete["found"] == pytest.approx(found, abs=0.01)


def test_nothing_but_bad_files(talker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.wav").touch()
    assert transcribe(talker, str(tmp_path / "empty.wav"), str(tmp_path / "none.wav")) == 1
    assert capsys.readouterr().out == ""


def test_missing_files_are_told_before_weights_are_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("fetched"))
    for arguments, message in (
        (["none.wav"], "asr: none.wav: no such file; check the path\n"),
        (["none.wav", "no.mp3", "--output-dir", "texts"], "none.wav: no such file, nor any of 1 more"),
    ):
        assert cli.main(["transcribe", "--model", "turbo", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_doubted_text_is_said(talker: str, audio: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two heads of random weights contradict each other."""
    caplog.set_level("INFO")
    assert cli.main(["transcribe", "a.wav", "--model", talker]) == 0
    assert "the decoding of 1 segment is doubtful; the warnings in json say why" in caplog.messages


# --- live -----------------------------------------------------------------------------------------


def make_pcm(seconds: float) -> bytes:
    """Speechlike, a pause, speechlike."""
    parts = [make_speechlike(seconds), 1e-3 * make_speechlike(1.0), make_speechlike(seconds, seed=1)]
    return (np.concatenate(parts) * 32767).astype("<i2").tobytes()


def make_two_phrases() -> bytes:
    quiet = (1e-3 * make_speechlike(1.0) * 32767).astype("<i2").tobytes()
    return quiet + make_pcm(1.0) + quiet


def stream(
    talker: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> str:
    pipe_in(monkeypatch, make_pcm(1.5))
    monkeypatch.setattr("asr.serve.pipe.PipeReader.waiting_bytes", 0)  # as if it came by and by
    settings = [
        "--set=segmentation.method=energy",
        "--set=segmentation.max_seconds=2",
        "--set=segmentation.min_seconds=1",
    ]
    assert transcribe(talker, "--stream", *settings, *arguments) == 0
    return capsys.readouterr().out


def test_stream(
    talker: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO")
    lines = stream(talker, capsys, monkeypatch).splitlines()
    assert lines and all(map(is_text, lines))
    records = [
        json.loads(line) for line in stream(talker, capsys, monkeypatch, "--format", "jsonl").splitlines()
    ]
    final = [word["text"] for record in records for word in record["final"]]
    assert final == " ".join(lines).split()
    assert len([record for record in records if record["segment_ends"]]) == len(lines)
    assert any(record["tentative"] for record in records)
    assert "4.0 s of audio; decoding was at most" in caplog.text


def test_a_segment_is_written_while_the_pipe_is_open(talker: str, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Pipe(make_two_phrases())))
    monkeypatch.setattr(sys, "stdout", Out())
    assert transcribe(talker, "--stream", "--set=segmentation.method=energy") == 0
    assert waits[0] and len(sys.stdout.getvalue().splitlines()) == 2  # type: ignore[attr-defined]


def test_a_recorder_does_not_wait_for_the_model(talker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from asr.transcription import transcribe as sequence

    is_read = threading.Event()

    class Pipe(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            is_read.set()
            return super().read(size)

    load = sequence.load_model
    seen: list[bool] = []

    def load_late(*arguments: Any, **named: Any) -> Any:
        seen.append(is_read.wait(10))
        return load(*arguments, **named)

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Pipe(make_pcm(0.5))))
    monkeypatch.setattr(sequence, "load_model", load_late)
    assert transcribe(talker, "--stream") == 0 and seen == [True]


def test_a_file_on_standard_input_is_recognised(
    talker: str, audio: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pcm = make_two_phrases()
    soundfile.write(audio / "sound.flac", np.frombuffer(pcm, "<i2"), 16_000)
    texts = []
    for content in (pcm, (audio / "sound.flac").read_bytes()):
        pipe_in(monkeypatch, content)
        assert transcribe(talker, "--stream", "--set=segmentation.method=energy") == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[0].count("\n") == 2
    pipe_in(monkeypatch, (audio / "sound.flac").read_bytes()[:-9000])  # breaks off: what came is written
    transcribe(talker, "--stream", "--set=segmentation.method=energy")
    assert capsys.readouterr().out.splitlines()[0] == texts[0].splitlines()[0]


@pytest.mark.parametrize(
    "arguments",
    [["a.wav"], ["--output-dir", "out"], ["-r"], ["--format", "srt"], ["--format=txt", "--format=jsonl"]],
)
def test_what_does_not_go_with_stream(
    arguments: list[str], talker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transcribe(talker, "--stream", *arguments) == 2
    assert "--stream" in capsys.readouterr().err


# --- as a program ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pipe_in_a_shell(talker: str, audio: Path) -> None:
    """Real streams: results on standard output, all else on standard error, no bar without a terminal."""
    command = f"cat a.wav | {sys.executable} -m asr transcribe - --model {talker} {' '.join(BELIEVE)}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=100, cwd=audio)
    assert done.returncode == 0 and is_text(done.stdout.strip()) and len(done.stdout.splitlines()) == 1
    assert "device: " in done.stderr and "%|" not in done.stderr


# --- elsewhere ------------------------------------------------------------------------------------


def test_addresses_and_shards_are_as_files(
    talker: str, audio: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Outputs are the same, faults are told under the name of the address, and what is done stays so."""
    import fsspec

    from asr.data import Manifest, Utterance, write_manifest
    from asr.shards import PackSettings, pack

    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    for name in ("a.wav", "sub/c.flac"):
        filesystem.pipe(f"/bucket/{name}", (audio / name).read_bytes())
    filesystem.pipe("/bucket/none.wav", b"no audio")
    write_manifest(
        audio / "list.jsonl",
        [Utterance(id="a", audio="a.wav", duration=0.6), Utterance(id="c", audio="sub/c.flac", duration=1.2)],
    )
    pack(Manifest.open(audio / "list.jsonl"), audio / "shards", PackSettings("copy"))
    table = ["--format", "tsv", "--output-dir"]
    assert transcribe(talker, "a.wav", "sub/c.flac", *table, "files") == 0
    assert transcribe(talker, "shards", *table, "packed") == 0
    assert transcribe(talker, "memory://bucket", "-r", *table, "bucket") == 1
    assert "memory://bucket/none.wav: is text" in caplog.text
    for name in ("a", "c"):
        expected = (audio / f"files/{name}.tsv").read_text()
        assert expected == (audio / f"packed/{name}.tsv").read_text()
    assert (audio / "files/a.tsv").read_text() == (audio / "bucket/a.tsv").read_text()
    before = (audio / "bucket/a.tsv").stat().st_mtime_ns
    assert transcribe(talker, "memory://bucket/a.wav", *table, "bucket") == 0
    assert (audio / "bucket/a.tsv").stat().st_mtime_ns == before
    filesystem.pipe("/bucket/a.wav", (audio / "b.wav").read_bytes())
    assert transcribe(talker, "memory://bucket/a.wav", *table, "bucket") == 0
    assert (audio / "bucket/a.tsv").stat().st_mtime_ns != before


@pytest.mark.parametrize(
    ("warnings", "reason"),
    [((), "no speech was found"), (("no clear speech: 'A' was dropped",), "was dropped; --set checks=off")],
)
def test_a_recording_without_text_is_said(
    warnings: tuple[str, ...], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    tally = Tally(None, 0)
    segments = tuple(Segment(0, 1, "", warnings=(warning,)) for warning in warnings)
    tally.take(Recording("weak.wav", "weak"), Transcript("", "", 1.0, segments))
    tally.take(Recording("good.wav", "good"), Transcript("", "", 1.0, (Segment(0, 1, "A"),)))
    (message,) = caplog.messages
    assert message.startswith("weak.wav: no text (") and reason in message
