"""Decoding of windows: prompts, languages, silence, and second tries of texts with problems. Searches in batches
are compared with plain loops that recompute everything at each step."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn.functional import one_hot
from whisper_examples import VOCAB_SIZE, VOCABULARY
from whisper_systems import build_system

from asr.decoding import hypothesis as limits
from asr.decoding.decode import DecodedUtterance, DecodingSetup, search_encoded
from asr.decoding.greedy import LOOP, draw, is_loop, read_prompts, sample
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig, EncodedAudio, Hypothesis, count_repeats
from asr.errors import UserError
from asr.system.system import System
from asr.text.tokenizer import BLANK_ID, EOS_ID, PAD_ID, SOS_ID
from asr.whisper import (
    WhisperDecodingConfig,
    WhisperManners,
    WhisperRules,
    detect_languages,
    encode_context,
    make_tokenizer,
    units_of,
)

UNITS = units_of(make_tokenizer(VOCABULARY, VOCAB_SIZE))
GREEDY = DecodingConfig(beam=1)


@pytest.fixture(scope="module")
def system() -> System:
    return build_system(True)


@pytest.fixture
def english() -> System:
    return build_system(False)


def encode(count: int = 8, seed: int = 1) -> Tensor:
    return torch.randn(count, 20, 32, generator=torch.Generator().manual_seed(seed))


def ask(system: System, encoded_BTD: Tensor | None = None, languages: str = "", **given: Any) -> EncodedAudio:
    """Windows with their prompts, in the given languages or all in English."""
    encoded_BTD = encode() if encoded_BTD is None else encoded_BTD
    options = WhisperDecodingConfig(language=None if languages else "en", **given.pop("options", {}))
    decoder, setup = WhisperManners(system), DecodingSetup(DecodingConfig(**given), None, options)
    rules, lengths_B = decoder.rules, torch.full((len(encoded_BTD),), encoded_BTD.size(1))
    encoded = EncodedAudio(system.model, encoded_BTD, lengths_B, rules=rules)
    codes = iter(languages.split())
    decoder._find_language = lambda segment, own: (next(codes), None)  # type: ignore[method-assign]
    return decoder.introduce(encoded, [None] * len(encoded_BTD), setup)  # type: ignore[list-item]


def decode(
    system: System, asked: EncodedAudio, config: DecodingConfig, checks: ChecksConfig | None = None
) -> list[DecodedUtterance]:
    return WhisperManners(system, checks or ChecksConfig.off()).decode(asked, DecodingSetup(config))


def test_prompts_hold_hotwords_then_the_prompt(system: System) -> None:
    tokenizer, options = system.tokenizer, {"prompt": " the plain ", "task": "translate"}
    told = [*tokenizer.encode("rain, spain"), *tokenizer.encode("the plain")]
    special = units_of(tokenizer).special
    asked = ask(system, encode(2), "de en", hotwords=("rain", "spain"), options=options)
    assert asked.prompts_BP is not None
    for language, prompt in zip(("de", "en"), asked.prompts_BP.tolist(), strict=True):
        assert prompt == [PAD_ID, *told, *special.prompt(language, "translate")]
    plain = ask(system, encode(1)).prompts_BP
    assert plain is not None and plain.tolist() == [special.prompt("en")]


@pytest.mark.parametrize("max_tokens", [448, 64])
def test_all_that_is_told_is_read_or_refused(max_tokens: int, system: System) -> None:
    """Each of them alone would fit, but together they share half of the positions, less the start."""
    tokenizer, room = system.tokenizer, max_tokens // 2 - 1
    words = ("rain",) * (room // 5)
    left = room - len(tokenizer.encode(", ".join(words)))
    assert 0 < left < room and len(tokenizer.encode("the")) == 1

    def read(count: int) -> list[int]:
        options = WhisperDecodingConfig(prompt=" the" * count)
        return encode_context(
            tokenizer, DecodingSetup(DecodingConfig(hotwords=words), None, options), max_tokens
        )

    told = tokenizer.encode(", ".join(words)) + tokenizer.encode((" the" * left).strip())
    assert read(left) == told and len(told) == room
    with pytest.raises(UserError, match=rf"{room - left} tokens .* has {left + 1}, .* reads {room} in all"):
        read(left + 1)


@torch.inference_mode()
def test_languages(system: System) -> None:
    asked, special = ask(system), units_of(system.tokenizer).special
    found = detect_languages(asked, special)
    start_B1 = torch.full((8, 1), SOS_ID)
    scores_BV = system.model.decoder(start_B1, asked.encoded_BTD, asked.lengths_B)[0][:, 0]
    for (language, _), scores_V in zip(found, scores_BV, strict=True):
        ids = special.languages
        assert language == max(ids, key=lambda code: float(scores_V[ids[code]]))
    assert len({language for language, _ in found}) > 1
    english = build_system(False)
    assert detect_languages(ask(english), units_of(english.tokenizer).special) == [("en", 1.0)] * 8


def test_texts_depend_on_language_task_prompt_and_beam(system: System) -> None:
    def read(languages: str = "", beam: int = 1, **options: Any) -> list[tuple[int, ...]]:
        asked = ask(system, languages=languages, options=options)
        readings = decode(system, asked, DecodingConfig(beam=beam))
        assert {reading.method for reading in readings} == {"beam" if beam > 1 else "greedy"}
        return [reading.tokens for reading in readings]

    plain, german = read(), " ".join(["de"] * 8)
    for other in (read(german), read(task="translate"), read(prompt="the rain"), read(beam=4)):
        assert other != plain
    mixed = read("en de " * 4)
    assert mixed[::2] == plain[::2] and mixed[1::2] == read(german)[1::2]


def test_what_has_problems_is_drawn_again_and_the_rest_stands(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit lies between the lengths of eight texts, so that some are decoded again."""
    tokenizer, asked = system.tokenizer, ask(system)
    first, past_text = decode(system, asked, GREEDY), units_of(tokenizer).special.first
    lengths = sorted(sum(id < past_text for id in reading.tokens) for reading in first)
    limit = lengths[len(lengths) // 2] / (20 * 0.02)
    monkeypatch.setattr(limits, "MAX_TOKENS_PER_SECOND", limit)
    checks = ChecksConfig(max_compression=None, min_log_probability=None, max_no_speech=None)
    doubted = decode(system, asked, GREEDY, checks)
    is_rejected = [bool(reading.warnings) for reading in doubted]
    assert any(is_rejected) and not all(is_rejected)
    assert all("greedy at temperature 0: " in reading.warnings[0] for reading in doubted if reading.warnings)
    again = GREEDY.model_copy(update={"temperatures": (0.9, 2.0)})
    found = decode(system, asked, again, checks)
    for before, after, broken in zip(first, found, is_rejected, strict=True):
        assert broken or after == before
    better = [one for one, broken in zip(found, is_rejected, strict=True) if broken and not one.warnings]

    def is_fine(tokens: tuple[int, ...]) -> bool:
        ids = tuple(id for id in tokens if id < past_text)
        return not limits.find_problems(
            limits.Evidence(limits.Hypothesis(ids, 0.0), tokenizer.decode(ids), 0.4, 0.02), checks
        )

    few = [[is_fine(one.tokens) for one in own] for own in sample(asked, GREEDY, None, 0.9)]
    # The likeliest has problems and another has none: no higher temperature is tried.
    chosen = [found[row] for row, own in enumerate(few) if is_rejected[row] and any(own) and not own[0]]
    assert chosen and all(one.temperature == 0.9 and not one.warnings for one in chosen)
    assert better and all(one.method == "sampling" and (one.temperature or 0) > 0 for one in better)
    assert found == decode(system, asked, again, checks)


def test_silence_is_dropped_only_where_the_text_is_unlikely_too(system: System) -> None:
    asked = ask(system)

    def read(max_no_speech: float | None, min_log_probability: float) -> list[DecodedUtterance]:
        changes = {"max_no_speech": max_no_speech, "min_log_probability": min_log_probability}
        return decode(system, asked, GREEDY, ChecksConfig.off().model_copy(update=changes))

    dropped = read(1e-30, -1e-12)
    for reading in dropped:
        assert reading.tokens == () and reading.method == ""
    assert any("no speech: " in warning for reading in dropped for warning in reading.warnings)
    assert all(reading.tokens for reading in read(1e-30, -99.0))
    assert all(reading.tokens for reading in read(None, -1e-12))


def test_tokens_are_drawn_from_the_softmax_of_their_scores() -> None:
    scores_V = torch.tensor([0.5, -torch.inf, 2.0, 1.0, -torch.inf])
    chances_R = torch.arange(10_000) / 10_000
    tokens_R = draw(scores_V.expand(10_000, -1), chances_R)
    expected_V = scores_V.softmax(0)
    found_V = torch.bincount(tokens_R, minlength=5) / 10_000
    torch.testing.assert_close(found_V, expected_V, atol=2e-4, rtol=0)
    highest = torch.tensor([torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))])
    assert draw(scores_V[None], highest).tolist() == [3] and draw(scores_V[None], 0 * highest).tolist() == [0]


