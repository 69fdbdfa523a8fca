"""Models of simultaneous speakers: their loss equals the best assignment from a loop, and one learns."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from model_examples import NUM_FEATURES, SYSTEMS, VOCAB_SIZE, Utterances, make_utterances

from asr.batches.builder import Inputs, encode_text, needed_frames
from asr.data import Utterance
from asr.errors import UserError
from asr.features.front_end import FeaturesConfig, FrontEnd
from asr.models.losses import ctc_loss
from asr.models.speech_model import build_model
from asr.research.multi_speaker import MultiSpeakerConfig, MultiSpeakerModel
from asr.text.normalization import TextConfig
from asr.text.tokenizer import EOS_ID, Tokenizer, TokenizerConfig

FEATURE_LENGTHS = [83, 61, 40]


def build_example(num_speakers: int = 2, encoder: str = "lstm-ctc") -> MultiSpeakerModel:
    tree = {
        "type": "multi_speaker",
        "num_speakers": num_speakers,
        "encoder": SYSTEMS[encoder].encoder.model_dump(mode="json"),
    }
    torch.manual_seed(0)
    model = build_model(MultiSpeakerConfig.model_validate_json(json.dumps(tree)), NUM_FEATURES, VOCAB_SIZE)
    assert isinstance(model, MultiSpeakerModel)
    return model.eval()


def make_batch(num_speakers: int, padding: float = 0.0) -> tuple[Utterances, list[list[list[int]]]]:
    """A batch and the texts of each utterance, one of which is empty."""
    random = torch.Generator().manual_seed(1)
    texts = [
        [torch.randint(5, VOCAB_SIZE, (n,), generator=random).tolist() for n in lengths[:num_speakers]]
        for lengths in ([4, 2, 1], [0, 3, 2], [2, 2, 3])
    ]
    rows = [[token for text in own for token in [EOS_ID, *text]][1:] for own in texts]
    batch = make_utterances(FEATURE_LENGTHS, [len(row) for row in rows], padding)
    for target, row in zip(batch.tokens_BU, rows, strict=True):
        target[: len(row)] = torch.tensor(row)
    return batch, texts


@pytest.mark.parametrize("padding", [0.0, float("nan")])
@pytest.mark.parametrize("num_speakers", [2, 3])
@torch.no_grad()
def test_the_loss_uses_the_best_assignment(num_speakers: int, padding: float) -> None:
    model = build_example(num_speakers)
    batch, texts = make_batch(num_speakers, padding)
    log_probabilities_BSTV, lengths_B = model.ctc_log_probabilities(*batch[:2])
    total = 0.0
    for row, own in enumerate(texts):

        def loss(head: int, text: list[int], row: int = row) -> float:
            tokens, length = torch.tensor([text or [0]]), torch.tensor([len(text)])
            one = log_probabilities_BSTV[row : row + 1, head]
            return float(ctc_loss(one, lengths_B[row : row + 1], tokens, length))

        orders = itertools.permutations(own)
        total += min(sum(loss(head, text) for head, text in enumerate(order)) for order in orders)
    losses = model(*batch[:4])
    assert float(losses.total) == pytest.approx(total, rel=1e-5)
    assert losses.num_tokens == sum(len(text) + 1 for own in texts for text in own)


def test_it_learns_two_texts_at_once() -> None:
    model = build_example().train()
    batch, _ = make_batch(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        losses = model(*batch[:4])
        (losses.total / losses.num_tokens).backward()
        optimizer.step()
    assert losses.total.item() / losses.num_tokens < 0.2


def test_both_texts_of_an_utterance_are_encoded() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type="characters"), ["AB", "C"])
    inputs = Inputs(FrontEnd(FeaturesConfig()), tokenizer, TextConfig(), num_texts=2)
    both = Utterance(id="m", audio="m.wav", duration=1.0, text="ABB", extras={"text_2": "C"})
    tokens = encode_text(both, inputs)
    end = tokens.index(EOS_ID)
    assert (tokens[:end], tokens[end + 1 :]) == (tokenizer.encode("ABB"), tokenizer.encode("C"))
    assert needed_frames(tokens) == 4  # steps for the longer text, with a blank between equal letters
    with pytest.raises(UserError, match=r"utterance m has no extras\.text_2; add it"):
        encode_text(both.model_copy(update={"extras": {}}), inputs)
