"""Compare speed, memory and WER on a CPU with openai-whisper, faster-whisper and whisper.cpp.

    python tools/bench_whisper.py ggml-tiny.bin ggml-base.en.bin test.jsonl --rounds 3 --budget 90
    python tools/bench_whisper.py ggml-base.en.bin test.jsonl --parts long --beams 1 --minutes 10 60
    pip install openai-whisper faster-whisper pywhispercpp   # missing ones are left out

All engines get the weights of the same ggml file (ours through `asr convert`), with the same beam, number
of threads and fallback to higher temperatures. Each case runs in its own process, and the engines of a part
take turns for `--rounds` rounds; the tables show medians. A case is skipped if, judging by its last run, it
would not finish within `--budget` minutes.

`start` is a whole process with the clip of the manifest that is nearest to one second; ours is the command
`asr transcribe`. `short` has clips of the manifest, each a recording; `long` is a recording of some
minutes, made of the utterances of the manifest with pauses between them. The others decode one clip at a
time, as their interfaces do. Ours decodes clips of several files at once, except `ours, 1 at a time`. None
of them computes word times. `ours, first text` does not try higher temperatures, like faster-whisper's
batched mode.

The times of short and long include reading audio and computing features, but not loading the model and a
first clip; CPU time is that of all threads. Memory is the peak of the whole process. Texts and references
are normalized by the English rules, and runs of single letters are joined. References are normalized one by
one, so that numbers of two utterances do not become one. In a long recording of spelled letters or digits,
word boundaries are arbitrary, so only character errors are meaningful.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from convert_to_ctranslate2 import convert

SAMPLE_RATE = 16_000
FASTER_BATCH = 8
ENGINES = {  # engine: package that it needs
    "ours": "asr",
    "ours, 1 at a time": "asr",
    "ours, first text": "asr",
    "openai-whisper": "whisper",
    "faster-whisper": "faster_whisper",
    "faster-whisper, batched": "faster_whisper",
    "whisper.cpp": "pywhispercpp",
}
Transcribe = Callable[[Sequence[Path]], list[str]]


@dataclass(frozen=True)
class Case:
    """Work of one process."""

    engine: str
    model: Path
    folder: Path
    """The model as a Hugging Face folder, for ours."""
    converted: Path
    """Folder of the model for faster-whisper."""
    clips: tuple[Path, ...]
    warm_up: Path
    beam: int
    threads: int
    precision: str
    is_long: bool


@dataclass(frozen=True)
class Outcome:
    texts: list[str]
    seconds: float
    cpu_seconds: float
    megabytes: float


@dataclass
class Part:
    """A table of the output, with all engines on one task."""

    title: str
    cases: list[Case]
    run: Callable[[Case], Outcome | None]
    references: list[list[str]]
    audio_seconds: float
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    """Outcomes by engine."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Total seconds of the last run, by engine."""


# --- engines --------------------------------------------------------------------------------------


def load_ours(case: Case) -> Transcribe:
    from asr.cli import limit_threads
    from asr.decoding.hypothesis import DecodingConfig
    from asr.transcription.model import load_model

    limit_threads(case.threads)  # and keep kernels, like the commands
    recognizer = load_model(case.folder, "cpu", case.precision)  # type: ignore[arg-type]
    # Other settings have the defaults of the family.
    decoding: dict[str, Any] = {"beam": case.beam}
    if case.engine == "ours, first text":
        decoding["temperatures"] = ()
    options: dict[str, Any] = {"decoding": DecodingConfig(**decoding), "language": "en"}
    batch_size = 1 if case.engine == "ours, 1 at a time" else 8

    def transcribe(paths: Sequence[Path]) -> list[str]:
        results = recognizer.transcribe_files(paths, batch_size=batch_size, word_times=False, **options)
        return [result.text for _, result in results]  # type: ignore[union-attr]

    return transcribe


def load_openai(case: Case) -> Transcribe:
    import torch
    import whisper
    from whisper.model import ModelDimensions, Whisper

    from asr.whisper import find_sizes, get_weights, load_source, name_sizes, split_weights

    torch.set_num_threads(case.threads)
    system = load_source(case.folder)
    sizes = name_sizes(find_sizes(system), "OpenAI")
    model = Whisper(ModelDimensions(**sizes)).eval()
    weights = split_weights(get_weights(system))
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    options = {"beam_size": case.beam} if case.beam > 1 else {}

    def transcribe(paths: Sequence[Path]) -> list[str]:
        return [
            whisper.transcribe(
                model, read_audio(path), language="en", fp16=False, best_of=5,
                condition_on_previous_text=False, without_timestamps=not case.is_long, **options,
            )["text"]
            for path in paths
        ]  # fmt: skip

    return transcribe


