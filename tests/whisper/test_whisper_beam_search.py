"""Searches of a batch, against plain loops that compute everything anew at each step; what may follow what."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from whisper_examples import VOCABULARY
from whisper_systems import build_system

from asr.decoding import count_repeats
from asr.whisper import (
    LOOP,
    Beginning,
    EncodedSteps,
    Rules,
    WhisperSystem,
    WhisperTokenizer,
    begin,
    is_loop,
    sample,
    search,
)

TOKENIZER = WhisperTokenizer(VOCABULARY, 99, True)


@pytest.fixture(scope="module", params=[False, True], ids=["English", "multilingual"])
def system(request: pytest.FixtureRequest) -> WhisperSystem:
    return build_system(request.param)


def encode(count: int = 12, seed: int = 1) -> Tensor:
    return torch.randn(count, 20, 32, generator=torch.Generator().manual_seed(seed))


def start(
    system: WhisperSystem, encoded_BTD: Tensor, limit: int = 12, times: bool = False, earlier: str = ""
) -> tuple[Any, Rules, Beginning]:
    tokenizer = system.tokenizer
    before = [tokenizer.start_of_previous, *tokenizer.encode(earlier)] if earlier else []
    prompts = [[*before, *tokenizer.prompt("en", times=times)]] * len(encoded_BTD)
    audio = EncodedSteps(encoded_BTD, torch.full((len(encoded_BTD),), encoded_BTD.size(1)))
    beginning = begin(system.model, tokenizer, audio, prompts)._replace(max_tokens=limit)
    return system.model, Rules(tokenizer, times, torch.device("cpu")), beginning


# --- what may follow what -------------------------------------------------------------------------


def find_allowed(tokenizer: WhisperTokenizer, tokens: list[int], times: bool) -> set[int]:
    """By the words of the rules, token by token."""
    allowed = set(range(len(tokenizer))) - set(tokenizer.suppressed)
    if not tokens:
        allowed -= {tokenizer.end, *tokenizer.encode(" ")}
    if not times:
        return allowed
    allowed.discard(tokenizer.no_times)
    first = tokenizer.first_time
    said = [token for token in tokens if token >= first]
    if not tokens:
        return {token for token in allowed if first <= token <= first + 50}
    if tokens[-1] >= first:
        if len(tokens) == 1 or tokens[-2] >= first:  # a span has begun: text
            return {token for token in allowed if token < first}
        # a span has ended: the next one begins, then or later, or nothing follows
        return {token for token in allowed if token >= tokens[-1] or tokenizer.end <= token < first}
    return {token for token in allowed if token < first or not said or token > said[-1]}


@settings(max_examples=20)
@given(data=st.data(), times=st.booleans())
def test_rules(data: st.DataObject, times: bool) -> None:
    rules = Rules(TOKENIZER, times, torch.device("cpu"))
    seed = data.draw(st.integers(0, 1000))
    scores_RV = torch.randn(3, len(TOKENIZER), generator=torch.Generator().manual_seed(seed))
    scores_RV[:, TOKENIZER.first_time :] -= 20  # all times together are less likely than a token of text
    rows: list[list[int]] = [[], [], []]
    for _ in range(data.draw(st.integers(0, 6))):
        for row in rows:
            allowed = sorted(find_allowed(TOKENIZER, row, times) - {TOKENIZER.end})
            is_time = data.draw(st.booleans())
            chosen = [token for token in allowed if (token >= TOKENIZER.first_time) == is_time] or allowed
            row.append(data.draw(st.sampled_from(chosen[:80])))
    found_RV = rules.apply(scores_RV, torch.tensor(rows, dtype=torch.long).view(3, -1))
    for row, found_V in zip(rows, found_RV, strict=True):
        assert set((found_V > -torch.inf).nonzero()[:, 0].tolist()) == find_allowed(TOKENIZER, row, times)


def test_times_are_said_when_all_of_them_together_are_likelier_than_any_text() -> None:
    rules, first = Rules(TOKENIZER, True, torch.device("cpu")), TOKENIZER.first_time
    tokens_RU = torch.tensor([[first, *TOKENIZER.encode(" the")]])
    for offset in (0.01, -0.01):
        scores_RV = torch.zeros(1, len(TOKENIZER))
        scores_RV[0, 5] = math.log(len(TOKENIZER) - first - 1) + offset
        assert bool(rules.apply(scores_RV, tokens_RU)[0, :first].max() > -torch.inf) == (offset > 0)


# --- searches -------------------------------------------------------------------------------------


def score_plainly(system: WhisperSystem, encoded_TD: Tensor, tokens: list[int], skip: int) -> Tensor:
    """Log-probabilities of the token after these; the first `skip` of them are the prompt."""
    lengths_1 = torch.tensor([len(encoded_TD)])
    scores_V = system.model.decoder(torch.tensor([tokens]), encoded_TD[None], lengths_1)[0][0, -1].double()
    ids = torch.tensor(sorted(find_allowed(system.tokenizer, tokens[skip:], False)))
    kept_V = torch.full_like(scores_V, -torch.inf)
    kept_V[ids] = scores_V[ids]
    return kept_V.log_softmax(-1)


@torch.inference_mode()
@pytest.mark.parametrize("earlier", ["", " the rain in spain"])
def test_likeliest(system: WhisperSystem, earlier: str) -> None:
    tokenizer, encoded_BTD = system.tokenizer, encode()
    found = sample(*start(system, encoded_BTD, earlier=earlier))
    before = [tokenizer.start_of_previous, *tokenizer.encode(earlier)] if earlier else []
    prompt = [*before, *tokenizer.prompt("en")]
    for encoded_TD, (said, mean) in zip(encoded_BTD, found, strict=True):
        tokens, total = list(prompt), 0.0
        while len(tokens) < len(prompt) + 12:
            scores_V = score_plainly(system, encoded_TD, tokens, len(prompt))
            best = int(scores_V.argmax())
            total += float(scores_V[best])
            if best == tokenizer.end:
                break
            tokens.append(best)
        assert list(said) == tokens[len(prompt) :]
        assert mean == pytest.approx(total / (len(said) + 1), abs=1e-4)
    assert len({len(said) for said, _ in found}) > 2


@torch.inference_mode()
def search_plainly(system: WhisperSystem, encoded_TD: Tensor, beam: int, limit: int) -> tuple[int, ...]:
    prompt, end = system.tokenizer.prompt("en"), system.tokenizer.end
    running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, limit + 1):
        grown = []
        for total, tokens in running:
            scores = score_plainly(system, encoded_TD, [*prompt, *tokens], len(prompt)).tolist()
            grown += [(total + score, (*tokens, token)) for token, score in enumerate(scores)]
        grown.sort(key=lambda one: -one[0])
        running = [one for one in grown if one[1][-1] != end][:beam]
        worst = running[-1][0]
        ended += [
            (total / length, tokens[:-1]) for total, tokens in grown if tokens[-1] == end and total > worst
        ]
        if len(ended) >= beam:
            break
    else:
        ended += [(total / limit, tokens) for total, tokens in running]
    return max(ended)[1]


@pytest.mark.parametrize("beam", [1, 3])
def test_beam(system: WhisperSystem, beam: int) -> None:
    encoded_BTD = encode(6)
    found = [tokens for tokens, _ in search(*start(system, encoded_BTD, 7), beam)]
    assert found == [search_plainly(system, encoded_TD, beam, 7) for encoded_TD in encoded_BTD]
    greedy = [tokens for tokens, _ in sample(*start(system, encoded_BTD, 7))]
    assert (greedy == found) == (beam == 1)


@pytest.mark.parametrize("width", [1, 4])
def test_with_times_each_text_stands_between_two(width: int) -> None:
    system = build_system(True)
    begun, first = start(system, encode(), times=True), system.tokenizer.first_time
    for tokens, _ in search(*begun, width) if width > 1 else sample(*begun):
        times = [token for token in tokens if token >= first]
        assert tokens[0] >= first and times == sorted(times)


def test_what_is_drawn_depends_on_the_seed_alone(system: WhisperSystem) -> None:
    encoded_BTD = encode()

    def draw(rows_BTD: Tensor, seed: int) -> list[tuple[int, ...]]:
        return [tokens for tokens, _ in sample(*start(system, rows_BTD), 0.9, 3, seed=seed)]

    together = draw(encoded_BTD, 5)
    assert together == [draw(encoded_TD[None], 5)[0] for encoded_TD in encoded_BTD]
    assert together != draw(encoded_BTD, 6)


def test_draws_follow_the_probabilities() -> None:
    """Of the first token at temperature 2, against the softmax; 600 draws of one window."""
    model, rules, begun = start(build_system(False), encode(1), 1)
    expected_V = (rules.apply(begun.scores_BV, torch.zeros(1, 0, dtype=torch.long))[0] / 2).softmax(-1)
    drawn = Counter(sample(model, rules, begun, 2.0, seed=seed)[0][0][0] for seed in range(600))
    for token in expected_V.topk(5).indices.tolist():
        share = float(expected_V[token])
        assert abs(drawn[token] / 600 - share) < 4 * math.sqrt(share * (1 - share) / 600)


def test_samples_are_ranked_by_their_likeliest(system: WhisperSystem) -> None:
    """Of four samples the likeliest is likelier than a single one, on the mean of twelve windows."""
    means = [
        sum(mean for _, mean in sample(*start(system, encode()), 1.5, samples, seed=1)) for samples in (1, 4)
    ]
    assert means[1] > means[0]


@pytest.mark.parametrize(("max_repeats", "expected"), [(4, 48), (20, 64), (None, 200)])
def test_a_loop_ends_when_the_checks_are_sure_to_refuse_it(max_repeats: int | None, expected: int) -> None:
    """Of two rows one goes round three tokens for ever, and one says what no check minds."""
    size, end = len(TOKENIZER), TOKENIZER.end
    lines = [[1 + place % 3 for place in range(300)], [*range(1, 71), end]]
    places = iter(range(300))

    def score(count: int) -> Tensor:
        place, rows = next(places), [0, 1] if count == 2 else [0]
        return torch.stack([9.0 * torch.eye(size)[lines[row][place]] for row in rows])

    decoder = SimpleNamespace(step=lambda tokens_R1, state: (score(len(tokens_R1))[:, None], {}))
    state: Any = SimpleNamespace(select_utterances=lambda kept_B: None, select_beams=lambda kept_R: None)
    rules: Any = SimpleNamespace(end=end, apply=lambda scores_RV, tokens_RU: scores_RV)
    model: Any = SimpleNamespace(decoder=decoder)
    begun = Beginning(state, score(2), torch.zeros(2), 200)
    if expected < 70:  # the other row goes on alone
        lines[0], lines[1] = lines[1], lines[0]
    breaks: list[int] = []
    found = sample(model, rules, begun, max_repeats=max_repeats, give_way=lambda: breaks.append(1))
    assert len(breaks) == max(expected, 70) // 16
    assert sorted(len(tokens) for tokens, _ in found) == sorted([expected, 70])


@given(
    st.lists(st.integers(1, 3), max_size=40),
    st.lists(st.integers(1, 3), min_size=1, max_size=30),
    st.integers(2, 6),
)
def test_only_what_the_checks_refuse_is_a_loop(before: list[int], period: list[int], limit: int) -> None:
    tokens = before + 8 * period
    if is_loop(tokens, limit):
        assert count_repeats(tokens) > limit
    else:
        assert len(period) * 8 < LOOP
    assert not is_loop([*tokens, 9], limit)


@torch.inference_mode()
def test_no_speech_is_told_after_the_start(system: WhisperSystem) -> None:
    encoded_BTD, tokenizer = encode(3), system.tokenizer
    start_B1 = torch.full((3, 1), tokenizer.start)
    scores_B1V, _ = system.model.decoder(start_B1, encoded_BTD, torch.full((3,), 20))
    expected_B = scores_B1V[:, 0].softmax(-1)[:, tokenizer.no_speech]
    torch.testing.assert_close(start(system, encoded_BTD)[2].no_speech_B, expected_B)
