"""Speaker diarization: find local speakers in windows, embed their speech, cluster, and form turns."""

from __future__ import annotations

import itertools
import logging
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from asr.audio.reading import read_blocks
from asr.audio.segmentation import Recording, find_runs, read_recording
from asr.errors import UserError
from asr.models.precision import choose_device
from asr.speakers.activity import FIELD_SAMPLES, FRAME_SAMPLES, SAMPLE_RATE, WINDOW_SECONDS
from asr.speakers.speaker_models import SpeakerModels, load_speaker_models
from asr.speakers.turns import Turn
from asr.speakers.voices import Voices
from asr.speakers.word_speakers import label_speakers
from asr.transcripts.transcript import Transcript

log = logging.getLogger(__name__)

# S samples, T frames, L local speakers of a window, N pieces, D embedding dimension, C clusters

WINDOW = round(WINDOW_SECONDS * SAMPLE_RATE)  # samples
STEP = 185  # frames from one window to the next: 3.1 s
GROUP = 16  # windows (56 s) whose pieces are embedded together, the longest first, since they contain others
EDGE = (FIELD_SAMPLES - FRAME_SAMPLES) // 2  # samples before the first frame of a window
BLOCK = 1 << 16  # frames whose votes are counted together: 18 minutes
MAX_CLUSTERED = 1_000  # pieces that form clusters; their products take 8 MB
MAX_SPEAKERS = 100
HALVINGS = 10  # steps of 2-means
SHORTEST_REFERENCE, LONGEST_REFERENCE = 2.0, 10.0  # seconds, as in OpenAI's API
INNER_GAP, PIECE = 12, 118  # frames; pieces are short, because a local speaker may be two similar voices
SAME = 0.8  # a piece has the embedding of another that contains this part of its frames
MIN_ALONE = 12  # frames; a piece with fewer frames without overlap is embedded whole
CROP = 3 * SAMPLE_RATE // 2  # samples per embedding; shorter speech is repeated
# Tuned on meetings of training and dev speakers: recipes/conversations.
BETWEEN = 0.46  # share of the embeddings' variance that is between speakers
DRIFT = 0.05  # share of the remaining variance common to a speaker's pieces, so that 100 count as 17
REPEATED = 0.85  # least cosine of repeated audio, which none of 11,643 pairs of other pieces of dev has
FOUNDING_SECONDS = 1.5  # shorter pieces (over all windows) join a cluster, but do not form one
MIN_SHARE, MIN_SECONDS = 0.04, 40.0  # a cluster below both (share of all speech, seconds) is not a speaker
RAMP = 120  # frames at each edge of a window that count less, because what is around them is cut off
MIN_GAP, MIN_TURN = 15, 6  # frames; shorter gaps are closed, and shorter turns are dropped


class Piece(NamedTuple):
    """Up to three seconds of continuous speech by a local speaker of a window."""

    window: int
    local: int
    start: int  # frames of the window
    end: int
    seconds: float  # duration of the embedded speech
    place: int  # index of its embedding


@dataclass
class SpeakerEvidence:
    """Data kept from a recording: windows' first frames and activity (T, L), and embeddings of pieces."""

    firsts: list[int] = field(default_factory=list)
    active: list[np.ndarray] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    embeddings: list[np.ndarray] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Diarizer:
    """Finds turns of `least` to `most` speakers. `enrolled`: recordings of known speakers alone."""

    def __init__(
        self,
        models: SpeakerModels,
        least: int = 1,
        most: int = MAX_SPEAKERS,
        enrolled: Mapping[str, Recording] | None = None,
        voices: Voices | None = None,
    ) -> None:
        """`voices`: speakers of other recordings. Each recording adds its own."""
        self.models, self.least, self.most = models, least, most
        self.voices, self._learns = voices or Voices(models), voices is not None
        for name, recording in (enrolled or {}).items():
            known = gather_evidence(recording, models)
            if not known.pieces:
                raise UserError(f"{recording.path}: contains no speech; expected speech of {name} alone")
            clusters_N, (centroid_D,) = cluster_pieces(known, 1, 1)
            seconds = max(1.0, sum(end - start for start, end, _ in build_turns(known, clusters_N, 0.0)))
            self.voices.enroll(name, seconds * centroid_D)

    def find_turns(self, recording: Recording, exclusive: bool = False) -> tuple[list[Turn], list[str]]:
        """Return turns sorted by start (`exclusive`: without overlap), and messages on unreadable parts."""
        evidence = gather_evidence(recording, self.models)
        if not evidence.pieces:
            return [], evidence.problems
        clusters_N, centroids_CD = cluster_pieces(evidence, self.least, self.most)
        spoken = build_turns(evidence, clusters_N, recording.start, exclusive)
        sums: dict[int, np.ndarray] = {}  # of embeddings of each cluster, in order of appearance
        for start, end, own in spoken:
            sums[own] = sums.get(own, 0.0) + (end - start) * centroids_CD[own]
        if len(sums) < self.least:
            text = "%s: %d speakers found; for the expected %d, there is too little speech that differs"
            log.warning(text, recording.name, len(sums), self.least)
        names = self.voices.name_clusters(sums) if sums else {}
        if self._learns:
            self.voices.learn({names[own]: sum_D for own, sum_D in sums.items()})
        turns = [Turn(recording.name, start, end, names[own]) for start, end, own in spoken]
        return turns, evidence.problems

    def label(self, recording: Recording, transcript: Transcript) -> Transcript:
        """Return the transcript with speaker labels."""
        return label_speakers(transcript, self.find_turns(recording, exclusive=True)[0])


