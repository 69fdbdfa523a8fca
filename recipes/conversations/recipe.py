"""Synthetic meetings of two to five speakers, made from AN4, FSDD and speechocean762 utterances.

Each third has speakers of AN4, of speechocean762, or of all three. No speaker is in two of the splits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from asr.audio import find_runs, measure_energies, read, write
from asr.data import Utterance, read_manifest, write_manifest
from asr.recipe import Recipe, add_noise, add_room, find_corpus, load_recipe
from asr.speakers.turns import Turn, format_rttm, format_seglst

SAMPLE_RATE = 16_000
CORPORA = ("an4", "fsdd", "speechocean762")
SOURCES = (("an4",), ("speechocean762",), CORPORA)  # corpora that the speakers of a meeting come from
OVERLAPS, NUM_SPEAKERS = (0.0, 0.1, 0.2), (2, 3, 4, 5)
STEPS = {"dev": 2, "test": 1}  # use every Nth of the 36 combinations
FSDD_SPEAKERS = {"train": ("george", "jackson"), "dev": ("lucas", "nicolas"), "test": ("theo", "yweweler")}
FSDD_STRINGS = {"train": 40, "dev": 10, "test": 10}  # strings of three to seven digits per speaker
HELD_OUT = 10  # hold out every Nth utterance of the training speakers
MEETING_SECONDS = (60.0, 90.0)  # like the ranges below, of a uniform distribution
PAUSE_SECONDS = (0.2, 1.5)  # between turns
INNER_SECONDS = (0.1, 0.5)  # between utterances of a turn
OVERLAP_SECONDS = (0.5, 3.0)  # from the start of a turn to the end of the previous one
MAX_UTTERANCES = 3  # per turn
LEVEL, SPREAD = -26.0, 3.0  # dB: speech level, and the largest deviation of a speaker from it
FAR_DB, FAR_ECHO_DB = (-18.0, -6.0), (-6.0, 3.0)  # direct sound of all speakers but the first, and its echoes
FLOOR = -65.0  # dB: white noise everywhere, because no microphone records digital silence
ACTIVE_SHARE = 0.4  # speech threshold: share of the way, in dB, from pause level to speech level
BRIDGE_FRAMES, LEAST_FRAMES, MARGIN_FRAMES = 30, 5, 5  # bridged pause, shortest sound, margin: each of 10 ms


def prepare(corpus_dir: Path | None, output_dir: Path, *, steps: Mapping[str, int] = STEPS) -> None:
    """Write manifest, RTTM and SegLST of dev and test: near, in rooms (`test_room`), and far (`test_far`).

    All speakers but the first are far and quiet there. train.jsonl and held_out.jsonl have utterances of the
    training speakers, and dev_speakers.jsonl and test_speakers.jsonl the ones in the meetings.
    """
    utterances = read_corpora(find_corpus(corpus_dir, "fsdd"), output_dir)
    train = utterances.pop("train")
    write_manifest(output_dir / "held_out.jsonl", train[::HELD_OUT])
    write_manifest(output_dir / "train.jsonl", [u for i, u in enumerate(train) if i % HELD_OUT])
    combinations = list(itertools.product(OVERLAPS, NUM_SPEAKERS, SOURCES))
    for split, own in utterances.items():
        write_manifest(output_dir / f"{split}_speakers.jsonl", own)
        parts = read_parts(own)
        meetings = [plan_meeting(split, parts, *chosen) for chosen in combinations[:: steps[split]]]
        for name in (split, f"{split}_room", f"{split}_far"):
            folder = output_dir / "audio" / name
            folder.mkdir(parents=True, exist_ok=True)
            write_manifest(output_dir / f"{name}.jsonl", [write_meeting(m, folder) for m in meetings])
            (output_dir / f"{name}.rttm").write_text(format_rttm(t for m in meetings for t in m.find_spans()))
            (output_dir / f"{name}.json").write_text(format_seglst(t for m in meetings for t in m.turns))


def read_corpora(root: Path, output_dir: Path) -> dict[str, list[Utterance]]:
    """Prepare the three corpora with their own recipes and return the utterances of train, dev and test."""
    found: dict[str, list[Utterance]] = {"train": [], "dev": [], "test": []}
    for corpus in CORPORA:
        folder = output_dir / "corpora" / corpus
        folder.mkdir(parents=True, exist_ok=True)
        more = {"strings_per_speaker": FSDD_STRINGS, "long_strings": {}} if corpus == "fsdd" else {}
        load_recipe(corpus, Path(__file__).absolute().parents[1]).prepare(root / corpus, folder, **more)
        for split, own in found.items():
            for item in read_manifest(folder / f"{split}.jsonl"):
                if corpus != "fsdd" or item.speaker in FSDD_SPEAKERS[split]:
                    own.append(item.model_copy(update={"speaker": f"{corpus}-{item.speaker}"}))
    return found


@dataclass(frozen=True)
class Part:
    """An utterance without leading and trailing silence; `spans` is where it has speech, in seconds."""

    text: str
    audio_S: np.ndarray
    spans: tuple[tuple[float, float], ...]
    seconds: float


@dataclass(frozen=True)
class Meeting:
    """The parts of each speaker with their start times in seconds, and the turns that they form."""

    id: str
    placed: dict[str, list[tuple[float, Part]]]
    turns: list[Turn]
    extras: dict[str, object]

    def find_spans(self) -> Iterator[Turn]:
        """Find the speech of each speaker, as diarization reference; short pauses count as speech."""
        for speaker, own in self.placed.items():
            spans = [(at + start, at + end) for at, part in own for start, end in part.spans]
            pauses = [i for i in range(1, len(spans)) if spans[i][0] - spans[i - 1][1] >= BRIDGE_FRAMES / 100]
            for first, after in itertools.pairwise([0, *pauses, len(spans)]):
                yield Turn(self.id, spans[first][0], spans[after - 1][1], speaker)


def read_parts(utterances: Sequence[Utterance]) -> dict[str, list[Part]]:
    """Read the parts of each speaker, all scaled to the same level."""
    parts: dict[str, list[Part]] = {}
    for item in utterances:
        audio_S = read(item.audio, SAMPLE_RATE)
        is_active_T = find_activity(audio_S)
        frames = np.flatnonzero(is_active_T)
        first, last = max(0, frames[0] - MARGIN_FRAMES), frames[-1] + 1 + MARGIN_FRAMES
        power = np.mean(np.square(audio_S[: len(is_active_T) * 160].reshape(-1, 160)[is_active_T]))
        audio_S = audio_S[first * 160 : last * 160] * (10 ** (LEVEL / 20) / np.sqrt(power))
        spans = tuple(((a - first) / 100, (b - first) / 100) for a, b in find_runs(is_active_T))
        part = Part(item.text or "", audio_S, spans, len(audio_S) / SAMPLE_RATE)
        parts.setdefault(str(item.speaker), []).append(part)
    return parts


def find_activity(audio_S: np.ndarray) -> np.ndarray:
    """Return whether each 10 ms frame has speech: its level over 50 ms is above ACTIVE_SHARE of the range."""
    levels_T = measure_energies(audio_S, SAMPLE_RATE)
    levels_T = np.convolve(np.pad(levels_T, 2, mode="edge"), np.full(5, 0.2), mode="valid")
    low, high = np.quantile(levels_T, [0.05, 0.95])
    is_active_T = levels_T > low + ACTIVE_SHARE * (high - low)
    for value, least in ((False, BRIDGE_FRAMES), (True, LEAST_FRAMES)):
        for first, last in find_runs(is_active_T == value):
            if last - first < least and first > 0 and last < len(is_active_T):
                is_active_T[first:last] = not value
    return is_active_T


def plan_meeting(
    split: str, parts: Mapping[str, Sequence[Part]], overlap: float, num_speakers: int, corpora: Sequence[str]
) -> Meeting:
    """Draw speakers and their turns. Turns overlap the previous one while too little time has overlapped.

    Two people speak at once at most, nobody twice. First all speakers have a turn. No utterance is repeated.
    """
    source = corpora[0] if len(corpora) == 1 else "all"
    name = f"{split}-{100 * overlap:02.0f}-{num_speakers}-{source}"
    generator = np.random.default_rng(list(name.encode()))
    known = {corpus: [s for s in sorted(parts) if s.startswith(f"{corpus}-")] for corpus in corpora}
    queues = [generator.permutation(own).tolist() for own in known.values()]
    speakers = [s for row in itertools.zip_longest(*queues) for s in row if s is not None][:num_speakers]
    decks = {s: [parts[s][i] for i in generator.permutation(len(parts[s]))] for s in speakers}
    total, turns = generator.uniform(*MEETING_SECONDS), list[Turn]()
    placed: dict[str, list[tuple[float, Part]]] = {}
    shared = spoken = before = 0.0  # seconds; `before`: end of the second-to-last turn
    while sum(map(bool, decks.values())) > 1 and (not turns or turns[-1].end < total):
        last = turns[-1] if turns else Turn(name, 0.0, 0.0, "")
        waiting = [s for s in speakers[len(turns) :] if decks[s]]
        others = [s for s, deck in decks.items() if deck and s != last.speaker]
        speaker = str(generator.choice(waiting[:1] or others))
        at = last.end + generator.uniform(*PAUSE_SECONDS)
        if turns and shared < overlap * spoken:
            at = max(last.end - generator.uniform(*OVERLAP_SECONDS), last.start + 0.2, before + 0.1)
        start, texts = at, []
        for _ in range(generator.integers(1, MAX_UTTERANCES, endpoint=True)):
            if decks[speaker]:
                placed.setdefault(speaker, []).append((at, part := decks[speaker].pop()))
                texts.append(part.text)
                end = at + part.seconds
                at = end + generator.uniform(*INNER_SECONDS)
        turns.append(Turn(name, start, end, speaker, " ".join(texts)))
        both = max(0.0, min(end, last.end) - start)
        shared, spoken = shared + both, spoken + end - start - both
        before = min(last.end, end) if both else last.end
        if end < last.end:  # keep the turn that ends later as the last one
            turns[-2:] = turns[:-3:-1]
    turns.sort(key=lambda turn: turn.start)
    return Meeting(name, placed, turns, {"overlap": overlap, "speakers": num_speakers, "corpus": source})


def write_meeting(meeting: Meeting, folder: Path) -> Utterance:
    """Write the audio; in folders of rooms, each speaker has echoes, and the mixture has noise."""
    kind = folder.name.partition("_")[2]  # room, far, or nothing
    generator = np.random.default_rng(list(meeting.id.encode()))
    gains = 10 ** (generator.uniform(-SPREAD, SPREAD, len(meeting.placed)) / 20)
    size = round((max(turn.end for turn in meeting.turns) + PAUSE_SECONDS[1]) * SAMPLE_RATE)
    mixture_S = generator.normal(size=size) * 10 ** (FLOOR / 20)
    if kind == "far":
        gains[1:] *= 10 ** (generator.uniform(*FAR_DB, len(gains) - 1) / 20)
    for number, (own, gain) in enumerate(zip(meeting.placed.values(), gains, strict=True)):
        alone_S = np.zeros(size)
        for at, part in own:
            first = round(at * SAMPLE_RATE)
            alone_S[first : first + len(part.audio_S)] += part.audio_S
        echo_db = [FAR_ECHO_DB] if kind == "far" and number else []
        mixture_S += gain * (add_room(alone_S, generator, *echo_db) if kind else alone_S)
    mixture_S = add_noise(mixture_S, generator) if kind else mixture_S
    path = folder / f"{meeting.id}.wav"
    write(path, (mixture_S * min(1.0, 0.9 / np.abs(mixture_S).max())).astype(np.float32), SAMPLE_RATE)
    return Utterance(
        id=meeting.id,
        audio=str(path),
        duration=size / SAMPLE_RATE,
        text=" ".join(turn.text for turn in meeting.turns),
        speaker="+".join(meeting.placed),
        language="en",
        extras=meeting.extras,
    )


RECIPE = Recipe(
    license="the licenses of the three corpora; with FSDD speech, CC BY-SA 4.0",
    hours=3.88,
    has_results=True,
    prepare=prepare,
    prepare_smoke=partial(prepare, steps={"dev": 18, "test": 12}),
    source="a folder with an4/, fsdd/ and speechocean762/, which the recipes of these names download",
)
