"""Kaldi folders as Kaldi's own scripts write them; no command of a wav.scp is ever run."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data import Utterance
from asr.errors import UserError
from asr.formats.kaldi_folder import parse_pipe, read_kaldi

SAMPLE_RATE = 8000


def write_noise(path: Path, seconds: float, channels: int = 1) -> str:
    samples = np.random.default_rng(0).normal(0, 0.1, (round(seconds * SAMPLE_RATE), channels))
    soundfile.write(path, samples, SAMPLE_RATE)
    return str(path)


def write_folder(folder: Path, **files: str) -> Path:
    """Values are the contents; names end in _scp for .scp."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_scp", ".scp")).write_text(content, errors="surrogateescape")
    return folder


# --- reading ------------------------------------------------------------------------------------


def test_a_folder_of_whole_files(tmp_path: Path) -> None:
    first, second = write_noise(tmp_path / "a.wav", 1.5), write_noise(tmp_path / "b.flac", 2.0)
    folder = write_folder(
        tmp_path / "data",
        wav_scp=f"an4-fash-1 {first}\nan4-fbbh-1 flac -c -d -s {second} |\n",
        text="an4-fash-1 YES NO\nan4-fbbh-1\n",
        utt2spk="an4-fash-1 fash\nan4-fbbh-1 an4-fbbh-1\n",
        utt2dur="an4-fash-1 1.49\n",
        utt2lang="an4-fash-1 en\nan4-fbbh-1 en\n",
    )
    assert list(read_kaldi(folder)) == [
        Utterance(
            id="an4-fash-1", audio=first, duration=1.49, text="YES NO", speaker="fash", language="en"
        ),
        Utterance(id="an4-fbbh-1", audio=second, duration=2.0, text="", language="en"),
    ]  # fmt: skip


def test_a_folder_with_segments(tmp_path: Path) -> None:
    audio = write_noise(tmp_path / "tape.wav", 10.0)
    folder = write_folder(
        tmp_path / "data",
        wav_scp=f"tape {audio}\nunused {audio}\n",
        segments="s1-a tape 0.10 2.36\ns1-b\ttape\t2.5 -1\ns2-a tape 3 4 0\n",
        utt2dur="s1-a 99\ns1-b 99\ns2-a 99\n",  # derived from segments, which count
        utt2spk="s1-a s1\ns1-b s1\ns2-a s2\n",
    )
    assert [(u.id, u.start, u.duration, u.speaker) for u in read_kaldi(folder)] == [
        ("s1-a", 0.1, 2.26, "s1"),
        ("s1-b", 2.5, 7.5, "s1"),
        ("s2-a", 3.0, 1.0, "s2"),
    ]


