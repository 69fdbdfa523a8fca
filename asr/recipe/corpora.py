"""Published corpora: folders, counts and checksums; WSJ texts; beamforming of microphone arrays."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from asr.audio.reading import measure_seconds, read, write
from asr.data.manifest import Utterance, shorten
from asr.data.text_lines import read_decoded
from asr.errors import UserError
from asr.recipe.archives import extract

logger = logging.getLogger(__name__)

_ARCHIVES = (".tar.gz", ".tgz")


def find_corpus(corpus_dir: Path | None, landmark: str) -> Path:
    """Find the folder with `landmark`: the given one, the only such folder in it, or its parent."""
    if corpus_dir is None:
        raise UserError("pass --corpus-dir FOLDER, or download the corpus first")
    given = Path(os.path.abspath(corpus_dir))
    try:
        inner = sorted(path for path in given.iterdir() if path.is_dir())
    except OSError as error:
        raise UserError(f"{corpus_dir}: cannot read this folder of a corpus ({error.strerror})") from None
    if (given / landmark).exists():
        return corpus_dir
    holders = [path for path in inner if (path / landmark).exists()]
    if not holders and (given.parent / landmark).exists():
        return given.parent
    if len(holders) != 1:
        several = ", ".join(path.name for path in holders)
        raise UserError(
            f"{corpus_dir}: --corpus-dir must be the folder that contains {landmark}; "
            + (f"{several} do" if holders else "neither this one nor one inside does")
        )
    return corpus_dir / holders[0].name


_SHORTFALLS: ContextVar[list[str] | None] = ContextVar("shortfalls", default=None)


@contextlib.contextmanager
def collect_shortfalls() -> Iterator[list[str]]:
    """Collect the missing parts of a corpus, also from recipes that it prepares itself."""
    outer = _SHORTFALLS.get()
    found = [] if outer is None else outer
    token = _SHORTFALLS.set(found)
    try:
        yield found
    finally:
        _SHORTFALLS.reset(token)


def require_count(folder: Path, what: str, found: int, expected: int) -> None:
    if found != expected:
        raise UserError(
            f"{folder}: found {found:,} {what}, expected {expected:,}; get a complete copy of the published "
            "version and pass its folder as --corpus-dir"
        )


def check_counts(
    folder: Path, found: Mapping[str, int], published: Mapping[str, int], what: str = "utterances"
) -> None:
    """Compare the number of utterances of each set with the published one.

    An incomplete train set causes a warning. Other sets must be complete, because results depend on them.
    """
    for name, expected in published.items():
        count = found.get(name, 0)
        if not name.startswith("train"):
            require_count(folder, f"{what} of {name}", count, expected)
        elif count != expected:
            warn_of_shortfall(folder, f"{count:,} of {expected:,} {what} of {name}")


def warn_of_shortfall(folder: Path, what: str) -> None:
    """Warn that the corpus is incomplete; reports are marked accordingly."""
    if (noted := _SHORTFALLS.get()) is not None:
        noted.append(what)
    logger.warning("%s: %s: results do not compare with those on the complete corpus", folder, what)


def require_fingerprint(folder: Path, names: Iterable[str], sample_rate: int, expected: str) -> None:
    """Check that these audio files have exactly the published samples."""
    names = sorted(names)
    fingerprint = compute_fingerprint(folder, names, sample_rate)
    if fingerprint != expected:
        raise UserError(
            f"{folder}: the content of its {len(names):,} audio files differs from the published corpus "
            f"(fingerprint {fingerprint[:16]}, expected {expected[:16]}); get an unaltered copy"
        )


def compute_fingerprint(folder: Path, names: Iterable[str], sample_rate: int) -> str:
    """Hash the sorted names, each with the SHA-256 of its 16-bit samples.

    Unlike the checksum of an archive, this does not change when the same content is packed again.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        audio = read(folder / name, sample_rate, allow_silence=True)
        samples = np.rint(audio * 32768).astype("<i2")
        digest.update(f"{name} {hashlib.sha256(samples.tobytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


# --- files --------------------------------------------------------------------------------------


def find_files(folder: Path, *suffixes: str) -> Iterator[Path]:
    """Yield all files with these suffixes, ignoring case, in sorted order; links are followed."""
    seen = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        status = os.stat(parent)
        if (status.st_dev, status.st_ino) in seen:  # circular links
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(suffixes) and not name.startswith("."):
                yield Path(parent, name)


def find_folder(root: Path, *paths: str) -> Path | None:
    """Return the first of the relative paths that is a folder below `root`, ignoring case, or None."""
    for path in paths:
        matches = [root]
        for part in Path(path).parts:
            below = (inner for folder in matches for inner in sorted(folder.iterdir()))
            matches = [inner for inner in below if inner.name.lower() == part.lower() and inner.is_dir()]
        if matches:
            return matches[0]
    return None


def unpack_inner(folder: Path, max_bytes: int) -> None:
    """Unpack each archive below `folder` into a folder of the same name next to it."""
    for archive in _find_packed(folder):
        extract(archive, archive.with_name(_name_of(archive)), max_bytes=max_bytes)


def require_unpacked(folder: Path) -> None:
    """Refuse a corpus with archives that have not been unpacked."""
    if packed := _find_packed(folder):
        raise UserError(
            f"{folder}: has {len(packed):,} archives that are still packed, such as "
            f"{packed[0].relative_to(folder)}; unpack each in its folder, for example with "
            "`find . -name '*.tar.gz' -execdir tar -xzf {} ';'`"
        )


def _find_packed(folder: Path) -> list[Path]:
    names = {os.path.basename(parent) for parent, _, _ in os.walk(folder)}
    return [path for path in find_files(folder, *_ARCHIVES) if _name_of(path) not in names]


def _name_of(archive: Path) -> str:
    return archive.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")


def build_whole(path: Path, **fields: Any) -> Utterance:
    """Build the utterance of a whole audio file."""
    return Utterance(audio=str(path), duration=measure_seconds(path), **fields)


def build_read(paths: Iterable[Path], texts: Mapping[str, str], language: str) -> Iterator[Utterance]:
    """Build the utterances of files that are named by text ID and are in a folder per speaker."""
    for path in paths:
        yield build_whole(
            path, id=path.stem, text=texts[path.stem], speaker=path.parent.name, language=language
        )


def write_beamformed(
    channels: Mapping[str, Sequence[Path]], folder: Path, sample_rate: int = 16_000
) -> dict[str, Path]:
    """Write ID.wav for each utterance, with delay and sum of its channels; return the paths by ID."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {id: folder / f"{id}.wav" for id in channels}
    for id, path in tqdm(written.items(), desc=folder.name, unit=" utterances", disable=None, leave=False):
        write(path, beamform_files(channels[id], sample_rate), sample_rate)
    return written


# --- texts --------------------------------------------------------------------------------------


def limit_repeats(utterances: Iterable[Utterance], limit: int = 300) -> list[Utterance]:
    """Keep about `limit` of the utterances with the same text, such as "yeah", in the order of their IDs.

    They are drawn as in Kaldi's remove_dup_utts.sh, which published results use.
    """
    in_order = sorted(utterances, key=lambda utterance: utterance.id)
    counts = Counter(utterance.text for utterance in in_order)
    kept, state = [], 0
    for utterance in in_order:
        if counts[utterance.text] >= limit:
            state = (state + 103_349) % 71_147
            if state / 71_147 >= limit / counts[utterance.text]:
                continue
        kept.append(utterance)
    return kept


def widen(
    spans: Iterable[tuple[float, float]], before: float, after: float, seconds: float
) -> list[tuple[float, float]]:
    """Widen the spans of a speaker within the recording; spans that would overlap meet in the middle."""
    widened = [[max(0.0, start - before), min(seconds, end + after)] for start, end in spans]
    for one, other in itertools.pairwise(sorted(widened, key=sum)):
        if one[1] > other[0]:
            one[1] = other[0] = (one[1] + other[0]) / 2
    return [(round(start, 6), round(end, 6)) for start, end in widened]


# --- WSJ --------------------------------------------------------------------------------------------

# The path from wsj0 or wsj1 on, but not from such a folder above a disc folder such as 11-13.1.
_INSIDE = re.compile(r"(?:^|/)(wsj[01]/(?!.*\d\d[-_]\d+[._]\d/).*)$")


def index_wsj(root: Path, *suffixes: str) -> dict[str, Path]:
    """Index files by their lower-case path from wsj0 or wsj1 on, whatever disc folders are above."""
    index: dict[str, Path] = {}
    for path in find_files(root, ".dot", ".ndx", *suffixes):
        if match := _INSIDE.search(path.relative_to(root).as_posix().lower()):
            index.setdefault(match[1], path)
    if not index:
        raise UserError(f"{root}: no file in a folder wsj0 or wsj1; pass their parent folder")
    return index


def read_prompts(root: Path, index: Mapping[str, Path], ids: Iterable[str]) -> dict[str, str]:
    """Read the transcript of each ID from the .dot files, such as 01ic0201 from 01ic0200.dot."""
    files = {path.name.lower()[:6]: path for key, path in index.items() if re.search(r"/\w{6}00\.dot$", key)}
    needed = sorted(set(ids))
    texts = {}
    for prefix in sorted({id[:6] for id in needed}):
        if prefix not in files:
            raise UserError(
                f"{root}: {prefix}00.dot, with the transcripts of {prefix}.., is missing; is a disc missing?"
            )
        texts.update(read_dots(files[prefix]))
    if missing := [id for id in needed if id not in texts]:
        raise UserError(f"{files[missing[0][:6]]}: no transcript of {missing[0]}; get a complete copy")
    return texts


def read_dots(path: Path) -> dict[str, str]:
    """Read the texts by lower-case ID from lines such as `Shares of Example Corp\\. rose (01ic0201)`."""
    texts = {}
    for number, line in read_decoded(path, "latin-1"):
        match = re.fullmatch(r"(.*?)\s*\((\w+)\)", line)
        if match is None:
            raise UserError(
                f"{path}:{number}: expected a text and its ID in parentheses, found {shorten(line)}"
            )
        texts[match[2].lower()] = match[1]
    return texts


_SPELLED = {"%PERCENT": "PERCENT", ".POINT": "POINT", "--DASH": "-DASH"}


def normalize_prompt(text: str) -> str:
    """Normalize as Kaldi does: upper case, no pauses, <NOISE> for noises; words in <> were spoken."""
    words = []
    for word in text.upper().replace("\\", "").split():
        word = _SPELLED.get(word, word)
        if word in (".", "~") or re.fullmatch(r"\[(<.*|.*>|.*/|/.*)\]", word):
            continue
        if re.fullmatch(r"\[.*\]", word):
            word = "<NOISE>"
        elif match := re.fullmatch(r"<([\w']+)>", word):
            word = match[1]
        words.append(word)
    return " ".join(words)


# --- beamforming ------------------------------------------------------------------------------------

# C channels, S samples, K frames of the analysis, F frequencies

MAX_DELAY_SECONDS = 0.003  # one meter, wider than a tablet or the array in a room
FRAME = 4096  # samples; much longer than the delay, much shorter than the utterance
UPSAMPLING = 16  # delays have a resolution of a sixteenth of a sample


def beamform_files(paths: Sequence[Path], sample_rate: int) -> np.ndarray:
    """Apply delay and sum to files with one channel each; return float32 (samples,)."""
    channels = [read(path, sample_rate, allow_silence=True) for path in paths]
    lengths = {len(channel) for channel in channels}
    if max(lengths) - min(lengths) > MAX_DELAY_SECONDS * sample_rate:
        raise UserError(
            f"{paths[0]}: its channels have {min(lengths):,} to {max(lengths):,} samples; expected files "
            "that were recorded together"
        )
    return delay_and_sum(np.stack([channel[: min(lengths)] for channel in channels]), sample_rate)


def delay_and_sum(channels_CS: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return the mean of the channels, aligned in time with the first one, as float32 (samples,). Silent
    channels are ignored."""
    channels_CS = channels_CS[channels_CS.any(axis=1)]
    if len(channels_CS) < 2:
        return channels_CS.sum(axis=0).astype(np.float32)
    delays_C = find_delays(channels_CS, sample_rate)
    num_samples = channels_CS.shape[1]
    padded = num_samples + round(
        2 * MAX_DELAY_SECONDS * sample_rate
    )  # padding, so that shifted samples do not wrap around
    spectra_CF = np.fft.rfft(channels_CS, padded)
    aligned_CF = spectra_CF * np.exp(2j * np.pi * np.fft.rfftfreq(padded) * delays_C[:, None])
    return np.fft.irfft(aligned_CF.mean(axis=0), padded)[:num_samples].astype(np.float32)


def find_delays(channels_CS: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return the delay of each channel relative to the first, in fractional samples (C,)."""
    window = np.hanning(FRAME)
    first_KF = np.fft.rfft(_frame(channels_CS[0]) * window, 2 * FRAME).conj()
    cross_CF = np.stack(
        [(np.fft.rfft(_frame(own) * window, 2 * FRAME) * first_KF).sum(axis=0) for own in channels_CS]
    )
    cross_CF /= np.maximum(np.abs(cross_CF), 1e-30)
    correlation_CS = np.fft.irfft(cross_CF, 2 * FRAME * UPSAMPLING)
    most = round(MAX_DELAY_SECONDS * sample_rate * UPSAMPLING)
    near_CS = np.concatenate([correlation_CS[:, -most:], correlation_CS[:, : most + 1]], axis=1)
    return (near_CS.argmax(axis=1) - most) / UPSAMPLING


def _frame(channel_S: np.ndarray) -> np.ndarray:
    """Cut into frames (K, FRAME) that overlap by half; the last one is padded with silence."""
    num_halves = max(2, -(-len(channel_S) // (FRAME // 2)))
    padded_S = np.pad(channel_S, (0, num_halves * (FRAME // 2) - len(channel_S)))
    return np.lib.stride_tricks.sliding_window_view(padded_S, FRAME)[:: FRAME // 2]