def find_allowed(tokens: list[int]) -> set[int]:
    """Follows the wording of the rules, token by token."""
    allowed = set(range(VOCAB_SIZE)) - set(UNITS.find_suppressed())
    if not tokens:
        allowed -= {EOS_ID, *UNITS.encode_piece(" ")}
    return allowed


@settings(max_examples=20)
@given(data=st.data())
def test_rules(data: st.DataObject) -> None:
    rules = WhisperRules.of(UNITS, torch.device("cpu"))
    seed = data.draw(st.integers(0, 1000))
    scores_RV = torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
    rows: list[list[int]] = [[], [], []]
    for _ in range(data.draw(st.integers(0, 6))):
        for row in rows:
            allowed = sorted(find_allowed(row) - {EOS_ID})
            row.append(data.draw(st.sampled_from(allowed[:80])))
    found_RV = rules.forbid(scores_RV, len(rows[0]))
    for row, found_V in zip(rows, found_RV, strict=True):
        assert set((found_V > -torch.inf).nonzero()[:, 0].tolist()) == find_allowed(row)


def score_plainly(system: System, encoded_TD: Tensor, tokens: list[int], skip: int) -> Tensor:
    """Log-probabilities of the next token; the first `skip` tokens are the prompt."""
    lengths_1 = torch.tensor([len(encoded_TD)])
    scores_V = system.model.decoder(torch.tensor([tokens]), encoded_TD[None], lengths_1)[0][0, -1].double()
    ids = torch.tensor(sorted(find_allowed(tokens[skip:])))
    kept_V = torch.full_like(scores_V, -torch.inf)
    kept_V[ids] = scores_V[ids]
    return kept_V.log_softmax(-1)


