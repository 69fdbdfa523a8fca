"""Find the first bottleneck on many machines: rates measured here, in a model of a cluster.

    python tools/simulate_scale.py --measure rates.json     # some minutes; then the tables
    python tools/simulate_scale.py --rates rates.json       # the tables again, of the same rates
    python tools/simulate_scale.py --rates rates.json --set gpus=64 --set storage=5e9

Each figure is marked: M measured on this machine, P published (with its source), A assumed. All of them can
be replaced by --set. What can be checked on one machine is: rates of 1, 2 and 4 processes, predicted against
measured, and the formula for failures against a simulation of them.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RATE = 16_000
PROCESSES = (1, 2, 4)
HOURS = (1e5, 1e7)
TEXT = "please enter the number four hundred and twenty one then start again with the letters a b c d e "


@dataclass(frozen=True)
class Figure:
    """A number of the model, and where it comes from."""

    value: float
    unit: str
    origin: str
    """M measured, P published, A assumed."""
    note: str


MEASURED = {
    "read": ("s of audio/s", "FLAC to samples, one process with one thread, files in memory already"),
    "features": ("s of audio/s", "80 log-mel bands of 16 x 10 s, one process with one thread"),
    "step": ("s of audio/s", "training step of the Conformer of tools/bench_train.py, one thread"),
    "decode": ("s of audio/s", "the shipped AN4 model on synthetic speech, one thread"),
    "headers": ("files/s", "length of a file by its header, files in memory already"),
    "outputs": ("files/s", "outputs of one format into an output folder, journal included"),
    "disk": ("bytes/s", "written in one file and flushed, as a checkpoint is"),
    "plan": (
        "utterances/s",
        "read, normalized and counted, to be dealt into batches; seconds of the processor",
    ),
    "utterance_bytes": ("bytes", "most memory of an utterance of a manifest while an epoch is planned"),
}
GIVEN = {
    "gpu_training": Figure(393, "s of audio/s", "P", "a V100: 28,800 h in 9 h 10 min on 8, icefall PR 675"),
    "gpu_speedup": Figure(4, "times", "A", "of today's GPUs over a V100 in training"),
    "gpu_decoding": Figure(3386, "s of audio/s", "P", "Parakeet TDT 0.6B v2, Open ASR Leaderboard (RTFx)"),
    "gpu_mtbf": Figure(54 * 24 * 16_384 / 419, "h", "P", "419 failures of 16,384 GPUs, arXiv 2407.21783"),
    "requests": Figure(5_500, "1/s", "P", "GET for each prefix of S3, AWS's guide to its performance"),
    "audio_bytes": Figure(6.3e9 / (100.6 * 3600), "bytes/s", "P", "FLAC of train-clean-100, openslr.org/12"),
    "prefixes": Figure(16, "", "A", "prefixes that the data are spread over"),
    "gpus": Figure(1_000, "", "A", "of the cluster"),
    "gpus_per_node": Figure(8, "", "A", ""),
    "cores_per_node": Figure(64, "", "A", "as quick as a core of this machine"),
    "memory_per_node": Figure(1e12, "bytes", "A", "of which a tenth may hold what is known of utterances"),
    "interconnect": Figure(50e9, "bytes/s", "A", "of a GPU, to those of other nodes"),
    "update": Figure(160, "s of audio", "A", "of each GPU in an update, after which gradients are exchanged"),
    "storage": Figure(50e9, "bytes/s", "A", "of the whole storage"),
    "network": Figure(5e9, "bytes/s", "A", "of a node, to the storage"),
    "utterance": Figure(12, "s", "A", "mean length in training"),
    "range": Figure(1e6, "bytes", "A", "mean length of what is read at once from shards"),
    "recording": Figure(300, "s", "A", "mean length of what is transcribed"),
    "parameters": Figure(600e6, "", "A", "of the model; 12 bytes for each in a checkpoint, 4 in a gradient"),
    "checkpoint_rate": Figure(2e9, "bytes/s", "A", "at which training waits for a checkpoint"),
    "restart": Figure(300, "s", "A", "from a failure to the next step"),
}  # fmt: skip


# --- measuring ------------------------------------------------------------------------------------


def prepare(kind: str, folder: Path) -> Callable[[], float]:
    """A piece of work that returns how much it did, in the unit of its rate."""
    import torch

    torch.set_num_threads(1)
    if kind == "read":
        from asr.audio import read

        files = sorted(folder.glob("*.flac"))
        return lambda: sum(len(read(path, RATE)) / RATE for path in files)
    if kind == "features":
        from asr.features import FeaturesConfig, FrontEnd

        front_end, audio_BS = FrontEnd(FeaturesConfig()), 0.1 * torch.randn(16, 10 * RATE)
        lengths = torch.full((16,), 10 * RATE)

        def compute() -> float:
            front_end(audio_BS, lengths)
            return 160.0

        return compute
    if kind == "step":
        sys.path.insert(0, str(ROOT / "tools"))
        from bench_train import Step, build_ours, make_batch

        batch = make_batch(8, 10.0)
        step = Step(build_ours(144, 4, 4, 576, 31), 144, torch.float32, batch)
        seconds = float(batch[1].sum()) / 100

        def update() -> float:
            step.run()
            return seconds

        return update
    from asr.audio.segmentation import Recording
    from asr.transcription import Request, load_transcriber
    from asr.transcripts import Transcript

    model = load_transcriber(str(ROOT / "recipes/an4/pretrained"), "cpu")
    recordings = [Recording(path) for path in sorted(folder.glob("*.flac"))[:8]]
    # One speed, as most models are decoded; this model's own setting is five.
    usual, language_model = model.default_decoding()
    decoding = usual.model_copy(update={"speeds": (1.0,)})

    def transcribe() -> float:
        events = model.transcribe_events(recordings, Request(decoding, language_model))
        return sum(found.duration for _, found in events if isinstance(found, Transcript))

    return transcribe


def run_alone(kind: str, folder: Path, seconds: float, barrier: Any, results: Any) -> None:
    work = prepare(kind, folder)
    work()  # warm-up
    barrier.wait()
    began, done = time.perf_counter(), 0.0
    while time.perf_counter() - began < seconds:
        done += work()
    results.put(done / (time.perf_counter() - began))


def measure_processes(kind: str, folder: Path, count: int, seconds: float) -> float:
    """The sum of the rates of so many processes at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(count), context.Queue()
    processes = [
        context.Process(target=run_alone, args=(kind, folder, seconds, barrier, results))
        for _ in range(count)
    ]
    for process in processes:
        process.start()
    total = sum(results.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    return total


def measure_files(folder: Path) -> dict[str, float]:
    """Work of the process that hands out the units."""
    from asr.audio import Recording, read_info
    from asr.scale import OutputFolder

    files = sorted(folder.glob("*.flac"))
    began = time.perf_counter()
    for _ in range(20):
        for path in files:
            read_info(path)
    rates = {"headers": 20 * len(files) / (time.perf_counter() - began)}
    outputs = OutputFolder(folder / "out", ["jsonl"], {})
    began = time.perf_counter()
    for number in range(300):
        outputs.write(Recording(str(files[0]), str(number)), {"jsonl": "x" * 2_000}, 3.0)
    rates["outputs"] = 300 / (time.perf_counter() - began)
    content = os.urandom(200_000_000)
    began = time.perf_counter()
    with open(folder / "checkpoint", "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    rates["disk"] = len(content) / (time.perf_counter() - began)
    return rates | measure_planning(folder)


def measure_planning(folder: Path, count: int = 50_000) -> dict[str, float]:
    """Planning an epoch of a manifest."""
    from asr.batches import BatchLoader, Inputs
    from asr.data import Manifest, Utterance, write_manifest
    from asr.features import FeaturesConfig, FrontEnd
    from asr.models import subsampled_lengths
    from asr.system import AugmentConfig, BatchConfig
    from asr.text import TextConfig, Tokenizer, TokenizerConfig

    tokenizer = Tokenizer.train(TokenizerConfig(), [TEXT])
    lengths = partial(subsampled_lengths, factor=4)
    front_end = FrontEnd(FeaturesConfig())
    inputs = Inputs(front_end, tokenizer, TextConfig(), AugmentConfig(), lengths, has_ctc=True)
    utterances = (
        Utterance(id=f"a-{n:08}", audio=f"/data/a/{n:08}.flac", duration=8 + n % 9, text=TEXT, speaker="a")
        for n in range(count)
    )
    write_manifest(folder / "all.jsonl", utterances)
    began = time.process_time()
    BatchLoader(Manifest.open(folder / "all.jsonl"), inputs, BatchConfig()).plan_epoch(0)
    rate = count / (time.process_time() - began)
    tracemalloc.start()
    loader = BatchLoader(Manifest.open(folder / "all.jsonl"), inputs, BatchConfig())
    kept = [batch.tolist() for batch in loader.plan_epoch(0)]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"plan": rate, "utterance_bytes": most / sum(map(len, kept))}


def measure(seconds: float) -> dict[str, Any]:
    """All rates, and those of several processes at once."""
    from asr.audio import write
    from asr.recipe import synthesize

    spoken, rate = synthesize(TEXT * 2)
    from asr.audio import resample

    audio = resample(spoken, rate, RATE)[: 10 * RATE]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(32):
            noise = 0.001 * np.random.default_rng(number).standard_normal(len(audio))
            write(folder / f"{number:02}.flac", (audio + noise).astype(np.float32), RATE)
        scaling = {}
        for kind in ("read", "features", "step", "decode"):
            scaling[kind] = [measure_processes(kind, folder, count, seconds) for count in PROCESSES]
            print(f"measured: {kind}", file=sys.stderr)
        rates = {kind: found[0] for kind, found in scaling.items()} | measure_files(folder)
    return {"cores": os.cpu_count(), "load": os.getloadavg()[0], "rates": rates, "scaling": scaling}


# --- the model ------------------------------------------------------------------------------------


def list_training_limits(f: Mapping[str, float]) -> dict[str, float]:
    """Seconds of audio that each resource carries in a second."""
    nodes = math.ceil(f["gpus"] / f["gpus_per_node"])
    return {
        "GPUs": f["gpus"] * f["gpu_training"] * f["gpu_speedup"],
        "cores: read and compute features": nodes * f["cores_per_node"] / (1 / f["read"] + 1 / f["features"]),
        "planning, a share in each process": f["gpus"] * f["plan"] * f["utterance"],
        "gradients between the nodes": f["gpus"] * f["update"] * f["interconnect"] / (8 * f["parameters"]),
        "bandwidth of the storage": f["storage"] / f["audio_bytes"],
        "network of the nodes": nodes * f["network"] / f["audio_bytes"],
        "requests, a file each": f["prefixes"] * f["requests"] * f["utterance"],
        "requests, ranges of shards": f["prefixes"] * f["requests"] * f["range"] / f["audio_bytes"],
    }


def list_transcription_limits(f: Mapping[str, float]) -> dict[str, float]:
    nodes = math.ceil(f["gpus"] / f["gpus_per_node"])
    return {
        "GPUs": f["gpus"] * f["gpu_decoding"],
        "cores: read": nodes * f["cores_per_node"] * f["read"],
        "bandwidth of the storage": f["storage"] / f["audio_bytes"],
        "the driver: an output for each recording": f["recording"] * f["outputs"],
        "the driver: headers, before it starts": f["recording"] * f["headers"],
    }


def find_interval(mtbf: float, checkpoint: float) -> float:
    """Seconds between checkpoints that lose the least (Young, 1974)."""
    return math.sqrt(2 * checkpoint * mtbf)


def predict_lost_share(mtbf: float, checkpoint: float, restart: float, interval: float) -> float:
    """Share of the time that goes into checkpoints, work that is done again, and restarts (Daly, 2006).

    Failures come at random, also while a checkpoint is written or training starts again.
    """
    wall = mtbf * math.exp(restart / mtbf) * math.expm1((interval + checkpoint) / mtbf)
    return 1 - interval / wall


def simulate_lost_share(
    mtbf: float, checkpoint: float, restart: float, interval: float, num_intervals: int, seed: int = 0
) -> float:
    """The same by drawing the failures."""
    draw, clock = random.Random(seed), 0.0
    failure = draw.expovariate(1 / mtbf)
    for _ in range(num_intervals):
        while clock + interval + checkpoint > failure:  # the interval begins again
            clock = failure
            failure = clock + draw.expovariate(1 / mtbf)
            while clock + restart > failure:
                clock = failure
                failure = clock + draw.expovariate(1 / mtbf)
            clock += restart
        clock += interval + checkpoint
    return 1 - num_intervals * interval / clock


# --- tables ---------------------------------------------------------------------------------------


def show_figures(figures: Mapping[str, Figure]) -> None:
    print("Figures (M measured here, P published, A assumed)\n")
    for name, figure in figures.items():
        print(f"{figure.origin}  {name:16}{figure.value:>14,.6g} {figure.unit:13} {figure.note}".rstrip())


def show_scaling(measured: Mapping[str, Any]) -> None:
    cores = measured["cores"]
    print(f"\nRates of several processes on {cores} cores, predicted from one and measured (s of audio/s);")
    print(f"load of the machine before: {measured['load']:.1f}\n")
    print(f"{'':10}" + "".join(f"{f'{count} processes':>26}" for count in PROCESSES))
    for kind, found in measured["scaling"].items():
        cells = []
        for count, rate in zip(PROCESSES, found, strict=True):
            predicted = found[0] * min(count, cores)
            cells.append(f"{predicted:,.0f} / {rate:,.0f} ({100 * (rate / predicted - 1):+.0f} %)")
        print(f"{kind:10}" + "".join(f"{cell:>26}" for cell in cells))


def show_limits(title: str, limits: Mapping[str, float], needed: float) -> None:
    """A table of what each resource carries, the least first."""
    print(f"\n{title}\n")
    for name, limit in sorted(limits.items(), key=lambda item: item[1]):
        print(f"{name:44}{limit:>14,.0f} s of audio/s{limit / needed:>9.2f} times what the GPUs take")


def show_sizes(f: Mapping[str, float]) -> None:
    """Quantities that grow with the hours, for a training and for a transcription."""
    nodes = math.ceil(f["gpus"] / f["gpus_per_node"])
    training, transcription = list_training_limits(f), list_transcription_limits(f)
    rate = min(limit for name, limit in training.items() if name != "requests, a file each")
    offered = f["memory_per_node"] / 10 / f["gpus_per_node"]  # for one training process
    rows: list[tuple[str, Callable[[float], str]]] = [
        ("audio, TB of FLAC", lambda hours: f"{hours * 3600 * f['audio_bytes'] / 1e12:,.1f}"),
        ("utterances, millions", lambda hours: f"{hours * 3600 / f['utterance'] / 1e6:,.0f}"),
        (
            f"planning a manifest of them, GB in each process (there are {offered / 1e9:,.1f})",
            lambda hours: f"{hours * 3600 / f['utterance'] * f['utterance_bytes'] / 1e9:,.1f}",
        ),
        ("an epoch, hours", lambda hours: f"{hours * 3600 / rate / 3600:,.1f}"),
        (
            "failures in an epoch",
            lambda hours: f"{hours * 3600 / rate / 3600 * f['gpus'] / f['gpu_mtbf']:,.2f}",
        ),
        ("transcription: on the GPUs, hours", lambda hours: f"{hours / transcription['GPUs']:,.2f}"),
        (
            "  the driver reads the headers before, hours",
            lambda hours: f"{hours / transcription['the driver: headers, before it starts']:,.1f}",
        ),
        (
            "  the driver writes the outputs, hours",
            lambda hours: f"{hours / transcription['the driver: an output for each recording']:,.1f}",
        ),
        ("  units", lambda hours: f"{hours * 3600 / max(1800, f['recording']):,.0f}"),
    ]
    print(f"\nWhat grows with the hours of audio, on {f['gpus']:,.0f} GPUs in {nodes:,} nodes\n")
    print(f"{'':68}" + "".join(f"{f'{hours:,.0f} h':>16}" for hours in HOURS))
    for name, show in rows:
        print(f"{name:68}" + "".join(f"{show(hours):>16}" for hours in HOURS))


def show_failures(f: Mapping[str, float]) -> None:
    mtbf, restart = 3600 * f["gpu_mtbf"] / f["gpus"], f["restart"]
    checkpoint = 12 * f["parameters"] / f["checkpoint_rate"]
    best = find_interval(mtbf, checkpoint)
    print(
        f"\nFailures: one in {mtbf / 3600:,.1f} h; "
        f"a checkpoint takes {checkpoint:.1f} s, a restart {restart:.0f} s\n"
    )
    print(
        f"{'a checkpoint every':>20}{'lost, formula':>16}{'lost, simulated':>18}{'GPU hours a restart':>22}"
    )
    for interval in (best / 10, best, 10 * best):
        formula = predict_lost_share(mtbf, checkpoint, restart, interval)
        simulated = simulate_lost_share(mtbf, checkpoint, restart, interval, num_intervals=200_000)
        cost = (interval / 2 + restart) * f["gpus"] / 3600
        print(f"{interval / 60:>16.1f} min{formula:>16.3%}{simulated:>18.3%}{cost:>22,.0f}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--measure", metavar="JSON", help="measure the rates of this machine into a file first"
    )
    parser.add_argument("--rates", metavar="JSON", help="rates that were measured before")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (default: 10)")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="replace a figure")
    args = parser.parse_args()
    if (args.measure is None) == (args.rates is None):
        parser.error("give either --measure or --rates")
    if args.measure is not None:
        Path(args.measure).write_text(json.dumps(measure(args.seconds), indent=1) + "\n")
    measured = json.loads(Path(args.measure or args.rates).read_text())
    figures = {
        name: Figure(measured["rates"][name], unit, "M", note) for name, (unit, note) in MEASURED.items()
    } | GIVEN
    for pair in args.set:
        name, _, value = pair.partition("=")
        if name not in figures:
            parser.error(f"--set {pair}: expected one of {', '.join(figures)}")
        figures[name] = Figure(float(value), figures[name].unit, "A", "by --set")
    f = {name: figure.value for name, figure in figures.items()}
    show_figures(figures)
    show_scaling(measured)
    training, transcription = list_training_limits(f), list_transcription_limits(f)
    show_limits("Training: what each resource carries", training, training["GPUs"])
    show_limits("Transcription on Ray: what each resource carries", transcription, transcription["GPUs"])
    show_sizes(f)
    show_failures(f)
    return 0


if __name__ == "__main__":
    sys.exit(main())
