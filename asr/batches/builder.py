"""Build a padded batch from a list of utterances: read, augment, compute features, encode the text.

Shapes: B utterances of a batch, S samples, T frames, F features, U tokens.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from asr.batches.augment import Augmenter
from asr.data.manifest import Utterance
from asr.data.utterance_audio import Content, fetch, read_audio
from asr.errors import UserError
from asr.features.front_end import FrontEnd
from asr.system.run_config import AugmentConfig
from asr.text.normalization import TextConfig, normalize
from asr.text.tokenizer import EOS_ID, Tokenizer

if TYPE_CHECKING:
    from asr.research.labels import Labels


class Skipped(NamedTuple):
    """An utterance that could not be read or used, and why."""

    id: str
    audio: str
    message: str


@dataclass(frozen=True)
class Batch:
    """Input of one training step; empty if none of its planned utterances could be used."""

    ids: tuple[str, ...]
    features_BTF: Tensor
    feature_lengths_B: Tensor
    tokens_BU: Tensor  # padded with the tokenizer's pad_id
    token_lengths_B: Tensor
    texts: tuple[str, ...]  # as in the manifest
    audio_seconds: float  # without padding, after speed perturbation
    skipped: tuple[Skipped, ...] = ()
    speech_spans_B2: Tensor | None = None
    """First loud frame and past the last one, computed before masking; None if nothing is masked."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def padded_size(self) -> int:
        """Number of frames, padding included; number of tokens if there is no audio."""
        return self.features_BTF.shape[:2].numel() or self.tokens_BU.numel()

    def take(self, rows: Sequence[int]) -> Batch:
        """Select rows by index, in this order, with repeats; drop frames that are padding in all rows."""
        share = float(self.feature_lengths_B[rows].sum() / self.feature_lengths_B.sum().clamp(min=1))
        taken = self._map(lambda tensor: tensor[rows])
        return replace(
            taken,
            ids=tuple(self.ids[row] for row in rows),
            texts=tuple(self.texts[row] for row in rows),
            skipped=(),
            audio_seconds=share * self.audio_seconds,
            features_BTF=taken.features_BTF[:, : int(taken.feature_lengths_B.max())],
        )

    def to(self, device: torch.device | str) -> Batch:
        """Copy to the device; from pinned memory, this overlaps with computation."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Pin all tensors; PyTorch's data loader calls this."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: function(value) for name, value in tensors.items()})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Inputs:
    """Everything that turns an utterance into model input."""

    front_end: FrontEnd  # on the CPU
    tokenizer: Tokenizer
    text: TextConfig
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    num_encoded_frames: Callable[[Tensor], Tensor] = operator.pos
    """Maps a number of feature frames to the number of encoded frames; by default, the identity."""
    labels: Labels | None = None  # source of the labels to learn; None: the model learns the text
    step_times: Callable[[int], np.ndarray] | None = None
    """Maps a number of encoded steps to the times of their middles, in seconds; needed with labels."""
    num_texts: int = 1  # number of texts learned per utterance; EOS_ID separates their tokens
    has_ctc: bool = True  # whether the model has a CTC loss, which needs a frame for each token


Example = tuple[Utterance, list[int], np.ndarray]
"""An utterance with its tokens and samples, ready to be put into a batch."""


class BatchBuilder(Dataset["Batch | UserError"]):
    """Builds the batch for (epoch, utterance keys). If the epoch is None, nothing is augmented.

    `utterances`: a manifest indexed by position, or anything else that maps keys to utterances. No state is
    kept between batches, so any process may build any of them.
    """

    def __init__(self, utterances: Any, inputs: Inputs, augmenter: Augmenter) -> None:
        self._utterances = utterances
        self._inputs = inputs
        self._augmenter = augmenter

    def __getitem__(self, item: tuple[int | None, list[Any]]) -> Batch | UserError:
        """Return an error instead of raising it, because PyTorch would add a traceback in a worker."""
        epoch, keys = item
        # Use one thread, as in workers: more gain little on such small tasks, and lose a lot of time waiting
        # for each other if other processes use the same cores.
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._build([self._utterances[key] for key in keys], epoch)
        except UserError as error:
            return error
        finally:
            torch.set_num_threads(before)

    def _build(self, utterances: list[Utterance], epoch: int | None) -> Batch:
        examples, skipped = [], []
        for utterance, content in zip(utterances, fetch(utterances), strict=True):
            try:
                examples.append(self._prepare(utterance, content, epoch))
            except UserError as error:
                skipped.append(Skipped(utterance.id, utterance.audio, str(error)))
        ids = tuple(utterance.id for utterance, _, _ in examples)
        audio_BS, audio_lengths_B = pad_rows([audio_S for *_, audio_S in examples], np.float32, 0.0)
        features_BTF, feature_lengths_B = self._inputs.front_end(audio_BS, audio_lengths_B)
        spans_B2 = None
        if epoch is not None:
            features_BTF, spans_B2 = self._augmenter.augment_features(
                features_BTF, feature_lengths_B, ids, epoch
            )
        rows = [np.array(tokens, np.int64) for _, tokens, _ in examples]
        tokens_BU, token_lengths_B = pad_rows(rows, np.int64, self._inputs.tokenizer.pad_id)
        return Batch(
            ids=ids,
            features_BTF=features_BTF,
            feature_lengths_B=feature_lengths_B,
            tokens_BU=tokens_BU,
            token_lengths_B=token_lengths_B,
            texts=tuple(utterance.text or "" for utterance, _, _ in examples),
            audio_seconds=sum(len(audio_S) for _, _, audio_S in examples)
            / self._inputs.front_end.config.sample_rate,
            skipped=tuple(skipped),
            speech_spans_B2=spans_B2,
        )

    def _prepare(self, utterance: Utterance, content: Content, epoch: int | None) -> Example:
        """Prepare an utterance; raise a `UserError` if it cannot be used."""
        front_end = self._inputs.front_end
        tokens = encode_text(utterance, self._inputs)
        audio_S, speed = read_audio(utterance, front_end.config.sample_rate, content), 1.0
        if epoch is not None:
            audio_S, speed = self._augmenter.augment_audio(audio_S, utterance.id, epoch)
        num_frames = front_end.num_frames(len(audio_S))
        num_needed = 1 if epoch is None or not self._inputs.has_ctc else needed_frames(tokens)
        num_encoded = int(self._inputs.num_encoded_frames(torch.tensor([num_frames])))
        if num_encoded < num_needed:
            raise UserError(
                f"{utterance.audio}: {num_encoded} frames after the encoder, but {num_needed} are needed "
                f"for {len(tokens)} tokens; check its text, or leave it out"
            )
        if self._inputs.labels is not None:
            assert self._inputs.step_times is not None
            times_T = speed * self._inputs.step_times(num_encoded)  # in the audio before speed perturbation
            names = self._inputs.labels.at(utterance, times_T)
            from asr.research.labels import encode_labels

            tokens = encode_labels(names, self._inputs.tokenizer)
        return utterance, tokens, audio_S


def pad_rows(rows: Sequence[np.ndarray], dtype: npt.DTypeLike, value: float) -> tuple[Tensor, Tensor]:
    """Stack rows of different lengths, padded with a value; also return their lengths."""
    lengths = [len(row) for row in rows]
    padded = np.full((len(rows), max(lengths, default=0)), value, dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(padded), torch.tensor(lengths, dtype=torch.int64)


def encode_text(utterance: Utterance, inputs: Inputs) -> list[int]:
    """Return the token IDs of an utterance's texts; none if labels are learned instead."""
    if inputs.labels is not None:
        return []
    tokens: list[int] = []
    for text in utterance.find_texts(inputs.num_texts):
        try:
            tokens += [EOS_ID, *inputs.tokenizer.encode(normalize(text, inputs.text.training))]
        except UserError as error:
            raise UserError(f"text of utterance {utterance.id}: {error}") from None
    return tokens[1:]


def needed_frames(tokens: Sequence[int]) -> int:
    """Count the frames that CTC needs: one per token and per blank between equal tokens, at least 1.

    Each of several texts (separated by EOS_ID) can use all frames, so the largest need counts.
    """
    if EOS_ID in tokens:
        end = tokens.index(EOS_ID)
        return max(needed_frames(tokens[:end]), needed_frames(tokens[end + 1 :]))
    return max(1, len(tokens) + sum(map(operator.eq, tokens, tokens[1:])))
