"""Models from the Hugging Face Hub: taken from the cache, or downloaded."""

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
    """Return the cached folder of a model from the hub. `announce` is called before a download."""
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
    """Return within a second why the hub is unreachable; "" if it is reachable or merely slow to answer."""
    import socket
    import threading
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, so nothing is downloaded"
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

    # DNS lookup has no timeout, so it runs in a daemon thread that may be abandoned.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(MAX_CONNECT_SECONDS)
    return f"there is no network: {hub.hostname} cannot be reached" if failures else ""
