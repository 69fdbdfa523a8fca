"""Greedy and beam search, CTC, n-grams, lexica, shallow fusion. Ids out, never text."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
