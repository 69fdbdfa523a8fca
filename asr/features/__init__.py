"""The front end of training and inference: log-mel and MFCC features of padded batches."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
