"""Building blocks of all models: base class, dropout, feed-forward, positions, attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from asr.config import Config, Size
from asr.errors import UserError
from asr.families import find_families
from asr.text.normalization import TextConfig

if TYPE_CHECKING:
    from asr.research.labels import Labels

# B batch, T steps or queries, S keys, D model dimension, H heads, K head dimension


class ModelConfig(Config):
    """Base of section `model`; each kind of model has its own class, which declares how it differs."""

    reads_audio: ClassVar[bool] = True
    makes_text: ClassVar[bool] = False
    """True if it can transcribe, and is evaluated with error rates."""
    scores: ClassVar[tuple[str, ...]] = ("loss",)
    """Scores on a dev set; by default, the first one selects checkpoints."""

    type: str

    @property
    def num_texts(self) -> int:
        """Number of texts learned per utterance: `text`, `extras.text_2` and so on."""
        return 1

    def find_labels(self, text: TextConfig) -> Labels | None:
        """Return the source of a classifier's labels; None for a model that outputs tokens."""
        return None

    def check_run(self, run: Any) -> None:
        """Raise a ValueError for settings of a `RunConfig` that have no effect or conflict with the model."""


class Net(nn.Module):
    """Base of models. Called with (features_BTF, feature_lengths_B, tokens_BU, token_lengths_B, step,
    speech_spans_B2), a model returns `Losses`.

    `step` is the number of updates so far, and optional; `speech_spans_B2` are the frames of speech, needed
    if masks hide it in the features. Utterances without audio have features of length 0.
    """

    reported: ClassVar[tuple[str, ...]] = ("total", "correct")
    """All names that parts of its loss may have, with the total first."""

    @property
    def subsampling_factor(self) -> int:
        """Number of feature frames per encoded step."""
        return 1

    @property
    def text_heads(self) -> tuple[str, ...]:
        """Its heads that output text; each is decoded greedily for the error rates on dev."""
        return ()

    @staticmethod
    def count_targets(token_lengths_B: Tensor) -> int:
        """Return the number that losses are divided by: the tokens, plus one end per utterance."""
        return int(token_lengths_B.sum()) + len(token_lengths_B)

    def score(self, means: Mapping[str, float], tokens_per_word: float) -> dict[str, float]:
        """Return dev scores, given per-token means of the reported parts. Error rates are added later."""
        return name_means(means)


def name_means(means: Mapping[str, float]) -> dict[str, float]:
    """Rename parts as in the log: the total is `loss`, the share of correct tokens `token_accuracy`."""
    names = {"total": "loss", "correct": "token_accuracy"}
    first = {shown: means[name] for name, shown in names.items() if name in means}
    return first | {name: mean for name, mean in means.items() if name not in names}


def _check_kernel(kernel: int) -> int:
    if kernel % 2 == 0:
        raise ValueError(f"kernel = {kernel} has no middle; use an odd number")
    return kernel


Kernel = Annotated[Size, pydantic.AfterValidator(_check_kernel)]


def length_mask(lengths_B: Tensor, max_length: int) -> Tensor:
    """Return a mask (B, max_length), True at positions that belong to the sequence."""
    return torch.arange(max_length, device=lengths_B.device) < lengths_B[:, None]


def drop_out(x: Tensor, probability: float) -> Tensor:
    """Like `F.dropout`, but about four times as fast on a CPU.

    PyTorch draws one random double per element there, which takes longer than the matrix products of a
    training step. Here one 64-bit draw serves eight elements, or four if 1/256 is too coarse.
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
    scale = torch.empty(x.shape, dtype=x.dtype)  # at first, 1 where an element is kept
    torch.ge(bits[: x.numel()].view(x.shape), threshold - 2 ** (num_bits - 1), out=scale)
    return x * scale.mul_(1 / (1 - threshold / 2**num_bits))


class Dropout(nn.Module):
    """`nn.Dropout` implemented with `drop_out`."""

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
    """Build modules that have shapes but no memory, without drawing random numbers.

    With the device "meta" alone, drawing would make PyTorch import its compiler, which takes a second.
    """
    with torch.device("meta"), _NoRandomWeights():
        yield


def check_weights(
    source: object, found: Mapping[str, object], expected: Mapping[str, object], hint: str
) -> None:
    """Raise an error for weights whose names or shapes differ from the model's."""
    if wrong := min(
        (name for name in {*found, *expected} if found.get(name) != expected.get(name)), default=""
    ):
        own, other = found.get(wrong, "missing"), expected.get(wrong, "none")
        raise UserError(f"{source}: weights {wrong[:80]} are {own}, expected {other}. {hint}")


