"""CAM++: waveforms to embeddings of their speakers, to compare by their cosine."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.errors import UserError
from asr.features.front_end import INT16_SCALE, FeaturesConfig, FrontEnd

# B batch, S samples, T frames, M mel bands, C channels, D embedding dimension
# Modules are named as in the checkpoints of 3D-Speaker, so that these load without a table of names.

SAMPLE_RATE = 16_000
SEGMENT_FRAMES = 100  # of the context that gates a layer: two seconds
BATCH_FRAMES = 6_000  # of features that one batch holds: bounds the memory
HEAD_CHANNELS = 32


class CamPlusPlusSizes(pydantic.BaseModel):
    """Sizes of a model, by default the published one. The limits guard against damaged files."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    num_mels: int = pydantic.Field(default=80, ge=8, le=512, multiple_of=8)
    """Mel bands of the features."""
    dim: int = pydantic.Field(default=192, gt=0, le=4096)
    """Dimension of an embedding."""
    channels: int = pydantic.Field(default=128, gt=0, le=1024)
    """Channels ahead of the first block."""
    growth: int = pydantic.Field(default=32, gt=0, le=256)
    """Channels that each layer adds."""
    bottleneck: int = pydantic.Field(default=128, ge=2, le=1024)
    """Channels inside each layer."""
    kernel: Literal[1, 3, 5, 7] = 3
    """Frames that each layer sees."""
    layers: tuple[int, ...] = pydantic.Field(default=(12, 24, 16), max_length=8)
    """Layers of each block."""
    dilations: tuple[int, ...] = (1, 2, 2)
    """Distance of the frames that a layer sees, for each block."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> CamPlusPlusSizes:
        if len(self.layers) != len(self.dilations) or not all(
            0 < size <= 64 for size in (*self.layers, *self.dilations)
        ):
            raise ValueError(
                f"layers = {self.layers}, dilations = {self.dilations}: expected 1 to 64, as many of both"
            )
        return self


class CamPlusPlus(nn.Module):
    """Embedding of speakers by densely connected time-delay layers, gated by their context.

    Wang et al., CAM++: a fast and efficient network for speaker verification using context-aware masking
    (2023). The defaults are the sizes of the published models, for Chinese and English with 192 dimensions.
    """

    def __init__(self, sizes: CamPlusPlusSizes | None = None) -> None:
        super().__init__()
        self.sizes = sizes = sizes or CamPlusPlusSizes()
        self.head = _Head(HEAD_CHANNELS)
        channels, read = sizes.channels, HEAD_CHANNELS * sizes.num_mels // 8
        first = nn.Conv1d(read, channels, 5, stride=2, padding=2, bias=False)
        layers: dict[str, nn.Module] = {
            "tdnn": nn.Sequential(OrderedDict(linear=first, nonlinear=_normalize(channels)))
        }
        for number, (num_layers, dilation) in enumerate(zip(sizes.layers, sizes.dilations, strict=True), 1):
            layers[f"block{number}"] = _DenseBlock(sizes, channels, num_layers, dilation)
            channels += num_layers * sizes.growth
            halve = nn.Conv1d(channels, channels // 2, 1, bias=False)
            layers[f"transit{number}"] = nn.Sequential(
                OrderedDict(nonlinear=_normalize(channels), linear=halve)
            )
            channels //= 2
        layers["out_nonlinear"] = _normalize(channels)
        layers["stats"] = _Statistics()
        last = nn.Conv1d(2 * channels, sizes.dim, 1, bias=False)
        scale = nn.Sequential(OrderedDict(batchnorm=nn.BatchNorm1d(sizes.dim, affine=False)))
        layers["dense"] = nn.Sequential(OrderedDict(linear=last, nonlinear=scale))
        self.xvector = nn.Sequential(OrderedDict(layers))

    def forward(self, features_BTM: Tensor) -> Tensor:
        """(B, D), of features of equal length without padding."""
        return self.xvector(self.head(features_BTM.transpose(1, 2)))[..., 0]


def _normalize(channels: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(batchnorm=nn.BatchNorm1d(channels), relu=nn.ReLU()))


class _Head(nn.Module):
    """Convolutions over bands and frames; an eighth of the bands is left, all frames are."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.layer1 = nn.Sequential(_Residual(channels, 2), _Residual(channels, 1))
        self.layer2 = nn.Sequential(_Residual(channels, 2), _Residual(channels, 1))
        self.conv2 = nn.Conv2d(channels, channels, 3, (2, 1), padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, features_BMT: Tensor) -> Tensor:
        x_BCMT = self.bn1(self.conv1(features_BMT[:, None])).relu()
        x_BCMT = self.bn2(self.conv2(self.layer2(self.layer1(x_BCMT)))).relu()
        return x_BCMT.flatten(1, 2)


