"""A trained model as modules that can be traced into ONNX graphs: shapes stay variable, nothing is cached.

Normalization of the features (cmvn) is part of the graphs. What a session keeps between chunks is one vector.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.features.filters import ICEFALL_FLOOR, INT16_SCALE, MIN_DEVIATION
from asr.features.front_end import normalize_running, start_statistics
from asr.models.decoders import LOG_ZERO
from asr.models.encoders import DepthwiseConvolution, Subsampling, subsampled_lengths
from asr.models.layers import EncoderKV, KeyValueCache, Positions, as_bias, compute_angles, length_mask
from asr.models.speech_model import SpeechModel
from asr.system.system import System
from asr.text.tokenizer import PAD_ID, SOS_ID, UNK_ID

# N utterances or sessions, T frames, U steps, F features, D model dimension, S length of a state, J dimension
# of the joint network, L layers, H heads, K head dimension, P tokens so far, V vocabulary, R rows and W width
# of the cache in which sherpa-onnx passes the state


class TraceableSubsampling(Subsampling):
    def forward(self, features_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        mask_BT = length_mask(lengths_B, features_BTF.size(1))
        x_BCTF = features_BTF.masked_fill(~mask_BT[..., None], 0.0)[:, None]
        for convolution in self.convolutions:
            lengths_B = subsampled_lengths(lengths_B, 2)
            x_BCTF = convolution(x_BCTF).relu()
            x_BCTF = x_BCTF * length_mask(lengths_B, x_BCTF.size(2))[:, None, :, None]
        return self.norm(self.project(x_BCTF.permute(0, 2, 3, 1).flatten(2))), lengths_B


class TraceableConvolution(DepthwiseConvolution):
    def forward(self, x_BTD: Tensor, weight_DK: Tensor | None = None) -> Tensor:
        weight_DK = self.weight_DK if weight_DK is None else weight_DK
        x_BDT = x_BTD.transpose(1, 2)
        x_BDT = F.conv1d(x_BDT, weight_DK[:, None], padding=self.kernel // 2, groups=len(weight_DK))
        return x_BDT.transpose(1, 2) + self.bias_D


class TraceablePositions(Positions):
    def codes(self, length: int, device: torch.device) -> Tensor:
        angles = F.pad(compute_angles(length, self.turned, device), (0, (self.dim - self.turned) // 2))
        # No cosine, which the runtime inside sherpa-onnx does not compute in double precision.
        return torch.stack([angles.sin(), (angles + math.pi / 2).sin()], dim=-1).flatten(1).float()


TRACEABLE = {
    Subsampling: TraceableSubsampling,
    DepthwiseConvolution: TraceableConvolution,
    Positions: TraceablePositions,
}


def copy_traceable(model: SpeechModel) -> SpeechModel:
    """Copy a model whose layers compute the same as before, by operations that have an ONNX form."""
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        module.__class__ = TRACEABLE.get(type(module), type(module))
    return model


class RecordingEncoder(nn.Module):
    """Encodes whole recordings, and computes of the steps what a search reads."""

    def __init__(self, system: System, kind: str, scale: float = INT16_SCALE, repeats: int = 1) -> None:
        """`scale`: samples in [-1, 1] were multiplied by it. `repeats`: how often each step is given."""
        super().__init__()
        self.features, self.kind, self.repeats = system.config.features, kind, repeats
        self.shift = 2 * math.log(INT16_SCALE / scale)
        self.model = copy_traceable(system.model)

    def forward(self, x_NTF: Tensor, lengths_N: Tensor) -> tuple[Tensor, ...]:
        x_NTF = self.change_scale(x_NTF)
        if self.features.cmvn == "running":
            start_13F = start_statistics(x_NTF[:1])
            x_NTF, _ = normalize_running(x_NTF, start_13F.expand(x_NTF.size(0), -1, -1))
        elif self.features.cmvn == "utterance":
            mask_NT1, count_N11 = length_mask(lengths_N, x_NTF.size(1))[..., None], lengths_N[:, None, None]
            x_NTF = x_NTF - (x_NTF * mask_NT1).sum(1, keepdim=True) / count_N11
            variance_N1F = (x_NTF.square() * mask_NT1).sum(1, keepdim=True) / count_N11
            x_NTF = x_NTF / variance_N1F.sqrt().clamp(min=MIN_DEVIATION)
        return self.read(*self.model.encoder(x_NTF, lengths_N))

    def change_scale(self, x_NTF: Tensor) -> Tensor:
        """Make features of Kaldi's scale, whose floor is that of the training."""
        is_icefall = self.features.convention == "icefall"
        return (x_NTF + self.shift).clamp(min=math.log(ICEFALL_FLOOR)) if is_icefall else x_NTF

    def read(self, encoded_NUD: Tensor, lengths_N: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of CTC, or what the decoder computes of each step once."""
        decoder: Any = self.model.decoder
        if self.kind == "ctc":
            return self.model.ctc_log_probabilities(encoded_NUD), lengths_N
        if self.kind == "attention":
            memories = [layer.cross_attention.precompute_kv(encoded_NUD, None) for layer in decoder.layers]
            pairs = [torch.stack([memory.keys_BHSK, memory.values_BHSK]) for memory in memories]
            return torch.stack(pairs), lengths_N
        steps_NUJ = decoder.prepare_steps(encoded_NUD)
        if self.repeats > 1:
            steps_NUJ = steps_NUJ[:, :, None].expand(-1, -1, self.repeats, -1).flatten(1, 2)
        return steps_NUJ, lengths_N * self.repeats


class ChunkEncoder(RecordingEncoder):
    """Encodes the next chunk of each session; what it keeps in between is one vector, zeros at first."""

    def __init__(self, system: System, kind: str, scale: float = INT16_SCALE, repeats: int = 1) -> None:
        super().__init__(system, kind, scale, repeats)
        encoder: Any = self.model.encoder
        self.encoder, self.start = encoder, encoder.start()
        self.num_steps, self.left = self.start.chunks.steps, self.start.chunks.steps * self.start.chunks.left
        self.frames = self.num_steps * encoder.subsampling_factor
        sums = start_statistics(self.start.frames_BTF)
        # A double is kept as its float and the rest, or sums over hours would lose their last digits.
        parts = [self.start.steps_B[:, None], sums, sums, self.start.frames_BTF, *self.start.caches]
        self.shapes = [part.shape[1:] for part in parts]
        self.sizes = [shape.numel() for shape in self.shapes]

    def forward(self, x_NTF: Tensor, lengths_N: Tensor, state_NS: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        parts = zip(state_NS.split(self.sizes, dim=1), self.shapes, strict=True)
        steps_N1, sums_N3F, rests_N3F, frames_NTF, *caches = (
            part.unflatten(1, shape) for part, shape in parts
        )
        x_NTF = self.change_scale(x_NTF)
        if self.features.cmvn == "running":
            start_13F = start_statistics(x_NTF[:1])
            known_N3F = start_13F + sums_N3F.double() + rests_N3F.double()
            x_NTF, known_N3F = normalize_running(x_NTF, known_N3F)
            sums_N3F = (known_N3F - start_13F).float()
            rests_N3F = (known_N3F - start_13F - sums_N3F.double()).float()
        state = type(self.start)(self.start.chunks, steps_N1[:, 0].long(), frames_NTF, tuple(caches))
        encoded_NUD, lengths_N, state = self.encoder.step(x_NTF, lengths_N, state)
        # More steps than are attended to make no difference, and a float could not count them for ever.
        steps_N1 = state.steps_B.clamp(max=self.left + 1)[:, None].float()
        kept = [steps_N1, sums_N3F, rests_N3F, state.frames_BTF, *state.caches]
        return *self.read(encoded_NUD, lengths_N), torch.cat([part.flatten(1) for part in kept], dim=1)


class SherpaChunks(nn.Module):
    """Chunks as sherpa-onnx passes them: its first cache holds the state, and the others stay as they are."""

    def __init__(self, encoder: ChunkEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x_NTF: Tensor, cache_RNW: Tensor, *idle: Tensor) -> tuple[Tensor, ...]:
        rows_NRW = cache_RNW.transpose(0, 1)
        kept_NS, size = rows_NRW.flatten(1), sum(self.encoder.sizes)
        lengths_N = torch.full_like(kept_NS[:, 0], self.encoder.frames, dtype=torch.long)
        steps_NUV, _, next_NS = self.encoder(x_NTF, lengths_N, kept_NS[:, :size])
        next_NS = F.pad(next_NS, (0, kept_NS.size(1) - size))
        return steps_NUV, next_NS.unflatten(1, rows_NRW.shape[1:]).transpose(0, 1), *idle


class StatelessGraph(nn.Module):
    """The last two tokens to their part in the joint network; sherpa-onnx begins a text with blanks."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens_N2: Tensor) -> Tensor:
        predictor = self.decoder.predictor
        tokens_N2 = torch.where(tokens_N2 <= 0, SOS_ID, tokens_N2)
        mixed_ND = predictor.mix(predictor.embedding(tokens_N2).transpose(1, 2).flatten(1)).relu()
        predicted_NJ: Tensor = self.decoder.project_predicted(mixed_ND)
        return predicted_NJ


class LSTMGraph(nn.Module):
    """The next token to its part in the joint network, after all those before it."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens_N1: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        predicted_N1J, after = self.decoder.predict(tokens_N1, state)
        return predicted_N1J[:, 0], *after


class Joiner(nn.Module):
    """Scores of tokens and durations. Of the special tokens, a transducer emits blank alone."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.output = copy.deepcopy(decoder.output)
        self.output.bias.data[PAD_ID:UNK_ID] = LOG_ZERO

    def forward(self, encoded_NJ: Tensor, predicted_NJ: Tensor) -> Tensor:
        scores_NV: Tensor = self.output(torch.tanh(encoded_NJ + predicted_NJ))
        return scores_NV


class GivenCache(KeyValueCache):
    """Keys and values of the tokens before, (2, N, H, P, K), which come from outside the graph."""

    def __init__(self, past: Tensor) -> None:
        super().__init__()
        self.parts, self.length = past, past.size(3)

    def append(self, *new: Tensor) -> list[Tensor]:
        self.parts = torch.cat([self.parts, torch.stack(new)], dim=3)
        return list(self.parts)


class TokenStep(nn.Module):
    """Scores of the next token of one text, given keys and values of the tokens before it."""

    def __init__(self, system: System) -> None:
        super().__init__()
        self.decoder: Any = copy_traceable(system.model).decoder

    def forward(
        self, token_11: Tensor, cross: Tensor, lengths_1: Tensor, past: Tensor
    ) -> tuple[Tensor, Tensor]:
        decoder, caches = self.decoder, [GivenCache(own) for own in past]
        x_11D = decoder.positions(decoder.embedding(token_11) * decoder.scale, past.size(4))
        bias_1U = as_bias(length_mask(lengths_1, cross.size(4)), cross)
        for layer, (keys, values), cache in zip(decoder.layers, cross, caches, strict=True):
            x_11D, _ = layer(x_11D, EncoderKV(keys, values, bias_1U), cache, ())
        return decoder.output(decoder.norm(x_11D))[:, 0], torch.stack([cache.parts for cache in caches])


class TiedTable(nn.Module):
    """The embeddings of a decoder and its output, which are the same weights, once in the graph."""

    def __init__(self, decoder: Any, order_V: Tensor | None = None) -> None:
        """`order_V`: the IDs of the decoder in the order of the graph."""
        super().__init__()
        weight_VD = decoder.output.weight if order_V is None else decoder.output.weight[order_V]
        self.weight_DV = nn.Parameter(weight_VD.detach().t().contiguous())

    def forward(self, tokens_1U: Tensor) -> Tensor:
        return self.weight_DV.index_select(1, tokens_1U[0]).t()[None]

    def score(self, x_1UD: Tensor) -> Tensor:
        return x_1UD @ self.weight_DV
