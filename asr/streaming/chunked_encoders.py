"""Encoders that work chunk by chunk: trained at many sizes of chunk, they follow a live speaker.

Each layer sees, at a step, the steps of its own chunk and of some chunks before it. The whole recording with
such masks, which training does, and one chunk after the other with what is kept of those before, which live
transcription does, give the same. The subsampling needs no mask: a step sees no frame after its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.models.encoders import (
    AttentionEncoderConfig,
    ConformerEncoderConfig,
    ConformerLayer,
    ConvolutionModule,
    EncoderLayer,
    LayeredEncoder,
    TransformerEncoderConfig,
    subsampled_lengths,
)
from asr.models.layers import SelfAttention, as_bias, attend, length_mask, merge_heads, split_heads

# B sessions or utterances, T frames or steps, P steps before them, S all of these, F features, D model
# dimension, H heads, K head dimension or kernel, N chunks, C steps of a chunk


class Chunks(NamedTuple):
    """Chunks of so many steps, at each of which so many chunks before it are seen."""

    steps: int
    left: int


# --- what the layers see, passed to them in place of the mask of padding -----------------------------


@dataclass
class WholeView:
    """Whole utterances, cut into chunks by masks."""

    chunks: Chunks
    mask_BT: Tensor  # True at real steps
    tables_SK: Sequence[Tensor] | None = None  # of rotary positions; all layers share them, and the mask

    @cached_property
    def attention_mask(self) -> Tensor:
        """(B, 1, T, T), True where a step may attend."""
        chunk_T = torch.arange(self.mask_BT.size(1), device=self.mask_BT.device) // self.chunks.steps
        ago_TT = chunk_T[:, None] - chunk_T
        mask_BTT = self.mask_BT[:, None] & (ago_TT >= 0) & (ago_TT <= self.chunks.left)
        # A step of padding sees anything, since a softmax needs something.
        return (mask_BTT | ~mask_BTT.any(-1, keepdim=True))[:, None]


class StepView:
    """The next chunk of each session; the layers take what they kept of those before, one after the other."""

    def __init__(self, mask_BT: Tensor, attention_mask: Tensor, caches: Sequence[Tensor]) -> None:
        self.mask_BT, self.attention_mask = mask_BT, attention_mask
        self._before = iter(caches)
        self.caches: list[Tensor] = []  # what is kept for the chunk after this one
        self.tables_SK: Sequence[Tensor] | None = None

    def extend(self, new: Tensor) -> Tensor:
        """The kept steps and the new ones, along the last but one dimension."""
        extended = torch.cat([next(self._before).to(new.dtype), new], dim=-2)
        self.caches.append(extended[..., new.size(-2) :, :])
        return extended


class ChunkedAttention(SelfAttention):
    """Self-attention to the own chunk and some before it, where it gets a view."""

    def __init__(self, config: AttentionEncoderConfig) -> None:
        super().__init__(config.dim, config.num_heads, rotary=config.positions == "rotary")

    def forward(self, x_BTD: Tensor, mask_BT: Any = None, **options: Any) -> Tensor:
        view = mask_BT
        if not isinstance(view, WholeView | StepView):
            return super().forward(x_BTD, view, **options)
        heads_BHTK = split_heads(self.project_in(x_BTD), 3 * self.num_heads)
        queries, memory = heads_BHTK.split([self.num_heads, 2 * self.num_heads], dim=1)
        keys, values = (view.extend(memory) if isinstance(view, StepView) else memory).chunk(2, dim=1)
        if self.rotary is not None:  # only distances matter, so that counting begins at the first key
            tables_SK = view.tables_SK = view.tables_SK or self.rotary.find_tables(keys)
            tables_TK = [table_SK[-queries.size(2) :] for table_SK in tables_SK]
            queries, keys = self.rotary.rotate(queries, *tables_TK), self.rotary.rotate(keys, *tables_SK)
        return self.project_out(merge_heads(attend(queries, keys, values, view.attention_mask)))

    def build_cache(self, sessions: int, chunks: Chunks) -> Tensor:
        """Keys and values of the chunks that the next one sees; nothing counts in them so far."""
        dim, weight = self.project_out.weight.size(0), self.project_out.weight
        return weight.new_zeros(
            sessions, 2 * self.num_heads, chunks.steps * chunks.left, dim // self.num_heads
        )


class ChunkedConvolution(ConvolutionModule):
    """Convolution that sees nothing behind its chunk; a causal one sees nothing behind its own step."""

    def __init__(self, dim: int, kernel: int, *, causal: bool) -> None:
        super().__init__(dim, kernel)
        self.reach = kernel // 2
        self.causal = causal

    def forward(self, x_BTD: Tensor, mask_BT: Any) -> Tensor:
        view = mask_BT
        if isinstance(view, Tensor) and not self.causal:
            return super().forward(x_BTD, view)
        mask_BT = view if isinstance(view, Tensor) else view.mask_BT
        x_BTD = F.glu(self.expand(x_BTD), dim=-1).masked_fill_(~mask_BT[..., None], 0.0)
        return self.contract(F.silu(self.norm(self._convolve(x_BTD, view))))

    def _convolve(self, x_BTD: Tensor, view: Any) -> Tensor:
        batch, length, dim = x_BTD.shape
        size = length
        if isinstance(view, StepView):
            windows_BNDS = view.extend(x_BTD)[:, None].transpose(2, 3)
        elif self.causal:
            return self.depthwise(F.pad(x_BTD, (0, 0, self.reach, 0)))[:, :length]
        else:
            size = min(view.chunks.steps, length)
            padded_BTD = F.pad(x_BTD, (0, 0, self.reach, -length % size))
            windows_BNDS = padded_BTD.unfold(1, self.reach + size, size)
        # Each chunk, and the steps before it, times a banded matrix for each channel: the kernel and zeros,
        # repeated and cut into rows one element shorter, shift by one per row.
        span, rows_DNS = self.depthwise.kernel + size - 1, windows_BNDS.permute(2, 0, 1, 3).flatten(1, 2)
        padded_DK = F.pad(self.depthwise.weight_DK.to(x_BTD.dtype), (0, size))
        band = padded_DK[:, None].expand(-1, size, -1).flatten(1)[:, : size * span]
        band_DCS = band.view(dim, size, span)[:, :, : rows_DNS.size(2)]
        convolved_DNC = torch.bmm(rows_DNS.contiguous(), band_DCS.transpose(1, 2))
        convolved_DBT = convolved_DNC.reshape(dim, batch, -1)[:, :, :length]
        return convolved_DBT.permute(1, 2, 0) + self.depthwise.bias_D.to(x_BTD.dtype)

    def build_cache(self, sessions: int, chunks: Chunks) -> Tensor:
        """Input of the steps before: zeros, as before the first one of a whole recording."""
        weight = self.depthwise.weight_DK
        return weight.new_zeros(sessions, (1 + self.causal) * self.reach, len(weight))


class ChunkedEncoderLayer(EncoderLayer):
    def __init__(self, config: AttentionEncoderConfig) -> None:
        super().__init__(config)
        self.attention = ChunkedAttention(config)


class ChunkedConformerLayer(ConformerLayer):
    def __init__(self, config: ConformerEncoderConfig) -> None:
        super().__init__(config)
        assert config.chunk is not None
        self.attention = ChunkedAttention(config)
        causal = config.chunk.convolution == "causal"
        self.convolution = ChunkedConvolution(config.dim, config.kernel, causal=causal)


# --- encoders -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncoderState:
    """Memory of an encoder, for each session, between two chunks."""

    chunks: Chunks
    steps_B: Tensor  # encoded so far
    frames_BTF: Tensor  # the last ones, of one step
    caches: tuple[Tensor, ...]  # of each attention and convolution, from the first layer to the last

    def split(self) -> list[EncoderState]:
        """The state of each session, not copied."""
        caches = zip(*(cache.split(1) for cache in self.caches), strict=True)
        columns = zip(self.steps_B.split(1), self.frames_BTF.split(1), caches, strict=True)
        return [EncoderState(self.chunks, *parts) for parts in columns]

    @staticmethod
    def join(states: Sequence[EncoderState]) -> EncoderState:
        """One state of all sessions, which may be at different positions, but have chunks of one size."""
        first = states[0]
        assert all(state.chunks == first.chunks for state in states)
        return EncoderState(
            first.chunks,
            torch.cat([state.steps_B for state in states]),
            torch.cat([state.frames_BTF for state in states]),
            tuple(map(torch.cat, zip(*(state.caches for state in states), strict=True))),
        )


class ChunkedEncoder(LayeredEncoder):
    """An encoder of whole recordings that can also go chunk by chunk."""

    def __init__(self, config: AttentionEncoderConfig, num_features: int) -> None:
        super().__init__(config, num_features)
        assert config.chunk is not None
        self.chunk = config.chunk
        self.num_features = num_features

    def choose_chunks(self, steps: int | None = None) -> Chunks:
        """Chunks of live transcription, of so many steps in place of the usual ones."""
        steps = steps or self.chunk.live_steps
        return Chunks(steps, -(-self.chunk.live_left // steps))

    def forward(
        self, features_BTF: Tensor, feature_lengths_B: Tensor, chunks: Chunks | None = None
    ) -> tuple[Tensor, Tensor]:
        """Without `chunks` steps see everything; in training, a batch draws what they see."""
        x_BTD, lengths_B = self.subsampling(features_BTF, feature_lengths_B)
        mask_BT = length_mask(lengths_B.clamp(min=1), x_BTD.size(1))
        if self.training and chunks is None:
            chunks = self.draw_chunks(x_BTD.size(1))
        return self.run_layers(x_BTD, mask_BT if chunks is None else WholeView(chunks, mask_BT)), lengths_B

    def draw_chunks(self, num_steps: int) -> Chunks | None:
        """Chunks for a batch of so many steps; None: everything.

        Drawn like dropout: an update seeds the generator, so that a resumed training draws the same.
        """
        if float(torch.rand((), device="cpu")) < self.chunk.full:
            return None
        fewest, most = self.chunk.steps
        size = int(torch.randint(fewest, most + 1, (), device="cpu"))
        before = -(-num_steps // size)
        return Chunks(size, int(torch.randint(0, before + 1, (), device="cpu")))

    def start(self, sessions: int = 1, chunks: Chunks | None = None) -> EncoderState:
        """The state of new sessions, by default with the chunks of live transcription."""
        chunks = chunks or self.choose_chunks()
        weight = self.subsampling.norm.weight
        parts = (
            part for part in self.layers.modules() if isinstance(part, ChunkedAttention | ChunkedConvolution)
        )
        return EncoderState(
            chunks,
            torch.zeros(sessions, dtype=torch.long, device=weight.device),
            weight.new_zeros(sessions, self.subsampling_factor, self.num_features),
            tuple(part.build_cache(sessions, chunks) for part in parts),
        )

    def step(
        self, features_BTF: Tensor, feature_lengths_B: Tensor, state: EncoderState
    ) -> tuple[Tensor, Tensor, EncoderState]:
        """Encode the next chunk of each session: the steps, their number, and the state after them.

        A chunk has `chunks.steps` times `subsampling_factor` frames; only a session's last may have fewer.
        """
        size, factor = state.chunks.steps, self.subsampling_factor
        assert features_BTF.size(1) <= size * factor
        features_BTF = F.pad(features_BTF, (0, 0, 0, size * factor - features_BTF.size(1)))
        frames_BTF = torch.cat([state.frames_BTF, features_BTF], dim=1)
        x_BTD = self._subsample(frames_BTF, factor + feature_lengths_B, factor * (state.steps_B == 0))
        lengths_B = subsampled_lengths(feature_lengths_B, factor)
        mask_BT = length_mask(lengths_B.clamp(min=1), size)
        before = size * state.chunks.left
        # The steps that are kept lie just before the new ones; a young session has fewer of them.
        ago_P = torch.arange(before, 0, -1, device=x_BTD.device)
        mask_BS = torch.cat([ago_P <= state.steps_B[:, None], mask_BT], dim=1)
        view = StepView(mask_BT, as_bias(mask_BS, x_BTD)[:, None, None], state.caches)
        encoded_BTD = self.run_layers(x_BTD, view)
        after = replace(
            state,
            steps_B=state.steps_B + lengths_B,
            frames_BTF=frames_BTF[:, -factor:],
            caches=tuple(view.caches),
        )
        return encoded_BTD, lengths_B, after

    def _subsample(self, frames_BTF: Tensor, ends_B: Tensor, starts_B: Tensor) -> Tensor:
        """Frames from `starts_B` to `ends_B` to steps, without the first one, which has no left neighbor."""
        subsampling = self.subsampling
        is_real = find_between(starts_B, ends_B, frames_BTF.size(1))
        x_BCTF = frames_BTF[:, None].masked_fill(~is_real, 0.0)
        for convolution in subsampling.convolutions:
            starts_B, ends_B = starts_B // 2, subsampled_lengths(ends_B, 2)
            x_BCTF = convolution(x_BCTF).relu()
            x_BCTF = x_BCTF * find_between(starts_B, ends_B, x_BCTF.size(2))
        return subsampling.norm(subsampling.project(x_BCTF.permute(0, 2, 3, 1).flatten(2)))[:, 1:]


def find_between(starts_B: Tensor, ends_B: Tensor, length: int) -> Tensor:
    """(B, 1, length, 1), True from each start to each end."""
    return (length_mask(ends_B, length) & ~length_mask(starts_B, length))[:, None, :, None]


class ChunkedTransformer(ChunkedEncoder):
    layer = ChunkedEncoderLayer


class ChunkedConformer(ChunkedEncoder):
    layer = ChunkedConformerLayer
    norm_class = torch.nn.Identity


# From the section of a config with `chunk` to its class.
ENCODERS = {TransformerEncoderConfig: ChunkedTransformer, ConformerEncoderConfig: ChunkedConformer}
