"""asr/speakers/voices.py: one label for a speaker in all recordings, and files of voices, also hostile ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from speaker_examples import MODELS, make_talk

from asr.audio.segmentation import Recording
from asr.errors import UserError
from asr.speakers.diarize import Diarizer
from asr.speakers.voices import Voices


def take_turns(*tones: int) -> Recording:
    spans = [(0.5 + 3.5 * place, 3.5 + 3.5 * place, tone) for place, tone in enumerate(tones)]
    return make_talk(spans, 3.5 * len(tones) + 1)


def find_labels(diarizer: Diarizer, *tones: int) -> list[str]:
    return [turn.speaker.removeprefix("SPEAKER_") for turn in diarizer.find_turns(take_turns(*tones))[0]]


def test_a_speaker_has_one_label(tmp_path: Path) -> None:
    """In all recordings of a call, and with a file in later calls; a name replaces the label for good."""
    alone, path = Diarizer(MODELS), str(tmp_path / "voices.safetensors")
    assert find_labels(alone, 0, 1) == find_labels(alone, 1, 2) == ["00", "01"]
    together = Diarizer(MODELS, voices=Voices(MODELS, path))
    assert find_labels(together, 0, 1) == ["00", "01"] and find_labels(together, 2, 1) == ["02", "01"]
    later = Diarizer(MODELS, voices=Voices(MODELS, path))
    assert find_labels(later, 3, 1, 0) == ["03", "01", "00"]
    named = Diarizer(MODELS, enrolled={"anna": take_turns(1)}, voices=Voices(MODELS, path))
    assert find_labels(named, 4, 1) == ["01", "anna"], "the label is free again"
    last = Diarizer(MODELS, voices=Voices(MODELS, path))
    assert find_labels(last, 1, 2) == ["anna", "02"]
    assert load_file(path)["voice anna"].norm() == pytest.approx(18, rel=0.1), "3 s in each of six recordings"


def test_hostile_files(tmp_path: Path) -> None:
    path = tmp_path / "voices.safetensors"
    Voices(MODELS, str(path)).learn({"anna": torch.ones(12).numpy()})
    good = load_file(path)
    bad = {"voice a\nb": torch.ones(12), "voice ": torch.ones(12), "anna": torch.ones(12)}
    bad |= {"voice short": torch.ones(3), "voice nan": torch.full((12,), torch.nan)}
    for name, tensor in bad.items():
        save_file(good | {name: tensor}, path)
        with pytest.raises(UserError, match=r"not a voice\. Give a file that --voices wrote"):
            Voices(MODELS, str(path))
    for probe_D in torch.eye(12)[0], torch.full((12,), torch.nan), torch.ones(0):
        save_file({"probe": probe_D}, path)
        with pytest.raises(UserError, match="another speaker model"):
            Voices(MODELS, str(path))
    path.write_text("no tensors")
    with pytest.raises(UserError, match="damaged safetensors file"):
        Voices(MODELS, str(path))
