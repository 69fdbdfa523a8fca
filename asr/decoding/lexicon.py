"""CTC beam search that says known words only, by flashlight-text behind torchaudio's `ctc_decoder`.

Words may be weighed by n-grams of words in an ARPA file. Spelled in characters, each word ends with a space.
"""

from __future__ import annotations

import importlib
import logging
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.decoding.hypothesis import DecodingConfig, Hypothesis
from asr.errors import UserError
from asr.tokenizer import BLANK_ID, UNK_ID, Tokenizer

logger = logging.getLogger(__name__)

# B batch, T encoded steps, V vocabulary

IMPOSSIBLE = -1e9  # a log-probability; infinity would make differences of two such scores undefined
SPACE = " "


class LexiconDecoder:
    """Ranks texts by the likeliest alignment of their tokens, plus what n-grams say of their words.

    Of the config it takes beam, nbest, language_model_weight (of natural logarithms), and length_bonus, which
    is here for each word. `words` are spelled as the training texts are; one without tokens is left out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        words: Iterable[str],
        config: DecodingConfig,
        ngrams: str | Path | None = None,
    ) -> None:
        build = _import_ctc_decoder()
        if ngrams is not None and not Path(ngrams).is_file():
            raise UserError(f"{ngrams}: no such file; expected n-grams of words in an ARPA file")
        self._tokenizer = tokenizer
        has_spaces = tokenizer.type == "characters" and SPACE in tokenizer.tokens
        self._space_id = tokenizer.tokens.index(SPACE) if has_spaces else None
        # The file of flashlight-text separates by white space: tokens get names that hold none.
        names = [f"token{id}" for id in range(len(tokenizer))]
        with tempfile.TemporaryDirectory() as folder:
            lexicon = Path(folder) / "lexicon.txt"
            lexicon.write_text("".join(self._spell_all(words, names)), encoding="utf-8")
            try:
                self._decoder = build(
                    lexicon=str(lexicon),
                    tokens=names,
                    lm=None if ngrams is None else str(ngrams),
                    nbest=config.beam,  # several of them may be the same words
                    beam_size=config.beam,
                    lm_weight=config.language_model_weight * math.log(10),  # the file's are of base 10
                    word_score=config.length_bonus,
                    blank_token=names[BLANK_ID],
                    sil_token=names[BLANK_ID if self._space_id is None else self._space_id],
                )
            except RuntimeError as error:
                raise UserError(f"{ngrams}: not readable as n-grams of words ({error})") from None
        self._nbest = config.nbest

    def decode(self, log_probabilities_BTV: Tensor, lengths_B: Tensor) -> list[list[Hypothesis]]:
        """Up to `nbest` for each utterance, best first; the empty text where no word fits its steps."""
        scores_BTV = log_probabilities_BTV.detach().float().cpu()
        lengths_B = lengths_B.cpu()
        if self._space_id is not None:  # one step more, in which the last word may end
            scores_BTV = torch.cat(
                [scores_BTV, scores_BTV.new_full((len(scores_BTV), 1, scores_BTV.size(2)), 0)], 1
            )
            last_BV = scores_BTV.new_full((len(scores_BTV), scores_BTV.size(2)), IMPOSSIBLE)
            last_BV[:, self._space_id] = 0.0
            scores_BTV[torch.arange(len(scores_BTV)), lengths_B] = last_BV
            lengths_B = lengths_B + 1
        scores_BTV = scores_BTV.clamp(min=IMPOSSIBLE).contiguous()
        return [self._rank(found) for found in self._decoder(scores_BTV, lengths_B)]

    def _rank(self, found: list[Any]) -> list[Hypothesis]:
        best: dict[str, float] = {}
        for hypothesis in found:
            if hypothesis.score > IMPOSSIBLE / 2:
                text = SPACE.join(hypothesis.words)
                best[text] = max(hypothesis.score, best.get(text, -math.inf))
        ranked = sorted(best.items(), key=lambda item: -item[1])[: self._nbest] or [("", -math.inf)]
        return [Hypothesis(tuple(self._tokenizer.encode(text)), score) for text, score in ranked]

    def _spell_all(self, words: Iterable[str], names: list[str]) -> Iterable[str]:
        """Lines of a lexicon: a word and its tokens."""
        spelled, unspeakable = 0, []
        for word in dict.fromkeys(words):
            tokens = self._tokenizer.encode(word)
            if not tokens or UNK_ID in tokens or word.split() != [word]:
                unspeakable.append(word)
                continue
            ends = [] if self._space_id is None else [self._space_id]
            yield f"{word} {' '.join(names[token] for token in [*tokens, *ends])}\n"
            spelled += 1
        if not spelled:
            raise UserError("a lexicon needs words that the tokenizer can spell, and there are none")
        if unspeakable:
            logger.warning("%d words of the lexicon have no spelling in tokens, %r for one; left out",
                           len(unspeakable), unspeakable[0])  # fmt: skip


def collect_words(texts: Iterable[str]) -> list[str]:
    """All words of the texts, each once, in alphabetical order."""
    return sorted({word for text in texts for word in text.split()})


def _import_ctc_decoder() -> Any:
    try:
        importlib.import_module("flashlight.lib.text.decoder")  # torchaudio would not say what to install
        from torchaudio.models.decoder import ctc_decoder
    except ImportError:
        raise UserError(
            "a beam with a lexicon needs the package flashlight-text: pip install 'asr[lexicon]'"
        ) from None
    return ctc_decoder
