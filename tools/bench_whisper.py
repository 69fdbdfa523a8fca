"""Speed, memory and word error rate on a CPU: our Whisper beside openai-whisper, faster-whisper, whisper.cpp.

    python tools/bench_whisper.py ggml-base.en.bin test.jsonl
    python tools/bench_whisper.py ggml-base.en.bin test.jsonl --parts long --beams 1 --engines ours faster
    pip install openai-whisper faster-whisper pywhispercpp   # those that are missing are left out

All of them get the same weights, of the ggml file, with the same beam, number of threads and fallback to
higher temperatures; each case runs in a process of its own. `short` are clips of the manifest, each a
recording; `long` is one recording, its utterances joined with pauses between them. The others take one clip
after the other, as their interfaces do; ours decodes those of several files at once, and `ours, 1 at a time`
does not. `ours, heard once` gives speech without text no second chance (checks.max_skipped_seconds: null).
Time includes reading the audio and computing features, but not loading the model and a first clip. Memory is
the peak of the whole process. Texts and references are normalised by the rules for English, and runs of
single letters joined; the references one by one, so that numbers of two utterances do not become one. Of a
long recording, where neighbours end and begin with spelled letters or digits, only characters are counted:
where one word ends is anybody's guess.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import multiprocessing
import os
import queue
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from convert_to_ctranslate2 import convert

SAMPLE_RATE = 16_000
FASTER_BATCH = 8
ENGINES = {  # to the package that each one needs
    "ours": "asr",
    "ours, 1 at a time": "asr",
    "ours, heard once": "asr",
    "openai-whisper": "whisper",
    "faster-whisper": "faster_whisper",
    "faster-whisper, batched": "faster_whisper",
    "whisper.cpp": "pywhispercpp",
}
Transcribe = Callable[[Sequence[Path]], list[str]]


@dataclass(frozen=True)
class Case:
    """What one process does."""

    engine: str
    model: Path
    converted: Path
    """A folder for what faster-whisper reads."""
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
    megabytes: float


# --- engines --------------------------------------------------------------------------------------


def load_ours(case: Case) -> Transcribe:
    import torch

    from asr.decoding.checks import ChecksConfig
    from asr.transcription.recognizer import load_model
    from asr.whisper.decoding import WhisperDecodingConfig

    torch.set_num_threads(case.threads)
    checks = ChecksConfig(max_skipped_seconds=None) if case.engine == "ours, heard once" else None
    recognizer = load_model(case.model, "cpu", case.precision, checks=checks)  # type: ignore[arg-type]
    config = WhisperDecodingConfig(beam=case.beam, language="en")
    batch_size = 1 if case.engine == "ours, 1 at a time" else 8

    def transcribe(paths: Sequence[Path]) -> list[str]:
        results = recognizer.transcribe_files(paths, batch_size, options=config)
        return [result.text for _, result in results]  # type: ignore[union-attr]

    return transcribe


def load_openai(case: Case) -> Transcribe:
    import torch
    import whisper
    from whisper.model import ModelDimensions, Whisper

    from asr.whisper.loading import read_checkpoint
    from asr.whisper.naming import split_weights

    torch.set_num_threads(case.threads)
    checkpoint = read_checkpoint(case.model)
    config = checkpoint.config
    model = Whisper(
        ModelDimensions(
            n_mels=config.num_mels, n_audio_ctx=config.max_steps, n_audio_state=config.dim,
            n_audio_head=config.encoder_heads, n_audio_layer=config.encoder_layers,
            n_vocab=config.vocab_size, n_text_ctx=config.max_tokens, n_text_state=config.dim,
            n_text_head=config.decoder_heads, n_text_layer=config.decoder_layers,
        )
    ).eval()  # fmt: skip
    weights = split_weights(config, checkpoint.weights)
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
    "ours, heard once": load_ours,
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
    """In a process of its own."""
    transcribe = LOADERS[case.engine](case)
    transcribe([case.warm_up])
    started = time.perf_counter()
    texts = transcribe(case.clips)
    seconds = time.perf_counter() - started
    results.put(Outcome(texts, seconds, read_peak()))


def read_peak() -> float:
    """Megabytes, the most that this process had."""
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


def choose_clips(manifest: Path, count: int) -> list[tuple[Path, str]]:
    """As many, evenly from the whole manifest, with their texts."""
    from asr.data.manifest import read_manifest

    utterances = list(read_manifest(manifest))
    places = np.linspace(0, len(utterances) - 1, min(count, len(utterances))).round().astype(int)
    return [(Path(utterances[place].audio), utterances[place].text or "") for place in places]


def join_clips(clips: Sequence[tuple[Path, str]], minutes: float, path: Path) -> list[str]:
    """Writes one recording of clips with pauses of 0.4 to 2 seconds between; their texts."""
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
    """Per cent of the words, if each recording is one utterance, and of the characters without spaces."""
    from asr.scoring.counting import count_character_errors, count_word_errors
    from asr.text.english import normalize_english
    from asr.text.english_letters import join_letters

    pairs = [
        (
            " ".join(join_letters(normalize_english(one)) for one in reference),
            join_letters(normalize_english(text)),
        )
        for reference, text in zip(references, texts, strict=True)
    ]
    bare = [(reference.replace(" ", ""), text.replace(" ", "")) for reference, text in pairs]
    is_single = all(len(reference) == 1 for reference in references)
    words = 100 * count_word_errors(pairs).rate if is_single else math.nan
    return words, 100 * count_character_errors(bare).rate


def compare(
    cases: Sequence[Case], references: Sequence[Sequence[str]], audio_seconds: float, shows_texts: bool
) -> None:
    ours: float | None = None
    for case in cases:
        outcome = run_case(case)
        if outcome is None:
            print(f"{case.engine:26} failed", flush=True)
            continue
        ours = outcome.seconds if ours is None and case.engine == "ours" else ours
        words, characters = count_errors(references, outcome.texts)
        ratio = f"{outcome.seconds / ours:10.2f} x" if ours else ""
        print(
            f"{case.engine:26}{outcome.seconds:8.1f} s{outcome.seconds / audio_seconds:9.4f}"
            f"{outcome.megabytes:9.0f} MB{words:8.1f} %{characters:8.1f} %{ratio}",
            flush=True,
        )
        for reference, text in zip(references, outcome.texts, strict=True) if shows_texts else ():
            print(f"    {' '.join(reference)} | {text}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="ggml file of a Whisper model that knows English")
    parser.add_argument("manifest", type=Path, help="of the clips, with their texts")
    parser.add_argument("--parts", nargs="+", choices=("short", "long"), default=["short", "long"])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--clips", type=int, default=40, help="of the manifest (default 40)")
    parser.add_argument("--minutes", type=float, default=5.0, help="of the long recording (default 5)")
    parser.add_argument("--precision", default="auto", help="of ours (default auto)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print the texts, each behind its reference")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    engines = []
    for engine in args.engines:
        if importlib.util.find_spec(ENGINES[engine]) is None:
            print(f"{engine} is not installed and left out")
        else:
            engines.append(engine)
    with tempfile.TemporaryDirectory() as folder:
        converted = Path(folder) / "converted"
        if any(engine.startswith("faster") for engine in engines):
            convert(args.model, converted)
        clips = choose_clips(args.manifest, args.clips)
        for part in args.parts:
            run_part(args, engines, clips, Path(folder), is_long=part == "long")


def run_part(
    args: argparse.Namespace,
    engines: Sequence[str],
    clips: Sequence[tuple[Path, str]],
    folder: Path,
    is_long: bool,
) -> None:
    paths, texts = [path for path, _ in clips], [[text] for _, text in clips]
    if is_long:
        paths = [folder / "long.wav"]
        texts = [join_clips(clips, args.minutes, paths[0])]
        engines = [engine for engine in engines if engine != "ours, 1 at a time"]
    else:
        only_long = ("ours, heard once", "faster-whisper, batched")
        engines = [engine for engine in engines if engine not in only_long]
    seconds = sum(len(read_audio(path)) for path in paths) / SAMPLE_RATE
    for beam in args.beams:
        what = f"long: {seconds:.0f} s" if is_long else f"short: {len(paths)} x {seconds / len(paths):.1f} s"
        print(f"\n{what}, beam {beam}, {args.threads} threads")
        print(f"{'engine':26}{'time':>10}{'per s':>9}{'memory':>12}{'WER':>10}{'CER':>10}{'to ours':>12}")
        cases = [
            Case(engine, args.model, folder / "converted", tuple(paths), clips[0][0], beam, args.threads,
                 args.precision, is_long)
            for engine in engines
        ]  # fmt: skip
        compare(cases, texts, seconds, args.show)


if __name__ == "__main__":
    main()
