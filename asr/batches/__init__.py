"""Utterances to padded batches: augmentation, order, loading, exact resume."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
