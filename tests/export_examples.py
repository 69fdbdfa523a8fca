"""The commands in the README of an export, run as they are written there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def run_readme(folder: Path, clip: Path) -> list[str]:
    """Return the text of a recording by the script in Python, and by C++ if its programs are installed."""
    shutil.copy(clip, folder / "clip.wav")
    page = (folder / "README.md").read_text()
    script, command = re.findall(r"```(?:python)?\n(.*?)\n```", page, flags=re.DOTALL)
    texts = [run(folder, sys.executable, "-c", script).strip()]
    program, *options = command.splitlines()[0].split()
    if path := shutil.which(program, path=PROGRAMS):
        texts += re.findall(r'"text": "(.*?)"', run(folder, path, *options))
    return texts


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr * (words[0] != sys.executable)  # the programs write texts to both
