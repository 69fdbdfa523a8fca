"""Switchboard: 2,400 telephone calls between strangers, 260 hours; tested on the calls of eval2000.

Each utterance is one channel of its call.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.audio import read_info
from asr.data import Utterance, open_lines, read_decoded, write_manifest
from asr.data.manifest import shorten
from asr.errors import UserError
from asr.recipe import WITHOUT_TAGS, Recipe, check_counts, find_files, limit_repeats, share_systems, widen
from asr.transcripts.readers import read_stm

NUM_CALLS = {"train": 2_438}
NUM_DEV = 4_000  # first training utterances by ID, as in published results
COUNTS = {"dev": 4_000, "test": 4_459, "test_swbd": 1_831, "test_callhm": 2_628}
CHANNELS = {"A": 1, "B": 2}
TRANSCRIPT = "-ms98-a-trans.text"  # suffix of the file of a side, such as sw2001A-ms98-a-trans.text
# Pronunciations of letters, with which the dictionary of the transcripts spells acronyms.
# fmt: off
LETTERS = {
    "a": "ey", "b": "b iy", "c": "s iy", "d": "d iy", "e": "iy", "f": "eh f",
    "g": "jh iy", "h": "ey ch", "i": "ay", "j": "jh ey", "k": "k ey", "l": "eh l",
    "m": "eh m", "n": "eh n", "o": "ow", "p": "p iy", "q": "k y uw", "r": "aa r",
    "s": "eh s", "t": "t iy", "u": "y uw", "v": "v iy", "w": "d ah b ax l y uw", "x": "eh k s",
    "y": "w ay", "z": "z iy",
}
# fmt: on


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl, test.jsonl (eval2000), test_swbd.jsonl and test_callhm.jsonl."""
    if corpus_dir is None:
        raise UserError("pass --corpus-dir FOLDER with the audio, the MS98 transcripts and eval2000")
    audio = {path.stem.lower(): path for path in find_files(corpus_dir, ".sph")}
    sides = {f"sw0{path.name[2:7].lower()}": path for path in find_files(corpus_dir, TRANSCRIPT)}
    num_calls = sum(f"{name}a" in sides and f"{name}b" in sides for name in audio)
    check_counts(corpus_dir, {"train": num_calls}, NUM_CALLS, "calls")
    train = sorted(_read_train(corpus_dir, audio, sides), key=lambda utterance: utterance.id)
    test = list(_read_eval2000(corpus_dir, audio))
    sets = {
        "train": limit_repeats(train[NUM_DEV:]),
        "dev": train[:NUM_DEV],
        "test": test,
        "test_swbd": [utterance for utterance in test if utterance.id.startswith("sw_")],
        "test_callhm": [utterance for utterance in test if utterance.id.startswith("en_")],
    }
    check_counts(corpus_dir, {name: len(found) for name, found in sets.items()}, COUNTS)
    for name, utterances in sets.items():
        write_manifest(output_dir / f"{name}.jsonl", utterances)


def _find_one(corpus_dir: Path, suffix: str, what: str) -> Path:
    found = next(find_files(corpus_dir, suffix), None)
    if found is None:
        raise UserError(f"{corpus_dir}: no {suffix}, {what}; put it, or a link to it, below this folder")
    return found


def _require_audio(audio: Mapping[str, Path], name: str, source: Path) -> Path:
    if name not in audio:
        raise UserError(f"{source}: there is no {name}.sph for it; get a complete copy")
    return audio[name]


# --- training -------------------------------------------------------------------------------------


def _read_train(
    corpus_dir: Path, audio: Mapping[str, Path], sides: Mapping[str, Path]
) -> Iterator[Utterance]:
    """Read the transcripts of `sides`, which are named after a call and its side: sw02001a."""
    dictionary = _find_one(
        corpus_dir, "sw-ms98-dict.text", "the dictionary of the MS98 transcripts (openslr.org/5)"
    )
    acronyms = read_acronyms(dictionary)
    for key, path in sides.items():
        name, side = key[:-1], key[-1].upper()
        if name not in audio or side not in CHANNELS:
            continue  # already counted above
        for number, line in read_decoded(path, "latin-1"):
            try:
                _, start, end, *words = line.split()
                first, last = float(start), float(end)
            except ValueError:
                raise UserError(
                    f"{path}:{number}: expected ID, start, end and words, found {shorten(line)}"
                ) from None
            text = clean_train(" ".join(words), acronyms)
            if text and last > first:
                yield Utterance(
                    id=f"{name}-{side}_{int(100 * first + 0.5):06d}-{int(100 * last + 0.5):06d}",
                    audio=str(audio[name]),
                    start=first,
                    duration=round(last - first, 6),
                    channel=CHANNELS[side],
                    text=text,
                    speaker=f"{name}-{side}",
                    language="en",
                )


