"""Greedy decoding by a transducer, label by label (Xu et al. 2024).

Each utterance of a batch looks for its next token by itself, over as many encoded steps as it takes. The
predictor then reads the tokens of all utterances at once, so it runs as often as the longest text has tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asr.decoding.hypothesis import Hypothesis
from asr.text.tokenizer import BLANK_ID
from asr.transducer.transducer_decoder import TransducerDecoder

# B utterances, T encoded steps, L steps ahead, D dimension of the joint network, V vocabulary

LOOK_AHEAD = 4  # steps whose tokens are computed at once
MAX_TOKENS_AT_STEP = 10  # then the next step is read: a decoder may be caught in a loop
NO_TOKEN = -1


class GreedySearch:
    """The texts of a batch so far. Steps may come all at once, or chunk by chunk."""

    def __init__(self, decoder: TransducerDecoder, batch: int, device: torch.device) -> None:
        self.decoder = decoder
        self.predicted_BD, self.state = decoder.start(batch, device)
        self.durations = torch.tensor(decoder.durations, device=device)
        self.next_B = torch.zeros(batch, dtype=torch.long, device=device)  # step of the chunk to read next
        self.num_read_B = torch.zeros_like(self.next_B)  # steps of chunks before
        self.num_at_step_B = torch.zeros_like(self.next_B)
        self.log_probability_B = torch.zeros(batch, dtype=torch.float64, device=device)
        self.tokens = [torch.full_like(self.next_B, NO_TOKEN)]  # of each round; none at the end
        self.steps = [self.next_B]  # where they were emitted

    def read(self, steps_BTD: Tensor, lengths_B: Tensor) -> None:
        """Read more encoded steps, as `prepare_steps` makes them."""
        while True:
            tokens_B, duration_B = self._find_tokens(steps_BTD, lengths_B)
            is_found_B = tokens_B != NO_TOKEN
            if not is_found_B.any():
                break
            self.tokens.append(tokens_B)
            self.steps.append(self.num_read_B + self.next_B)
            predicted_B1D, state = self.decoder.predict(tokens_B.clamp(min=0)[:, None], self.state)
            self.predicted_BD[is_found_B] = predicted_B1D[is_found_B, 0]
            for part, after in zip(self.state, state, strict=True):
                part[is_found_B] = after[is_found_B]
            is_full_B = self.num_at_step_B + 1 >= MAX_TOKENS_AT_STEP
            duration_B = torch.where(is_full_B, duration_B.clamp(min=1), duration_B) * is_found_B
            self.num_at_step_B = (self.num_at_step_B + is_found_B) * (duration_B == 0)
            self.next_B = self.next_B + duration_B
        self.next_B = (self.next_B - lengths_B).clamp(min=0)
        self.num_read_B = self.num_read_B + lengths_B

    def _find_tokens(self, steps_BTD: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Go on to the next token of each utterance; its duration is how far to go on from there."""
        ahead = 1 if len(self.durations) else LOOK_AHEAD  # with durations, steps are left out
        ahead_L = torch.arange(ahead, device=lengths_B.device)
        tokens_B, duration_B = torch.full_like(self.next_B, NO_TOKEN), torch.zeros_like(self.next_B)
        while (is_open_B := (tokens_B == NO_TOKEN) & (self.next_B < lengths_B)).any():
            steps_BL = self.next_B[:, None] + ahead_L
            is_step_BL = (steps_BL < lengths_B[:, None]) & is_open_B[:, None]
            rows_BL = steps_BL.clamp(max=steps_BTD.size(1) - 1)
            ahead_BLD = steps_BTD.gather(1, rows_BL[..., None].expand(-1, -1, steps_BTD.size(2)))
            scores_BLV, durations_BLK = self.decoder.score(ahead_BLD, self.predicted_BD[:, None])
            best_BL, ids_BL = scores_BLV.max(-1)
            is_token_BL = (ids_BL != BLANK_ID) & is_step_BL
            is_found_B = is_token_BL.any(1)
            # Blanks before the token, or all that there are.
            place_B = torch.where(is_found_B, is_token_BL.byte().argmax(1), is_step_BL.sum(1))
            if len(self.durations):
                value_B1, number_B1 = durations_BLK[:, 0].max(-1, keepdim=True)
                best_BL = best_BL + value_B1
                duration_B = torch.where(is_open_B, self.durations[number_B1[:, 0]], duration_B)
                place_B = duration_B.clamp(min=1).masked_fill(is_found_B, 0)  # if blank comes with 0, 1
            is_read_BL = is_step_BL & (ahead_L <= place_B[:, None])
            self.log_probability_B += best_BL.double().masked_fill(~is_read_BL, 0.0).sum(1)
            first_B = ids_BL.gather(1, place_B.clamp(max=ahead - 1)[:, None])[:, 0]
            tokens_B = torch.where(is_found_B, first_B, tokens_B)
            self.next_B = self.next_B + place_B * is_open_B
            self.num_at_step_B = self.num_at_step_B * ((place_B == 0) | ~is_open_B)
        return tokens_B, duration_B

    def finish(self) -> tuple[list[Hypothesis], list[list[int]]]:
        """The text of each utterance, and the step at which each of its tokens was emitted."""
        columns = torch.stack(self.tokens, 1), torch.stack(self.steps, 1), self.log_probability_B
        texts, all_steps = [], []
        for tokens, steps, total in zip(*(column.tolist() for column in columns), strict=True):
            emitted = [(token, step) for token, step in zip(tokens, steps, strict=True) if token != NO_TOKEN]
            texts.append(Hypothesis(tuple(token for token, _ in emitted), total, total))
            all_steps.append([step for _, step in emitted])
        return texts, all_steps
