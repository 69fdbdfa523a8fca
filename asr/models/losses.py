"""Cross-entropy and CTC; the base of all models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.config import Config
from asr.models.layers import length_mask
from asr.text.normalization import TextConfig
from asr.text.tokenizer import BLANK_ID, EOS_ID, SOS_ID

if TYPE_CHECKING:
    from asr.research.labels import Labels

# B batch, T encoded steps, U tokens, N rows of attention (tokens and the end), V vocabulary, H heads

IGNORED = -100  # as a target: this position does not count


def cross_entropy(scores_BUV: Tensor, targets_BU: Tensor, label_smoothing: float) -> Tensor:
    """Sum over all targets but those that are IGNORED."""
    return F.cross_entropy(
        scores_BUV.flatten(0, 1).float(),
        targets_BU.flatten(),
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def ctc_loss(
    log_probabilities_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
) -> Tensor:
    """(B,) of each utterance; 0, not infinity, for one with too few steps for its tokens."""
    return F.ctc_loss(
        log_probabilities_BTV.transpose(0, 1).float(),
        tokens_BU,
        lengths_B,
        token_lengths_B,
        blank=BLANK_ID,
        reduction="none",
        zero_infinity=True,
    )


@dataclass(frozen=True)
class Losses:
    """Sums over a batch.

    Divided by the tokens of all batches of an update, they give the same mean however these are split.
    """

    total: Tensor
    """Sum to differentiate."""
    num_tokens: int
    """Number of targets; see `Model.count_targets`."""
    parts: dict[str, Tensor] = field(default_factory=dict)
    """Detached; some of `Model.reported`."""


@dataclass(frozen=True)
class Targets:
    """The reference tokens of a batch."""

    tokens_BU: Tensor
    lengths_B: Tensor

    @property
    def num_rows_B(self) -> Tensor:
        """Decisions of the decoder: the tokens and the end."""
        return self.lengths_B + 1

    def for_decoder(self) -> tuple[Tensor, Tensor]:
        """Inputs, which begin with the start token, and targets, which end with the end token: (B, U + 1)."""
        is_token_BU = length_mask(self.lengths_B, self.tokens_BU.size(1))
        start_B1 = self.tokens_BU.new_full((len(self.tokens_BU), 1), SOS_ID)
        inputs_BN = torch.cat([start_B1, self.tokens_BU.masked_fill(~is_token_BU, EOS_ID)], dim=1)
        targets_BN = F.pad(self.tokens_BU.masked_fill(~is_token_BU, IGNORED), (0, 1), value=IGNORED)
        return inputs_BN, targets_BN.scatter(1, self.lengths_B[:, None], EOS_ID)


class ModelConfig(Config):
    """Section model: one for each kind of model, which says what differs by kind."""

    reads_audio: ClassVar[bool] = True
    makes_text: ClassVar[bool] = False
    """True if it can transcribe, and is compared by error rates."""
    scores: ClassVar[tuple[str, ...]] = ("loss",)
    """Scores of a dev set; the first one is the default to select by."""

    type: str

    @property
    def reads_text(self) -> bool:
        """True if text.training normalizes texts of the manifest for it."""
        return True

    @property
    def num_texts(self) -> int:
        """Number of texts of an utterance that it learns: `text`, `extras.text_2` and so on."""
        return 1

    def find_labels(self, text: TextConfig) -> Labels | None:
        """Source of a classifier's labels; None for a model of tokens."""
        return None

    def check_run(self, run: Any) -> None:
        """Refuse, as a ValueError, settings of a `RunConfig` that do nothing for it or cannot go with it."""


class Model(nn.Module):
    """Calling it with (features_BTF, feature_lengths_B, tokens_BU, token_lengths_B, step, speech_spans_B2)
    gives `Losses`.

    `step` is the number of updates so far, or left out; `speech_spans_B2` says in which frames speech lies,
    where masks hide it in the features. What has no audio gets features of length 0.
    """

    reported: ClassVar[tuple[str, ...]] = ("total", "correct")
    """All names that the parts of its losses may have, after the total."""

    @property
    def subsampling_factor(self) -> int:
        """Frames of features to each step behind the encoder."""
        return 1

    @property
    def text_heads(self) -> tuple[str, ...]:
        """Its heads that give text, each decoded greedily for the error rates of dev."""
        return ()

    @staticmethod
    def count_targets(token_lengths_B: Tensor) -> int:
        """Number that losses are divided by: the tokens and an end for each utterance."""
        return int(token_lengths_B.sum()) + len(token_lengths_B)

    def score(self, means: Mapping[str, float], tokens_per_word: float) -> dict[str, float]:
        """Scores of a dev set from the means per token of what is reported. Error rates come to them."""
        return name_means(means)


def name_means(means: Mapping[str, float]) -> dict[str, float]:
    """Names of the log: the total is the loss, and the share of correct tokens an accuracy."""
    names = {"total": "loss", "correct": "token_accuracy"}
    first = {shown: means[name] for name, shown in names.items() if name in means}
    return first | {name: mean for name, mean in means.items() if name not in names}