def load_faster(case: Case) -> Transcribe:
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    model = WhisperModel(str(case.converted), device="cpu", compute_type="int8", cpu_threads=case.threads)
    options: dict[str, Any] = {"beam_size": case.beam, "language": "en"}
    call: Callable[..., Any] = model.transcribe
    if case.engine == "faster-whisper, batched":
        call = BatchedInferencePipeline(model).transcribe
        options |= {"batch_size": FASTER_BATCH}
    else:
        options |= {"condition_on_previous_text": False, "without_timestamps": not case.is_long}

    def transcribe(paths: Sequence[Path]) -> list[str]:
        return [
            " ".join(segment.text.strip() for segment in call(read_audio(path), **options)[0])
            for path in paths
        ]

    return transcribe


def load_cpp(case: Case) -> Transcribe:
    from pywhispercpp.model import Model

    is_beam = case.beam > 1
    model = Model(
        str(case.model), params_sampling_strategy=int(is_beam), redirect_whispercpp_logs_to=None,
        n_threads=case.threads, language="en", no_context=True, no_timestamps=not case.is_long,
        print_progress=False, print_realtime=False,
        **({"beam_search": {"beam_size": case.beam, "patience": -1.0}} if is_beam else {}),
    )  # fmt: skip

    def transcribe(paths: Sequence[Path]) -> list[str]:
        return [
            " ".join(segment.text.strip() for segment in model.transcribe(read_audio(path))) for path in paths
        ]

    return transcribe


LOADERS: dict[str, Callable[[Case], Transcribe]] = {
    "ours": load_ours,
    "ours, 1 at a time": load_ours,
    "ours, first text": load_ours,
    "openai-whisper": load_openai,
    "faster-whisper": load_faster,
    "faster-whisper, batched": load_faster,
    "whisper.cpp": load_cpp,
}


def read_audio(path: Path) -> np.ndarray:
    from asr.audio import reading as audio

    return audio.read(path, SAMPLE_RATE)


# --- measuring ------------------------------------------------------------------------------------


def measure(case: Case, results: Any) -> None:
    """Run an engine in its own process."""
    transcribe = LOADERS[case.engine](case)
    transcribe([case.warm_up])
    started, cpu_started = time.perf_counter(), time.process_time()
    texts = transcribe(case.clips)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    results.put(Outcome(texts, seconds, cpu_seconds, read_peak()))


def read_peak() -> float:
    """Return the peak megabytes of this process."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return math.nan


def run_case(case: Case) -> Outcome | None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=measure, args=(case, results))
    process.start()
    while True:
        try:
            outcome: Outcome = results.get(timeout=1.0)
        except queue.Empty:
            if process.is_alive():
                continue
            return None
        process.join()
        return outcome


# Complete programs, as short as in the documentation of each engine.
ONCE = {
    "faster-whisper": """import sys
from faster_whisper import WhisperModel
model = WhisperModel(sys.argv[2], device="cpu", compute_type="int8", cpu_threads=int(sys.argv[4]))
segments, _ = model.transcribe(sys.argv[3], beam_size=int(sys.argv[5]), language="en")
print(" ".join(segment.text.strip() for segment in segments))""",
    "whisper.cpp": """import sys
import soundfile
from pywhispercpp.model import Model
model = Model(sys.argv[1], n_threads=int(sys.argv[4]), language="en", redirect_whispercpp_logs_to=None,
              params_sampling_strategy=int(int(sys.argv[5]) > 1), print_progress=False, print_realtime=False)
