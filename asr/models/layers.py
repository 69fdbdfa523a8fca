"""Layers of all models: dropout, feed-forward, positions, attention; models without weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from asr.config import Config
from asr.errors import UserError
from asr.files import find_families

# B batch, T positions, D model dimension, H hidden dimension


def _check_kernel(kernel: int) -> int:
    if kernel % 2 == 0:
        raise ValueError(f"kernel = {kernel} has no middle; take an odd number")
    return kernel


Kernel = Annotated[int, pydantic.Field(gt=0), pydantic.AfterValidator(_check_kernel)]


def length_mask(lengths_B: Tensor, max_length: int) -> Tensor:
    """(B, max_length), True where a position belongs to the sequence."""
    return torch.arange(max_length, device=lengths_B.device) < lengths_B[:, None]


def drop_out(x: Tensor, probability: float) -> Tensor:
    """`F.dropout`, but some four times as fast on a CPU.

    PyTorch draws one random double an element there, which costs a training step more than its matrix
    products. Here one 64-bit draw serves eight elements, or four where 1/256 is too coarse a step for the
    probability.
    """
    if probability == 0:
        return x
    if x.device.type != "cpu" or probability > 0.99:
        return F.dropout(x, probability)
    is_coarse_enough = abs(round(256 * probability) / 256 - probability) < 0.02 * probability
    integer, num_bits = (torch.int8, 8) if is_coarse_enough else (torch.int16, 16)
    draws = -(-x.numel() * num_bits // 64)
    lowest = torch.iinfo(torch.int64).min
    bits = torch.empty(draws, dtype=torch.int64).random_(lowest, None).view(integer)
    threshold = round(probability * 2**num_bits)
    scale = torch.empty(x.shape, dtype=x.dtype)  # 1 where an element is kept, at first
    torch.ge(bits[: x.numel()].view(x.shape), threshold - 2 ** (num_bits - 1), out=scale)
    return x * scale.mul_(1 / (1 - threshold / 2**num_bits))


class Dropout(nn.Module):
    """`nn.Dropout`, by `drop_out`."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        assert 0 <= probability < 1
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return drop_out(x, self.probability) if self.training else x


