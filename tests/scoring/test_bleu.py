"""asr/scoring/result.py: parts of a corpus add up to what sacrebleu says of the whole."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asr.scoring import NUM_COUNTS, compute_bleu, count_bleu

sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is missing; pip install sacrebleu")

sentences = st.lists(st.sampled_from(["one", "two", "three"]), max_size=7).map(" ".join)


@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=6), st.integers(0, 6))
def test_parts_add_up(pairs: list[tuple[str, str]], cut: int) -> None:
    parts = [count_bleu(pairs[:cut]), count_bleu(pairs[cut:])]
    assert [len(part) for part in parts] == [NUM_COUNTS] * 2
    summed = [float(left + right) for left, right in zip(*parts, strict=True)]
    references, hypotheses = zip(*pairs, strict=True)
    whole = sacrebleu.corpus_bleu(list(hypotheses), [list(references)]).score
    assert compute_bleu(summed) == pytest.approx(whole)


@given(st.lists(st.tuples(st.lists(sentences, min_size=1, max_size=4), sentences), min_size=1, max_size=6))
def test_several_references(pairs: list[tuple[list[str], str]]) -> None:
    pairs = [(texts * 4, hypothesis) for texts, hypothesis in pairs]
    streams = [[texts[number] for texts, _ in pairs] for number in range(4)]
    whole = sacrebleu.corpus_bleu([hypothesis for _, hypothesis in pairs], streams).score
    assert compute_bleu(count_bleu(pairs)) == pytest.approx(whole)
    fewer = [(texts[:1] if number else texts, own) for number, (texts, own) in enumerate(pairs)]
    streams = [[texts[n] if n < len(texts) else None for texts, _ in fewer] for n in range(len(pairs[0][0]))]
    whole = sacrebleu.corpus_bleu([hypothesis for _, hypothesis in fewer], streams).score
    assert compute_bleu(count_bleu(fewer)) == pytest.approx(whole)
