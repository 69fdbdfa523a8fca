"""Speak a small corpus by espeak-ng, to try the tutorials with: FOLDER/NAME.wav and FOLDER/texts.csv."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import soundfile

from asr.recipe import synthesize

VOICES = tuple(f"en-us+{variant}" for variant in ("m1", "m2", "m3", "m4", "f1", "f2", "f3", "f4"))
COMMANDS = ("lights on", "lights off", "door open", "door closed", "music on", "music off")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-voice", type=int, default=20, help="recordings by each of eight voices")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    with (args.folder / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["file", "transcript", "speaker"])
        for voice in VOICES:
            for index in range(args.per_voice):
                text = " ".join(generator.choice(COMMANDS, size=2))
                name = f"{voice.replace('+', '-')}-{index:03}.wav"
                samples, rate = synthesize(text, voice=voice, rate=int(generator.integers(130, 190)))
                soundfile.write(args.folder / name, samples, rate)
                table.writerow([name, text, voice])


if __name__ == "__main__":
    main()
