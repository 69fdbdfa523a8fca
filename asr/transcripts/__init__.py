"""Texts with times, read and written: trn, stm, ctm, JSON, srt, vtt and others."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
