"""Decoding of windows: prompts, languages, silence, another try where a text has faults; and the searches of a
batch, against plain loops that compute everything again at each step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn.functional import one_hot
from whisper_examples import VOCABULARY
from whisper_systems import build_system

from asr.decoding import ChecksConfig, count_repeats, hypothesis as limits
from asr.errors import UserError
from asr.whisper import (
    LOOP,
    Beginning,
    EncodedSteps,
    EncodedWindows,
    Rules,
    WhisperDecodingConfig,
    WhisperSystem,
    WhisperTokenizer,
    begin,
    build_prompts,
    decode_windows,
    detect_languages,
    draw,
    encode_context,
    is_loop,
    sample,
    search,
)

TOKENIZER = WhisperTokenizer(VOCABULARY, 99, True)


@pytest.fixture(scope="module")
def system() -> WhisperSystem:
    return build_system(True)


def ask(count: int = 8, languages: list[str] | None = None) -> EncodedWindows:
    encoded_BTD = torch.randn(count, 20, 32, generator=torch.Generator().manual_seed(1))
    audio = EncodedSteps(encoded_BTD, torch.full((count,), 20))
    return EncodedWindows(audio, [(code, None) for code in languages or ["en"] * count])


def test_prompts_hold_hotwords_then_the_prompt(system: WhisperSystem) -> None:
    tokenizer = system.tokenizer
    config = WhisperDecodingConfig(prompt=" the plain ", hotwords=("rain", "spain"), task="translate")
    told = [*tokenizer.encode(" rain, spain"), *tokenizer.encode(" the plain")]
    asked = ask(2, ["de", "en"])
    for language, prompt in zip(("de", "en"), build_prompts(tokenizer, asked, config, 448), strict=True):
        expected = tokenizer.prompt(language, "translate")
        assert prompt == [tokenizer.start_of_previous, *told, *expected]
    assert build_prompts(tokenizer, ask(1), WhisperDecodingConfig(), 448) == [tokenizer.prompt("en")]


@pytest.mark.parametrize("max_tokens", [448, 64])
def test_all_that_is_told_is_read_or_refused(max_tokens: int, system: WhisperSystem) -> None:
    """Each of them alone would fit; a half of the positions, less the start, is for both."""
    tokenizer, room = system.tokenizer, max_tokens // 2 - 1
    words = ("rain",) * (room // 5)
    left = room - len(tokenizer.encode(" " + ", ".join(words)))
    assert 0 < left < room and len(tokenizer.encode(" the")) == 1
    fits = WhisperDecodingConfig(hotwords=words, prompt=" the" * left)
    told = tokenizer.encode(" " + ", ".join(words)) + tokenizer.encode(" the" * left)
    (prompt,) = build_prompts(tokenizer, ask(1), fits, max_tokens)
    assert prompt[1:-4] == told == encode_context(tokenizer, fits, max_tokens) and len(told) == room
    over = WhisperDecodingConfig(hotwords=words, prompt=" the" * (left + 1))
    with pytest.raises(UserError, match=rf"{room - left} tokens .* has {left + 1}, .* reads {room} in all"):
        encode_context(tokenizer, over, max_tokens)


@torch.inference_mode()
def test_languages(system: WhisperSystem) -> None:
    audio, tokenizer = ask().audio, system.tokenizer
    found = detect_languages(system.model, tokenizer, audio)
    scores_BV = system.model.decoder(torch.full((8, 1), tokenizer.start), *audio[:2])[0][:, 0]
    for (language, _), scores_V in zip(found, scores_BV, strict=True):
        ids = tokenizer.languages
        assert language == max(ids, key=lambda code: float(scores_V[ids[code]]))
    assert len({language for language, _ in found}) > 1
    english = build_system(False)
    assert detect_languages(english.model, english.tokenizer, audio) == [("en", 1.0)] * 8


def test_texts_depend_on_language_task_prompt_and_beam(system: WhisperSystem) -> None:
    def read(languages: list[str] | None = None, **options: Any) -> list[str]:
        config = WhisperDecodingConfig(temperatures=(), max_no_speech=None, **options)
        readings = decode_windows(
            system.model, system.tokenizer, ask(8, languages), config, ChecksConfig.off()
        )
        assert {reading.decoding for reading in readings} == {"beam" if options.get("beam") else "greedy"}
        return [reading.text for reading in readings]

    plain = read()
    for other in (read(["de"] * 8), read(task="translate"), read(prompt="the rain"), read(beam=4)):
        assert other != plain
    mixed = read(["en", "de"] * 4)
    assert mixed[::2] == plain[::2] and mixed[1::2] == read(["de"] * 8)[1::2]


def test_what_has_faults_is_drawn_again_and_the_rest_stands(
    system: WhisperSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit lies between the texts of eight windows, so that some are doubted."""
    config = WhisperDecodingConfig(max_no_speech=None, temperatures=())
    tokenizer, model = system.tokenizer, system.model
    first = decode_windows(model, tokenizer, ask(), config, ChecksConfig.off())
    lengths = sorted(sum(id < tokenizer.end for id in reading.tokens) for reading in first)
    limit = lengths[len(lengths) // 2] / (20 * 0.02)
    monkeypatch.setattr(limits, "MAX_TOKENS_PER_SECOND", limit)
    checks = ChecksConfig(max_compression=None, min_log_probability=None)
    doubted = decode_windows(model, tokenizer, ask(), config, checks)
    is_faulty = [bool(reading.warnings) for reading in doubted]
    assert any(is_faulty) and not all(is_faulty)
    assert all("greedy at temperature 0: " in reading.warnings[0] for reading in doubted if reading.warnings)
    again = config.model_copy(update={"temperatures": (0.9, 2.0)})
    found = decode_windows(model, tokenizer, ask(), again, checks)
    for before, after, faulty in zip(first, found, is_faulty, strict=True):
        assert faulty or after == before
    better = [one for one, faulty in zip(found, is_faulty, strict=True) if faulty and not one.warnings]

    def is_fine(tokens: tuple[int, ...]) -> bool:
        ids = tuple(id for id in tokens if id < tokenizer.end)
        return not limits.find_faults(
            limits.Evidence(limits.Hypothesis(ids, 0.0), tokenizer.decode(ids), 0.4, 0.02), checks
        )

    drawn = sample(*start(system, ask().audio.encoded_BTD), 0.9, config.samples)
    few = [[is_fine(tokens) for tokens, _ in own] for own in drawn]
    # The likeliest has faults and another has none: no higher temperature is tried.
    chosen = [found[row] for row, own in enumerate(few) if is_faulty[row] and any(own) and not own[0]]
    assert chosen and all(one.temperature == 0.9 and not one.warnings for one in chosen)
    assert better and all(one.decoding == "sampling" and one.temperature > 0 for one in better)
    assert found == decode_windows(model, tokenizer, ask(), again, checks)


def test_silence_is_dropped_only_where_the_text_is_unlikely_too(system: WhisperSystem) -> None:
    certain = WhisperDecodingConfig(max_no_speech=1e-30, temperatures=())
    doubtful = ChecksConfig.off().model_copy(update={"min_log_probability": -1e-12})
    asked = ask()
    dropped = decode_windows(system.model, system.tokenizer, asked, certain, doubtful)
    for reading in dropped:
        assert reading.tokens == () and reading.text == "" and reading.decoding == ""
    assert any("no speech: " in warning for reading in dropped for warning in reading.warnings)
    sure = ChecksConfig.off().model_copy(update={"min_log_probability": -99.0})
    readings = decode_windows(system.model, system.tokenizer, asked, certain, sure)
    assert all(reading.tokens for reading in readings)
    never = certain.model_copy(update={"max_no_speech": None})
    assert all(one.tokens for one in decode_windows(system.model, system.tokenizer, asked, never, doubtful))


def test_tokens_are_drawn_from_the_softmax_of_their_scores() -> None:
    scores_V = torch.tensor([0.5, -torch.inf, 2.0, 1.0, -torch.inf])
    chances_R = torch.arange(10_000) / 10_000
    tokens_R = draw(scores_V.expand(10_000, -1), chances_R)
    expected_V = scores_V.softmax(0)
    found_V = torch.bincount(tokens_R, minlength=5) / 10_000
    torch.testing.assert_close(found_V, expected_V, atol=2e-4, rtol=0)
    highest = torch.tensor([torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))])
    assert draw(scores_V[None], highest).tolist() == [3] and draw(scores_V[None], 0 * highest).tolist() == [0]


