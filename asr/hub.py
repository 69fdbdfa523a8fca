"""Models of a hub such as Hugging Face: in the cache, or fetched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from asr.errors import UserError

MAX_CONNECT_SECONDS, MAX_SLOW_SECONDS = 0.9, 10.0


def fetch_model(
    name: str,
    patterns: Sequence[str],
    is_complete: Callable[[Path], bool],
    announce: Callable[[], None],
    hint: str,
) -> Path:
    """The folder of a model on the hub: that in the cache, or fetched there, which `announce` logs before."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        with contextlib.suppress(LocalEntryNotFoundError):
            folder = Path(snapshot_download(name, allow_patterns=[*patterns], local_files_only=True))
            if is_complete(folder):
                return folder
        if problem := find_network_problem():
            raise UserError(f"{name}: no such file or folder, nor in the cache, and {problem}{hint}")
        announce()
        return Path(snapshot_download(name, allow_patterns=[*patterns]))
    except UserError:
        raise
    except Exception as error:  # network, hub and disk fail in many ways
        reason = str(error).split("\n")[0][:200]
        raise UserError(
            f"{name}: no such file or folder, nor in the cache, and the hub does not have it "
            f"({type(error).__name__}: {reason}){hint}"
        ) from None


def find_network_problem() -> str:
    """Say within a second why the hub cannot be reached; "" if it can, or is only slow to answer."""
    import socket
    import threading
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, so nothing is fetched"
    hub = urlsplit(constants.ENDPOINT)
    if getproxies() or hub.hostname is None:  # a proxy may reach what this machine cannot
        return ""
    address = hub.hostname, hub.port or (80 if hub.scheme == "http" else 443)
    failures: list[OSError] = []

    def connect() -> None:
        try:
            socket.create_connection(address, MAX_SLOW_SECONDS).close()
        except OSError as error:
            failures.append(error)

    # Looking a name up has no limit of its own, so it runs in a thread that nobody waits for.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(MAX_CONNECT_SECONDS)
    return f"there is no network: {hub.hostname} cannot be reached" if failures else ""
