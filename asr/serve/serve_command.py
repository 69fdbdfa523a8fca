"""`asr serve --model MODEL`: a server for clients of OpenAI's audio API, with a web page for people."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.cli import add_device, add_settings, limit_threads, whole_number
from asr.errors import UserError, import_extra

if TYPE_CHECKING:
    from asr.transcription.transcribe import Recognizer

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 60  # after SIGTERM, how long requests in progress may take to finish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model",
        metavar="[NAME=]MODEL",
        action="append",
        default=[],
        help="model, as in `asr transcribe`, and the name by which clients request it "
        "(default: the last part of MODEL); may be given several times",
    )
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)")
    add("--port", type=whole_number(0, 65535), default=8000, help="0 picks a free port (default: 8000)")
    add("--keys", metavar="FILE", help="file of API keys, one NAME:SHA256 a line (default: no key needed)")
    add("--config", metavar="FILE", help="settings as YAML")
    add_settings(parser, "any setting, such as max_upload_mb=500; `--set list` explains them all")
    add("--threads", type=whole_number(1), metavar="N", help="CPU threads (default: all cores but one)")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from asr.config import build_config, load_config
    from asr.serve.service import Keys, ServeConfig
    from asr.transcription.arguments import print_settings

    if args.set == ["list"]:
        print_settings(ServeConfig())
        return 0
    config = build_config(ServeConfig, args.set)
    if args.config:
        config = load_config(ServeConfig, args.config, args.set)
    import_extra("asr.serve.app", "the server", "serve")
    import uvicorn

    from asr.serve.app import DrainingServer, build_app

    limit_threads(args.threads or max(1, (os.cpu_count() or 2) - 1))
    keys = Keys.load(args.keys) if args.keys else None
    app = build_app(load_models(args, config), config, keys)
    if not args.keys and args.host not in ("127.0.0.1", "localhost", "::1"):
        logger.warning("anyone who can reach %s may use this server; --keys restricts it", args.host)
    options = uvicorn.Config(
        app,
        host=args.host,
        port=args.port,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="websockets-sansio",
        ws_max_size=1 << 22,
        ws_max_queue=8,
        timeout_graceful_shutdown=1,
    )
    server = DrainingServer(options, app.state.service, DRAIN_SECONDS)
    server.run()
    return 0 if server.started else 1


def load_models(args: argparse.Namespace, config: Any) -> dict[str, Recognizer]:
    """Load the models, and return each under the name by which clients request it."""
    from asr.families import find_default_model
    from asr.transcription.transcribe import load_recognizer

    found: dict[str, Recognizer] = {}
    for given in args.model or [find_default_model()]:
        name, equals, source = given.partition("=")
        name, source = (name, source) if equals else (Path(given).name, given)
        if name in found:
            raise UserError(f"--model {given}: the name {name} is used twice; choose another: NAME=MODEL")
        found[name] = load_recognizer(
            source, args.device, config.precision, config.segmentation, config.checks
        )
        logger.info("%s: %s", name, found[name].compute_type)
    return found
