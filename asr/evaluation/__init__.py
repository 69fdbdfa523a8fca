"""A split decoded and scored; plots of what a model looks at."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
