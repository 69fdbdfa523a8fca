"""Fisher and CallHome Spanish: telephone calls in Spanish, 163 hours and 120 calls.

Each utterance is one channel of its call. The mapping of the Fisher-CallHome corpus tells which lines of the
transcripts it is made of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from asr.audio import read_info
from asr.data import Utterance, read_decoded, read_lines, write_manifest
from asr.data.manifest import shorten
from asr.errors import UserError
from asr.recipe import Recipe, check_counts, find_files, share_systems

SETS = {  # manifest -> file of the mapping
    "train": "fisher_train",
    "dev": "fisher_dev",
    "test": "fisher_test",
    "dev2": "fisher_dev2",
    "callhome_devtest": "callhome_devtest",
    "callhome_evltest": "callhome_evltest",
}
COUNTS = {  # lines of the mapping
    "train": 138_819,
    "dev": 3_979,
    "test": 3_641,
    "dev2": 3_961,
    "callhome_devtest": 3_966,
    "callhome_evltest": 1_829,
}


class Line(NamedTuple):
    """One line of a transcript."""

    start: float
    end: float
    channel: int
    text: str


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write a manifest for each of SETS, and SET_en.jsonl with English texts if there are any."""
    if corpus_dir is None:
        raise UserError("pass --corpus-dir FOLDER with the LDC corpora and the mapping")
    audio = {path.stem.lower(): path for path in find_files(corpus_dir, ".sph", ".wav")}
    fisher = {path.stem.lower(): path for path in find_files(corpus_dir, "_fsp.tdf")}
    callhome = {
        path.stem.lower(): path
        for path in find_files(corpus_dir, ".txt")
        if re.match(r"(?i)sp_\d+$", path.stem)
    }
    if not fisher:
        raise UserError(f"{corpus_dir}: no transcript from LDC2010T04, such as 20051009_182032_217_fsp.tdf")
    mappings = {}
    for name, file in SETS.items():
        if name.startswith("callhome") and not callhome:
            continue
        path = next((path for path in find_files(corpus_dir, file) if path.name == file), None)
        if path is None:
            raise UserError(f"{corpus_dir}: no mapping/{file}; get it from {MAPPING_URL}")
        mappings[name] = [tuple(line.split()) for _, line in read_decoded(path)]
    counts = {name: len(lines) for name, lines in mappings.items()}
    check_counts(corpus_dir, counts, {name: COUNTS[name] for name in mappings})
    calls: dict[str, list[Line]] = {}
    sets: dict[str, list[Utterance]] = {}
    for name, mapping in mappings.items():
        sets[name] = []
        translations = _read_translations(corpus_dir, SETS[name], len(mapping))
        if translations:
            sets[f"{name}_en"] = []
        for line, (call, *numbers) in enumerate(mapping):
            call = call.lower()
            source = fisher.get(call) or callhome.get(call)
            if source is None or call not in audio:
                raise UserError(f"{corpus_dir}: no transcript or no audio of {call}, which {SETS[name]} has")
            if call not in calls:
                calls[call] = read_fisher(source) if call in fisher else read_callhome(source)
                _require_readable(audio[call])
            utterance = _join(call, source, audio[call], calls[call], "".join(numbers))
            if utterance is None:
                continue
            sets[name].append(utterance)
            english = [" ".join(clean_fisher(lines[line]).split()) for lines in translations]
            if any(english):
                sets[f"{name}_en"].append(_translate(utterance, list(filter(None, english))))
    for name, utterances in sets.items():
        write_manifest(output_dir / f"{name}.jsonl", utterances)


def _read_translations(corpus_dir: Path, name: str, count: int) -> list[list[str]]:
    """Read the lines of corpus/ldc/NAME.en, or of NAME.en.0 to NAME.en.3 for Fisher's test sets."""
    found = []
    for path in find_files(corpus_dir, ".en", *(f".en.{number}" for number in range(4))):
        if path.parent.name == "ldc" and path.name.partition(".")[0] == name:
            lines = path.read_text(encoding="utf-8", errors="replace").removesuffix("\n").split("\n")
            if len(lines) != count:
                raise UserError(f"{path}: has {len(lines):,} lines, expected {count:,} as in mapping/{name}")
            found.append(lines)
    return found