@torch.inference_mode()
@pytest.mark.parametrize("earlier", ["", "the rain in spain"])
def test_likeliest(english: System, earlier: str) -> None:
    tokenizer, encoded_BTD = english.tokenizer, encode(6)
    asked = ask(english, encoded_BTD, options={"prompt": earlier})
    found = sample(asked, GREEDY)
    before = [PAD_ID, *tokenizer.encode(earlier)] if earlier else []
    prompt = [*before, *UNITS.special.prompt("en")]
    limit = min(12, 24 - len(prompt))
    for encoded_TD, (said,) in zip(encoded_BTD, found, strict=True):
        tokens, total = list(prompt), 0.0
        while len(tokens) < len(prompt) + limit:
            scores_V = score_plainly(english, encoded_TD, tokens, len(prompt))
            best = int(scores_V.argmax())
            total += float(scores_V[best])
            if best == EOS_ID:
                break
            tokens.append(best)
        assert list(said.tokens) == tokens[len(prompt) :]
        assert said.mean == said.score == pytest.approx(total / (len(said.tokens) + 1), abs=1e-4)
    assert len({len(said.tokens) for (said,) in found}) > 2


@torch.inference_mode()
def search_plainly(
    system: System, encoded_TD: Tensor, beam: int, limit: int
) -> list[tuple[float, tuple[int, ...]]]:
    """All texts that ended, from the best to the worst."""
    prompt, end = UNITS.special.prompt("en"), EOS_ID
    running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, limit + 2):
        grown = []
        for total, tokens in running:
            scores = score_plainly(system, encoded_TD, [*prompt, *tokens], len(prompt)).tolist()
            grown += [(total + score, (*tokens, token)) for token, score in enumerate(scores)]
        grown.sort(key=lambda one: -one[0])
        running = [one for one in grown if one[1][-1] != end][:beam]
        worst = running[-1][0] if length <= limit else -torch.inf
        ended += [
            (total / length, tokens[:-1]) for total, tokens in grown if tokens[-1] == end and total > worst
        ]
        if len(ended) >= beam:
            break
    return sorted(ended, reverse=True)


