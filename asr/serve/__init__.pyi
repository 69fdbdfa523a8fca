from .app import build_app as build_app
from .limits import Keys as Keys
from .scheduler import (
    BatchReport as BatchReport,
    Client as Client,
    Scheduler as Scheduler,
    WithdrawnError as WithdrawnError,
)
from .server_settings import ServeConfig as ServeConfig
