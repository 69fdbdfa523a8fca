"""Many recordings: folders of outputs that are resumed, and units of work on several processes of Ray."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
