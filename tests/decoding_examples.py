"""What the tests of decoders share: brute force over all texts, talkative models, a toy language model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from model_examples import NUM_FEATURES, NUM_SPECIAL, VOCAB_SIZE, build_example, make_utterances
from torch import Tensor

from asr.decoding import beam
from asr.decoding.decode import SpeechDecoder, search_encoded, search_greedy
from asr.decoding.hypothesis import (
    ChecksConfig,
    DecodingConfig,
    EncodedAudio,
    FusionModel,
    NBest,
    find_best_paths,
)
from asr.features.front_end import FeaturesConfig, FrontEnd
from asr.models.layers import length_mask
from asr.models.speech_model import SpeechModel
from asr.text.tokenizer import BLANK_ID, EOS_ID, SOS_ID, UNK_ID

TOKENS = [UNK_ID, *range(NUM_SPECIAL, VOCAB_SIZE)]  # what can be said


def search(
    model: SpeechModel,
    encoded_BTD: Tensor,
    lengths_B: Tensor,
    config: DecodingConfig,
    language_model: FusionModel | None = None,
) -> NBest:
    return search_encoded(EncodedAudio(model, encoded_BTD, lengths_B), config, language_model)


def build_talker(name: str, seed: int = 0, end_bias: float = 0.0) -> SpeechModel:
    """Random weights, large enough for lively output of both heads; the decoder leans to the end, or not."""
    model = build_example(name)
    random = torch.Generator().manual_seed(seed)
    for layer in (model.ctc_head, model.decoder and model.decoder.output):
        if layer is not None:
            torch.nn.init.normal_(layer.weight, std=0.5, generator=random)
    if model.decoder is not None:
        with torch.no_grad():
            model.decoder.output.bias[EOS_ID] += end_bias
    return model


def random_encoded(model: SpeechModel, lengths: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Encoded steps of utterances of these lengths, garbage in the padding."""
    lengths_B = torch.tensor(lengths)
    random = torch.Generator().manual_seed(seed)
    encoded_BTD = torch.stack(
        [2 * torch.randn(max(lengths), model.encoder.output_dim, generator=random) for _ in lengths]
    )
    return encoded_BTD.masked_fill(~length_mask(lengths_B, max(lengths))[..., None], 50.0), lengths_B


def build_decoder_of(model: SpeechModel, checks: ChecksConfig | None = None) -> SpeechDecoder:
    """With a tokenizer that names each token by its number."""
    tokenizer = SimpleNamespace(decode=lambda tokens: " ".join(map(str, tokens)))
    front_end = FrontEnd(FeaturesConfig(num_mels=NUM_FEATURES))
    system = SimpleNamespace(model=model, front_end=front_end, tokenizer=tokenizer)
    return SpeechDecoder(system, checks)


def search_beams(
    model: SpeechModel,
    encoded_BTD: Tensor,
    lengths_B: Tensor,
    config: DecodingConfig,
    language_model: FusionModel | None = None,
    ctc_weight: float = 0.0,
) -> NBest:
    encoded = EncodedAudio(model, encoded_BTD, lengths_B)
    return beam.search_beams(encoded, config, language_model, ctc_weight=ctc_weight)


def decode_ctc_greedily(log_probabilities_BTV: Tensor, lengths_B: Tensor) -> list[list[int]]:
    return find_best_paths(log_probabilities_BTV, lengths_B).texts()


def decode_by_decoder(
    model: SpeechModel, encoded_BTD: Tensor, lengths_B: Tensor, max_tokens: int | None = None
) -> list[list[int]]:
    if max_tokens is not None:
        limit_tokens(model, max_tokens)
    return search_greedy(EncodedAudio(model, encoded_BTD, lengths_B))["decoder"]


def limit_tokens(model: SpeechModel, count: int) -> None:
    model.limit_tokens = lambda lengths_B: count * (lengths_B > 0)  # type: ignore[method-assign]


