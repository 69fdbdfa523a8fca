"""Read and write audio files as float32 samples, whole or in blocks; detect speech and cut recordings."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