def _translate(utterance: Utterance, texts: Sequence[str]) -> Utterance:
    """Return the utterance with its first translation as text and the others as further references."""
    more = {f"reference_{number}": text for number, text in enumerate(texts[1:], start=2)}
    return utterance.model_copy(update={"text": texts[0], "extras": more})


def _require_readable(path: Path) -> None:
    try:
        read_info(path)
    except UserError as error:
        raise UserError(
            f"{error}. CallHome uses shorten with mu-law: make a WAV file of the same name next to "
            "it, as by `sph2pipe -f wav IN.SPH OUT.wav`, and take the .SPH away"
        ) from None


def _join(call: str, source: Path, audio: Path, lines: Sequence[Line], numbers: str) -> Utterance | None:
    """Join transcript lines, numbered from 1 as in 3_4; None if there is no speech."""
    try:
        parts = [lines[int(number) - 1] for number in numbers.split("_")]
    except (IndexError, ValueError):
        raise UserError(
            f"{source}: has {len(lines)} lines, the mapping asks for {shorten(numbers)}"
        ) from None
    clean = clean_fisher if source.suffix.lower() == ".tdf" else clean_callhome
    text = " ".join(clean(" ".join(part.text for part in parts)).split())
    start, end, channel = parts[0].start, parts[-1].end, parts[0].channel
    if not text or end <= start:
        return None
    speaker = f"{call}-{'AB'[channel - 1]}"
    return Utterance(
        id=f"{speaker}-{int(100 * start):06d}-{int(100 * end):06d}",
        audio=str(audio),
        start=start,
        duration=round(end - start, 6),
        channel=channel,
        text=text,
        speaker=speaker,
        language="es",
    )


def read_fisher(path: Path) -> list[Line]:
    """Read tab-separated columns: file, channel from 0, start, end, speaker, sex, dialect, text, others."""
    lines = []
    for number, _, raw in read_lines(path):
        line = raw.decode("utf-8", "replace")
        if line.startswith((";;", "file;")):
            continue
        columns = line.split("\t")
        try:
            lines.append(Line(float(columns[2]), float(columns[3]), int(columns[1]) + 1, columns[7]))
        except (IndexError, ValueError):
            raise UserError(
                f"{path}:{number}: expected file, channel, start, end ..., found {shorten(line)}"
            ) from None
    return lines


def read_callhome(path: Path) -> list[Line]:
    """Read lines such as `12.05 14.70 A: text`; a line without times continues the one before."""
    lines: list[Line] = []
    for _, line in read_decoded(path, "latin-1"):
        if match := re.fullmatch(r"(\d+\.?\d*)\s+(\d+\.?\d*)\s+([AB])\d*:(.*)", line):
            lines.append(Line(float(match[1]), float(match[2]), "AB".index(match[3]) + 1, match[4]))
        elif lines and not line.startswith("#"):
            lines[-1] = lines[-1]._replace(text=f"{lines[-1].text} {line}")
    return lines


def clean_fisher(text: str) -> str:
    """Normalize to lower case without punctuation; remove tags but keep their contents."""
    return re.sub(r"[^\w\s']|_", "", re.sub(r"<[^>]*>", " ", text.lower()))


def clean_callhome(text: str) -> str:
    """Normalize to lower case without punctuation; laughter becomes [laughter], other sounds [noise]."""
    text = re.sub(r"\[\[.*?\]\]", " ", text.lower())
    text = re.sub(r"[{\[]laugh[}\]]", " @laughter@ ", text)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " @noise@ ", text)
    text = re.sub(r"<(?:\?|\w+\s)([^>]*)>", r" \1 ", text)
    text = re.sub(r"[^\w\s'@]|_", "", text)
    return re.sub(r"@(\w+)@", r"[\1]", text)


MAPPING_URL = "https://github.com/joshua-decoder/fisher-callhome-corpus"

RECIPE = Recipe(
    license="of the Linguistic Data Consortium; the mapping is CC BY-SA 3.0",
    hours=163.0,
    prepare=prepare,
    source="license LDC2010S01 and LDC2010T04, for CallHome LDC96S35 and LDC96T17, and get the mapping of "
    f"{MAPPING_URL}",
    systems=share_systems(
        __file__, "features.sample_rate=8000", "tokenizer.type=bpe", "tokenizer.vocab_size=500"
    ),
)