audio_S, _ = soundfile.read(sys.argv[3], dtype="float32")  # a path has to end with .wav
print(" ".join(segment.text.strip() for segment in model.transcribe(audio_S)))""",
}


# A process inherits the peak memory of its parent, so the parent has to be small.
LAUNCH = """import json, os, sys, time
started = time.perf_counter()
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(process, 0)
seconds = time.perf_counter() - started
told = [status, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]
print(json.dumps(told), file=sys.stderr)"""


def start_once(case: Case) -> Outcome | None:
    """Run a whole process for one clip."""
    (clip,) = case.clips
    if case.engine == "ours":
        command = ["-m", "asr", "transcribe", str(clip), "--model", str(case.folder), "--language", "en"]
        command += ["--threads", str(case.threads), "--beam", str(case.beam)]
    else:
        command = ["-c", ONCE[case.engine], str(case.model), str(case.converted), str(clip)]
        command += [str(case.threads), str(case.beam)]
    done = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCH, sys.executable, *command], capture_output=True, text=True
    )
    status, seconds, cpu_seconds, megabytes = json.loads(done.stderr.splitlines()[-1])
    return None if status else Outcome([done.stdout.strip()], seconds, cpu_seconds, megabytes)


def read_clips(manifest: Path) -> list[tuple[Path, str]]:
    """Read files and texts of all utterances."""
    from asr.data import read_manifest

    return [(Path(utterance.audio), utterance.text or "") for utterance in read_manifest(manifest)]


def choose_clips(clips: Sequence[tuple[Path, str]], count: int) -> list[tuple[Path, str]]:
    """Choose this many, evenly spaced."""
    places = np.linspace(0, len(clips) - 1, min(count, len(clips))).round().astype(int)
    return [clips[place] for place in places]


def join_clips(clips: Sequence[tuple[Path, str]], minutes: float, path: Path) -> list[str]:
    """Write one recording of clips with pauses of 0.4 to 2 seconds between them; return their texts."""
    from asr.audio import reading as audio

    chance, parts, texts = random.Random(0), [], []
    left = minutes * 60 * SAMPLE_RATE
    for clip, text in itertools.cycle(clips):
        pause = np.random.default_rng(len(parts)).normal(0, 3e-4, round(chance.uniform(0.4, 2) * SAMPLE_RATE))
        parts += [read_audio(clip), pause.astype(np.float32)]
        texts.append(text)
        left -= len(parts[-2]) + len(parts[-1])
        if left <= 0:
            break
    audio.write(path, np.concatenate(parts), SAMPLE_RATE)
    return texts


def count_errors(references: Sequence[Sequence[str]], texts: Sequence[str]) -> tuple[float, float]:
    """Return WER in percent, with each recording as one utterance, and CER without spaces."""
    from asr.scoring.counting import count_character_errors, count_word_errors
    from asr.text.normalization import normalize_english

    pairs = [
        (" ".join(map(normalize_english, reference)), normalize_english(text))
        for reference, text in zip(references, texts, strict=True)
    ]
    bare = [(reference.replace(" ", ""), text.replace(" ", "")) for reference, text in pairs]
    return 100 * count_word_errors(pairs).rate, 100 * count_character_errors(bare).rate


def run_rounds(parts: Sequence[Part], rounds: int, deadline: float) -> None:
    """All of them once, then again, as long as there is time."""
    for number in range(1, rounds + 1):
        for part, case in [(one, case) for one in parts for case in one.cases]:
            started = time.monotonic()
            if started + part.seconds.get(case.engine, 0.0) > deadline:
                print(f"{part.title}, {case.engine}: no time for run {number}", file=sys.stderr)
                continue
            outcome = part.run(case)
            part.seconds[case.engine] = time.monotonic() - started
            told = (
                "failed"
                if outcome is None
                else f"{outcome.seconds:.2f} s, {outcome.cpu_seconds:.2f} s of CPU"
            )
            print(f"{part.title}, {case.engine}: {told}", file=sys.stderr, flush=True)
            if outcome is not None:
                part.outcomes.setdefault(case.engine, []).append(outcome)


def print_table(part: Part, shows_texts: bool) -> None:
    """Print medians, and the errors of the first run."""

    def median(engine: str, name: str) -> float:
        return statistics.median(getattr(outcome, name) for outcome in part.outcomes[engine])

    print(f"\n{part.title}")
    print(
        f"{'engine':26}{'runs':>5}{'time':>10}{'CPU':>10}{'per s':>9}{'memory':>12}"
        f"{'WER':>9}{'CER':>9}{'to ours':>12}"
    )
    for case in part.cases:
        engine = case.engine
        if engine not in part.outcomes:
            print(f"{engine:26} no run was finished")
            continue
        texts = part.outcomes[engine][0].texts
        words, characters = count_errors(part.references, texts)
        seconds = median(engine, "seconds")
        ratio = f"{seconds / median('ours', 'seconds'):10.2f} x" if "ours" in part.outcomes else ""
        print(
            f"{engine:26}{len(part.outcomes[engine]):5}{seconds:8.2f} s{median(engine, 'cpu_seconds'):8.2f} s"
            f"{seconds / part.audio_seconds:9.4f}{median(engine, 'megabytes'):9.0f} MB"
            f"{words:7.2f} %{characters:7.2f} %{ratio}",
            flush=True,
        )
        for reference, text in zip(part.references, texts, strict=True) if shows_texts else ():
            print(f"    {' '.join(reference)} | {text}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+", help="ggml files of Whisper models that know English")
    parser.add_argument("manifest", type=Path, help="of the clips, with their texts")
    parser.add_argument(
        "--parts", nargs="+", choices=("start", "short", "long"), default=["start", "short", "long"]
    )
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--clips", type=int, default=40, help="of the manifest (default 40)")
    parser.add_argument(
        "--minutes", type=float, nargs="+", default=[5.0], help="of the long recordings (default 5)"
    )
    parser.add_argument("--rounds", type=int, default=1, help="runs of each case (default 1)")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="MINUTES", help="in all")
    parser.add_argument("--precision", default="auto", help="of ours (default auto)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print the texts, each behind its reference")
    args = parser.parse_args()
    deadline = time.monotonic() + 60 * args.budget
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    missing = [engine for engine in args.engines if importlib.util.find_spec(ENGINES[engine]) is None]
    if missing:
        print(f"not installed and left out: {', '.join(missing)}")
    args.engines = [engine for engine in args.engines if engine not in missing]
    print(describe_processor())
    with tempfile.TemporaryDirectory() as folder:
        parts = make_parts(args, Path(folder))
        try:
            run_rounds(parts, args.rounds, deadline)
        finally:  # when it is interrupted, too
            for part in parts:
                print_table(part, args.show)


def describe_processor() -> str:
    """Name and vector instructions: times of different ones do not compare."""
    lines = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in lines.items()}
    kinds = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
    has = sorted({*kinds} & {*fields.get("flags", "").split()})
    return f"{fields.get('model name', '?')}: {' '.join(has)}"


def make_parts(args: argparse.Namespace, folder: Path) -> list[Part]:
    """Make the recordings, and the cases in the order in which they run: the quickest first."""
    # Here, as it imports torch, whose memory is not that of each engine's process.
    from asr.cli import main

    all_clips = read_clips(args.manifest)
    clips = choose_clips(all_clips, args.clips)
    recordings = []  # kind, name, references, files
    if "start" in args.parts:
        path, text = min(all_clips, key=lambda clip: abs(measure_seconds(clip[0]) - 1))
        recordings.append(("start", "start", [[text]], [path]))
    if "short" in args.parts:
        recordings.append(
            ("short", f"{len(clips)} clips", [[text] for _, text in clips], [p for p, _ in clips])
        )
    for minutes in args.minutes if "long" in args.parts else []:
        path = folder / f"{minutes:g}.wav"
        recordings.append(("long", f"{minutes:g} minutes", [join_clips(all_clips, minutes, path)], [path]))
    parts = []
    for (kind, name, references, files), model, beam in itertools.product(
        recordings, args.models, args.beams
    ):
        ours, converted = folder / f"{model.stem}-ours", folder / model.stem
        if not ours.exists() and main(["convert", str(model), str(ours)]) != 0:
            raise SystemExit(2)
        if not converted.exists() and any(engine.startswith("faster") for engine in args.engines):
            convert(ours, converted)
        seconds = sum(map(measure_seconds, files))
        template = Case(
            "",
            model,
            ours,
            converted,
            tuple(files),
            clips[0][0],
            beam,
            args.threads,
            args.precision,
            kind == "long",
        )
        parts.append(
            Part(
                f"{model.stem}, {name} ({seconds:.0f} s), beam {beam}, {args.threads} threads",
                [replace(template, engine=engine) for engine in args.engines if fits(engine, kind)],
                start_once if kind == "start" else run_case,
                references,
                seconds,
            )
        )
    return parts


def fits(engine: str, kind: str) -> bool:
    """Check if an engine differs from the others in this part."""
    if kind == "start":
        return engine == "ours" or engine in ONCE
    return engine not in (
        ("ours, 1 at a time",) if kind == "long" else ("ours, first text", "faster-whisper, batched")
    )


def measure_seconds(path: Path) -> float:
    from asr.audio import reading as audio

    return audio.read_info(path).seconds


if __name__ == "__main__":
    main()
