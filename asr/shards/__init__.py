"""Audio in tar shards, with an index: pack, train from any address."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
