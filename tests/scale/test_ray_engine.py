"""`asr transcribe --engine ray`: outputs equal those from one process, after any deaths and interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import soundfile
from hostile_audio import make_speechlike
from ray_examples import StandIn
from system_examples import save_talker

from asr import cli
from asr.files import LOCK
from asr.scale.output_folder import JOURNAL, STATE

BELIEVE = ["--set=checks=off"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.wav", "--engine", "ray"], "needs --output-dir DIR"),
        (
            ["a.wav", "--engine", "ray", "--output-dir", "out", "--same-speakers"],
            "--same-speakers or --voices",
        ),
        (["-", "--engine", "ray", "--output-dir", "out"], "needs --output-dir DIR"),
        (["a.wav", "--engine", "ray", "--output-dir", "out", "--device", "cuda:1"], "give cuda"),
        (["a.wav", "--workers", "2"], "need --engine ray"),
        (["a.wav", "--ray", "auto", "--output-dir", "out"], "need --engine ray"),
    ],
)
def test_incompatible_options_are_refused(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["transcribe", *words]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_outputs_with_a_fake_ray_equal_those_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asr.scale.ray_pool._import_ray", lambda is_cluster: StandIn())
    monkeypatch.chdir(tmp_path)
    save_talker(tmp_path / "model")
    for name in ("a", "b"):
        soundfile.write(f"{name}.wav", make_speechlike(1.0, seed=ord(name)), 16_000)
    command = ["transcribe", "a.wav", "b.wav", "--model", "model", *BELIEVE, "--format", "all"]
    assert cli.main([*command, "--output-dir", "here"]) == 0
    assert cli.main([*command, "--output-dir", "ray", "--engine", "ray", "--workers", "2"]) == 0
    assert read_outputs(tmp_path / "ray") == read_outputs(tmp_path / "here") != {}


# --- with Ray -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and 40 recordings, plus a truncated one and one that is not audio."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    folder = tmp_path_factory.mktemp("corpus")
    save_talker(folder / "model", "model.encoder.type=conformer")
    (folder / "audio").mkdir()
    for seed in range(40):
        soundfile.write(folder / f"audio/{seed:02}.wav", make_speechlike(1 + seed % 7, seed=seed), 16_000)
    whole = (folder / "audio/20.wav").read_bytes()
    (folder / "audio/cut.wav").write_bytes(whole[: len(whole) // 2])
    (folder / "audio/none.wav").write_bytes(b"no audio")
    return folder


SHORT_UNITS = (
    "import sys\nfrom asr.transcription import arguments\narguments.plan_units.__defaults__ = (10.0,)\n"
)


def start(corpus: Path, out: str, *words: str) -> subprocess.Popen[str]:
    """Units of ten seconds, in a process group of its own."""
    script = f"{SHORT_UNITS}from asr.cli import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "transcribe", "audio", "-r", "--model", "model", *BELIEVE]
    command += ["--output-dir", out, "--format", "all", "--threads", "1", *words]
    return subprocess.Popen(command, cwd=corpus, stderr=subprocess.PIPE, text=True, start_new_session=True)


def count_ends(folder: Path) -> Counter[str]:
    """How often each recording was finished or failed permanently."""
    journal = folder / JOURNAL
    lines = map(json.loads, journal.read_text().splitlines()) if journal.exists() else ()
    return Counter(line["name"] for line in lines if {"seconds", "error"} & line.keys() and "name" in line)


def read_outputs(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."
    }


@pytest.fixture(scope="session")
def expected(corpus: Path) -> dict[str, bytes]:
    """The outputs of a single process."""
    process = start(corpus, "expected")
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1 and "1 incomplete, 1 failed" in said
    found = read_outputs(corpus / "expected")
    assert len(found) == 41 * 9
    return found


@pytest.mark.slow
def test_outputs_equal_those_of_one_process(corpus: Path, expected: dict[str, bytes]) -> None:
    process = start(corpus, "ray", "--engine", "ray", "--workers", "2")
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1 and "1 incomplete, 1 failed" in said, said
    assert read_outputs(corpus / "ray") == expected
    finished = count_ends(corpus / "ray")
    assert len(finished) == 42 and set(finished.values()) == {1}

    process = start(
        corpus, "ray", "--engine", "ray"
    )  # nothing is left to do; the problems are reported again
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1 and "0 transcribed, 40 finished before, 2 failed before" in said, said
    assert "worker" not in said and read_outputs(corpus / "ray") == expected


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_job_resumes(
    ended_by: signal.Signals, corpus: Path, expected: dict[str, bytes]
) -> None:
    out = f"ended-by-{ended_by.name}"
    process = start(corpus, out, "--engine", "ray", "--workers", "2")
    wait_for(lambda: len(count_ends(corpus / out)) >= 6)
    os.kill(process.pid, ended_by)
    _, said = process.communicate(timeout=300)
    assert "Traceback" not in said and process.returncode == (130 if ended_by == signal.SIGINT else -9)
    done = {path: path.stat().st_mtime_ns for path in (corpus / out).iterdir() if path.name[0] != "."}
    process = start(corpus, out, "--engine", "ray", "--workers", "2")
    process.communicate(timeout=300)
    assert read_outputs(corpus / out) == expected
    again = [path for path, changed in done.items() if path.stat().st_mtime_ns != changed]
    assert len(again) <= 9, "what was done is not done again, but the outputs of one that was being written"
    assert not list((corpus / out).glob(".*.tmp"))


def wait_for(condition: object, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


@pytest.mark.slow
def test_two_calls_at_once_are_refused(corpus: Path) -> None:
    first = start(corpus, "twice", "--engine", "ray", "--workers", "2")
    wait_for(lambda: (corpus / "twice" / STATE / LOCK).exists())
    second = start(corpus, "twice", "--engine", "ray", "--workers", "2")
    _, said = second.communicate(timeout=300)
    assert second.returncode == 2 and "another process is writing there" in said
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate(timeout=300)
