"""Measure the loss of a transducer next to torchaudio's, and its searches next to the searches of CTC.

    python tools/bench_transducer.py loss                      # time and memory, by size of the vocabulary
    python tools/bench_transducer.py search RUN MANIFEST       # a trained transducer, in batches of 16

The loss is computed with its gradient by encoder, predictor and joint network for 8 utterances of 10 s: 250
steps of 40 ms and 40 tokens. torchaudio gets the scores of all nodes, computed by PyTorch. Memory is the
growth of the peak in a process of its own. The search encodes once and searches with a beam of 10 and
greedily, in turn; times are CPU seconds per second of audio, without the encoder.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from asr.audio.segmentation import AudioSegment
from asr.data.utterance_audio import read_audio
from asr.decoding.decode import DecodingSetup, search_encoded
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.evaluation.speech import read_utterances
from asr.families import find_model
from asr.system.system import load_system
from asr.text.tokenizer import BLANK_ID
from asr.transcription.transcribe import find_manners
from asr.transducer.joint import NodeScores, join
from asr.transducer.lattice import RNNT_ARCS, SumOverPaths

BATCH, STEPS, TOKENS, DIM = 8, 250, 40, 320
VOCABULARIES = 32, 500, 5000
SEARCHES = {
    "transducer, greedy": DecodingConfig(method="transducer", beam=1),
    "transducer, beam 10": DecodingConfig(method="transducer", beam=10),
    "CTC, greedy": DecodingConfig(method="ctc_greedy"),
    "CTC, beam 10": DecodingConfig(method="ctc_beam", beam=10),
}


def make_inputs(vocab_size: int) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = (BATCH, STEPS, DIM), (BATCH, TOKENS + 1, DIM), (vocab_size, DIM), (vocab_size,)
    return [(0.1 * torch.randn(shape)).requires_grad_() for shape in shapes]


def compute_own(inputs: list[Tensor], tokens_BU: Tensor) -> Tensor:
    lengths_B, counts_B = torch.full((BATCH,), STEPS), torch.full((BATCH,), TOKENS)
    blank_BTN, next_BTN, _ = NodeScores.apply(*inputs, tokens_BU, lengths_B, counts_B, 0)
    scores_ABTN = torch.stack([blank_BTN, next_BTN]).double()
    return -SumOverPaths.apply(scores_ABTN, RNNT_ARCS, lengths_B, counts_B).sum()


def compute_torchaudio(inputs: list[Tensor], tokens_BU: Tensor) -> Tensor:
    import torchaudio  # type: ignore[import-untyped]

    encoded_BTJ, predicted_BNJ, weight_VJ, bias_V = inputs
    scores, _ = join(encoded_BTJ[:, :, None], predicted_BNJ[:, None], weight_VJ, bias_V)
    lengths_B, counts_B = (torch.full((BATCH,), size, dtype=torch.int32) for size in (STEPS, TOKENS))
    return torchaudio.functional.rnnt_loss(
        scores, tokens_BU.int(), lengths_B, counts_B, blank=BLANK_ID, reduction="sum"
    )


LOSSES: dict[str, Callable[[list[Tensor], Tensor], Tensor]] = {
    "own": compute_own,
    "torchaudio": compute_torchaudio,
}


def measure_loss(name: str, vocab_size: int, rounds: int, threads: int) -> tuple[float, float]:
    """Return the median time and the growth of the peak of memory in MB."""
    torch.set_num_threads(threads)
    inputs, seconds = make_inputs(vocab_size), list[float]()
    tokens_BU = torch.randint(1, vocab_size - 2, (BATCH, TOKENS))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(rounds + 1):  # the first warms up
        began = time.perf_counter()
        torch.autograd.grad(LOSSES[name](inputs, tokens_BU), inputs)
        seconds.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return statistics.median(seconds[1:]), (peak - before) / 1024


def compare_losses(rounds: int, threads: int) -> None:
    print(f"{'vocabulary':<12}{'loss':<14}{'seconds':>10}{'MB':>10}")
    for vocab_size in VOCABULARIES:
        for name in LOSSES:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                seconds, megabytes = pool.apply(measure_loss, (name, vocab_size, rounds, threads))
            print(f"{vocab_size:<12}{name:<14}{seconds:>10.2f}{megabytes:>10.0f}")


@torch.inference_mode()
def compare_searches(run: Path, manifest: Path, rounds: int, batch: int) -> None:
    system = load_system(find_model(run))
    decoder = find_manners(system)(system, ChecksConfig.off())
    utterances = sorted(read_utterances(manifest), key=lambda one: one.duration)
    batches = []
    for first in range(0, len(utterances), batch):
        audio = [read_audio(one, decoder.sample_rate) for one in utterances[first : first + batch]]
        segments = [AudioSegment(0.0, audio_S, decoder.sample_rate) for audio_S in audio]
        encoded = decoder.encode_segments(segments, 1.0, [DecodingSetup(SEARCHES["CTC, greedy"])])
        batches.append(encoded)
        assert encoded.ctc_BTV is not None  # computed here, outside of the search
    seconds: dict[str, list[float]] = {name: [] for name in SEARCHES}
    for _ in range(rounds):
        for name, config in SEARCHES.items():
            began = time.process_time()
            for encoded in batches:
                search_encoded(encoded, config)
            seconds[name].append(time.process_time() - began)
    total = sum(one.duration for one in utterances)
    for name, own in seconds.items():
        print(f"{name:<22}{1000 * statistics.median(own) / total:>8.2f} ms a second of speech")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    parts = {name: commands.add_parser(name) for name in ("loss", "search")}
    parts["search"].add_argument("run", type=Path)
    parts["search"].add_argument("manifest", type=Path)
    parts["search"].add_argument("--batch", type=int, default=16)
    for part in parts.values():
        part.add_argument("--rounds", type=int, default=3)
        part.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.command == "loss":
        compare_losses(args.rounds, args.threads)
    else:
        compare_searches(args.run, args.manifest, args.rounds, args.batch)


if __name__ == "__main__":
    main()