class FeedForward(nn.Module):
    """Linear, activation, linear."""

    def __init__(
        self, dim: int, hidden_dim: int, dropout: float, activation: Callable[[Tensor], Tensor] = F.gelu
    ) -> None:
        super().__init__()
        self.activation = activation
        self.expand = nn.Linear(dim, hidden_dim)
        self.contract = nn.Linear(hidden_dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.contract(self.dropout(self.activation(self.expand(x_BTD))))


@contextmanager
def without_weights() -> Iterator[None]:
    """Build modules that have shapes, but no memory, without drawing random numbers.

    To draw them nowhere, as on the device "meta" alone, PyTorch would import its compiler: a second.
    """
    with torch.device("meta"), _NoRandomWeights():
        yield


class _NoRandomWeights(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(function, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return function(*args, **(kwargs or {}))


def find_more_kinds(table: str) -> dict[type, Any]:
    """ENCODERS, DECODERS or MODELS of the folders that the core does without: from section to class.

    The core's models reach asr/research and the families of pretrained models here alone.
    """
    found: dict[type, Any] = {}
    for family in find_families():
        found |= getattr(family, table, {})
    if find_spec("asr.research") is not None:
        from asr.research import kinds

        found |= getattr(kinds, table)
    return found


# B batch, T positions, D model dimension, P position dimension, H heads, K head dimension


class PositionConfig(Config):
    """Position encoding: how a model knows the order of its inputs."""

    type: Literal["sinusoid", "fourier", "learned", "rotary", "none"] = "sinusoid"
    """sinusoid: of "Attention Is All You Need"; fourier: cos(pi k t / span), sin(pi k t / span); learned: a
    table; rotary: queries and keys are turned, so that attention sees distances only."""
    combine: Literal["add", "concatenate"] = "add"
    """Whether a code is added to its input, or put beside it and projected back. Rotary does neither."""
    span: int = pydantic.Field(default=2048, gt=0)
    """Steps: half the longest period of the Fourier basis, or rows of the learned table."""


def compute_angles(length: int, frequencies: Tensor) -> Tensor:
    """(length, F) in float64: at t = 10,000 an angle in float32 is off by a thousandth."""
    return torch.arange(length, device=frequencies.device).double()[:, None] * frequencies


def sinusoid_frequencies(dim: int, device: torch.device) -> Tensor:
    """10000^(-2i/dim) (Vaswani et al. 2017)."""
    return 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)


def fourier_frequencies(dim: int, span: int, device: torch.device) -> Tensor:
    """pi k / span, k = 1 ... dim / 2: codes are unique below 2 * span."""
    return torch.arange(1, dim // 2 + 1, dtype=torch.float64, device=device) * math.pi / span


class Positions(nn.Module):
    """Gives a sequence its position codes; `start` is the position of its first step, for decoding."""

    _codes: Tensor

    def __init__(self, config: PositionConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        self.dim = dim
        if config.type == "learned":
            self.table = nn.Embedding(config.span, dim)
            nn.init.normal_(self.table.weight, std=dim**-0.5)
        has_codes = config.type not in ("rotary", "none")
        self.combine = nn.Linear(2 * dim, dim) if has_codes and config.combine == "concatenate" else None
        if config.type in ("sinusoid", "fourier"):
            self.register_buffer("_codes", torch.empty(0, dim), persistent=False)  # those computed so far

    def forward(self, x_BTD: Tensor, start: int = 0) -> Tensor:
        if self.config.type in ("rotary", "none"):
            return x_BTD
        codes_TD = self.codes(start + x_BTD.size(1), x_BTD.device)[start:].to(x_BTD.dtype)
        if self.combine is None:
            return x_BTD + codes_TD
        return self.combine(torch.cat([x_BTD, codes_TD.expand_as(x_BTD)], dim=-1))

    def codes(self, length: int, device: torch.device) -> Tensor:
        """The codes of the first `length` steps, (length, dim)."""
        if self.config.type == "learned":
            if length > self.config.span:
                raise UserError(
                    f"a sequence of {length} steps, but learned positions end at span = {self.config.span}; "
                    "cut the recording at pauses, or train with a larger span or another type of positions"
                )
            return self.table.weight[:length]
        if self._codes.size(0) < length or self._codes.device != device:
            # Twice as many as asked for, so that growing step by step does not compute them each time; and
            # outside of inference mode, since training can't use a tensor made in it.
            with torch.inference_mode(False):
                if self.config.type == "sinusoid":
                    frequencies = sinusoid_frequencies(self.dim, device)
                else:
                    frequencies = fourier_frequencies(self.dim, self.config.span, device)
                angles = compute_angles(2 * length, frequencies)
                self._codes = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()
        return self._codes[:length]


class Rotary(nn.Module):
    """Turns each pair of a query or key by an angle that grows with its position (Su et al. 2021).

    The product of a turned query and a turned key depends on their distance alone.
    """

    _cosines: Tensor
    _sines: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        assert head_dim % 2 == 0
        self.head_dim = head_dim
        self.register_buffer("_cosines", torch.empty(0, head_dim // 2), persistent=False)
        self.register_buffer("_sines", torch.empty(0, head_dim // 2), persistent=False)

    def forward(self, x_BHTK: Tensor, start: int = 0) -> Tensor:
        length, device = start + x_BHTK.size(-2), x_BHTK.device
        if self._cosines.size(0) < length or self._cosines.device != device:
            with torch.inference_mode(False):  # as with `Positions.codes`
                angles = compute_angles(2 * length, sinusoid_frequencies(self.head_dim, device))
                self._cosines, self._sines = angles.cos().float(), angles.sin().float()
        cosines, sines = (table[start:length].to(x_BHTK.dtype) for table in (self._cosines, self._sines))
        # Pair i is (i, i + K/2): whole halves move, not every other one.
        first, second = x_BHTK.chunk(2, dim=-1)
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


# B batch, T query steps, S key steps, H heads, K head dimension, D model dimension, W window


BLOCK_SCORES = 4_000_000  # 8 MB


Window = tuple[int, int]  # each step attends to so many steps before it, itself, and so many after it


class KeyValueCache:
    """Keys and values of the steps decoded so far, of one self-attention layer."""

    def __init__(self) -> None:
        self._length = 0
        self._keys_BHSK: Tensor | None = None  # with room for more steps than there are
        self._values_BHSK: Tensor | None = None
        self._spare: list[Tensor] = []  # what the last selection copied from, to copy the next one to

    def __len__(self) -> int:
        return self._length

    def append(self, keys_BHTK: Tensor, values_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, with those of the new steps at the end."""
        start, self._length = self._length, self._length + keys_BHTK.size(2)
        if self._keys_BHSK is None or self._values_BHSK is None or self._keys_BHSK.size(2) < self._length:
            room = max(16, start + max(keys_BHTK.size(2), start // 2))  # a step seldom copies those before
            self._keys_BHSK = _with_room(keys_BHTK, self._keys_BHSK, start, room)
            self._values_BHSK = _with_room(values_BHTK, self._values_BHSK, start, room)
        self._keys_BHSK[:, :, start : self._length] = keys_BHTK
        self._values_BHSK[:, :, start : self._length] = values_BHTK
        return self._keys_BHSK[:, :, : self._length], self._values_BHSK[:, :, : self._length]

    def select(self, rows_B: Tensor) -> None:
        """Keep these rows, in this order: the surviving beams."""
        if self._keys_BHSK is None or self._values_BHSK is None:
            return
        old = [self._keys_BHSK, self._values_BHSK]
        shape = (len(rows_B), *old[0].shape[1:])
        into: list[Tensor | None] = [part if part.shape == shape else None for part in self._spare]
        if torch.is_grad_enabled() or not into:  # `out` is not for tensors with a gradient
            into = [None, None]
        self._keys_BHSK, self._values_BHSK = (
            torch.index_select(part, 0, rows_B, out=out) for part, out in zip(old, into, strict=True)
        )
        self._spare = old


def _with_room(like_BHTK: Tensor, old_BHSK: Tensor | None, length: int, room: int) -> Tensor:
    batch, heads, _, head_dim = like_BHTK.shape
    new_BHSK = like_BHTK.new_empty(batch, heads, room, head_dim)
    if old_BHSK is not None:
        new_BHSK[:, :, :length] = old_BHSK[:, :, :length]
    return new_BHSK


class SelfAttention(nn.Module):
    """A sequence attends to itself."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        rotary: bool = False,
        window: Window | None = None,
    ) -> None:
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.window = window
        self.project_in = nn.Linear(dim, 3 * dim)
        self.project_out = nn.Linear(dim, dim)
        self.rotary = Rotary(dim // num_heads) if rotary else None

    def forward(
        self,
        x_BTD: Tensor,
        mask_BT: Tensor | None = None,
        *,
        causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """`mask_BT` is True at real steps (None: all are). With a cache, x holds the new steps only."""
        queries, keys, values = (
            split_heads(part, self.num_heads) for part in self.project_in(x_BTD).chunk(3, dim=-1)
        )
        start = 0 if cache is None else len(cache)
        if self.rotary is not None:
            queries, keys = self.rotary(queries, start), self.rotary(keys, start)
        if cache is not None:
            keys, values = cache.append(keys, values)
        if self.window is not None and cache is None:
            window = (self.window[0], 0) if causal else self.window
            attended = attend_in_window(queries, keys, values, window, mask_BT)
        else:
            past = None if self.window is None else self.window[0]
            mask = _self_attention_mask(mask_BT, queries, keys, causal, past)
            attended = attend(queries, keys, values, mask)
        return self.project_out(merge_heads(attended))


@dataclass(frozen=True)
class Memory:
    """Keys and values of the encoder's output, projected once."""

    keys_BHSK: Tensor
    values_BHSK: Tensor
    bias_BS: Tensor | None
    """Added to the scores: minus infinity at padding. None: there is no padding."""

    def select(self, rows_B: Tensor) -> Memory:
        bias_BS = None if self.bias_BS is None else self.bias_BS[rows_B]
        return Memory(self.keys_BHSK[rows_B], self.values_BHSK[rows_B], bias_BS)


class CrossAttention(nn.Module):
    """A decoder attends to the encoder's output."""

    def __init__(self, dim: int, num_heads: int, memory_dim: int | None = None) -> None:
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.project_queries = nn.Linear(dim, dim)
        self.project_memory = nn.Linear(memory_dim or dim, 2 * dim)
        self.project_out = nn.Linear(dim, dim)

    def remember(self, encoded_BSD: Tensor, mask_BS: Tensor | None) -> Memory:
        keys, values = (
            split_heads(part, self.num_heads) for part in self.project_memory(encoded_BSD).chunk(2, dim=-1)
        )
        bias_BS = None if mask_BS is None else _as_bias(mask_BS, keys)
        return Memory(keys, values, bias_BS)

    def forward(
        self, x_BTD: Tensor, memory: Memory, weights_of: Sequence[int] = (), bias_BTS: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The attended values and, of the heads in `weights_of` only, the weights (B, heads, T, S).

        `bias_BTS` is added to the scores of all heads. x may have a multiple of the memory's rows: the beams
        of an utterance lie together and share its memory, as if they were more queries of one sequence.
        """
        rows, num_queries = x_BTD.shape[:2]
        utterances = len(memory.keys_BHSK)
        queries = split_heads(self.project_queries(x_BTD).view(utterances, -1, x_BTD.size(2)), self.num_heads)
        mask = None if memory.bias_BS is None else memory.bias_BS[:, None, None, :]
        if bias_BTS is not None:
            bias = bias_BTS.to(queries.dtype).reshape(utterances, 1, -1, bias_BTS.size(-1))
            mask = bias if mask is None else bias + mask
        weights, heads = None, list(weights_of)
        if heads == list(range(self.num_heads)) and not self.training:
            weights = attention_weights(queries, memory.keys_BHSK, mask)
            attended = weights.to(queries.dtype) @ memory.values_BHSK
        else:
            attended = attend(queries, memory.keys_BHSK, memory.values_BHSK, mask)
            if heads:
                weights = attention_weights(queries[:, heads], memory.keys_BHSK[:, heads], mask)
        if weights is not None and rows != utterances:
            weights = weights.unflatten(2, (-1, num_queries)).transpose(1, 2).flatten(0, 1)
        return self.project_out(merge_heads(attended).view_as(x_BTD)), weights


def attend(queries_BHTK: Tensor, keys_BHSK: Tensor, values_BHSK: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q k / sqrt(K)) v, (B, H, T, K). `mask` is True where a query may look, or is a bias."""
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(queries_BHTK.dtype)
    is_on_cpu, is_half = queries_BHTK.device.type == "cpu", queries_BHTK.dtype.itemsize < 4
    is_single, is_training = queries_BHTK.size(2) == 1, torch.is_grad_enabled()
    if is_on_cpu and is_half and not is_training and not is_single:
        return _attend_in_blocks(queries_BHTK, keys_BHSK, values_BHSK, mask)
    is_slow = is_on_cpu and (is_training if is_half else is_single)
    if not is_slow:
        return F.scaled_dot_product_attention(queries_BHTK, keys_BHSK, values_BHSK, attn_mask=mask)
    # PyTorch's own takes two to five times as long: backwards in half precision, or one query in float32.
    scores_BHTS = queries_BHTK * queries_BHTK.size(-1) ** -0.5 @ keys_BHSK.mT
    if mask is not None:
        scores_BHTS += _as_bias(mask, scores_BHTS)
    return scores_BHTS.softmax(dim=-1) @ values_BHSK


def _attend_in_blocks(
    queries_BHTK: Tensor, keys_BHSK: Tensor, values_BHSK: Tensor, mask: Tensor | None
) -> Tensor:
    """Attend so many queries at once that their scores stay in the cache; PyTorch's takes twice as long."""
    batch, heads, length, head_dim = queries_BHTK.shape
    block = max(1, BLOCK_SCORES // max(1, batch * heads * keys_BHSK.size(2)))
    keys_BHKS, values_BHSK = keys_BHSK.contiguous().mT, values_BHSK.contiguous()
    queries_BHTK = queries_BHTK * head_dim**-0.5
    if mask is not None:
        bias = _as_bias(mask, queries_BHTK)
        # Padding is at the end: to add zeros to the scores before it would take as long as to add it.
        first_key = int(bias.flatten(0, -2).any(0).int().argmax())
        bias = bias[..., first_key:]
    attended_BTHK = queries_BHTK.new_empty(batch, length, heads, head_dim)
    for first in range(0, length, block):
        own = slice(first, first + block)
        scores_BHTS = queries_BHTK[:, :, own] @ keys_BHKS
        if mask is not None:
            scores_BHTS[..., first_key:] += bias if bias.size(-2) == 1 else bias[..., own, :]
        attended_BTHK[:, own] = (scores_BHTS.softmax(dim=-1) @ values_BHSK).transpose(1, 2)
    return attended_BTHK.transpose(1, 2)


def attention_weights(queries_BHTK: Tensor, keys_BHSK: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q k / sqrt(K)), (B, H, T, S), in float32: these are looked at and learned from."""
    with torch.autocast(queries_BHTK.device.type, enabled=False):
        scores = queries_BHTK.float() @ keys_BHSK.float().mT * queries_BHTK.size(-1) ** -0.5
    if mask is not None:
        scores = scores + _as_bias(mask, scores)
    return scores.softmax(dim=-1)


def _as_bias(mask: Tensor, scores: Tensor) -> Tensor:
    """Minus infinity where a Boolean mask is False; a bias stays as it is."""
    if mask.dtype != torch.bool:
        return mask.to(scores.dtype)
    return scores.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)


def attend_in_window(
    queries_BHTK: Tensor,
    keys_BHTK: Tensor,
    values_BHTK: Tensor,
    window: Window,
    mask_BT: Tensor | None,
) -> Tensor:
    """Attention within a window, in memory and time linear in T.

    Queries are cut into blocks; each block sees the keys from `left` before its first step to `right` after
    its last, and a band mask cuts them to the window of each step.
    """
    batch, heads, length, head_dim = queries_BHTK.shape
    left, right = window
    block = max(left, right, 16)  # a block as wide as the window wastes at most two thirds
    num_blocks = -(-length // block)
    tail = num_blocks * block - length
    span = left + block + right

    queries = F.pad(queries_BHTK, (0, 0, 0, tail)).view(batch, heads, num_blocks, block, head_dim)
    edges = (0, 0, left, right + tail)
    keys = F.pad(keys_BHTK, edges).unfold(2, span, block).mT
    values = F.pad(values_BHTK, edges).unfold(2, span, block).mT

    device = queries.device
    offset = torch.arange(span, device=device) - torch.arange(block, device=device)[:, None]
    band = (offset >= 0) & (offset <= left + right)  # (block, span)
    if mask_BT is None:
        mask_BT = torch.ones(1, length, dtype=torch.bool, device=device)
    is_key = F.pad(mask_BT, edges[2:]).unfold(1, span, block)  # (B, blocks, span)
    mask = band & is_key[:, None, :, None, :]
    mask = mask | ~mask.any(-1, keepdim=True)  # a padded step sees anything, since a softmax needs something
    flat = (batch * heads, num_blocks)
    attended = attend(
        queries.reshape(*flat, block, head_dim),
        keys.reshape(*flat, span, head_dim),
        values.reshape(*flat, span, head_dim),
        mask.expand(batch, heads, -1, -1, -1).reshape(*flat, block, span),
    )
    return attended.reshape(batch, heads, num_blocks * block, head_dim)[:, :, :length]


def _self_attention_mask(
    mask_BT: Tensor | None, queries_BHTK: Tensor, keys_BHSK: Tensor, causal: bool, past: int | None
) -> Tensor | None:
    """The last query stands at the last key: with a cache, there are fewer queries than keys."""
    mask = None if mask_BT is None else mask_BT[:, None, None, :]
    num_queries, num_keys = queries_BHTK.size(2), keys_BHSK.size(2)
    is_cut = past is not None and num_keys > past + 1
    if causal and (num_queries > 1 or is_cut):
        steps = torch.ones(num_queries, num_keys, dtype=torch.bool, device=queries_BHTK.device)
        steps = steps.tril(num_keys - num_queries)
        if past is not None:
            steps = steps.triu(num_keys - num_queries - past)
        mask = steps if mask is None else steps & mask
    return mask


def split_heads(x_BTD: Tensor, num_heads: int) -> Tensor:
    """(B, T, D) to (B, H, T, K)."""
    return x_BTD.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x_BHTK: Tensor) -> Tensor:
    return x_BHTK.transpose(1, 2).flatten(2)
