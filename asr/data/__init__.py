"""Manifests: read, write, check and split; rows of tables; byte ranges of files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
