"""Moonshine models in installed packages, whose code is never imported, and the default model."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from asr.errors import UserError
from asr.files import hash_file
from asr.moonshine.family import ORT_FILES, MoonshineDecodingConfig

log = logging.getLogger(__name__)

DEFAULT = "moonshine-base"
PACKAGES = {"moonshine-tiny": ("moonshine-voice", "tiny-en"), "moonshine-base": ("moonshine-cpp", "base-en")}
PUBLISHED = {  # SHA-256 of both models' files
    "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
    "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
    "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
    "9d1a19e044cbf89a207723d1adb667de89a5671a1e3e611b8ebe721b2c31219c",
    "370e0c1f161d68dc1c2264c1a82024fb123380da3b73f47f05531d1e8d3308c3",
    "04670d78994d030185c3dd843c60591788fed0a56cc6750747bd326825f13ca9",
}


def find_installed(model: str) -> Path | None:
    """Return the folder of a model in an installed package, which is not imported; None if not installed."""
    package, name = PACKAGES.get(model, ("", ""))
    try:
        files = distribution(package).files or [] if package else []
    except PackageNotFoundError:
        return None
    folders = (Path(str(file.locate())).parent for file in files if file.parts[-2:] == (name, ORT_FILES[0]))
    return next((found for found in folders if all((found / one).is_file() for one in ORT_FILES)), None)


@functools.cache
def check_installed(folder: Path) -> None:
    """Raise an error if an installed package's files differ from the published ones; once per process."""
    for name in ORT_FILES:
        if hash_file(folder / name) not in PUBLISHED:
            raise UserError(
                f"{folder / name}: not the file that was published; install moonshine-cpp==0.1.4 (base) or "
                "moonshine-voice==0.0.73 (tiny) again, or give the folder with --model"
            )


def find_default(asked: Mapping[str, object]) -> str | None:
    """Return base if its package is installed and the options ask for nothing but English.

    `asked`: the options of the call, None if not given.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    try:
        MoonshineDecodingConfig.model_validate(given)
    except ValueError:
        return None
    if find_installed(DEFAULT) is None:
        log.info("for English without a download, on Linux x86-64: pip install moonshine-cpp==0.1.4")
        return None
    by_language = "--language CODE or " if "language" in asked else ""
    log.info("model: %s (English only); %s--model whisper-base for other languages", DEFAULT, by_language)
    return DEFAULT
