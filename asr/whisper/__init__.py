"""Whisper: checkpoints, model, tokenizer, search, word times and the recognizer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
