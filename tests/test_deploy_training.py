"""deploy/train.sbatch and train-job.yaml: what they start, by stand-ins for Slurm, and what they ask for."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
LAST = "-m asr train"


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """A machine where srun starts what it is given once, and torchrun notes its arguments."""
    scripts = {
        "srun": 'exec "$@"',
        "torchrun": 'echo "$@" >> started; [ -e wait ] || exit ${STATUS:-0}; trap "echo saved >> started; exit 143" TERM\n'
        "touch running; while true; do sleep 0.02; done",
        "scontrol": 'if [ "$1" = show ]; then echo node-7; echo node-8; else echo "$@" >> asked; fi',
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "node-[7-8]", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4"}
    return os.environ | job | {"SLURM_JOB_ID": "123", "PATH": f"{tmp_path}:{os.environ['PATH']}"}


COMMAND = ["bash", str(DEPLOY / "train.sbatch"), "conf/run.yaml", "train.steps=9"]


def test_slurm_starts_a_torchrun_that_meets_at_the_first_machine(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    for status in ("0", "2"):
        done = subprocess.run(COMMAND, cwd=tmp_path, env=slurm | {"STATUS": status}, timeout=60)
        assert done.returncode == int(status), "that of the training"
    words = (tmp_path / "started").read_text().splitlines()[0]
    options, _, arguments = words.partition(f" {LAST} ")
    assert arguments == "conf/run.yaml train.steps=9"
    assert {"--nnodes=2", "--nproc-per-node=4", "--rdzv-endpoint=node-7:29500"} <= set(options.split())
    assert not (tmp_path / "asked").exists(), "what fails or is done is not put into the queue again"


def test_slurm_job_whose_time_is_up_saves_and_is_queued_again(tmp_path: Path, slurm: dict[str, str]) -> None:
    (tmp_path / "wait").touch()
    job = subprocess.Popen(COMMAND, cwd=tmp_path, env=slurm)
    end = time.monotonic() + 60
    while not (tmp_path / "running").exists() and time.monotonic() < end:
        time.sleep(0.02)
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) != 0
    assert (tmp_path / "started").read_text().endswith("saved\n")
    assert (tmp_path / "asked").read_text() == "requeue 123\n"


def test_slurm_gives_time_to_save() -> None:
    text = (DEPLOY / "train.sbatch").read_text()
    assert "#SBATCH --signal=B:TERM@120\n" in text and "#SBATCH --requeue\n" in text


def test_kubernetes_pods_find_each_other() -> None:
    service, job = yaml.safe_load_all((DEPLOY / "train-job.yaml").read_text())
    name, pod = job["metadata"]["name"], job["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == {"job-name": name} and service["spec"]["clusterIP"] == "None"
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    words = " ".join([*container["command"], *container["args"]])
    assert words.endswith(f" {LAST} conf/run.yaml")
    assert f"--rdzv-endpoint={name}-0.{pod['subdomain']}:29500" in words
    assert f"--nnodes=1:{job['spec']['completions']}" in words
    assert f"--nproc-per-node={container['resources']['limits']['nvidia.com/gpu']}" in words
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert job["spec"]["completionMode"] == "Indexed" and pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] > 30, "torchrun's own time"