def read_reference(source: str, file: bytes) -> Recording:
    """Read a client's reference recording of a known speaker. `source` is its name in messages."""
    blocks = read_blocks(source, SAMPLE_RATE, block_seconds=LONGEST_REFERENCE, content=file)
    audio_S, more_S = next(blocks), next(blocks, None)
    if more_S is not None or len(audio_S) < SHORTEST_REFERENCE * SAMPLE_RATE:
        raise UserError(f"{source}: expected {SHORTEST_REFERENCE:g} to {LONGEST_REFERENCE:g} s of audio")
    return Recording(source, content=audio_S, sample_rate=SAMPLE_RATE)


def load_diarizer(args: Namespace) -> Diarizer:
    """Load the diarizer configured by the options of `asr diarize`."""
    least, most = args.speakers or args.min_speakers or 1, args.speakers or args.max_speakers or MAX_SPEAKERS
    if (args.speakers and (args.min_speakers or args.max_speakers)) or least > most:
        raise UserError("number of speakers: expected --speakers, or --min-speakers up to --max-speakers")
    enrolled: dict[str, Recording] = {}
    for name, _, path in (own.partition("=") for own in args.enroll):
        if not name or not name.isprintable() or not path or name in enrolled:
            raise UserError(f"--enroll {name}={path}: expected NAME=FILE, each name once")
        enrolled[name] = Recording(path)
        next(read_recording(enrolled[name], SAMPLE_RATE), None)  # reports a wrong file before models load
    models = load_speaker_models(args.speaker_model, choose_device(args.device))
    voices = Voices(models, args.voices) if args.same_speakers or args.voices else None
    return Diarizer(models, least, most, enrolled, voices)


def gather_evidence(recording: Recording, models: SpeakerModels) -> SpeakerEvidence:
    """Read a recording once, in windows. A piece within a longer one has its embedding."""
    evidence, recent = SpeakerEvidence(), dict[int, set[int]]()  # frames of the last embeddings
    cut = cut_windows(read_recording(recording, SAMPLE_RATE, evidence.problems.append))
    while group := list(itertools.islice(cut, GROUP)):
        firsts, audio_WS = zip(*group, strict=True)
        active_WTL = models.segment(torch.from_numpy(np.stack(audio_WS))).numpy() > 0.5
        windows = enumerate(zip(active_WTL, firsts, strict=True))
        found = [(row, *own) for row, window in windows for own in find_pieces(*window)]
        recent = {place: known for place, known in recent.items() if max(known) > firsts[0]}
        speech = list[np.ndarray]()  # to embed
        for row, local, start, end, clean_T in sorted(found, key=lambda own: -len(own[-1])):
            frames = set((firsts[row] + clean_T).tolist())
            place = _find_same(frames, recent)
            if place is None:
                place = len(evidence.embeddings) + len(speech)
                recent[place] = frames
                audio_S = audio_WS[row][EDGE:][: active_WTL.shape[1] * FRAME_SAMPLES]
                speech.append(audio_S.reshape(-1, FRAME_SAMPLES)[clean_T].reshape(-1))
            seconds = len(clean_T) * FRAME_SAMPLES / SAMPLE_RATE
            evidence.pieces.append(Piece(len(evidence.firsts) + row, local, start, end, seconds, place))
        evidence.firsts += firsts
        evidence.active += list(active_WTL)
        evidence.embeddings += embed_speech(speech, models) if speech else []
    evidence.pieces.sort()  # by window
    return evidence


