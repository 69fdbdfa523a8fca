from .app import build_app as build_app
from .live import (
    CLEAR_LINE as CLEAR_LINE,
    LiveText as LiveText,
    LiveTranscriber as LiveTranscriber,
    PipeReader as PipeReader,
    read_live as read_live,
    transcribe_live as transcribe_live,
    write_live as write_live,
)
from .realtime import Session as Session
from .scheduler import Client as Client, Scheduler as Scheduler, WithdrawnError as WithdrawnError
from .service import Keys as Keys, ServeConfig as ServeConfig