def encode_in_batches(model: SpeechModel, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Encoded steps of 8 utterances, from features with garbage in the padding on, `size` at a time."""
    frames = [4 * (2 + 7 * number % 13) + number % 4 for number in range(8)]
    batch = make_utterances(frames, [1] * 8, padding=9.0)
    for start in range(0, 8, size):
        rows = slice(start, start + size)
        yield model.encode(batch.features_BTF[rows, : max(frames[rows])], batch.feature_lengths_B[rows])


class BigramModel:
    """A language model of two tokens: random, but the end is never likelier than a tenth."""

    def __init__(self, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.scores_VV = (2 * torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=random)).log_softmax(-1)

    def start(self, num_rows: int, device: torch.device) -> BigramState:
        return BigramState(self.scores_VV.to(device), num_rows)

    def log_probability(self, text: tuple[int, ...]) -> float:
        said = [SOS_ID, *text, EOS_ID]
        return sum(self.scores_VV[pair].item() for pair in itertools.pairwise(said))


class BigramState:
    """Checks what a search promises: start tokens first, as many tokens as rows."""

    def __init__(self, scores_VV: Tensor, num_rows: int) -> None:
        self.scores_VV, self.num_rows, self.is_new = scores_VV, num_rows, True

    def score(self, tokens_R: Tensor) -> Tensor:
        assert tokens_R.shape == (self.num_rows,)
        assert bool((tokens_R == SOS_ID).all()) == self.is_new
        self.is_new = False
        return self.scores_VV[tokens_R]

    def select(self, rows: Tensor) -> None:
        assert rows.numel() == 0 or int(rows.max()) < self.num_rows
        self.num_rows = len(rows)


def all_texts(longest: int, tokens: list[int] = TOKENS) -> Iterator[tuple[int, ...]]:
    for length in range(longest + 1):
        yield from itertools.product(tokens, repeat=length)


def collapse(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(token for token, _ in itertools.groupby(path) if token != BLANK_ID)


def score_next(
    model: SpeechModel, encoded_TD: Tensor, texts: list[tuple[int, ...]]
) -> Iterator[tuple[list[tuple[int, ...]], Tensor]]:
    """Texts of one length, and the log-probabilities of what follows each of their tokens, in float64."""
    assert model.decoder is not None
    for _, same_length in itertools.groupby(texts, len):
        group = list(same_length)
        inputs = torch.tensor([[SOS_ID, *text] for text in group])
        copies = encoded_TD.expand(len(group), *encoded_TD.shape)
        logits, _ = model.decoder(inputs, copies, torch.full((len(group),), len(encoded_TD)))
        yield group, logits.double().log_softmax(-1)


def decoder_scores(model: SpeechModel, encoded_TD: Tensor, texts: list[tuple[int, ...]]) -> list[float]:
    """Log-probabilities of whole texts by teacher forcing, one length at a time."""
    scores: dict[tuple[int, ...], float] = {}
    for group, scores_NUV in score_next(model, encoded_TD, texts):
        targets = torch.tensor([[*text, EOS_ID] for text in group])
        rows = scores_NUV.gather(2, targets[..., None]).sum((1, 2))
        scores.update(zip(group, rows.tolist(), strict=True))
    return [scores[text] for text in texts]


def ends_behind(
    model: SpeechModel,
    encoded_TD: Tensor,
    texts: list[tuple[int, ...]],
    language_model: BigramModel | None,
    language_model_weight: float,
) -> dict[tuple[int, ...], float]:
    """After each of these texts: how much likelier than the end the likeliest token is, in logarithms."""
    behind: dict[tuple[int, ...], float] = {}
    for group, scores_NUV in score_next(model, encoded_TD, texts):
        scores_NV = scores_NUV[:, -1]
        if language_model is not None:
            last_N = torch.tensor([text[-1] if text else SOS_ID for text in group])
            scores_NV = scores_NV + language_model_weight * language_model.scores_VV[last_N]
        rows = scores_NV[:, TOKENS].amax(1) - scores_NV[:, EOS_ID]
        behind.update(zip(group, rows.tolist(), strict=True))
    return behind


def ctc_scores(model: SpeechModel, encoded_TD: Tensor, texts: list[tuple[int, ...]]) -> list[float]:
    """Log-probabilities of whole texts, all alignments summed, by PyTorch's loss in float64."""
    return [-loss for loss in ctc_losses(model.ctc_log_probabilities(encoded_TD), texts)]


def ctc_losses(log_probabilities_TV: Tensor, texts: list[tuple[int, ...]]) -> list[float]:
    steps = len(log_probabilities_TV)
    losses = torch.nn.functional.ctc_loss(
        log_probabilities_TV.double()[:, None].expand(-1, len(texts), -1),
        torch.tensor([token for text in texts for token in text], dtype=torch.long),
        torch.full((len(texts),), steps),
        torch.tensor([len(text) for text in texts]),
        BLANK_ID,
        reduction="none",
    )
    return losses.tolist()


def rank_all(
    model: SpeechModel,
    encoded_TD: Tensor,
    config: DecodingConfig,
    longest: int,
    ctc_weight: float,
    language_model: BigramModel | None = None,
) -> list[tuple[float, tuple[int, ...]]]:
    """Every text and its score by the formula, best first."""
    texts = list(all_texts(longest))
    total = [0.0] * len(texts)
    if ctc_weight < 1:
        total = [(1 - ctc_weight) * score for score in decoder_scores(model, encoded_TD, texts)]
    if ctc_weight > 0:
        by_ctc = ctc_scores(model, encoded_TD, texts)
        total = [before + ctc_weight * score for before, score in zip(total, by_ctc, strict=True)]
    behind: dict[tuple[int, ...], float] = {}
    if ctc_weight == 0:
        shorter = list(all_texts(longest - 1))  # the longest end in any case
        behind = ends_behind(model, encoded_TD, shorter, language_model, config.language_model_weight)
    ranked = []
    for text, score in zip(texts, total, strict=True):
        if language_model is not None:
            score += config.language_model_weight * language_model.log_probability(text)
        if behind.get(text, 0.0) > beam.END_MARGIN:
            continue
        ranked.append((score, text))
    return sorted((pair for pair in ranked if pair[0] > -math.inf), reverse=True)
