"""Decode utterances by the model and by its exported graphs, whose texts have to be the same."""

from __future__ import annotations

import copy
import itertools
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from asr.audio.segmentation import AudioSegment
from asr.data.manifest import Utterance
from asr.data.utterance_audio import read_audio
from asr.decoding.decode import DecodingSetup, SpeechDecoder, search_encoded
from asr.decoding.greedy import sample
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio
from asr.errors import UserError, shorten
from asr.evaluation.speech import make_normalizer
from asr.export.graph_search import ExportedModel
from asr.export.numpy_features import NumpyFrontEnd
from asr.export.plan import METHODS, Plan
from asr.export.sherpa import decode_apart
from asr.export.writing import write_description
from asr.scoring.counting import score
from asr.scoring.options import Normalization
from asr.system.system import System

logger = logging.getLogger(__name__)

MAX_UTTERANCES = 60
# The features that sherpa-onnx computes for Whisper are our own of audio without its first 80 samples, if
# silence of 3 frames hides how both mirror the ends.
WHISPER_SHIFT, WHISPER_DELAY, WHISPER_EDGE = 160, 80, 480


@dataclass
class Examples:
    """Utterances to compare on, with their samples and the model's texts."""

    system: System
    utterances: Sequence[Utterance]
    audio: Sequence[np.ndarray]
    texts: Sequence[str]
    seconds: float
    most_at_step: int = 1
    """Most tokens that the model emits at one encoded step; more than 1 for transducers alone."""

    def compute_wer(self, texts: Sequence[str]) -> float:
        normalize = make_normalizer(self.system.config.text)
        references = {one.id: normalize(one.text or "", None) for one in self.utterances}
        hypotheses = {one.id: normalize(text, None) for one, text in zip(self.utterances, texts, strict=True)}
        # Published models write case and punctuation, which references may lack.
        rules: Normalization = "basic" if self.system.is_published else "none"
        return 100 * score(references, hypotheses, normalize=rules).wer

    def compare(self, texts: Sequence[str], runtime: str) -> None:
        """Raise an error that shows the first text that differs."""
        for one, own, other in zip(self.utterances, self.texts, texts, strict=True):
            if " ".join(own.split()) != " ".join(other.split()):
                equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(own, other, strict=False))
                start = max(0, len([*equal]) - 20)
                raise UserError(
                    f"utterance {one.id}, from character {start}: the model reads {shorten(own[start:])}, and"
                    f" its graph in {runtime} {shorten(other[start:])}. Nothing was written; please report"
                )
        logger.info("%s: the same texts of %d utterances", runtime, len(texts))


def decode_examples(decoder: SpeechDecoder, plan: Plan, utterances: Sequence[Utterance]) -> Examples:
    """Decode greedily in float32, without checks, as the graphs are decoded."""
    config = DecodingConfig(method=METHODS.get(plan.kind, "attention"), beam=1)
    encoder: Any = decoder.model.encoder
    chunk_steps = encoder.choose_chunks().steps if plan.is_live else None
    setup = DecodingSetup(config.model_copy(update={"chunk_steps": chunk_steps}))
    utterances, texts, most, num_cut = utterances[:MAX_UTTERANCES], list[str](), 1, 0
    audio = [fit_audio(read_audio(one, decoder.sample_rate), decoder.system, plan) for one in utterances]
    began = time.process_time()
    for audio_S in audio:
        seen_S = audio_S[WHISPER_DELAY:] if plan.kind == "whisper" else audio_S
        segments = [AudioSegment(0.0, seen_S, decoder.sample_rate)]
        encoded = decoder.introduce(decoder.encode_segments(segments, 1.0, [setup]), segments, setup)
        tokens, most_of_it = search_greedily(encoded, config)
        limit = limit_tokens(audio_S, encoded, plan)
        num_cut += len(tokens) > limit
        texts.append(decoder.spell(tokens[:limit]))
        most = max(most, most_of_it)
    if num_cut:
        logger.warning("sherpa-onnx limits the tokens of a second, and so cuts %d texts", num_cut)
    return Examples(decoder.system, utterances, audio, texts, time.process_time() - began, most)


