"""Cross-entropy, CTC and its alignment; the base of all models."""

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


@torch.no_grad()
def align_tokens(
    log_probabilities_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
) -> tuple[Tensor, Tensor]:
    """First step and one past the last step of each token on the best path, each (B, U); 0 in the padding.

    Utterances with too few steps for their tokens have no path; theirs are spread evenly.
    """
    max_tokens = tokens_BU.size(1)
    is_token_BU = length_mask(token_lengths_B, max_tokens)
    states_BT = _best_path(log_probabilities_BTV, lengths_B, tokens_BU, token_lengths_B)
    state_BU = (2 * torch.arange(max_tokens, device=tokens_BU.device) + 1).repeat(len(tokens_BU), 1)
    first_BU = torch.searchsorted(states_BT, state_BU)
    past_BU = torch.searchsorted(states_BT, state_BU, right=True).clamp(max=lengths_B[:, None])

    is_repeat_BU = (tokens_BU[:, 1:] == tokens_BU[:, :-1]) & is_token_BU[:, 1:]
    has_path_B1 = (lengths_B >= token_lengths_B + is_repeat_BU.sum(1))[:, None]
    edges_N = torch.arange(max_tokens + 1, device=tokens_BU.device)
    edges_BN = lengths_B[:, None] * edges_N // token_lengths_B.clamp(min=1)[:, None]
    first_BU = torch.where(has_path_B1, first_BU, edges_BN[:, :-1])
    past_BU = torch.where(has_path_B1, past_BU, edges_BN[:, 1:])
    return first_BU * is_token_BU, past_BU * is_token_BU


def _best_path(
    log_probabilities_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
) -> Tensor:
    """(B, T): the state of each step on the best path (Viterbi): 2u + 1 for token u, even for the blanks.

    A path stays in its state, steps to the next one, or skips the blank between two different tokens.
    """
    batch_size, num_steps, _ = log_probabilities_BTV.shape
    num_states = 2 * tokens_BU.size(1) + 1
    labels_BS = tokens_BU.new_full((batch_size, num_states), BLANK_ID)
    labels_BS[:, 1::2] = tokens_BU
    emissions_BTS = log_probabilities_BTV.float().gather(2, labels_BS[:, None].expand(-1, num_steps, -1))
    may_skip_BS = labels_BS != BLANK_ID
    may_skip_BS[:, 3::2] &= tokens_BU[:, 1:] != tokens_BU[:, :-1]
    skip_BS = torch.where(may_skip_BS, 0.0, -torch.inf)

    # Two columns on the left stand for what comes before the first state: all paths start in the second.
    scores_TBS = emissions_BTS.new_full((num_steps + 1, batch_size, 2 + num_states), -torch.inf)
    scores_TBS[0, :, 1] = 0
    stay_TBS, step_TBS = scores_TBS[:-1, :, 2:], scores_TBS[:-1, :, 1:-1]
    for t, emissions_BS in enumerate(emissions_BTS.unbind(1)):
        best_BS = torch.maximum(stay_TBS[t], step_TBS[t])
        best_BS = torch.maximum(best_BS, scores_TBS[t, :, :-2] + skip_BS)
        scores_TBS[t + 1, :, 2:] = best_BS + emissions_BS

    moves_TBS = (step_TBS > stay_TBS).byte()
    moves_TBS[scores_TBS[:-1, :, :-2] + skip_BS > torch.maximum(stay_TBS, step_TBS)] = 2
    moves_TBS *= length_mask(lengths_B, num_steps).T[:, :, None]  # past its end a path stays where it is
    last_B1 = 2 * token_lengths_B[:, None]
    final_BS = scores_TBS[lengths_B, torch.arange(batch_size, device=lengths_B.device)]
    ends_B2 = final_BS.gather(1, torch.cat([last_B1 + 1, last_B1 + 2], 1))  # the last token, the last blank
    state_B1 = (last_B1 - 1 + ends_B2.argmax(1, keepdim=True)).clamp(min=0)
    path = [state_B1]
    for moves_BS in reversed(moves_TBS[1:].unbind(0)):
        state_B1 = state_B1 - moves_BS.gather(1, state_B1)
        path.append(state_B1)
    return torch.cat(path[::-1], 1)


# B batch, U tokens, N rows of a decoder (tokens and the end)


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


@dataclass(frozen=True)
class CTC:
    """Output and loss of the CTC head for a batch."""

    log_probabilities_BTV: Tensor
    loss_B: Tensor

    def aligns(self, targets: Targets, threshold: float) -> Tensor:
        """(B,): True where the loss per token is below the threshold."""
        loss_B = self.loss_B.detach()  # 0 where there are too few steps for the tokens, and so no alignment
        return (loss_B > 0) & (loss_B < threshold * targets.lengths_B)


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
