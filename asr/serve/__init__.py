"""The server: OpenAI's audio API over HTTP, live transcription over WebSocket, and a page for people"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
