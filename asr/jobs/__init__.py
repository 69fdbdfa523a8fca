"""Long jobs in units: planned once, done by many workers, resumed by what is there"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
