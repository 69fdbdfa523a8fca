"""Models: encoders, decoders, and `build_model`, which makes the one that a config describes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
