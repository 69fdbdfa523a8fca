"""Scoring as by NIST's tools: sclite's alignment and files, mapping files (GLM), ROVER."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