def encode(count: int = 6, seed: int = 1) -> Tensor:
    return torch.randn(count, 20, 32, generator=torch.Generator().manual_seed(seed))


def start(
    system: WhisperSystem, encoded_BTD: Tensor, limit: int = 12, earlier: str = ""
) -> tuple[Any, Rules, Beginning]:
    tokenizer = system.tokenizer
    before = [tokenizer.start_of_previous, *tokenizer.encode(earlier)] if earlier else []
    prompts = [[*before, *tokenizer.prompt("en")]] * len(encoded_BTD)
    audio = EncodedSteps(encoded_BTD, torch.full((len(encoded_BTD),), encoded_BTD.size(1)))
    beginning = begin(system.model, tokenizer, audio, prompts)._replace(max_tokens=limit)
    return system.model, Rules(tokenizer, torch.device("cpu")), beginning


def find_allowed(tokenizer: WhisperTokenizer, tokens: list[int]) -> set[int]:
    """By the words of the rules, token by token."""
    allowed = set(range(len(tokenizer))) - set(tokenizer.suppressed)
    if not tokens:
        allowed -= {tokenizer.end, *tokenizer.encode(" ")}
    return allowed


@settings(max_examples=20)
@given(data=st.data())
def test_rules(data: st.DataObject) -> None:
    rules = Rules(TOKENIZER, torch.device("cpu"))
    seed = data.draw(st.integers(0, 1000))
    scores_RV = torch.randn(3, len(TOKENIZER), generator=torch.Generator().manual_seed(seed))
    rows: list[list[int]] = [[], [], []]
    for _ in range(data.draw(st.integers(0, 6))):
        for row in rows:
            allowed = sorted(find_allowed(TOKENIZER, row) - {TOKENIZER.end})
            row.append(data.draw(st.sampled_from(allowed[:80])))
    found_RV = rules.apply(scores_RV, torch.tensor(rows, dtype=torch.long).view(3, -1))
    for row, found_V in zip(rows, found_RV, strict=True):
        assert set((found_V > -torch.inf).nonzero()[:, 0].tolist()) == find_allowed(TOKENIZER, row)


