"""Progress of long work: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import logging
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

logger = logging.getLogger(__name__)

LINE_EVERY_SECONDS = 30.0
BAR = "{percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s of audio [{elapsed}<{remaining}]{postfix}"


class AudioProgress:
    """Counts seconds of audio: files differ too much in length for a count of files to foretell the end."""

    def __init__(self, total_seconds: float, every: float = LINE_EVERY_SECONDS) -> None:
        self._total = total_seconds
        self._every = every
        self._done = 0.0
        self._begin = self._said = time.monotonic()
        self._stack = contextlib.ExitStack()
        # None: a bar on a terminal only.
        self._bar: tqdm[Any] = tqdm(
            total=max(total_seconds, 1e-6), bar_format=BAR, dynamic_ncols=True, disable=None, leave=False
        )

    def __enter__(self) -> AudioProgress:
        if not self._bar.disable:
            self._stack.enter_context(logging_redirect_tqdm())  # messages do not break the bar
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        self._stack.close()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begin

    def advance(self, seconds: float) -> None:
        """Note that so many seconds of audio are done."""
        self._done += seconds
        if self._done > self._total:  # a header said less than was there
            self._bar.total = self._total = self._done
        self._bar.update(seconds)
        now = time.monotonic()
        if self._bar.disable and now - self._said >= self._every and self._done < self._total:
            self._said = now
            logger.info("%s", self._describe())

    def _describe(self) -> str:
        left = self.elapsed * (self._total - self._done) / max(self._done, 1e-6)
        speed = self._done / max(self.elapsed, 1e-6)
        return (
            f"{self._done:.0f} of {self._total:.0f} s of audio, {speed:.1f} times as fast as it was spoken; "
            f"about {left:.0f} s left"
        )