# Applied in this order; in -[an]y the beginning is missing, in ab[solute]- the end.
_MARKS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^\[laughter-(.+)\](-?)$", r"\1\2"),
        (r"^\[(.+)/.+\](-?)$", r"\1\2"),  # [it'n/isn't]: spoken and intended word
        (r"^-?\[[^][]+\](.+)$", r"-\1"),
        (r"^(.+)\[[^][]+\]-?$", r"\1-"),
        (r"^([^][]+)\[.+\]$", r"\1"),
        (r"^\{(.+)\}$", r"\1"),  # coined words
        (r"([a-z])\[[^][]+\]([a-z])", r"\1-\2"),
        (r"_\d", ""),  # pronunciation variants
    )
]


def clean_train(text: str, acronyms: Mapping[str, str]) -> str:
    """Remove marks of laughter, corrections and false starts; spell acronyms as letters."""
    words = []
    for word in re.sub(r"<[be]_aside>", " ", text.lower()).split():
        if word != "[silence]":
            for pattern, replacement in _MARKS:
                word = pattern.sub(replacement, word)
            words.append(acronyms.get(word, word))
    return " ".join(words)


def read_acronyms(path: Path) -> dict[str, str]:
    """Spell the words that are pronounced as letters: ibm is "i b m", tv's is "t v's"."""
    found = {}
    for _, line in read_decoded(path, "latin-1"):
        word, *sounds = line.lower().split()
        match = re.fullmatch(r"([a-z]+?)('?s)?", word)
        if match is None:
            continue
        if match[2] and sounds and sounds.pop() not in ("s", "z"):
            continue
        if " ".join(LETTERS[letter] for letter in match[1]) == " ".join(sounds):
            found[word] = " ".join(match[1]) + (match[2] or "")
    return found


# --- eval2000 ---------------------------------------------------------------------------------------


def _read_eval2000(corpus_dir: Path, audio: Mapping[str, Path]) -> Iterator[Utterance]:
    pem = _find_one(corpus_dir, "hub5e_00.pem", "the segments of eval2000 (LDC2002S09)")
    stm = _find_one(corpus_dir, "hub5e00.english.000405.stm", "the texts of eval2000 (LDC2002T43)")
    with open_lines(stm) as lines:
        entries = [entry for _, _, entry in read_stm(lines, "reference", [])]
    texts = {(e.recording, e.channel, round(e.start or 0.0, 2)): e.text for e in entries}
    sides = defaultdict(list)
    for number, line in read_decoded(pem, "latin-1"):
        columns = line.split()
        if line.startswith((";", "#")):
            continue
        try:
            sides[columns[0], columns[1]].append((float(columns[3]), float(columns[4])))
        except (IndexError, ValueError):
            raise UserError(
                f"{pem}:{number}: expected call, side, speaker, start, end, found {shorten(line)}"
            ) from None
    for (call, side), exact in sorted(sides.items()):
        path = _require_audio(audio, call, pem)
        wide = widen(exact, 0.1, 0.1, read_info(path).seconds or exact[-1][1])
        for (first, last), (start, end) in zip(exact, wide, strict=True):
            key = (call, side, round(first, 2))
            if key not in texts:
                raise UserError(
                    f"{pem}: the segment of {call} {side} at {first} s is not in {stm}; get complete copies"
                )
            if (text := texts[key]) is None:  # ignored in scoring
                continue
            yield Utterance(
                id=f"{call}-{side}_{int(100 * first):06d}-{int(100 * last):06d}",
                audio=str(path),
                start=start,
                duration=round(end - start, 6),
                channel=CHANNELS[side.upper()],
                text=clean_eval2000(text),
                speaker=f"{call}-{side}",
                language="en",
            )


def clean_eval2000(text: str) -> str:
    """Remove hesitations, (%hesitation), labels, <...>, and the brackets around optional words."""
    return " ".join(re.sub(r"\(%[^)]*\)|<[^>]*>|[()]", " ", text.lower()).split())


RECIPE = Recipe(
    license="of the Linguistic Data Consortium; the MS98 transcripts are free (openslr.org/5)",
    hours=268.0,
    prepare=prepare,
    source="license LDC97S62, LDC2002S09 and LDC2002T43 at https://catalog.ldc.upenn.edu, and unpack "
    "https://www.openslr.org/resources/5/switchboard_word_alignments.tar.gz",
    systems=share_systems(
        __file__, "features.sample_rate=8000", "tokenizer={type: bpe, vocab_size: 2000}", WITHOUT_TAGS
    ),
)