class _NoRandomWeights(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(function, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return function(*args, **(kwargs or {}))


def find_more_kinds(table: str, kind: object = None) -> dict[Any, Any]:
    """Collect a table (ENCODERS, DECODERS, MODELS or METHODS) from the optional packages.

    These are model families, language models, asr/research and asr/speakers; a family that has `kind` ends
    the search. Only the window that follows attention itself is imported elsewhere, in speech_model.py.
    """
    classes: dict[Any, Any] = {}
    for family in find_families():
        classes |= getattr(family, table, {})
        if kind in classes:
            return classes
    for name in ("language_models.language_model", "research.kinds", "speakers.training", "transducer.entry"):
        if find_spec(f"asr.{name.partition('.')[0]}") is not None:
            classes |= getattr(import_module(f"asr.{name}"), table, {})
    return classes


PositionKind = Literal["sinusoid", "rotary", "none"]


def compute_angles(length: int, dim: int, device: torch.device) -> Tensor:
    """Return the angles t / 10000^(2i / dim) (length, dim / 2) of Vaswani et al. (2017).

    They are in float64, because a float32 angle is off by a thousandth at t = 10,000.
    """
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
    return torch.arange(length, device=device).double()[:, None] * frequencies


class Positions(nn.Module):
    """Adds a position code to each step; in decoding, `start` is the position of the first step."""

    def __init__(self, dim: int, kind: PositionKind = "sinusoid", turned: int | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.dim, self.turned = dim, turned or dim
        self._codes = torch.empty(0, dim, device="cpu")  # codes computed so far

    def forward(self, x_BTD: Tensor, start: int = 0) -> Tensor:
        if self.kind != "sinusoid":
            return x_BTD
        return x_BTD + self.codes(start + x_BTD.size(1), x_BTD.device)[start:].to(x_BTD.dtype)

    def codes(self, length: int, device: torch.device) -> Tensor:
        """Return the codes of the first `length` steps (length, dim)."""
        codes = self._codes  # read once, because another thread may replace it
        if codes.size(0) < length or codes.device != device:
            # Twice as many as requested, so that growing step by step does not recompute them each time; and
            # outside inference mode, because training cannot use a tensor made in it.
            with torch.inference_mode(False):
                angles = compute_angles(2 * length, self.turned, device)
                angles = F.pad(angles, (0, (self.dim - self.turned) // 2))  # the others are not rotated
                codes = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()
            self._codes = codes
        return codes[:length]


class Rotary(nn.Module):
    """Rotates each pair of a query or key by an angle that grows with its position (Su et al. 2021).

    The product of a rotated query and a rotated key depends only on their distance.
    """

    def __init__(self, head_dim: int, turned: int | None = None) -> None:
        """`turned`: number of dimensions to rotate, taken in equal parts from the start of each half head."""
        super().__init__()
        assert head_dim % 2 == 0
        self.positions = Positions(head_dim, turned=turned)

    def forward(self, x_BHTK: Tensor, start: int = 0) -> Tensor:
        return self.rotate(x_BHTK, *self.find_tables(x_BHTK, start))

    def rotate(self, x_BHTK: Tensor, sines_TK: Tensor, cosines_TK: Tensor) -> Tensor:
        return torch.addcmul(x_BHTK * cosines_TK, x_BHTK.roll(x_BHTK.size(-1) // 2, -1), sines_TK)

    def find_tables(self, x_BHTK: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        codes_TK = self.positions.codes(start + x_BHTK.size(-2), x_BHTK.device)[start:].to(x_BHTK.dtype)
        sines, cosines = codes_TK.unflatten(-1, (-1, 2)).unbind(-1)
        # Pair i is (i, i + K/2), so that whole halves move instead of alternate elements.
        return torch.cat([-sines, sines], dim=-1), torch.cat([cosines, cosines], dim=-1)


MANY_KEYS = 256  # more keys than a text has tokens, so they belong to a recording
BLOCK_SCORES = 1_000_000  # attention scores computed at once: 2 MB in half precision

Window = tuple[int, int]  # number of steps before and after each step that it attends to


class KeyValueCache:
    """Keys and values of the steps decoded so far, for one self-attention layer."""

    def __init__(self) -> None:
        self.length = 0
        """Number of steps."""
        self._parts: list[Tensor] = []  # keys and values, (B, H, S, K), with room for more steps
        self._spare: list[Tensor] = []  # buffers that the last selection read, reused by the next one

    def append(self, *new: Tensor) -> list[Tensor]:
        """Add keys and values of new steps; returns all of them, with the new ones at the end."""
        start, num_new = self.length, new[0].size(2)
        self.length += num_new
        if not self._parts or self._parts[0].size(2) < self.length:
            room = max(16, start + max(num_new, start // 2))  # grow in large steps, so that copies are rare
            old = self._parts
            self._parts = [part.new_empty(*part.shape[:2], room, part.size(3)) for part in new]
            for part, kept in zip(self._parts, old, strict=False):
                part[:, :, :start] = kept[:, :, :start]
        for part, added in zip(self._parts, new, strict=True):
            part[:, :, start : self.length] = added
        return [part[:, :, : self.length] for part in self._parts]

    def select(self, rows_B: Tensor) -> None:
        """Keep these rows, the surviving beams, in this order."""
        old, shapes = self._parts, [(len(rows_B), *part.shape[1:]) for part in self._parts]
        if torch.is_grad_enabled() or shapes != [part.shape for part in self._spare]:
            self._parts = [part[rows_B] for part in old]
        else:
            self._parts = self._spare
            for part, out in zip(old, self._parts, strict=True):
                torch.index_select(part, 0, rows_B, out=out)
        self._spare = old


class SelfAttention(nn.Module):
    """A sequence attends to itself."""

    def __init__(
        self, dim: int, num_heads: int, *, rotary: bool = False, window: Window | None = None
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
        """`mask_BT` is True at real steps (None: all are real). With a cache, x has only the new steps."""
        heads_BHTK = split_heads(self.project_in(x_BTD), 3 * self.num_heads)
        compared_BHTK, values = heads_BHTK.split([2 * self.num_heads, self.num_heads], dim=1)
        if self.rotary is not None:
            compared_BHTK = self.rotary(compared_BHTK, 0 if cache is None else cache.length)
        queries, keys = compared_BHTK.chunk(2, dim=1)
        if cache is not None:
            keys, values = cache.append(keys, values)
        mask = _self_attention_mask(mask_BT, queries, keys, causal, self.window)
        return self.project_out(merge_heads(attend(queries, keys, values, mask)))


@dataclass(frozen=True)
class EncoderKV:
    """Keys and values of the encoder's output, projected once per utterance."""

    keys_BHSK: Tensor
    values_BHSK: Tensor
    bias_BS: Tensor | None  # added to the scores: minus infinity at padding; None without padding

    def select(self, rows_B: Tensor) -> EncoderKV:
        bias_BS = None if self.bias_BS is None else self.bias_BS[rows_B]
        return EncoderKV(self.keys_BHSK[rows_B], self.values_BHSK[rows_B], bias_BS)


class CrossAttention(nn.Module):
    """A decoder attends to the encoder's output."""

    def __init__(self, dim: int, num_heads: int, memory_dim: int | None = None) -> None:
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.project_queries = nn.Linear(dim, dim)
        self.project_memory = nn.Linear(memory_dim or dim, 2 * dim)
        self.project_out = nn.Linear(dim, dim)

    def precompute_kv(self, encoded_BSD: Tensor, mask_BS: Tensor | None) -> EncoderKV:
        keys, values = split_heads(self.project_memory(encoded_BSD), 2 * self.num_heads).chunk(2, dim=1)
        bias_BS = None if mask_BS is None else as_bias(mask_BS, keys)
        return EncoderKV(keys, values, bias_BS)

    def forward(
        self, x_BTD: Tensor, memory: EncoderKV, weights_of: Sequence[int] = (), bias_BTS: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return attended values and, for the heads in `weights_of`, attention weights (B, heads, T, S).

        `bias_BTS` is added to the scores of all heads. x may have a multiple of the memory's rows: an
        utterance's beams are adjacent and share its memory, like additional queries of one sequence.
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


def has_any(instructions: Sequence[str]) -> bool:
    """Return whether the CPU has any of these instructions, named as in torch.cpu.get_capabilities()."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in instructions)


def attend(queries_BHTK: Tensor, keys_BHSK: Tensor, values_BHSK: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(q k / sqrt(K)) v (B, H, T, K). `mask` is True where a query may attend, or is a bias."""
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(queries_BHTK.dtype)
    is_half, is_training = queries_BHTK.dtype.itemsize < 4, torch.is_grad_enabled()
    is_single, has_many = queries_BHTK.size(2) == 1, keys_BHSK.size(2) >= MANY_KEYS
    infers_in_half = is_half and not is_training
    if queries_BHTK.device.type != "cpu" or (infers_in_half and has_any(["amx_bf16"])):
        return F.scaled_dot_product_attention(queries_BHTK, keys_BHSK, values_BHSK, attn_mask=mask)
    if infers_in_half and not is_single:
        return _attend_in_blocks(queries_BHTK, keys_BHSK, values_BHSK, mask)
    if infers_in_half and not has_many:
        # Float32 takes a fifth of the time here; products would compile a kernel for each number of keys.
        attended_BHTK = attend(queries_BHTK.float(), keys_BHSK.float(), values_BHSK.float(), mask)
        return attended_BHTK.to(queries_BHTK.dtype)
    # PyTorch's own takes twice as long for a backward pass in half precision, or one query and many keys.
    if not ((is_training and is_half) or (is_single and has_many)):
        return F.scaled_dot_product_attention(queries_BHTK, keys_BHSK, values_BHSK, attn_mask=mask)
    scores_BHTS = queries_BHTK * queries_BHTK.size(-1) ** -0.5 @ keys_BHSK.mT
    if mask is not None:
        scores_BHTS += as_bias(mask, scores_BHTS)
    return scores_BHTS.softmax(dim=-1) @ values_BHSK


def _attend_in_blocks(
    queries_BHTK: Tensor, keys_BHSK: Tensor, values_BHSK: Tensor, mask: Tensor | None
) -> Tensor:
    """Attend in blocks of queries whose scores fit the cache; without AMX, this halves PyTorch's time."""
    batch, heads, length, head_dim = queries_BHTK.shape
    block = max(1, BLOCK_SCORES // max(1, batch * heads * keys_BHSK.size(2)))
    keys_BHKS, values_BHSK = keys_BHSK.contiguous().mT, values_BHSK.contiguous()
    queries_BHTK = queries_BHTK * head_dim**-0.5
    if mask is not None:
        bias = as_bias(mask, queries_BHTK)
        # Padding is at the end, so skip the zeros before it, which would take as long to add.
        first_key = int(bias.flatten(0, -2).any(0).int().argmax())
        bias = bias[..., first_key:]
    attended_BTHK = queries_BHTK.new_empty(batch, length, heads, head_dim)
    for first in range(0, length, block):
        rows = slice(first, first + block)
        scores_BHTS = queries_BHTK[:, :, rows] @ keys_BHKS
        if mask is not None:
            scores_BHTS[..., first_key:] += bias if bias.size(-2) == 1 else bias[..., rows, :]
        attended_BTHK[:, rows] = (scores_BHTS.softmax(dim=-1) @ values_BHSK).transpose(1, 2)
    return attended_BTHK.transpose(1, 2)


def attention_weights(queries_BHTK: Tensor, keys_BHSK: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(q k / sqrt(K)) (B, H, T, S) in float32, for plots and losses."""
    with torch.autocast(queries_BHTK.device.type, enabled=False):
        scores = queries_BHTK.float() @ keys_BHSK.float().mT * queries_BHTK.size(-1) ** -0.5
    if mask is not None:
        scores = scores + as_bias(mask, scores)
    return scores.softmax(dim=-1)


def as_bias(mask: Tensor, scores: Tensor) -> Tensor:
    """Convert a Boolean mask to minus infinity where it is False; a bias is returned unchanged."""
    if mask.dtype != torch.bool:
        return mask.to(scores.dtype)
    return scores.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)


def _self_attention_mask(
    mask_BT: Tensor | None, queries_BHTK: Tensor, keys_BHSK: Tensor, causal: bool, window: Window | None
) -> Tensor | None:
    """Combine all masks. The last query is at the last key; with a cache, there are fewer queries."""
    mask = None if mask_BT is None else mask_BT[:, None, None, :]
    num_queries, num_keys = queries_BHTK.size(2), keys_BHSK.size(2)
    left, right = window or (num_keys, num_keys)
    right = 0 if causal else right
    if left >= num_keys - 1 and right >= num_queries - 1:
        return mask
    steps = torch.ones(num_queries, num_keys, dtype=torch.bool, device=queries_BHTK.device)
    steps = steps.tril(num_keys - num_queries + right).triu(num_keys - num_queries - left)
    mask = steps if mask is None else steps & mask
    if window is not None:
        mask = mask | ~mask.any(-1, keepdim=True)  # a padded step sees everything, else softmax is NaN
    return mask


def split_heads(x_BTD: Tensor, num_heads: int) -> Tensor:
    """(B, T, D) to (B, H, T, K)."""
    return x_BTD.view(*x_BTD.shape[:2], num_heads, x_BTD.size(2) // num_heads).transpose(1, 2)


def merge_heads(x_BHTK: Tensor) -> Tensor:
    return x_BHTK.transpose(1, 2).flatten(2)