@pytest.fixture
def short(english: System, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    """The system, limited to texts of at most seven tokens."""
    monkeypatch.setattr(english.model, "limit_tokens", lambda lengths_B: torch.full_like(lengths_B, 7))
    yield english


@pytest.mark.parametrize("beam", [1, 3])
def test_beam(short: System, beam: int) -> None:
    """Also the n best texts, which begin with the best one."""
    encoded_BTD = encode(4)
    asked = ask(short, encoded_BTD)
    found = search_encoded(asked, DecodingConfig(beam=beam, nbest=beam))
    for own, encoded_TD in zip(found, encoded_BTD, strict=True):
        expected = search_plainly(short, encoded_TD, beam, 7)[:beam]
        assert [one.tokens for one in own] == [tokens for _, tokens in expected]
        assert [one.score for one in own] == pytest.approx([mean for mean, _ in expected], abs=1e-4)
    greedy = [own[0].tokens for own in sample(asked, GREEDY)]
    assert (greedy == [own[0].tokens for own in found]) == (beam == 1)


def test_what_is_drawn_depends_on_the_seed_alone(system: System) -> None:
    encoded_BTD, config = encode(6), DecodingConfig(samples=3)

    def draw(rows_BTD: Tensor, seed: int) -> list[list[tuple[int, ...]]]:
        found = sample(ask(system, rows_BTD), config, None, 0.9, seed=seed)
        assert all(own == sorted(own, key=lambda one: -one.mean) for own in found)
        return [[one.tokens for one in own] for own in found]

    together = draw(encoded_BTD, 5)
    assert all(len(set(own)) > 1 for own in together)
    assert together == [draw(encoded_TD[None], 5)[0] for encoded_TD in encoded_BTD]
    assert together != draw(encoded_BTD, 6)


@pytest.mark.parametrize(("max_repeats", "expected"), [(4, 24), (20, 64), (None, 200)])
def test_a_loop_ends_when_the_checks_are_sure_to_refuse_it(
    max_repeats: int | None, expected: int, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two rows repeats three tokens for ever; no check objects to the other."""
    lines = [[6 + place % 3 for place in range(300)], [*range(6, 76), EOS_ID]]
    if expected < 70:  # the other row continues alone
        lines[0], lines[1] = lines[1], lines[0]
    places = iter(range(300))

    def step(tokens_R1: Tensor, state: Any) -> tuple[Tensor, dict[int, Tensor]]:
        place, rows = next(places), [0, 1] if len(tokens_R1) == 2 else [0]
        return 9.0 * one_hot(torch.tensor([lines[row][place] for row in rows]), VOCAB_SIZE)[:, None], {}

    decoder, model = system.model.decoder, system.model
    state: Any = SimpleNamespace(select_utterances=lambda kept_B: None, select_beams=lambda kept_R: None)
    monkeypatch.setattr(decoder, "step", step)
    monkeypatch.setattr(decoder, "start", lambda *encoded: state)
    monkeypatch.setattr(decoder, "max_tokens", 300)
    monkeypatch.setattr(model, "limit_tokens", lambda lengths_B: torch.full_like(lengths_B, 200))
    asked = EncodedAudio(model, encode(2), torch.full((2,), 20))
    found: list[list[Hypothesis]] = sample(asked, GREEDY, max_repeats=max_repeats)
    assert sorted(len(text.tokens) for (text,) in found) == sorted([expected, 70])


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
def test_no_speech_is_told_after_the_start(system: System) -> None:
    encoded_BTD = encode(3)
    start_B1 = torch.full((3, 1), SOS_ID)
    scores_B1V, _ = system.model.decoder(start_B1, encoded_BTD, torch.full((3,), 20))
    expected_B = scores_B1V[:, 0].softmax(-1)[:, BLANK_ID]
    asked = ask(system, encoded_BTD, options={"prompt": "rain"})
    torch.testing.assert_close(read_prompts(asked).no_speech_B, expected_B)
    for found in (sample(asked, GREEDY), search_encoded(asked, DecodingConfig(beam=2))):
        assert [own[0].no_speech for own in found] == pytest.approx(expected_B.tolist(), abs=1e-5)
