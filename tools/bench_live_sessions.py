"""Measure how many live sessions one core follows, with a model that encodes each chunk once.

    python tools/bench_live_sessions.py runs/an4/streaming data/an4/test.jsonl --sessions 1 4 8
    python tools/bench_live_sessions.py conf/digits/live/transducer.yaml data/digits/dev.jsonl --pace 4

Each session is a thread that gets its audio as fast as it is spoken, through the scheduler of a server. The
tool prints seconds of compute for each second of speech, and how many sessions that makes for a core, next to
the same audio as files in batches of eight; and the delay from the end of a word until it is shown. A config
in place of a model stands for random weights, which cost the same and write nonsense.

On a busy machine --pace 4 speaks four times slower, and divides the delays by four.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from bench_live import RATE, join_utterances

from asr.audio.segmentation import Recording
from asr.config import load_config
from asr.data import read_manifest
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.features.front_end import FrontEnd
from asr.models.speech_model import build_model
from asr.serve.live import listen
from asr.serve.scheduler import Client, Scheduler
from asr.system.run_config import RunConfig
from asr.system.system import System
from asr.text.tokenizer import BLANK_ID, Tokenizer
from asr.transcription.transcribe import Recognizer, Request, load_recognizer

PIECE_SECONDS = 0.1
LATE_SECONDS = 2 * PIECE_SECONDS  # then a server has the next piece waiting, and shows whole segments alone
BLANK_BIAS = 4.0  # random weights then write a few tokens a second, as people do


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model, or a config for random weights")
    parser.add_argument("manifest", type=Path, help="utterances with texts")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--seconds", type=float, default=30.0, help="audio of each session")
    parser.add_argument("--pace", type=float, default=1.0, help="seconds for a second of speech")
    parser.add_argument("--decoding", default="auto", help="method of the second pass")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the config")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    utterances = [*read_manifest(args.manifest)]
    texts = [utterance.text or "" for utterance in utterances]
    is_config = args.model.endswith(".yaml")
    recognizer = (
        build_random(args.model, args.set, texts) if is_config else load_recognizer(args.model, "cpu")
    )
    most = max(args.sessions)
    recordings = [audio_S for audio_S, _ in join_utterances(itertools.cycle(utterances), args.seconds, most)]
    request = Request(DecodingConfig(method=args.decoding))
    print(f"{recognizer.num_parameters / 1e6:.1f} M parameters, {recognizer.compute_type}, one core", end="")
    print(f" of a machine with load {os.getloadavg()[0]:.0f}, pace {args.pace:g}")
    offline = measure_files(recognizer, recordings[:8], request)
    print(
        "| sessions | compute a second, s | times offline | for a core | shown, s (median, 95 %) | late, s |"
    )
    print("|---|---|---|---|---|---|")
    print(f"| files | {offline:.4f} | 1.00 | {1 / offline:.0f} | | |")
    for count in args.sessions:
        seconds, delays, lateness = measure_sessions(recognizer, recordings[:count], request, args.pace)
        shown = f"{statistics.median(delays):.2f}, {np.quantile(delays, 0.95):.2f}" if delays else "-"
        row = [str(count), f"{seconds:.4f}", f"{seconds / offline:.2f}", f"{1 / seconds:.0f}", shown]
        print(f"| {' | '.join(row)} | {lateness:.2f} |", flush=True)
    return 0


def build_random(path: str, overrides: Sequence[str], texts: Sequence[str]) -> Recognizer:
    config = load_config(RunConfig, path, overrides)
    torch.manual_seed(0)
    tokenizer, front_end = Tokenizer.train(config.tokenizer, texts), FrontEnd(config.features)
    model = build_model(config.model, front_end.num_features, len(tokenizer))
    with torch.no_grad():
        for layer in (model.ctc_head, model.decoder and model.decoder.output):
            if layer is not None:
                layer.bias[BLANK_ID] += BLANK_BIAS
    return Recognizer(
        System(config, tokenizer, front_end, model), "cpu", "float32", checks=ChecksConfig.off()
    )


def measure_files(recognizer: Recognizer, recordings: Sequence[np.ndarray], request: Request) -> float:
    """Seconds of compute for a second of audio, the second time."""
    for _ in range(2):
        files = [Recording(content=audio_S, sample_rate=RATE) for audio_S in recordings]
        began = time.process_time()
        for _ in recognizer.transcribe_events(files, request):
            pass
        seconds = time.process_time() - began
    return seconds / (sum(map(len, recordings)) / RATE)


def measure_sessions(
    recognizer: Recognizer, recordings: Sequence[np.ndarray], request: Request, pace: float
) -> tuple[float, list[float], float]:
    """Seconds of compute for a second of audio, the delay of each word, and how late pieces were at most."""
    scheduler, delays, lateness = Scheduler(recognizer, batch_size=8), list[float](), [0.0]

    def follow(audio_S: np.ndarray, offset: float) -> None:
        transcriber = listen(scheduler.transcriber_for(Client(is_live=True)), request)
        size = round(PIECE_SECONDS * RATE)
        begin, shown_until = time.monotonic() + pace * offset, 0.0
        for number, first in enumerate(range(0, len(audio_S), size), 1):
            spoken = begin + pace * number * PIECE_SECONDS
            time.sleep(max(0.0, spoken - time.monotonic()))
            late = (time.monotonic() - spoken) / pace
            lateness[0] = max(lateness[0], late)
            for text in transcriber.push(audio_S[first : first + size], late > LATE_SECONDS):
                now = time.monotonic()
                for word in (*text.stable, *text.partial, *(text.segment.words if text.segment else ())):
                    if word.middle > shown_until:
                        delays.append((now - begin) / pace - word.end)
                        shown_until = word.end
        transcriber.finish()

    began = time.process_time()
    offsets = np.random.default_rng(0).uniform(0, 1, len(recordings))
    threads = [
        threading.Thread(target=follow, args=pair) for pair in zip(recordings, offsets.tolist(), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.process_time() - began
    return seconds / (sum(map(len, recordings)) / RATE), delays, lateness[0]


if __name__ == "__main__":
    sys.exit(main())