def test_what_is_known_without_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a recording, and that relative paths start at the current folder."""
    monkeypatch.chdir(tmp_path)
    write_folder(
        tmp_path / "data", wav_scp="r no/r.wav\n", reco2dur="r 7.25\n", segments="a r 1 -1\nb r 2 3\n"
    )
    found = list(read_kaldi("data"))
    assert [u.duration for u in found] == [6.25, 1.0] and found[0].audio == str(tmp_path / "no/r.wav")


GOOD = {"wav_scp": "a /x/a.wav\nb /x/b.wav\n", "utt2dur": "a 1\nb 2\n"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"wav_scp": "a /x/a.ark:123[0:9]\n"}, "wav.scp:1: '/x/a.ark:123[0:9]' points into an archive"),
        ({"wav_scp": "a -\n"}, "wav.scp:1: '-': expected the path of an audio file"),
        ({"wav_scp": "a\n"}, "wav.scp:1: '': expected the path"),
        ({"wav_scp": "a | gzip > /x\n"}, "expected the path"),
        ({"text": "a x\nb y\na z\n"}, "text:3: duplicate 'a'"),
        ({"text": "a ok\nb \udcff\n"}, "text:2: byte 3 is not UTF-8"),
        ({"utt2spk": "a s1 s2\n"}, "utt2spk:1: expected two columns, found 's1 s2'"),
        ({"utt2dur": "a nan\n"}, "utt2dur:1: duration = 'nan': expected a number of seconds"),
        ({"segments": "a-1 a 1\n"}, "segments:1: 'a 1': expected RECORDING START END"),
        ({"segments": "a-1 a 2 1\n"}, "segments:1: 'a 2 1': expected RECORDING START END"),
        ({"segments": "a-1 a -1 1\n"}, "expected RECORDING START END"),
        ({"segments": "a-1 a 0 inf\n"}, "expected RECORDING START END"),
        ({"segments": "a-1 a 0 1 0 0\n"}, "expected RECORDING START END"),
        ({"segments": "a-1 c 0 1\n"}, "segments: a-1 is part of c, which wav.scp lacks"),
        ({"wav_scp": f"{'a' * 300} /x/a.wav\n", "utt2dur": f"{'a' * 300} 1\n"}, "id = 'aaa"),
        ({"utt2dur": "b 1\n"}, "'a': the duration is missing, and /x/a.wav: cannot read the file"),
    ],
)  # fmt: skip
def test_a_bad_folder_is_named_by_file_and_line(tmp_path: Path, files: dict, message: str) -> None:
    folder = write_folder(tmp_path, **(GOOD | files))
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        list(read_kaldi(folder))
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(UserError, match=r"no wav\.scp"):
        list(read_kaldi(tmp_path / "nothing"))


def test_what_does_not_fit_together_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_folder(tmp_path, **GOOD, text="z x\na y\nc y\n", utt2spk="a s\n")
    assert [(u.id, u.text, u.speaker) for u in read_kaldi(folder)] == [("a", "y", "s"), ("b", None, None)]
    for table in ("text", "utt2spk"):
        assert f"{folder}/{table}: 1 utterances have no line, such as 'b'" in caplog.text


# --- commands -----------------------------------------------------------------------------------


def test_plain_decoding_commands_are_replaced_by_their_file() -> None:
    for command, found in {
        "/opt/kaldi/tools/sph2pipe_v2.5/sph2pipe -f wav -p -c 1 /x/a.sph ": "/x/a.sph",
        "flac -c -d -s /x/a.flac": "/x/a.flac",
        "flac -cds '/x/a b.flac'": "/x/a b.flac",
        "sox -t mp3 /x/a.mp3 -r 16000 -b 16 -e signed-integer -c 1 -t wav -": "/x/a.mp3",
        "ffmpeg -nostdin -loglevel error -i /x/a.m4a -f wav -ar 16000 -ac 1 -": "/x/a.m4a",
        "ffmpeg -v quiet -i /x/a.m4a -vn -acodec pcm_s16le -f wav pipe:1": "/x/a.m4a",
        "cat /x/a.wav": "/x/a.wav",
    }.items():
        assert parse_pipe(command)[0] == found


OTHER_COMMANDS = r"""
cat
cat -
cat /x/a.wav /x/b.wav
cat '/x/a.wav
rm -rf /x
gunzip -c /x/a.wav.gz
sph2pipe -f wav -p -c 1 /x/a.sph | sox -t wav - -t wav -r 8000 -
sph2pipe -f wav -t 1:2 /x/a.sph
flac -c -d -s /x/a.flac; rm -rf /x
flac -c -d --skip=100 /x/a.flac
flac -c -d /x/$(id).flac
flac -c -d /x/`id`.flac
cat /x/*.wav
cat ~/a.wav
cat < /x/a.wav
sox /x/a.wav -t wav - speed 1.1
sox -v 0.5 /x/a.wav -t wav -
sox -t raw -r 8000 /x/a -t wav -
sox /x/a.wav /x/b.wav
sox /x/a.wav -c 2 -t wav -
ffmpeg -ss 10 -i /x/a.wav -f wav -
ffmpeg -i /x/a.wav -af volume=2 -f wav -
ffmpeg -i /x/a.wav -f s16le -
ffmpeg -i /x/a.wav -i /x/b.wav -f wav -
ffmpeg -i /x/a.wav -f"""


@pytest.mark.parametrize("command", OTHER_COMMANDS.split("\n"))
def test_any_other_command_is_refused(tmp_path: Path, command: str) -> None:
    folder = write_folder(tmp_path, wav_scp=f"a {command} |\n", utt2dur="a 1\n")
    with pytest.raises(UserError, match=r"wav\.scp:1: .* commands are never executed"):
        list(read_kaldi(folder))


def test_no_command_is_ever_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object, **options: object) -> None:
        raise AssertionError(f"a command was run: {args}")

    monkeypatch.setattr(subprocess, "Popen", forbidden)
    monkeypatch.setattr("os.system", forbidden)
    trace = tmp_path / "trace"
    for command in (f"touch {trace}", f"cat $(touch {trace})", f"cat {trace}"):
        folder = write_folder(tmp_path / "data", wav_scp=f"a {command} |\n", utt2dur="a 1\n")
        with contextlib.suppress(UserError):
            assert [u.audio for u in read_kaldi(folder)] == [str(trace)]
    assert not trace.exists()


def test_a_channel_can_only_be_chosen_where_there_is_one(tmp_path: Path) -> None:
    mono, stereo = write_noise(tmp_path / "mono.wav", 1), write_noise(tmp_path / "stereo.wav", 1, channels=2)
    command = "sph2pipe -f wav -p -c 1"
    folder = write_folder(tmp_path / "data", wav_scp=f"a {command} {mono} |\n")
    assert next(read_kaldi(folder)).audio == mono
    for side in (1, 2):  # sph2pipe counts from 1
        write_folder(folder, wav_scp=f"a sph2pipe -f wav -p -c {side} {stereo} |\n")
        (found,) = read_kaldi(folder)
        assert (found.audio, found.channel) == (stereo, side)
    for number in (0, 1):  # lhotse's export; ffmpeg counts from 0
        mapped = f"ffmpeg -threads 1 -i {stereo} -ar 8000 -map_channel 0.0.{number}  -f wav -threads 1 pipe:1"
        write_folder(folder, wav_scp=f"a {mapped} |\n")
        assert next(read_kaldi(folder)).channel == number + 1
    write_folder(folder, wav_scp=f"a {stereo}\n", segments="a-1 a 0 1 1\na-2 a 0 1\n")
    first, second = read_kaldi(folder)
    assert (first.channel, second.channel) == (2, None)  # Kaldi counts from 0
    write_folder(folder, wav_scp=f"a {stereo}\n", segments="a-1 a 0 1 2\n")
    with pytest.raises(UserError, match=r"stereo.wav: no channel 2, counted from 0; expected 0 to 1"):
        list(read_kaldi(folder))