def _find_same(frames: set[int], recent: Mapping[int, set[int]]) -> int | None:
    """Return the index of the embedding that contains the most of the frames; None if it is below SAME."""
    shares = ((len(frames & known) / len(frames), place) for place, known in recent.items())
    share, place = max(shares, default=(0.0, 0))
    return place if share >= SAME else None


def embed_speech(speech: Iterable[np.ndarray], models: SpeakerModels) -> list[np.ndarray]:
    """Return an embedding of each piece, from a crop of its middle, or from crops spread evenly over it."""
    crops, starts = list[torch.Tensor](), list[int]()
    for audio_S in speech:
        starts.append(len(crops))
        count, spare = max(1, len(audio_S) // CROP), max(0, len(audio_S) - CROP)
        begins = np.linspace(0, spare, count) if count > 1 else [spare / 2]
        crops += [torch.from_numpy(np.resize(audio_S[int(at) :][:CROP], CROP)) for at in begins]
    return list(_normalize(np.add.reduceat(models.embed(crops).numpy(), starts)))


def cut_windows(blocks: Iterable[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each window's first frame and samples. The last window ends with the recording."""
    first, kept_S, step = 0, np.zeros(0, np.float32), 0  # no step before the first window
    for block_S in blocks:
        kept_S = np.concatenate([kept_S, block_S])
        while len(kept_S) >= WINDOW + step * FRAME_SAMPLES:
            first, kept_S = first + step, kept_S[step * FRAME_SAMPLES :]
            yield first, kept_S[:WINDOW]
            step = STEP
    rest = (len(kept_S) - WINDOW) // FRAME_SAMPLES
    if step and rest:
        yield first + rest, kept_S[rest * FRAME_SAMPLES :][:WINDOW]
    elif not step and len(kept_S) >= FIELD_SAMPLES:
        yield 0, kept_S


def find_pieces(active_TL: np.ndarray, first: int = 0) -> Iterator[tuple[int, int, int, np.ndarray]]:
    """Yield speaker, start and end of pieces, and the frames to embed, without overlap if possible."""
    cuts = np.arange(-first % PIECE, len(active_TL), PIECE)  # at the same times in all windows
    alone_T = active_TL.sum(axis=1) == 1
    for local, active_T in enumerate(active_TL.T):
        alone_so_far = np.append(0, np.cumsum(active_T & alone_T))
        for start, end in join_runs(find_runs(active_T), INNER_GAP):
            before, after = alone_so_far[cuts] - alone_so_far[start], alone_so_far[end] - alone_so_far[cuts]
            inner = cuts[np.minimum(before, after) >= PIECE // 2].tolist()
            for edges in itertools.pairwise([start, *inner, end]):
                clean_T = (active_T & alone_T)[slice(*edges)]
                clean_T = clean_T if clean_T.sum() >= MIN_ALONE else active_T[slice(*edges)]
                yield local, *edges, edges[0] + np.flatnonzero(clean_T)


def join_runs(runs: Iterable[tuple[int, int]], gap: float) -> list[tuple[int, int]]:
    """Join runs, which are sorted by time, with gaps shorter than `gap`."""
    joined: list[tuple[int, int]] = []
    for start, end in runs:
        start = joined.pop()[0] if joined and start - joined[-1][1] < gap else start
        joined.append((start, end))
    return joined


def cluster_pieces(evidence: SpeakerEvidence, least: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each piece's cluster, and the centroids. In long recordings, a sample forms clusters."""
    points_ND = np.stack(evidence.embeddings).astype(np.float64)
    places_P = np.array([own.place for own in evidence.pieces])
    seconds_N = np.bincount(places_P, [own.seconds for own in evidence.pieces])
    founding = np.flatnonzero(seconds_N >= min(FOUNDING_SECONDS, np.median(seconds_N)))
    if len(founding) < least:
        founding = np.arange(len(points_ND))
    chosen = founding[np.linspace(0, len(founding) - 1, min(len(founding), MAX_CLUSTERED)).astype(int)]
    weights = seconds_N[chosen] * (len(founding) / len(chosen))
    starts_P = np.array([evidence.firsts[own.window] + own.start for own in evidence.pieces])
    starts_N = starts_P[np.unique(places_P, return_index=True)[1]]
    firsts, origins = np.unique(find_repeated(points_ND[chosen], starts_N[chosen]), return_inverse=True)
    distinct_ND, weights = points_ND[chosen[firsts]], np.bincount(origins, weights)
    labels = join_points(distinct_ND, weights, least, most)
    speech_C = np.bincount(labels, weights)
    count = min(max(1, _count_speakers(speech_C)), most)
    is_own_CN = labels == np.argsort(-speech_C, kind="stable")[:count, None]
    centroids_CD = _normalize((is_own_CN * weights) @ distinct_ND)
    if count < least:
        is_own_CN = cut_clusters(distinct_ND, (distinct_ND @ centroids_CD.T).argmax(axis=1), least)
        centroids_CD = _normalize((is_own_CN * weights) @ distinct_ND)
    return (points_ND @ centroids_CD.T).argmax(axis=1)[places_P], centroids_CD


def find_repeated(points_ND: np.ndarray, starts_N: np.ndarray) -> np.ndarray:
    """Return for each embedding the first one that is nearly the same, itself if there is none.

    Repeated audio, such as a loop or a jingle, is no more evidence of a speaker than once. What starts less
    than a window apart (in frames) may be the same audio in two windows, and is not repeated.
    """
    is_apart_NN = np.abs(starts_N[:, None] - starts_N) >= WINDOW // FRAME_SAMPLES
    similar_NN = (points_ND @ points_ND.T >= REPEATED) & is_apart_NN
    firsts_N = np.full(len(points_ND), -1)
    for own, similar_N in enumerate(similar_NN):
        if firsts_N[own] < 0:
            firsts_N[similar_N & (firsts_N < 0)] = own
            firsts_N[own] = own
    return firsts_N


def join_points(points_ND: np.ndarray, weights_N: np.ndarray, least: int, most: int) -> np.ndarray:
    """Merge clusters while one speaker explains a pair better than two (two-covariance PLDA).

    Embeddings are normally distributed around their speaker's mean, and means around zero, both with the same
    variance in all directions. It stops at the nearest stage with an allowed number of speakers.
    """
    noise, sizes_N, stages, gains = 1 - BETWEEN, np.ones(len(points_ND)), [np.arange(len(points_ND))], [0.0]
    products_NN = points_ND @ points_ND.T  # of the sums of two clusters

    def measure(sizes: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Return the log-likelihood of a single speaker, without terms that merging does not change."""
        total = noise + sizes * BETWEEN
        return BETWEEN / (noise * total) * squares - np.log(total / noise)

    def find_gains(own: int) -> np.ndarray:
        shares_N = 1 / (1 + DRIFT * sizes_N)  # of the pieces of each cluster, that count
        counts_N, squares_N = shares_N * sizes_N, shares_N**2 * products_NN.diagonal()
        products_N, alone_N = shares_N[own] * shares_N * products_NN[own], measure(counts_N, squares_N)
        both_N = measure(counts_N[own] + counts_N, squares_N[own] + squares_N + 2 * products_N)
        is_other_N = (sizes_N > 0) & (np.arange(len(sizes_N)) != own)
        return np.where(is_other_N, both_N - alone_N[own] - alone_N, -np.inf)

    gains_NN = np.stack([find_gains(own) for own in range(len(points_ND))])
    while len(stages) < len(points_ND):
        own, other = sorted(divmod(int(gains_NN.argmax()), len(points_ND)))
        gains.append(gains_NN[own, other])
        stages.append(np.where(stages[-1] == other, own, stages[-1]))
        sizes_N[[own, other]] = sizes_N[own] + sizes_N[other], 0
        products_NN[own] += products_NN[other]
        products_NN[:, own] += products_NN[:, other]
        gains_NN[own] = gains_NN[:, own] = find_gains(own)
        gains_NN[other] = gains_NN[:, other] = -np.inf
    best = next((stage for stage, gain in enumerate(gains) if gain < 0), len(gains)) - 1
    counts = [_count_speakers(np.bincount(labels_N, weights_N)) for labels_N in stages]
    misses = [(max(least - count, count - most, 0), abs(stage - best)) for stage, count in enumerate(counts)]
    return stages[misses.index(min(misses))]


def cut_clusters(points_ND: np.ndarray, labels_N: np.ndarray, number: int) -> np.ndarray:
    """Return which points form each cluster (C, N), after clusters were cut until there are `number`.

    The one whose halves are farthest apart is cut next. There may be fewer points than clusters to form.
    """
    found = [_halve(points_ND, np.flatnonzero(labels_N == own)) for own in np.unique(labels_N)]
    while len(found) < number and max(variance for variance, *_ in found) > 0:
        _, first, second = found.pop(max(range(len(found)), key=lambda own: found[own][0]))
        found += [_halve(points_ND, rows) for rows in (first, second)]
    rows_C = [np.concatenate([first, second]) for _, first, second in found]
    return np.stack([np.isin(np.arange(len(points_ND)), rows) for rows in rows_C])


def _halve(points_ND: np.ndarray, rows: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return two parts of the rows (2-means), and the variance between the parts; 0 if there is one part."""
    own_ND = points_ND[rows] - points_ND[rows].mean(axis=0)
    apart_D = np.linalg.svd(own_ND, full_matrices=False)[2][0]
    is_first_N, middle, variance = own_ND @ apart_D > 0, 0.0, 0.0
    for _ in range(HALVINGS):
        if is_first_N.all() or not is_first_N.any():
            break
        means_2D = np.stack([own_ND[part].mean(axis=0) for part in (is_first_N, ~is_first_N)])
        apart_D, middle = means_2D[0] - means_2D[1], (means_2D[0] ** 2 - means_2D[1] ** 2).sum() / 2
        variance = float(apart_D @ apart_D) * is_first_N.sum() * (~is_first_N).sum() / len(rows)
        is_first_N = own_ND @ apart_D > middle
    return variance, rows[is_first_N], rows[~is_first_N]


def _count_speakers(speech_C: np.ndarray) -> int:
    return int((speech_C >= min(MIN_SHARE * float(speech_C.sum()), MIN_SECONDS)).sum())


def _normalize(vectors_ND: np.ndarray) -> np.ndarray:
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-9)


def build_turns(
    evidence: SpeakerEvidence, clusters_N: np.ndarray, offset: float, exclusive: bool = False
) -> list[tuple[float, float, int]]:
    """Return start, end and cluster of the turns, which overlap unless they are exclusive."""
    runs: list[tuple[int, int, int]] = []
    for begin in range(0, evidence.firsts[-1] + len(evidence.active[0]), BLOCK):
        votes_CT, total_T = count_votes(evidence, clusters_N, begin)
        speaks_CT = elect_speakers(votes_CT, total_T, 1 if exclusive else MAX_SPEAKERS)
        for cluster, speaks_T in enumerate(speaks_CT):
            runs += [(begin + start, begin + end, cluster) for start, end in find_runs(speaks_T)]
    # Gaps are closed within a speaker; in exclusive turns, only where nobody else speaks.
    runs.sort(key=lambda run: run[:2] if exclusive else (run[2], run[0]))
    alike = itertools.groupby(runs, key=lambda run: run[2])
    joined = ((*run, cluster) for cluster, own in alike for run in join_runs([r[:2] for r in own], MIN_GAP))
    turns = ((start, end, cluster) for start, end, cluster in joined if end - start >= MIN_TURN)
    frame, edge = FRAME_SAMPLES / SAMPLE_RATE, EDGE / SAMPLE_RATE + offset
    return sorted((start * frame + edge, end * frame + edge, cluster) for start, end, cluster in turns)


def count_votes(evidence: SpeakerEvidence, clusters_N: np.ndarray, begin: int) -> tuple[np.ndarray, ...]:
    """Return votes for each cluster and the total in the block from `begin` on; edges count less."""
    length = len(evidence.active[0])
    weights_T = np.minimum(np.arange(1, length + 1), np.arange(length, 0, -1)).clip(max=RAMP)
    firsts_W, windows_N = np.array(evidence.firsts), np.array([piece.window for piece in evidence.pieces])
    # All windows that overlap the block; the parts outside the block are cut off below.
    shift, (low, high) = length - begin, np.searchsorted(firsts_W, [begin - length, begin + BLOCK])
    votes_CT = np.zeros((clusters_N.max() + 1, BLOCK + 2 * length), np.float32)
    total_T = np.zeros(BLOCK + 2 * length, np.float32)
    for first in firsts_W[low:high] + shift:
        total_T[first : first + length] += weights_T
    for place in range(*np.searchsorted(windows_N, [low, high])):
        window, local, start, end, *_ = evidence.pieces[place]
        first = firsts_W[window] + shift
        votes_T = weights_T * evidence.active[window][:, local]
        votes_CT[clusters_N[place], first + start : first + end] += votes_T[start:end]
    return votes_CT[:, length : length + BLOCK], total_T[length : length + BLOCK]


def elect_speakers(votes_CT: np.ndarray, total_T: np.ndarray, at_once: int) -> np.ndarray:
    """Return where clusters speak (C, T): those with the most votes, as many as windows find on average,
    but at most `at_once`."""
    number_T = np.minimum(at_once, np.floor(votes_CT.sum(axis=0) / np.maximum(total_T, 1) + 0.5))
    ranks_CT = np.argsort(np.argsort(-votes_CT, axis=0, kind="stable"), axis=0)
    return (ranks_CT < number_T) & (votes_CT > 0)
