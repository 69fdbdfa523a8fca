"""Features kept on disk: computed once per piece of audio and setting, then read back as memory maps."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from asr.errors import UserError
from asr.features.front_end import FrontEnd

logger = logging.getLogger(__name__)

FORMAT = 1  # part of every key: raise it when the same settings begin to give other numbers

Features = npt.NDArray[np.float32]


class FeatureCache:
    """A folder of .npy files, one per piece of audio, that several processes may fill at the same time.

    A key covers everything that the features depend on: the settings and the learnt values of the front
    end, the audio file (path, size, time of its last change), the piece of it and its speed. Changed audio
    or settings therefore get a new entry; the old one stays until someone deletes the folder.
    """

    def __init__(self, folder: str | Path, front_end: FrontEnd) -> None:
        self.folder = Path(folder)
        self._num_features = front_end.num_features
        digest = hashlib.sha256(f"{FORMAT} {front_end.config.model_dump_json()}".encode())
        for name, values in sorted(front_end.state_dict().items()):
            digest.update(name.encode() + values.cpu().numpy().tobytes())
        self._front_end_key = digest.hexdigest()

    def get(
        self,
        audio_path: str | Path,
        compute: Callable[[], Features],
        *,
        start: float = 0.0,
        duration: float | None = None,
        channel: int | None = None,
        speed: str = "1",
    ) -> Features:
        """The (frames, features) of a piece of audio, in seconds; `compute` makes them if they are not there.

        The result is a private memory map: what is written to it does not reach the disk.
        """
        path = self._entry_path(Path(audio_path), [start, duration, speed, *([channel] if channel else [])])
        features = self._load(path)
        if features is None:
            features = np.ascontiguousarray(compute(), dtype=np.float32)
            if features.ndim != 2 or features.shape[1] != self._num_features:
                raise UserError(
                    f"{audio_path}: features of shape {features.shape} for the cache; expected "
                    f"(frames, {self._num_features}) as the front end gives"
                )
            self._store(path, features)
        return features

    def _entry_path(self, audio_path: Path, piece: list[float | str | None]) -> Path:
        try:
            status = audio_path.stat()
        except OSError as error:
            raise UserError(f"{audio_path}: cannot read this audio file ({error.strerror})") from None
        source = [str(audio_path.absolute()), status.st_size, status.st_mtime_ns, *piece]
        key = hashlib.sha256(f"{self._front_end_key} {json.dumps(source)}".encode()).hexdigest()
        return self.folder / key[:2] / f"{key[2:]}.npy"  # 256 folders: a million entries stay quick to find

    def _load(self, path: Path) -> Features | None:
        """None if there is no entry, or none that is whole."""
        try:
            features = np.lib.format.open_memmap(path, mode="c")  # only .npy: no zip archive, no pickle
        except FileNotFoundError:
            return None
        except Exception as error:  # a damaged header raises whatever its parser happens to trip over
            logger.warning("%s: damaged entry of the feature cache (%s); computing it again", path, error)
            return None
        if features.dtype != np.float32 or features.ndim != 2 or features.shape[1] != self._num_features:
            logger.warning(
                "%s: entry of the feature cache is %s of shape %s, not float32 of (frames, %d); "
                "computing it again",
                path,
                features.dtype,
                features.shape,
                self._num_features,
            )
            return None
        return features

    def _store(self, path: Path, features: Features) -> None:
        """Write beside the entry, then rename: a reader finds all of it or nothing."""
        temporary = path.with_name(f"{path.stem}.{uuid.uuid4().hex}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                np.save(file, features, allow_pickle=False)
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise UserError(
                f"{self.folder}: cannot write to this feature cache ({error.strerror}); "
                "free some space, or choose another folder"
            ) from None
