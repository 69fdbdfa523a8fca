"""Measure the time of a training step, compared with torchaudio, SpeechBrain and ESPnet, and by length.

    python tools/bench_train.py                  # all tables
    python tools/bench_train.py --table others   # only the comparison; `pip install speechbrain espnet`

A step is forward, backward and AdamW on 8 utterances of 10 s, in a process whose C library keeps freed
memory, as with `asr train`. Contenders take turns in one process and medians are compared, because machines
are noisy but ratios within one run are not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
from bench_decode import read_status
from torch import Tensor, nn
from torch.nn import functional as F

from asr.models.encoders import (
    ConformerEncoder,
    ConformerEncoderConfig,
    LSTMEncoder,
    LSTMEncoderConfig,
    Subsampling,
    SubsamplingConfig,
    TransformerEncoder,
    TransformerEncoderConfig,
)
from asr.train.learner import keep_freed_memory

NUM_MELS = 80
VOCABULARY = 30
FRAMES_PER_SECOND = 100
TOKENS_PER_SECOND = 5

Encoder = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class WithCTC(nn.Module):
    """Encoder, linear layer and CTC; only the encoder differs between contenders."""

    def __init__(self, encoder: nn.Module, dim: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(dim, VOCABULARY)

    def forward(
        self, features_BTF: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
    ) -> Tensor:
        encoded_BTD, lengths_B = self.encoder(features_BTF, lengths_B)
        log_probabilities = self.head(encoded_BTD).float().log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(log_probabilities, tokens_BU, lengths_B, token_lengths_B, zero_infinity=True)


class SpeechBrainConformer(nn.Module):
    """SpeechBrain's Conformer with relative positions, after our subsampling."""

    def __init__(self, dim: int, num_layers: int, num_heads: int, feed_forward_dim: int, kernel: int) -> None:
        super().__init__()
        from speechbrain.lobes.models.transformer.Conformer import ConformerEncoder as TheirEncoder
        from speechbrain.nnet.attention import RelPosEncXL

        self.subsampling = Subsampling(SubsamplingConfig(), NUM_MELS, dim)
        self.positions = RelPosEncXL(dim)
        self.layers = TheirEncoder(
            num_layers, dim, feed_forward_dim, num_heads, kernel, dropout=0.1, attention_type="RelPosMHAXL"
        )

    def forward(self, features_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BTD, lengths_B = self.subsampling(features_BTF, lengths_B)
        is_padding = torch.arange(x_BTD.size(1)) >= lengths_B[:, None]
        encoded, _ = self.layers(x_BTD, src_key_padding_mask=is_padding, pos_embs=self.positions(x_BTD))
        return encoded, lengths_B


class TorchaudioConformer(nn.Module):
    """torchaudio's Conformer, after our subsampling."""

    def __init__(self, dim: int, num_layers: int, num_heads: int, feed_forward_dim: int, kernel: int) -> None:
        super().__init__()
        from torchaudio.models import Conformer

        self.subsampling = Subsampling(SubsamplingConfig(), NUM_MELS, dim)
        self.layers = Conformer(dim, num_heads, feed_forward_dim, num_layers, kernel, dropout=0.1)

    def forward(self, features_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        return self.layers(*self.subsampling(features_BTF, lengths_B))


class ESPnetConformer(nn.Module):
    """ESPnet's Conformer with relative positions, after our subsampling."""

    def __init__(self, dim: int, num_layers: int, num_heads: int, feed_forward_dim: int, kernel: int) -> None:
        super().__init__()
        from espnet2.asr.encoder.conformer_encoder import ConformerEncoder as TheirEncoder

        self.subsampling = Subsampling(SubsamplingConfig(), NUM_MELS, dim)
        self.layers = TheirEncoder(
            dim, dim, num_heads, feed_forward_dim, num_layers, input_layer=None, rel_pos_type="latest",
            macaron_style=True, cnn_module_kernel=kernel,
        )  # fmt: skip

    def forward(self, features_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BTD, lengths_B = self.subsampling(features_BTF, lengths_B)
        return self.layers(x_BTD, lengths_B)[0], lengths_B


def build_ours(dim: int, num_layers: int, num_heads: int, feed_forward_dim: int, kernel: int) -> nn.Module:
    config = ConformerEncoderConfig(
        dim=dim, num_layers=num_layers, num_heads=num_heads, feed_forward_dim=feed_forward_dim, kernel=kernel
    )
    return ConformerEncoder(config, NUM_MELS)


class Step:
    """One contender: its model, optimizer and precision."""

    def __init__(
        self, encoder: nn.Module, dim: int, precision: torch.dtype, batch: tuple[Tensor, ...]
    ) -> None:
        self.model = WithCTC(encoder, dim).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.precision = precision
        self.batch = batch

    def run(self) -> float:
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=self.precision, enabled=self.precision != torch.float32):
            loss = self.model(*self.batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - started


def make_batch(num_utterances: int, seconds: float) -> tuple[Tensor, ...]:
    """Random features; lengths fall from `seconds` to 80 % of it, as in a bucket."""
    torch.manual_seed(0)
    frames, tokens = int(seconds * FRAMES_PER_SECOND), int(seconds * TOKENS_PER_SECOND)
    lengths = torch.linspace(frames, 0.8 * frames, num_utterances).long()
    token_lengths = (lengths * tokens // frames).clamp(min=1)
    return (
        torch.randn(num_utterances, frames, NUM_MELS),
        lengths,
        torch.randint(1, VOCABULARY, (num_utterances, tokens)),
        token_lengths,
    )


def compare_with_others(rounds: int) -> None:
    sizes = {"dim": 144, "num_layers": 4, "num_heads": 4, "feed_forward_dim": 576, "kernel": 31}
    batch = make_batch(8, 10.0)
    builders: dict[str, Callable[..., nn.Module]] = {"ours": build_ours, "torchaudio": TorchaudioConformer}
    others = {"SpeechBrain": SpeechBrainConformer, "ESPnet": ESPnetConformer}
    for name, build in others.items():
        if find_spec(name.lower()) is None:
            print(f"{name} is not installed and left out: pip install {name.lower()}")
        else:
            builders[name] = build
    steps = {}
    for name, build in builders.items():
        for precision in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            steps[name, precision] = Step(build(**sizes), sizes["dim"], precision, batch)
    times: dict[tuple[str, torch.dtype], list[float]] = {key: [] for key in steps}
    for round_number in range(rounds + 1):
        for key, step in steps.items():
            seconds = step.run()
            if round_number:  # the first is a warm-up
                times[key].append(seconds)
    medians = {key: statistics.median(values) for key, values in times.items()}
    print(f"\nConformer of {sizes['num_layers']} layers, dimension {sizes['dim']}, CTC; 8 x 10 s; "
          f"{torch.get_num_threads()} threads; median of {rounds} steps")  # fmt: skip
    print(f"{'contender':14}{'precision':>10}{'ms a step':>12}{'ours float32 is':>18}{'ours bf16 is':>16}")
    for (name, precision), median in medians.items():
        label = "float32" if precision == torch.float32 else "bf16"
        ratios = [median / medians["ours", other] for other in (torch.float32, torch.bfloat16)]
        print(f"{name:14}{label:>10}{1000 * median:12.0f}{ratios[0]:>12.2f} times{ratios[1]:>10.2f} times")


def build_encoder(kind: str, dim: int, num_layers: int) -> tuple[nn.Module, int]:
    if kind == "lstm":  # two directions of half the width give the same dimension as the others
        return LSTMEncoder(LSTMEncoderConfig(dim=dim // 2, num_layers=num_layers), NUM_MELS), dim
    window = (16, 16) if kind.endswith("window") else None
    if kind == "conformer":
        return ConformerEncoder(ConformerEncoderConfig(dim=dim, num_layers=num_layers), NUM_MELS), dim
    return TransformerEncoder(
        TransformerEncoderConfig(dim=dim, num_layers=num_layers, window=window), NUM_MELS
    ), dim


def measure_alone(kind: str, num_utterances: int, seconds: float, precision: str, results: object) -> None:
    """Run a case in its own process, to measure its peak memory."""
    keep_freed_memory()
    before = read_status("VmHWM")
    encoder, dim = build_encoder(kind, 256, 4)
    step = Step(encoder, dim, getattr(torch, precision), make_batch(num_utterances, seconds))
    step.run()
    times = [step.run() for _ in range(3)]
    peak = read_status("VmHWM") - before
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    results.put((statistics.median(times), peak, parameters))  # type: ignore[attr-defined]


def measure(kind: str, num_utterances: int, seconds: float, precision: str) -> tuple[float, float, int]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=measure_alone, args=(kind, num_utterances, seconds, precision, results))
    process.start()
    outcome: tuple[float, float, int] = results.get(timeout=600)
    process.join()
    return outcome


def compare_encoders() -> None:
    print("\nEncoders of 4 layers, dimension 256, CTC; 8 x 10 s")
    print(f"{'encoder':14}{'parameters':>12}{'precision':>10}{'ms a step':>12}{'MB at peak':>12}")
    for kind in ("transformer", "conformer", "lstm"):
        for precision in ("float32", "bfloat16"):
            seconds, megabytes, parameters = measure(kind, 8, 10.0, precision)
            print(
                f"{kind:14}{parameters / 1e6:>11.1f}M{precision:>10}{1000 * seconds:12.0f}{megabytes:12.0f}"
            )


def compare_lengths() -> None:
    """Full attention grows with n^2 d, a window of w with n w d, an LSTM with n d^2."""
    lengths = (5, 10, 20, 40, 80)
    print("\nms a step and MB at peak against length; 4 layers, dimension 256, CTC, 80 s of audio, float32")
    print(f"{'encoder':20}" + "".join(f"{f'{80 // s} x {s} s':>16}" for s in lengths))
    for kind, label in (
        ("transformer", "full attention"),
        ("transformer-window", "window of 16 + 16"),
        ("lstm", "LSTM"),
    ):
        cells = []
        for seconds in lengths:
            step_seconds, megabytes, _ = measure(kind, 80 // seconds, float(seconds), "float32")
            cells.append(f"{1000 * step_seconds:.0f} ms {megabytes:.0f} MB")
        print(f"{label:20}" + "".join(f"{cell:>16}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", choices=["all", "others", "encoders", "lengths"], default="all")
    parser.add_argument("--rounds", type=int, default=10, help="steps of each contender (default 10)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--plain-malloc", action="store_true", help="compare with the others without keeping freed memory"
    )
    args = parser.parse_args()
    if not args.plain_malloc:
        keep_freed_memory()
    torch.set_num_threads(args.threads)
    if args.table in ("all", "others"):
        compare_with_others(args.rounds)
    if args.table in ("all", "encoders"):
        compare_encoders()
    if args.table in ("all", "lengths"):
        compare_lengths()


if __name__ == "__main__":
    main()