def score_plainly(system: WhisperSystem, encoded_TD: Tensor, tokens: list[int], skip: int) -> Tensor:
    """Log-probabilities of the token after these; the first `skip` of them are the prompt."""
    lengths_1 = torch.tensor([len(encoded_TD)])
    scores_V = system.model.decoder(torch.tensor([tokens]), encoded_TD[None], lengths_1)[0][0, -1].double()
    ids = torch.tensor(sorted(find_allowed(system.tokenizer, tokens[skip:])))
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
    for encoded_TD, [(said, mean)] in zip(encoded_BTD, found, strict=True):
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
    assert len({len(said) for [(said, _)] in found}) > 2


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
    encoded_BTD = encode(4)
    found = [tokens for tokens, _ in search(*start(system, encoded_BTD, 7), beam)]
    assert found == [search_plainly(system, encoded_TD, beam, 7) for encoded_TD in encoded_BTD]
    greedy = [tokens for [(tokens, _)] in sample(*start(system, encoded_BTD, 7))]
    assert (greedy == found) == (beam == 1)


def test_what_is_drawn_depends_on_the_seed_alone(system: WhisperSystem) -> None:
    encoded_BTD = encode()

    def draw(rows_BTD: Tensor, seed: int) -> list[list[tuple[int, ...]]]:
        found = sample(*start(system, rows_BTD), 0.9, 3, seed=seed)
        assert all(list(own) == sorted(own, key=lambda one: -one[1]) for own in found)
        return [[tokens for tokens, _ in own] for own in found]

    together = draw(encoded_BTD, 5)
    assert all(len(set(own)) > 1 for own in together)
    assert together == [draw(encoded_TD[None], 5)[0] for encoded_TD in encoded_BTD]
    assert together != draw(encoded_BTD, 6)


@pytest.mark.parametrize(("max_repeats", "expected"), [(4, 24), (20, 64), (None, 200)])
def test_a_loop_ends_when_the_checks_are_sure_to_refuse_it(max_repeats: int | None, expected: int) -> None:
    """Of two rows one goes round three tokens for ever, and one says what no check minds."""
    size, end = len(TOKENIZER), TOKENIZER.end
    lines = [[1 + place % 3 for place in range(300)], [*range(1, 71), end]]
    places = iter(range(300))

    def score(count: int) -> Tensor:
        place, rows = next(places), [0, 1] if count == 2 else [0]
        return 9.0 * one_hot(torch.tensor([lines[row][place] for row in rows]), size)

    decoder = SimpleNamespace(step=lambda tokens_R1, state: (score(len(tokens_R1))[:, None], {}))
    state: Any = SimpleNamespace(select_utterances=lambda kept_B: None, select_beams=lambda kept_R: None)
    rules: Any = SimpleNamespace(end=end, apply=lambda scores_RV, tokens_RU: scores_RV)
    model: Any = SimpleNamespace(decoder=decoder)
    begun = Beginning(state, score(2), torch.zeros(2), 200)
    if expected < 70:  # the other row continues alone
        lines[0], lines[1] = lines[1], lines[0]
    found = sample(model, rules, begun, max_repeats=max_repeats)
    assert sorted(len(tokens) for [(tokens, _)] in found) == sorted([expected, 70])


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
