"""Manifests and what they are made from: Kaldi folders, tables, corpora, synthetic speech."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
