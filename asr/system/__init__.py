"""A run: its config, and a checkpoint with tokenizer, front end and weights."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
