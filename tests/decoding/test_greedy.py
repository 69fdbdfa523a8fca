"""Greedy decoding against the same in plain Python: one utterance, no cache."""

from __future__ import annotations

import itertools

import torch
from decoding_examples import decode_by_decoder, decode_ctc_greedily
from hypothesis import given, settings, strategies as st
from model_examples import (
    NUM_SPECIAL,
    VOCAB_SIZE,
    build_example,
    every_decoder,
    every_system,
    make_utterances,
)

from asr.models import SpeechModel, length_mask
from asr.text import BLANK_ID, EOS_ID, SOS_ID, UNK_ID

LENGTHS = [10, 8, 0, 5, 3, 1, 9, 10, 10]


# --- CTC ----------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 7), max_size=12), min_size=1, max_size=4))
@settings(max_examples=60)
def test_ctc_merges_repeats_and_removes_blanks(paths: list[list[int]]) -> None:
    longest = max(1, *map(len, paths))
    padded = torch.tensor([[*path, *[6] * (longest - len(path))] for path in paths])
    log_probabilities_BTV = torch.nn.functional.one_hot(padded, 8).float().log_softmax(-1)
    expected = [[token for token, _ in itertools.groupby(path) if token != BLANK_ID] for path in paths]
    assert decode_ctc_greedily(log_probabilities_BTV, torch.tensor([len(path) for path in paths])) == expected


# --- decoder ------------------------------------------------------------------------------------


def build_talker(name: str, favourite: int = EOS_ID, bias: float = 0.0, seed: int = 0) -> SpeechModel:
    """Random weights, large enough for lively output; the decoder leans to one token."""
    model = build_example(name)
    assert model.decoder is not None
    random = torch.Generator().manual_seed(seed)
    torch.nn.init.normal_(model.decoder.output.weight, generator=random)
    with torch.no_grad():
        model.decoder.output.bias[favourite] += bias
    return model


def random_encoded(model: SpeechModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Encoded steps of utterances of all lengths, garbage in the padding."""
    lengths_B = torch.tensor(LENGTHS)
    random = torch.Generator().manual_seed(0)
    encoded_BTD = 3 * torch.randn(len(LENGTHS), max(LENGTHS), model.encoder.output_dim, generator=random)
    return encoded_BTD.masked_fill(~length_mask(lengths_B, max(LENGTHS))[..., None], 50.0), lengths_B


def decode_plainly(model: SpeechModel, encoded_TD: torch.Tensor, limit: int) -> list[int]:
    """One utterance without padding; everything is computed anew for each token."""
    assert model.decoder is not None
    tokens: list[int] = []
    while len(tokens) < limit:
        inputs = torch.tensor([[SOS_ID, *tokens]])
        scores_BUV, _ = model.decoder(inputs, encoded_TD[None], torch.tensor([len(encoded_TD)]))
        scores = scores_BUV[0, -1].tolist()
        best = max([EOS_ID, UNK_ID, *range(NUM_SPECIAL, VOCAB_SIZE)], key=lambda token: scores[token])
        if best == EOS_ID:
            break
        tokens.append(best)
    return tokens


@every_decoder
@torch.inference_mode()
def test_decoder_equals_a_plain_loop(name: str) -> None:
    """In a batch, with a cache, ending at different times."""
    endings = set()
    for max_tokens, bias in itertools.product((None, 5), (-3.0, 0.0, 3.0)):
        model = build_talker(name, EOS_ID, bias, seed=int(max_tokens is None))
        encoded_BTD, lengths_B = random_encoded(model)
        decoded = decode_by_decoder(model, encoded_BTD, lengths_B, max_tokens)
        for row, length in enumerate(LENGTHS):
            limit = length if model.ctc_head is not None else 2 * length
            if max_tokens is not None and length:
                limit = max_tokens
            assert decoded[row] == decode_plainly(model, encoded_BTD[row, :length], limit)
            endings.add(
                "limit" if len(decoded[row]) == limit else "at once" if not decoded[row] else "between"
            )
    assert {"limit", "between"} <= endings


@every_decoder
@torch.inference_mode()
def test_a_decoder_that_never_ends_is_stopped(name: str) -> None:
    """At one token a step, or two where no CTC head forbids it; at another number on demand; and with no steps at none."""
    model = build_talker(name, NUM_SPECIAL, 1e4)
    encoded = random_encoded(model)
    per_step = 1 if model.ctc_head is not None else model.subsampling_factor // 2
    assert decode_by_decoder(model, *encoded) == [[NUM_SPECIAL] * per_step * length for length in LENGTHS]
    for max_tokens in (4, 50):
        limited = decode_by_decoder(model, *encoded, max_tokens=max_tokens)
        assert limited == [[NUM_SPECIAL] * max_tokens * bool(length) for length in LENGTHS]


@torch.inference_mode()
def test_the_unknown_token_can_be_said() -> None:
    model = build_talker("lstm-hybrid", UNK_ID, 1e4)
    assert decode_by_decoder(model, *random_encoded(model), max_tokens=2)[0] == [UNK_ID, UNK_ID]


@every_system
def test_training_goes_on_after_decoding(name: str) -> None:
    """What decoding leaves in a model (tables of positions) must serve a backward pass."""
    model, batch = build_example(name), make_utterances([80, 60], [3, 2])
    with torch.inference_mode():
        encoded = model.encode(*batch[:2])
        if model.decoder is not None:
            decode_by_decoder(model, *encoded)
    model.train()(*batch).total.backward()
