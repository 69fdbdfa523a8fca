"""Models of studies, and what searches and scores them; the folder can be deleted."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
