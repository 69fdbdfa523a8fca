"""Any audio file to float32 samples and back, in blocks or whole; speech detection and segmentation."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
