"""Synthesize speech for the tutorials by espeak-ng: a small corpus in a folder, or one text as one file.

python docs/examples/speak_recordings.py data/recordings             # recordings and texts.csv
python docs/examples/speak_recordings.py talk.mp3 --text "Hello."    # one file
"""

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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, help="folder of the corpus; with --text, an audio file")
    parser.add_argument("--text", help="speak this text only")
    parser.add_argument("--per-voice", type=int, default=20, help="recordings by each of eight voices")
    args = parser.parse_args()
    if args.text is not None:
        soundfile.write(args.target, *synthesize(args.text, rate=150))
        print(f"{args.target}: one recording")
        return
    args.target.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    with (args.target / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["file", "transcript", "speaker"])
        for voice in VOICES:
            for index in range(args.per_voice):
                text = " ".join(generator.choice(COMMANDS, size=2))
                name = f"{voice.replace('+', '-')}-{index:03}.wav"
                samples, rate = synthesize(text, voice=voice, rate=int(generator.integers(130, 190)))
                soundfile.write(args.target / name, samples, rate)
                table.writerow([name, text, voice])
    print(f"{args.target}: {len(VOICES) * args.per_voice} recordings by {len(VOICES)} voices, and texts.csv")


if __name__ == "__main__":
    main()
