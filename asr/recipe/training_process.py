"""Trainings of a recipe side by side: `python -m asr.recipe.training_process JOB` is one of them."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asr.errors import UserError
from asr.recipe.definition import Job, load_recipe
from asr.recipe.processes import Command, count_cores, end_with_standard_input, run_side_by_side
from asr.recipe.tasks import PartError, Task, run_task, skip_task

PREFIX = "train "  # of the names of these tasks; what follows is that of the run


def run_trainings(job: Job, tasks: Sequence[Task]) -> None:
    """Up to `job.jobs` at once, which share the cores; what is done already is skipped."""
    wanted: list[Task] = []
    for task in tasks:  # what others start from comes first
        is_given = not any(other.name in task.after for other in wanted)
        if not (is_given and skip_task(task)):
            wanted.append(task)
    threads = max(1, count_cores() // max(1, min(job.jobs, len(wanted))))
    commands = {
        task.name.removeprefix(PREFIX): Command(
            [sys.executable, "-m", __name__, _describe(job, task, threads)],
            tuple(name.removeprefix(PREFIX) for name in task.after if name.startswith(PREFIX)),
        )
        for task in wanted
    }
    if faults := run_side_by_side(commands, job.jobs):
        listed = ", ".join(f"{name} ({fault})" for name, fault in faults.items())
        raise PartError(
            f"{len(faults)} of {len(commands)} trainings failed: {listed}. What they said stands above, "
            "behind their names; the same command goes on with them"
        )


@dataclass(frozen=True)
class _SameJob(Job):
    """The caller's, whatever kind that is."""

    same_command: str = ""

    @property
    def command(self) -> str:
        return self.same_command


def _describe(job: Job, task: Task, threads: int) -> str:
    fields = {field.name: getattr(job, field.name) for field in dataclasses.fields(Job)}
    fields |= {"recipe": [job.recipe.name, str(job.recipe.path.parents[1])], "same_command": job.command}
    return json.dumps({"task": task.name, "threads": threads, "job": fields}, default=str)


def main(description: str) -> int:
    """The exit status, as that of `asr`."""
    end_with_standard_input()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    import torch

    from asr.recipe.training import build_tasks

    wanted = json.loads(description)
    name, recipes_dir = wanted["job"].pop("recipe")
    folders = {key: value and Path(value) for key, value in wanted["job"].items() if key.endswith("_dir")}
    lists = {key: tuple(value) for key, value in wanted["job"].items() if isinstance(value, list)}
    job = _SameJob(load_recipe(name, Path(recipes_dir)), **wanted["job"] | folders | lists)
    torch.set_num_threads(min(torch.get_num_threads(), wanted["threads"]))
    try:
        (task,) = (task for task in build_tasks(job, "train") if task.name == wanted["task"])
        run_task(task)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
