"""Transcribe with the graphs of `asr export`, in ONNX Runtime and numpy: PyTorch is not imported."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from asr.audio.segmentation import AudioSegment, CuttingRules, SegmentationConfig, plan_segments
from asr.config import Precision, find_differences
from asr.decoding.hypothesis import (
    ChecksConfig,
    CtcText,
    DecodingConfig,
    DecodingSetup,
    Evidence,
    Hypothesis,
    find_problems,
    is_speech,
)
from asr.decoding.word_spans import has_spaces, split_words, time_words
from asr.errors import UserError
from asr.export.graph_search import ExportedModel, FoundTokens, load_graph
from asr.export.numpy_features import NumpyFrontEnd
from asr.system.decoding_resources import DecodingResources
from asr.threads import count_threads
from asr.transcription.transcribe import Recognizer, Request
from asr.transcripts.transcript import Segment, Word, clip_words, make_segment

# S samples, C chunks of the detector

SILERO = "silero_vad_16k_sequence.onnx"


class OnnxSilero:
    """The network of silero-vad, from the graph in its package."""

    chunk_samples, context_samples = 512, 64

    def __init__(self, threads: int) -> None:
        package = importlib.util.find_spec("silero_vad")
        path = Path("silero_vad" if package is None else str(package.origin)).with_name("data") / SILERO
        if not path.is_file():
            raise UserError(
                "cutting recordings at pauses needs the package silero-vad from 6.2.3 on; run: pip install "
                "--no-deps silero-vad, or add --set segmentation.method=none, which cuts nothing"
            )
        self._session = load_graph(path, threads)

    def __call__(self, chunks_CS: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        if not len(chunks_CS):
            return np.zeros(0, np.float32), state
        memory = np.zeros((1, 1, 128), np.float32)
        context_S, hidden, cell = state or (np.zeros(self.context_samples, np.float32), memory, memory)
        ends_CS = chunks_CS[:, -self.context_samples :]
        before_CS = np.concatenate([context_S[None], ends_CS[:-1]])
        inputs = {"input": np.concatenate([before_CS, chunks_CS], axis=1), "h": hidden, "c": cell}
        probability_C, hidden, cell = self._session.run(None, inputs)
        return probability_C, (ends_CS[-1], hidden, cell)


class AbuttingRules(CuttingRules):
    """Rules that cut speech without overlap, for models whose words have no times by which to join them."""

    @property
    def overlap_seconds(self) -> float:
        return 0.0


class OnnxRecognizer(Recognizer):
    """Recordings to transcripts as by any model, with exported graphs instead of PyTorch."""

    def __init__(
        self, source: str | Path, segmentation: SegmentationConfig | None, checks: ChecksConfig | None
    ) -> None:
        threads = count_threads()
        self.name, self.exported = str(source), ExportedModel(Path(source), threads)
        self.tokenizer, about = self.exported.tokenizer, self.exported.about
        self.family, self.device, self.num_parameters = None, cast(Any, None), 0
        self.precision, self.compute_type = "float32", "onnxruntime on cpu"
        self.checks, self.resources = checks or ChecksConfig(), DecodingResources()
        self.language, self.sample_rate = about.language, about.features.sample_rate
        self.method = "ctc_greedy" if about.kind == "ctc" else about.kind
        self.front_end = NumpyFrontEnd(about.features, about.sample_scale)
        self.frame_times = about.features.time_steps(about.subsampling)
        plan = plan_segments(segmentation or SegmentationConfig(), about.max_seconds, about.longest_seconds)
        self.segmentation, self.uncut_seconds, self.trained_seconds = plan
        if about.kind == "attention":
            self.segmentation = AbuttingRules(**self.segmentation.model_dump())
        self.load_detector = functools.cache(functools.partial(OnnxSilero, threads))
        self.decoder = cast(Any, self)  # with the methods that follow

    def prepare(self, pieces: Iterator[Any], setup: DecodingSetup) -> Iterator[Any]:
        return pieces

    def padded_length(self, num_samples: int) -> int:
        return 0  # any: segments are decoded one by one

    def separator_in(self, language: str | None) -> str:
        return " " if has_spaces(self.tokenizer) else ""

    def check(self, request: Request) -> None:
        """Refuse what greedy search cannot do."""
        usual = DecodingConfig(method=self.method)
        asked = set(find_differences(usual, request.decoding))
        if request.decoding.method == "auto":
            asked -= {"method"}
        if request.decoding.beam == 1:
            asked -= {"beam"}
        if asked:
            self._refuse(f"decoding.{min(asked)}")

    def load_resources(self, resources: DecodingResources) -> None:
        if resources.files:
            self._refuse(" and ".join(resources.files))

    def _refuse(self, what: str) -> None:
        raise UserError(
            f"{what}: {self.name} is an exported model, which is decoded by {self.method} alone; leave this "
            "out, or give the run it was exported from"
        )

    def recognize(self, segments: Sequence[AudioSegment], request: Request) -> list[Segment]:
        return [self._recognize(segment, request) for segment in segments]

    def _recognize(self, segment: AudioSegment, request: Request) -> Segment:
        found, step = self.exported.search(self.front_end(segment.audio_S)), self.frame_times.seconds_per_step
        tokens, total, text = tuple(found.tokens), found.log_probability, self.tokenizer.decode(found.tokens)
        hypothesis, ctc = Hypothesis(tokens, total, total), None
        average: float | None = total / (len(tokens) + 1)
        if self.method == "ctc_greedy":
            hypothesis, average = Hypothesis(tokens, total, ctc_log_probability=total), None
            mean = float(np.mean([np.log(one.probability) for one in found.times] or -np.inf))
            ctc = CtcText(tokens, [int(one.first) for one in found.times], text, mean, total)
            if self.checks.enabled and not is_speech(ctc):
                dropped = (f"no clear speech: {text!r} was dropped",) if text else ()
                return make_segment(segment, "", (), "", dropped)
        evidence = Evidence(hypothesis, text, len(segment.audio_S) / segment.sample_rate, step, ctc)
        warnings = tuple(f"{self.method}: {problem}" for problem in find_problems(evidence, self.checks))
        words = self._time_found(segment, found) if request.has_words or segment.overlaps else []
        timed = make_segment(segment, text, words, self.method, warnings)
        return replace(timed, average_log_probability=average, tokens=tokens)

    def _time_found(self, segment: AudioSegment, found: FoundTokens) -> list[Word]:
        """Place the words where their tokens are; attention has no steps to say where."""
        if not found.times:
            return []
        spans = split_words(self.tokenizer, found.tokens)
        words = time_words(spans, found.times, self.frame_times, segment.audio_S, segment.sample_rate)
        start = segment.start
        placed = [replace(one, start=start + one.start, end=start + one.end) for one in words]
        return clip_words(placed, segment)


def load_export(
    source: str | Path,
    device: str = "auto",
    precision: Precision = "auto",
    segmentation: SegmentationConfig | None = None,
    checks: ChecksConfig | None = None,
) -> Recognizer:
    """Load an exported model, as `load_recognizer` loads others."""
    if device not in ("auto", "cpu") or precision not in ("auto", "float32"):
        wrong = f"precision {precision}" if device in ("auto", "cpu") else f"device {device}"
        raise UserError(
            f"{wrong}: an exported model is computed on the CPU, with the "
            "weights that it has; leave this out, or give the run it was exported from"
        )
    return OnnxRecognizer(source, segmentation, checks)