class _Residual(nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, (stride, 1), padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride > 1:
            convolution = nn.Conv2d(channels, channels, 1, (stride, 1), bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(channels))

    def forward(self, x_BCMT: Tensor) -> Tensor:
        inner_BCMT = self.bn2(self.conv2(self.bn1(self.conv1(x_BCMT)).relu()))
        return (inner_BCMT + self.shortcut(x_BCMT)).relu()


class _DenseBlock(nn.Module):
    """Layers of which each reads the outputs of all before it."""

    def __init__(self, sizes: CamPlusPlusSizes, channels: int, num_layers: int, dilation: int) -> None:
        super().__init__()
        for index in range(num_layers):
            self.add_module(
                f"tdnnd{index + 1}", _DenseLayer(sizes, channels + index * sizes.growth, dilation)
            )

    def forward(self, x_BCT: Tensor) -> Tensor:
        for layer in self.children():
            x_BCT = torch.cat([x_BCT, layer(x_BCT)], dim=1)
        return x_BCT


class _DenseLayer(nn.Module):
    def __init__(self, sizes: CamPlusPlusSizes, channels: int, dilation: int) -> None:
        super().__init__()
        self.nonlinear1 = _normalize(channels)
        self.linear1 = nn.Conv1d(channels, sizes.bottleneck, 1, bias=False)
        self.nonlinear2 = _normalize(sizes.bottleneck)
        self.cam_layer = _ContextGate(sizes, dilation)

    def forward(self, x_BCT: Tensor) -> Tensor:
        return self.cam_layer(self.nonlinear2(self.linear1(self.nonlinear1(x_BCT))))


class _ContextGate(nn.Module):
    """A convolution, each channel of which is scaled by what the means over time call for."""

    def __init__(self, sizes: CamPlusPlusSizes, dilation: int) -> None:
        super().__init__()
        channels, padding = sizes.bottleneck, sizes.kernel // 2 * dilation
        self.linear_local = nn.Conv1d(
            channels, sizes.growth, sizes.kernel, padding=padding, dilation=dilation, bias=False
        )
        self.linear1 = nn.Conv1d(channels, channels // 2, 1)
        self.linear2 = nn.Conv1d(channels // 2, sizes.growth, 1)

    def forward(self, x_BCT: Tensor) -> Tensor:
        means_BCK = F.avg_pool1d(x_BCT, SEGMENT_FRAMES, SEGMENT_FRAMES, ceil_mode=True)
        context_BCK = x_BCT.mean(dim=2, keepdim=True) + means_BCK
        gates_BCK = self.linear2(self.linear1(context_BCK).relu()).sigmoid()
        gates_BCT = gates_BCK.repeat_interleave(SEGMENT_FRAMES, dim=2)[..., : x_BCT.size(2)]
        return self.linear_local(x_BCT) * gates_BCT


class _Statistics(nn.Module):
    """(B, 2C, 1): means and deviations over time."""

    def forward(self, x_BCT: Tensor) -> Tensor:
        means_BC1 = x_BCT.mean(dim=2, keepdim=True)
        if x_BCT.size(2) == 1:  # no deviation is known; the published models take a hundredth
            return torch.cat([means_BC1, torch.full_like(means_BC1, 0.01)], dim=1)
        return torch.cat([means_BC1, x_BCT.std(dim=2, keepdim=True)], dim=1)


class SpeakerFeatures:
    """Log-mel features as CAM++ reads them: of samples in [-1, 1], each band with mean 0."""

    def __init__(self, num_mels: int) -> None:
        self.front_end = FrontEnd(FeaturesConfig(num_mels=num_mels, cmvn="none"))

    def __call__(self, audio_BS: Tensor) -> Tensor:
        """(B, T, M), of audio of equal length."""
        lengths_B = torch.full((len(audio_BS),), audio_BS.size(1), device=audio_BS.device)
        features_BTM, _ = self.front_end.to(audio_BS.device)(audio_BS / INT16_SCALE, lengths_B)
        return features_BTM - features_BTM.mean(dim=1, keepdim=True)


@torch.inference_mode()
def embed(model: CamPlusPlus, waveforms: Sequence[Tensor]) -> Tensor:
    """(N, D): embeddings of length 1 of mono waveforms at 16 kHz, each of 25 ms or more.

    Waveforms of equal length are computed in batches, the others one by one: nothing is padded, so no
    embedding depends on the other waveforms.
    """
    compute_features = SpeakerFeatures(model.sizes.num_mels)
    front_end = compute_features.front_end
    shortest = front_end.config.window_samples
    places: dict[int, list[int]] = defaultdict(list)
    for place, audio_S in enumerate(waveforms):
        if audio_S.dim() != 1 or len(audio_S) < shortest:
            raise UserError(
                f"waveform {place}: shape {tuple(audio_S.shape)}. Expected one channel of at least "
                f"{shortest} samples at 16 kHz. Try leaving out shorter ones"
            )
        places[len(audio_S)].append(place)
    device = next(model.parameters()).device
    embeddings_ND = torch.empty(len(waveforms), model.sizes.dim)
    for num_samples, group in places.items():
        at_once = max(1, BATCH_FRAMES // front_end.num_frames(num_samples))
        for first in range(0, len(group), at_once):
            batch = group[first : first + at_once]
            audio_BS = torch.stack([waveforms[place] for place in batch]).to(device, torch.float32)
            embeddings_ND[batch] = F.normalize(model(compute_features(audio_BS))).cpu()
    return embeddings_ND
