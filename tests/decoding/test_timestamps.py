"""asr/decoding/timestamps: times fit the layers, paths are the best ones, words begin and end where they sound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from model_examples import NUM_FEATURES, build_example, make_utterances
from whisper_examples import VOCAB_SIZE, VOCABULARY

from asr.decoding.timestamps import align_by_attention, align_by_ctc, warp
from asr.decoding.word_spans import TokenTime, find_ends, has_spaces, split_words, time_words
from asr.features.filters import FeaturesConfig, FrameTimes
from asr.features.front_end import FrontEnd
from asr.models.encoders import make_frame_times
from asr.text.tokenizer import BLANK_ID, SOS_ID, SPECIAL_TOKENS, UNK_ID, Tokenizer, TokenizerConfig
from asr.whisper import make_tokenizer

FIRST = len(SPECIAL_TOKENS)


@pytest.mark.parametrize("convention", ["kaldi", "whisper"])
@pytest.mark.parametrize(
    "name", ["transformer-ctc", "transformer-attention", "transformer-window", "lstm-ctc"]
)
def test_clock_is_the_middle_of_what_a_step_sees(name: str, convention: str) -> None:
    """The samples that change a step, before any attention: their middle is when the step is."""
    torch.manual_seed(0)
    model = build_example(name)
    config = FeaturesConfig(convention=convention, num_mels=NUM_FEATURES, cmvn="none")  # type: ignore[arg-type]
    front_end = FrontEnd(config)
    places = range(4_000, 12_000, 40)
    with torch.no_grad():
        audio_BS = 0.1 * torch.randn(16_000).repeat(1 + len(places), 1)  # the first one stays as it is
        for row, place in enumerate(places, 1):
            audio_BS[row, place : place + 40] += 0.3
        features_BTF, lengths_B = front_end(audio_BS, torch.full((len(audio_BS),), 16_000))
        x_BTD, _ = model.encoder.subsampling(features_BTF, lengths_B)
        step = x_BTD.size(1) // 2
        # Whisper's loudest band and floor reach everywhere; a change of any weight counts, a shift does not.
        is_changed_B = (x_BTD[1:, step] - x_BTD[0, step]).abs().amax(1) > 1e-3
        changed = [place for place, is_changed in zip(places, is_changed_B, strict=True) if is_changed]
        middle = (changed[0] + changed[-1] + 40) / 2 / 16_000
    assert make_frame_times(config, model.encoder).time(step) == pytest.approx(middle, abs=0.006)


@given(
    st.integers(1, 4).flatmap(
        lambda tokens: st.integers(tokens, 7).flatmap(
            lambda steps: st.lists(
                st.lists(st.floats(0.01, 1.0), min_size=steps, max_size=steps),
                min_size=tokens,
                max_size=tokens,
            )
        )
    )
)
def test_warping_finds_the_best_path(rows: list[list[float]]) -> None:
    weights_UT = np.array(rows)
    num_tokens, num_steps = weights_UT.shape

    def gain(edges: tuple[int, ...]) -> float:
        return sum(
            np.log(weights_UT[u, a:b] + 1e-8).sum() for u, (a, b) in enumerate(itertools.pairwise(edges))
        )

    inner = itertools.combinations(range(1, num_steps), num_tokens - 1)
    best = max(gain((0, *edges, num_steps)) for edges in inner)
    firsts, pasts = warp(weights_UT)
    assert firsts[0] == 0 and pasts[-1] == num_steps and firsts[1:] == pasts[:-1]
    assert gain((*firsts, num_steps)) == pytest.approx(best)


def test_warping_with_too_few_steps_is_a_line() -> None:
    assert warp(np.ones((4, 2))) == ([0, 0, 1, 1], [0, 1, 1, 2])
    assert warp(np.ones((0, 5))) == ([], [])


def test_ctc_tells_step_and_probability() -> None:
    """Two utterances, of 6 and 4 steps; the tokens stand where their posterior is high."""
    a, b = FIRST, FIRST + 1
    probabilities_BTV = torch.full((2, 6, FIRST + 2), 0.01)
    for row, path in enumerate(([BLANK_ID, a, a, BLANK_ID, b, BLANK_ID], [a, BLANK_ID, a, BLANK_ID, 1, 1])):
        for step, token in enumerate(path):
            probabilities_BTV[row, step, token] = 0.6 if step == 1 else 0.8
    scores_BTV = probabilities_BTV.log()
    first, second = align_by_ctc(scores_BTV, torch.tensor([6, 4]), [[a, b], [a, a]])
    assert [(time.first, time.last) for time in first] == [(1, 2), (4, 4)]
    assert [time.probability for time in first] == pytest.approx([0.8, 0.8])
    assert [(time.first, time.last) for time in second] == [(0, 0), (2, 2)]
    assert align_by_ctc(scores_BTV, torch.tensor([6, 4]), [[], [a]])[0] == []


@torch.inference_mode()
def test_attention_gives_each_token_a_step_in_order_whatever_the_company() -> None:
    """And the probability that it has after those before."""
    model = build_example("transformer-attention")
    utterances = make_utterances([80, 48], [6, 3])
    encoded_BTD, lengths_B = model.encode(utterances.features_BTF, utterances.feature_lengths_B)
    tokens = utterances.references()
    for row, times in enumerate(align_by_attention(model, encoded_BTD, lengths_B, tokens)):
        steps = [time.first for time in times]
        assert steps == sorted(steps) and max(steps) < lengths_B[row] and len(times) == len(tokens[row])
        alone = encoded_BTD[row : row + 1, : lengths_B[row]], lengths_B[row : row + 1]
        (again,) = align_by_attention(model, *alone, [tokens[row]])
        assert [time.first for time in again] == steps
        state = model.decoder.start(*alone)
        for before, token, time in zip([SOS_ID, *tokens[row][:-1]], tokens[row], times, strict=True):
            scores_BNV = model.decoder.step(torch.tensor([[before]]), state)[0]
            assert time.probability == pytest.approx(float(scores_BNV[0, -1].softmax(-1)[token]), rel=1e-4)


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings_", [{"type": "characters"}, {"type": "words"}, {"type": "bpe", "vocab_size": 22}]
)
@pytest.mark.parametrize("text", ["ONE TWO ONE", "TEN", "", "NET TWO"])
def test_words_and_their_tokens(settings_: dict[str, object], text: str) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(**settings_), ["ONE TWO TEN", "NET TWO ONE"])  # type: ignore[arg-type]
    ids = tokenizer.encode(text)
    spans = split_words(tokenizer, ids)
    assert [span.text for span in spans] == text.split()
    for span in spans:
        assert tokenizer.decode(ids[span.first : span.past]).strip() == span.text
    assert all(before.past <= after.first for before, after in itertools.pairwise(spans))


UNITS = {
    "characters": Tokenizer.train(TokenizerConfig(), ["AB C"]),
    "words": Tokenizer.train(TokenizerConfig(type="words"), ["A BC"]),
    "bpe": Tokenizer.train(TokenizerConfig(type="bpe", vocab_size=12), ["ABC AB", "BC A"]),
    "whisper": make_tokenizer(VOCABULARY, VOCAB_SIZE),
}


@pytest.mark.parametrize("kind", UNITS)
@given(data=st.data())
def test_a_token_ends_where_the_text_of_all_up_to_it_does(kind: str, data: st.DataObject) -> None:
    """Of type whisper, where characters fall into bytes, and bytes may be no character."""
    tokenizer = UNITS[kind]
    ids = st.integers(UNK_ID, len(tokenizer) - 1)
    if kind == "whisper":  # tokens of time and language are no text
        ids = st.one_of(
            st.integers(FIRST, FIRST + len(VOCABULARY) - 1), st.sampled_from(tokenizer.encode("日é😀"))
        )
    tokens = data.draw(st.lists(ids, max_size=12))
    expected = [len(tokenizer.decode(tokens[: count + 1])) for count in range(len(tokens))]
    assert find_ends(tokenizer, tokens) == expected


def test_long_texts_fall_into_words_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, read = UNITS["characters"], []
    decode = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids: (read.append(len(ids)), decode(ids))[1])
    tokens = tokenizer.encode("AB CA " * 500)
    assert len(split_words(tokenizer, tokens)) == 1000
    assert sum(read) < 20 * len(tokens)


def test_scripts_without_spaces_have_a_word_for_each_character() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type="characters"), ["你好世界"])
    assert not has_spaces(tokenizer)
    assert [span.text for span in split_words(tokenizer, tokenizer.encode("世界好"))] == ["世", "界", "好"]


def test_words_take_their_edges_from_the_sound() -> None:
    """Bursts at 0.5-0.9 and 1.3-1.6 s; CTC saw their tokens only somewhere inside."""
    rate = 16_000
    audio_S = 0.001 * np.random.default_rng(0).standard_normal(2 * rate).astype(np.float32)
    for start, end in ((0.5, 0.9), (1.3, 1.6)):
        audio_S[int(start * rate) : int(end * rate)] += 0.2 * np.random.default_rng(1).standard_normal(
            int(end * rate) - int(start * rate)
        ).astype(np.float32)
    tokenizer = Tokenizer.train(TokenizerConfig(type="characters"), ["AB CD"])
    times = [
        TokenTime(15, 15, 0.9),
        TokenTime(16, 16, 0.4),
        TokenTime(20, 20, 1.0),
        *[TokenTime(36, 36, 0.25)] * 2,
    ]
    spans = split_words(tokenizer, tokenizer.encode("AB CD"))
    words = time_words(spans, times, FrameTimes(0.0125, 0.04), audio_S, rate)
    assert [word.text for word in words] == ["AB", "CD"]
    assert [(word.start, word.end) for word in words] == [
        (pytest.approx(0.5, abs=0.011), pytest.approx(0.9, abs=0.011)),
        (pytest.approx(1.3, abs=0.011), pytest.approx(1.6, abs=0.011)),
    ]
    assert [word.confidence for word in words] == pytest.approx([0.6, 0.25])
    assert time_words([], [], FrameTimes(0.0, 0.04), audio_S, rate) == []


@given(st.lists(st.integers(0, 60), min_size=3, max_size=3), st.integers(0, 20_000))
@example([1, 1, 1], 960)  # two words within one frame
def test_word_times_are_sane_whatever_the_steps(steps: list[int], num_samples: int) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type="characters"), ["A B"])
    audio_S = np.random.default_rng(0).standard_normal(num_samples).astype(np.float32)
    times = [TokenTime(step, step, 0.5) for step in sorted(steps)]
    spans = split_words(tokenizer, tokenizer.encode("A B"))
    words = time_words(spans, times, FrameTimes(0.0125, 0.04), audio_S, 16_000)
    edges = [edge for word in words for edge in (word.start, word.end)]
    assert edges == sorted(edges) and edges[0] >= 0 and edges[-1] <= num_samples / 16_000 + 0.011
