"""Score.bleu: what sacrebleu says of the corpus."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asr.scoring.counting import score

sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is missing; pip install sacrebleu")

sentences = st.lists(st.sampled_from(["one", "two", "three"]), min_size=1, max_size=7).map(" ".join)
texts = st.tuples(st.lists(sentences, min_size=1, max_size=4), sentences)


@given(st.lists(texts, min_size=1, max_size=6))
def test_references_of_each_number(rows: list[tuple[list[str], str]]) -> None:
    references = {str(number): own[0] for number, (own, _) in enumerate(rows)}
    others = {str(number): own[1:] for number, (own, _) in enumerate(rows)}
    hypotheses = {str(number): hypothesis for number, (_, hypothesis) in enumerate(rows)}
    most = max(len(own) for own, _ in rows)
    streams = [[own[n] if n < len(own) else None for own, _ in rows] for n in range(most)]
    whole = sacrebleu.corpus_bleu([hypothesis for _, hypothesis in rows], streams).score
    found = score(references, hypotheses, alternatives=others, resamples=0)
    assert found.bleu() == pytest.approx(whole)
