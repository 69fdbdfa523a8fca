"""What a system knows beside the audio, by its training texts: a lexicon, n-grams, a language model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from asr.decoding.arpa import Arpa
from asr.decoding.fusion import FusionModel, Together
from asr.decoding.lexicon import Lexicon, collect_words
from asr.decoding.ngram import token_vocabulary
from asr.decoding.ngram_estimation import estimate_ngrams
from asr.decoding.word_ngram import build_ngram_model
from asr.models import Model
from asr.recipe.systems import Run
from asr.system.checkpoint import System, load_language_model
from asr.train.preparation import read_training_texts

ORDER = {"words": 3, "tokens": 6}
# Of the log-probabilities; dev chooses.
WEIGHTS = (0.3, 0.6, 1.0)
CTC_WEIGHTS = (0.3, 0.6)  # of CTC against the decoder


def load_knowledge(system: System, run: Run, language_models: Sequence[Path]) -> dict[str, FusionModel]:
    """By name: a lexicon of the training texts with n-grams of them, and with each language model."""
    texts = list(read_training_texts(run.config))
    lexicon = Lexicon(system.tokenizer, collect_words(texts))
    found: dict[str, FusionModel] = {
        "ngrams": Together([build_ngram_model(estimate_arpa(system, texts), system.tokenizer), lexicon])
    }
    for folder in language_models:
        model = load_language_model(folder, system.tokenizer)
        found[folder.name] = Together([model, lexicon])
    return found


def estimate_arpa(system: System[Model], texts: Sequence[str]) -> Arpa:
    """N-grams of words where the tokens are characters, else of tokens."""
    tokenizer = system.tokenizer
    if tokenizer.type == "characters" and " " in tokenizer.tokens:
        return estimate_ngrams([text.split() for text in texts], ORDER["words"], [])
    tokens = token_vocabulary(tokenizer.tokens)
    lines = [[tokens[id] for id in tokenizer.encode(text)] for text in texts]
    return estimate_ngrams(lines, ORDER["tokens"], tokens)
