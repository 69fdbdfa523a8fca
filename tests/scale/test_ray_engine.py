"""`asr transcribe --engine ray`: outputs are those of one process, in any order of deaths and interruptions."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import soundfile
from hostile_audio import make_speechlike
from system_examples import save_talker

from asr import cli
from asr.cli.ray_engine import PARTS, TRANSCRIPT, show_status
from asr.decoding import ChecksConfig
from asr.jobs import PartFolder, plan_units
from asr.transcripts import Segment, Transcript, Word

BELIEVE = [f"--set=checks.{name}=null" for name in ChecksConfig.model_fields if name != "still_seconds"]


def test_a_transcript_goes_through_json_unchanged() -> None:
    from dataclasses import asdict

    from asr.audio import Damage

    word = Word("one", 0.1, 1 / 3, 2 / 3)
    segment = Segment(0.1, 0.4, "one \udc80", (word,), warnings=("w",), tokens=(3, 4), temperature=0.0)
    damage = Damage(None, 1.5, ((0.5, None), (0.1, 0.2)), "a.wav: breaks off")
    transcript = Transcript("a", "a.wav", 1.5, (segment,), warnings=("a",), incomplete=damage)
    assert TRANSCRIPT.validate_python(json.loads(json.dumps(asdict(transcript)))) == transcript


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.wav", "--engine", "ray"], "give that, and leave"),
        (["-", "--engine", "ray", "--output-dir", "out"], "give that, and leave"),
        (["a.wav", "--engine", "ray", "--output-dir", "out", "--device", "cuda:1"], "give cuda"),
        (["a.wav", "--workers", "2"], "go with --engine ray"),
        (["a.wav", "--ray", "auto", "--output-dir", "out"], "go with --engine ray"),
        (["a.wav", "--status", "out"], "leave AUDIO out"),
        (["--status", "out"], "holds no plan of a job"),
    ],
)
def test_what_does_not_go_together(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["transcribe", *words]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_status_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts, units = PartFolder(tmp_path / PARTS, "key"), plan_units(["a", "b"], [1800.0, 900.0])
    parts.announce(units, units)
    parts.write(units[0], [{"id": "a", "error": "a.wav: no audio"}])
    show_status(str(tmp_path))
    assert capsys.readouterr().out.splitlines() == [
        "units       1 of 2 done",
        "recordings  1 of 2 done, 1 of them failed",
        "audio       0.50 of 0.75 hours",
        "state       interrupted; the same call goes on with the rest",
    ]


# --- with Ray -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, 40 recordings, one that is cut short, and one that is none."""
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


SHORT_UNITS = "import sys\nfrom asr.jobs import work_units\nwork_units.plan_units.__defaults__ = (10.0,)\n"


def start(corpus: Path, out: str, *words: str) -> subprocess.Popen[str]:
    """Units of ten seconds, in a process group of its own."""
    script = f"{SHORT_UNITS}from asr.cli import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "transcribe", "audio", "-r", "--model", "model", *BELIEVE]
    command += ["--output-dir", out, "--format", "all", "--threads", "1", *words]
    return subprocess.Popen(command, cwd=corpus, stderr=subprocess.PIPE, text=True, start_new_session=True)


def read_outputs(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."
    }


@pytest.fixture(scope="session")
def expected(corpus: Path) -> dict[str, bytes]:
    """The outputs of one process."""
    process = start(corpus, "expected")
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1 and "1 incomplete, 1 failed" in said
    found = read_outputs(corpus / "expected")
    assert len(found) == 41 * 11
    return found


@pytest.mark.slow
def test_outputs_are_those_of_one_process(
    corpus: Path, expected: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    process = start(corpus, "ray", "--engine", "ray", "--workers", "2")
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1 and "1 incomplete, 1 failed" in said, said
    assert read_outputs(corpus / "ray") == expected
    parts = sorted((corpus / "ray" / PARTS).glob("*.jsonl"))
    rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()[1:]]
    assert len(rows) == len({row["id"] for row in rows}) == 42
    (failed,) = (row for row in rows if "error" in row)
    assert failed["id"] == "none" and failed["error"].startswith("audio/none.wav: ")
    show_status(str(corpus / "ray"))
    shown = capsys.readouterr().out
    assert "recordings  42 of 42 done, 1 of them failed" in shown and "state       finished" in shown

    process = start(corpus, "ray", "--engine", "ray")  # nothing is left; the faults are told again
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1 and "40 finished before, 1 incomplete, 1 failed" in said, said
    assert "worker" not in said and read_outputs(corpus / "ray") == expected


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_job_goes_on(
    ended_by: signal.Signals, corpus: Path, expected: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"ended-by-{ended_by.name}"
    process = start(corpus, out, "--engine", "ray", "--workers", "2")
    parts = corpus / out / PARTS
    wait_for(lambda: len(list(parts.glob("*.jsonl"))) >= 3)
    show_status(str(corpus / out))
    assert re.search("state       running, about [0-9]+ min left", capsys.readouterr().out)
    os.kill(process.pid, ended_by)
    _, said = process.communicate(timeout=300)
    assert "Traceback" not in said and process.returncode == (130 if ended_by == signal.SIGINT else -9)
    done = {path.name: path.stat().st_mtime_ns for path in parts.glob("*.jsonl")}
    show_status(str(corpus / out))
    assert "interrupted; the same call goes on" in capsys.readouterr().out
    process = start(corpus, out, "--engine", "ray", "--workers", "2")
    process.communicate(timeout=300)
    assert read_outputs(corpus / out) == expected
    for name, changed in done.items():
        assert (parts / name).stat().st_mtime_ns == changed  # what was done is not done again
    assert not list(parts.glob(".*.tmp"))


def wait_for(condition: object, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


@pytest.mark.slow
def test_two_calls_at_once_are_refused(corpus: Path) -> None:
    first = start(corpus, "twice", "--engine", "ray", "--workers", "2")
    wait_for((corpus / "twice" / PARTS / "plan.json").exists)
    second = start(corpus, "twice", "--engine", "ray", "--workers", "2")
    _, said = second.communicate(timeout=300)
    assert second.returncode == 2 and "another process is writing there" in said
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate(timeout=300)
