"""asr/research/labels.py: labels of recordings, labels at each time, and invalid fields."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from asr.data import Utterance
from asr.errors import UserError
from asr.research.labels import SILENCE, FrameLabels, RecordingLabels, encode_labels, read_spans
from asr.text.normalization import TextConfig
from asr.text.tokenizer import SPECIAL_TOKENS, UNK_ID, Tokenizer, TokenizerConfig

NO_TIMES = np.empty(0)


def make_utterance(**fields: object) -> Utterance:
    return Utterance.model_validate({"id": "u1", "audio": "a.wav", "duration": 2.0} | fields)


def make_timed(times: str) -> Utterance:
    return make_utterance(extras={"word_times": times})


@pytest.mark.parametrize(
    ("field", "fields", "label"),
    [
        ("speaker", {"speaker": "Ann Lee"}, "Ann Lee"),
        ("language", {"language": "de"}, "de"),
        ("extras.gender", {"extras": {"gender": "f"}}, "f"),
        ("extras.age", {"extras": {"age": 7}}, "7"),
        ("extras.is_noisy", {"extras": {"is_noisy": False}}, "False"),
        ("extras.a.b", {"extras": {"a.b": "dotted"}}, "dotted"),
        ("text", {"text": "  Twenty   TWO "}, "TWENTY TWO"),
    ],
)
def test_label_from_a_field(field: str, fields: dict[str, object], label: str) -> None:
    """Texts are normalized as for training; other fields are used unchanged."""
    labels = RecordingLabels(field, TextConfig(training=("uppercase", "collapse_spaces")))
    assert labels.names(make_utterance(**fields)) == labels.at(make_utterance(**fields), NO_TIMES) == [label]


@pytest.mark.parametrize(
    ("field", "fields", "message"),
    [
        ("speaker", {}, "utterance u1 has no speaker"),
        ("extras.gender", {"extras": {"sex": "f"}}, "utterance u1 has no extras.gender"),
        ("extras.gender", {"extras": {"gender": None}}, "set model.label to another field"),
        ("text", {"text": "  "}, "text is empty"),
        ("extras.gender", {"extras": {"gender": ""}}, "extras.gender is empty"),
    ],
)
def test_no_label(field: str, fields: dict[str, object], message: str) -> None:
    labels = RecordingLabels(field, TextConfig(training=("collapse_spaces",)))
    with pytest.raises(UserError, match=message):
        labels.names(make_utterance(**fields))


moments = st.lists(st.integers(0, 300), min_size=0, max_size=12).map(sorted)


@given(moments, st.lists(st.integers(-20, 400), max_size=30))
def test_label_at_a_time(edges: list[int], times: list[int]) -> None:
    """Equals a search through all spans, which may touch or be empty."""
    stretches = [
        (f"w{number % 3}", edges[2 * number] / 100, edges[2 * number + 1] / 100)
        for number in range(len(edges) // 2)
    ]
    expected = []
    for time in times:
        covering = [label for label, begin, end in stretches if begin <= time / 100 < end]
        assert len(covering) <= 1
        expected.append(covering[0] if covering else SILENCE)
    utterance = make_timed(" ".join(f"{label}:{begin:.4f}-{end:.4f}" for label, begin, end in stretches))
    assert FrameLabels("extras.word_times").at(utterance, np.array(times) / 100) == expected
    assert FrameLabels("extras.word_times").names(utterance) == [
        SILENCE,
        *(label for label, _, _ in stretches),
    ]


def test_labels_as_a_recipe_writes_them() -> None:
    found = read_spans(make_timed("TWO:0.1060-0.4364 a:b:1-2"), "extras.word_times")
    assert found.labels == ("TWO", "a:b")
    assert found.begins_K.tolist() == [0.106, 1.0] and found.ends_K.tolist() == [0.4364, 2.0]
    assert read_spans(make_timed(""), "extras.word_times").labels == ()


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ("TWO", "'TWO'; expected LABEL:BEGIN-END in seconds, as SIX:0.25-0.5"),
        ("TWO:1-x", "expected LABEL:BEGIN-END"),
        ("TWO:-1-2", "expected LABEL:BEGIN-END"),
        ("TWO:1.0-0.5", "ends before it begins"),
        (
            "TWO:0.1-0.5 SIX:0.4-0.9",
            "'SIX:0.4-0.9' ends before it begins, or begins before the previous span ends",
        ),
    ],
)
def test_invalid_times_are_refused(times: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_spans(make_timed(times), "extras.word_times")
    assert str(caught.value).startswith("utterance u1, extras.word_times: ")


def test_each_label_is_a_token() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type="labels"), ["Ann Lee", "Bo", "Ann Lee"])
    assert tokenizer.tokens == (*SPECIAL_TOKENS, "Ann Lee", "Bo")
    first = len(SPECIAL_TOKENS)
    assert encode_labels(["Bo", "Ann Lee", "Cy", "Bo"], tokenizer) == [first + 1, first, UNK_ID, first + 1]
    assert tokenizer.decode([first]) == "Ann Lee"


def test_a_tokenizer_of_labels_is_stored(tmp_path: object) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type="labels"), ["Ann Lee", "Bo\tX", "a <eos>"])
    path = f"{tmp_path}/tokenizer.json"
    tokenizer.save(path)
    assert Tokenizer.load(path) == tokenizer