def limit_tokens(audio_S: np.ndarray, encoded: EncodedAudio, plan: Plan) -> int:
    """Return the number of tokens after which sherpa-onnx ends a text: 6 or 15 a second."""
    if plan.kind == "whisper":
        return 6 * ((len(audio_S) + WHISPER_SHIFT // 2) // WHISPER_SHIFT) // 100
    return 9 * int(encoded.lengths_B[0]) // 25 if plan.kind == "moonshine" else sys.maxsize


@torch.inference_mode()
def search_greedily(encoded: EncodedAudio, config: DecodingConfig) -> tuple[Sequence[int], int]:
    """Return the tokens, and for a transducer the most of them at one step."""
    if config.method == "attention":
        return sample(encoded, config, max_repeats=None)[0][0].tokens, 1
    if config.method == "ctc_greedy":
        return search_encoded(encoded, config)[0][0].tokens, 1
    from asr.transducer.label_looping import GreedySearch

    decoder: Any = encoded.model.decoder
    search = GreedySearch(decoder, 1, encoded.lengths_B.device)
    search.read(decoder.prepare_steps(encoded.encoded_BTD), encoded.lengths_B)
    texts, steps = search.finish()
    return texts[0].tokens, max(Counter(steps[0]).values(), default=1)


def fit_audio(audio_S: np.ndarray, system: System, plan: Plan) -> np.ndarray:
    """Add silence where sherpa-onnx sees something else than we: at both ends, or in the last chunk."""
    if plan.kind == "whisper":
        return np.pad(audio_S, WHISPER_EDGE)
    if not plan.is_live or plan.sherpa is None:
        return audio_S
    encoder: Any = system.model.encoder
    frames = encoder.choose_chunks().steps * encoder.subsampling_factor
    samples = frames * system.config.features.shift_samples
    return np.pad(audio_S, (0, samples + -len(audio_S) % samples))


def run_graphs(folder: Path, examples: Examples, plan: Plan) -> tuple[list[str], float]:
    """Decode by ONNX Runtime, but families by sherpa-onnx. Returns the texts and the CPU time."""
    if plan.is_family:
        return decode_apart(folder, examples.audio)
    model, texts = ExportedModel(folder), list[str]()
    front_end, began = NumpyFrontEnd(model.about.features, model.about.sample_scale), time.process_time()
    for audio_S in examples.audio:
        texts.append(model.tokenizer.decode(model.search(front_end(audio_S)).tokens))
    return texts, time.process_time() - began


def prove(
    folder: Path, about: dict[str, Any], examples: Examples, plan: Plan, with_int8: bool
) -> dict[str, Any]:
    """Compare the texts. Returns the description, which may now name graphs of 8-bit weights."""
    texts, seconds = run_graphs(folder, examples, plan)
    runtime = "sherpa-onnx" if plan.is_family else "ONNX Runtime"
    examples.compare(texts, runtime)
    logger.info("CPU time: torch %.2f s, %s %.2f s", examples.seconds, runtime, seconds)
    if with_int8:
        about = choose_weights(folder, about, examples, plan, seconds)
    if plan.sherpa is None or plan.is_family:
        return about
    if find_spec("sherpa_onnx"):
        expected = run_graphs(folder, examples, plan)[0] if with_int8 else examples.texts
        replace(examples, texts=expected).compare(decode_apart(folder, examples.audio)[0], "sherpa-onnx")
    else:
        logger.warning("sherpa-onnx is not installed, so that it was not compared; pip install sherpa-onnx")
    return about


def choose_weights(
    folder: Path, about: dict[str, Any], examples: Examples, plan: Plan, seconds: float
) -> dict[str, Any]:
    """Keep 8-bit weights if they make no more errors and take no more time than float32."""
    parts, operators = {"encoder", "step"}, ["MatMul"]
    if plan.is_family:
        parts, operators = {"encoder", "decoder"}, ["MatMul", "Gather"]  # the embeddings are the output, too
    quantized = copy.deepcopy(about)
    places = [quantized["files"], (quantized["sherpa"] or {}).get("arguments", {})]
    logging.disable(logging.WARNING)  # of nodes that stay as they are
    for name in [about["files"][part] for part in about["files"].keys() & parts]:
        smaller = name.replace(".onnx", ".int8.onnx")
        quantize_dynamic(
            str(folder / name), str(folder / smaller),
            op_types_to_quantize=operators, weight_type=QuantType.QInt8,
        )  # fmt: skip
        for place in places:
            place.update({part: smaller for part, file in place.items() if file == name})
    logging.disable(logging.NOTSET)
    write_description(folder, quantized)
    texts, own_seconds = run_graphs(folder, examples, plan)
    wer, own_wer = examples.compute_wer(examples.texts), examples.compute_wer(texts)
    for name, own, *figures in (("float32", about, wer, seconds), ("int8", quantized, own_wer, own_seconds)):
        size = sum((folder / file).stat().st_size for file in own["files"].values()) / 1e6
        logger.info("%s: WER %.2f %%, %.2f s of CPU time, %.1f MB", name, *figures, size)
    is_better = own_wer <= wer and own_seconds <= seconds
    kept, left = (quantized, about) if is_better else (about, quantized)
    logger.info("kept %s", "int8" if is_better else "float32, since int8 makes more errors or takes longer")
    write_description(folder, kept)
    for file in {*left["files"].values()} - {*kept["files"].values()}:
        (folder / file).unlink()
    return kept
