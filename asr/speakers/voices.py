"""Voices of speakers, so that each has one label in all recordings, and a file of voices for later calls."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from asr.errors import UserError, shorten
from asr.files import replace_file
from asr.speakers.speaker_models import SpeakerModels
from asr.system.system import read_tensors

# N voices, C clusters, D embedding dimension

# Least cosine between a voice and a cluster of the same speaker, and seconds of speech at which it is smaller
# by a factor of 0.7. About 0.5 % of pairs of two dev speakers pass, however short: see recipes/conversations.
SIMILAR, DOUBT_SECONDS = 0.7, 2.0
SAME_MODEL = 0.95  # least cosine between embeddings of the probe by one model, whatever its precision
PROBE_S = 0.1 * (1e-4 * torch.arange(24_000.0).square()).sin()  # a rising tone
LABEL = "SPEAKER_"  # followed by a number: a speaker whose name is not known
PREFIX = "voice "  # of the names of tensors in a file


class Voices:
    """The voice of each speaker, by name: the sum of its embeddings, weighted by seconds of speech."""

    def __init__(self, models: SpeakerModels, path: str | None = None) -> None:
        """`path`: a file that `learn` writes; if it exists already, its voices are read."""
        self._path, self._sums = path, dict[str, np.ndarray]()
        if path is not None:
            self._probe_D = models.embed([PROBE_S])[0]
            self._sums = self._read(Path(path)) if Path(path).exists() else {}

    def name_clusters(self, sums: Mapping[int, np.ndarray]) -> dict[int, str]:
        """Return a name for the sum of each cluster: of a similar voice, or else the next free label."""
        from scipy.optimize import linear_sum_assignment  # heavy to import

        known, clusters, clusters_CD = [*self._sums], [*sums], np.stack([*sums.values()])
        voices_ND = np.reshape([*self._sums.values()], (-1, clusters_CD.shape[1]))
        norms = [np.maximum(np.linalg.norm(own, axis=1), 1e-9) for own in (voices_ND, clusters_CD)]
        cosines_NC = voices_ND @ clusters_CD.T / np.multiply.outer(*norms)
        seconds_NC = np.minimum.outer(*norms)
        cosines_NC[cosines_NC < SIMILAR * np.sqrt(seconds_NC / (seconds_NC + DOUBT_SECONDS))] = 0
        pairs = zip(*linear_sum_assignment(cosines_NC, maximize=True), strict=True)
        names = {clusters[column]: known[row] for row, column in pairs if cosines_NC[row, column] > 0}
        labels = (f"{LABEL}{number:02}" for number in itertools.count())
        free = (label for label in labels if label not in self._sums)
        return names | {cluster: next(free) for cluster in clusters if cluster not in names}

    def learn(self, sums: Mapping[str, np.ndarray]) -> None:
        """Add more speech of these speakers, and write the file."""
        for name, sum_D in sums.items():
            self._sums[name] = self._sums.get(name, 0) + sum_D
        if self._path is not None:
            tensors = {PREFIX + name: torch.from_numpy(own).float() for name, own in self._sums.items()}
            with replace_file(self._path) as file:
                file.write(save({"probe": self._probe_D, **tensors}))

    def enroll(self, name: str, sum_D: np.ndarray) -> None:
        """Add the voice of a speaker with a name, which replaces the label that this voice has had so far."""
        label = self.name_clusters({0: sum_D})[0]
        if label in self._sums and label.startswith(LABEL):
            self._sums[name] = self._sums.pop(label) + self._sums.get(name, 0)
        self.learn({name: sum_D})

    def _read(self, path: Path) -> dict[str, np.ndarray]:
        tensors = dict(read_tensors(path))
        probe_D = tensors.pop("probe", torch.zeros(0)).float()
        for name, sum_D in tensors.items():
            is_name = name.startswith(PREFIX) and name != PREFIX and name.isprintable()
            if not (is_name and sum_D.shape == probe_D.shape and sum_D.isfinite().all()):
                raise UserError(f"{path}: {shorten(name)}: not a voice. Give a file that --voices wrote")
        is_same = probe_D.shape == self._probe_D.shape
        if not (is_same and torch.cosine_similarity(probe_D, self._probe_D, 0) > SAME_MODEL):
            raise UserError(f"{path}: made with another speaker model; give that model, or another file")
        return {name.removeprefix(PREFIX): sum_D.double().numpy() for name, sum_D in tensors.items()}
