"""Training; the package itself can be called: `asr.train("run.yaml", ["train.steps=100"])`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from asr.system.run_config import RunConfig
    from asr.train.monitor import Callback


class _Training(ModuleType):
    """Package that can be called, as Python names it as its users would name a function."""

    def __call__(
        self,
        config: RunConfig | str | Path,
        overrides: Sequence[str] = (),
        callback: Callback | None = None,
    ) -> Path:
        """Train what the YAML file of a run describes, or resume it, as `asr train` does.

        Progress goes to standard error, and to `callback(update, values)`, with values such as train/loss.
        Returns the folder of the model, for `asr.load_model`.
        """
        from asr.system.run_config import RunConfig
        from asr.train.loop import train_and_draw

        if not isinstance(config, RunConfig):
            config = RunConfig.load(config, overrides)
        return train_and_draw(config, callback)


sys.modules[__name__].__class__ = _Training
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
