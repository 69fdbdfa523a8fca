"""Speech recognition: run dataset recipes, transcribe audio files, score WER.

The most common names (see __init__.pyi) are imported on first use, because importing torch takes seconds.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
