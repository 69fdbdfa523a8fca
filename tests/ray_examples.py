"""A stand-in for Ray, whose workers live and die in this process."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class Killed(BaseException):
    """The worker's process is gone."""


class StandIn:
    """Ray's functions that the pool uses; each call of a worker is done when its result is asked for."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, cpus: float = 2, gpus: float = 0) -> None:
        self.resources = {"CPU": cpus, "GPU": gpus}
        self.options: dict[str, Any] = {}
        self.is_running = False
        self.random = random.Random(0)
        self.hanging: list[Any] = []
        """Calls with an item named hang, which never end."""
        self.num_killed, self.clock = 0, 0.0

    def init(self, address: str, **_: Any) -> None:
        self.is_running = True

    def shutdown(self) -> None:
        self.is_running = False

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, kind: Callable[[], Any]) -> Any:
        def start() -> Any:
            worker = kind()
            calls = {
                name: SimpleNamespace(remote=self.defer(getattr(worker, name))) for name in ("load", "work")
            }
            return SimpleNamespace(**calls)

        def options(**given: Any) -> Any:
            self.options = given
            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def defer(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            def finish() -> Any:
                assert finish not in self.hanging
                try:
                    return method(*arguments)
                except Killed:
                    raise RayError("the actor died") from None
                except Exception as error:
                    raise RayTaskError(error) from None

            if any("hang" in items for items in arguments if isinstance(items, list)):
                self.hanging.append(finish)
            return finish

        return call

    def wait(self, futures: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        hanging = [future for future in futures if future in self.hanging]
        if len(hanging) == len(futures):
            self.clock += timeout
            return [], futures
        return [self.random.choice([future for future in futures if future not in hanging])], []

    def kill(self, worker: Any) -> None:
        self.num_killed += 1

    def get(self, future: Any) -> Any:
        return future()
