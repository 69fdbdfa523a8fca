"""speechocean762: 250 Chinese learners of English, children and adults, read 20 sentences each.

Recorded with telephones and tablets, 16 kHz. The publisher's train and test have 125 speakers each; 25 of
the recipe uses some of train as dev.
"""

from __future__ import annotations

import collections
import hashlib
from pathlib import Path

from asr.audio import read_info
from asr.data import Utterance, read_decoded, read_lines, write_manifest
from asr.errors import UserError
from asr.files import replace_file
from asr.recipe import Recipe, download as download_archive, extract, find_corpus, require_count

URLS = (
    "https://www.openslr.org/resources/101/speechocean762.tar.gz",
    "https://openslr.elda.org/resources/101/speechocean762.tar.gz",
)
MAX_ARCHIVE_BYTES = 1_000_000_000
MAX_CORPUS_BYTES = 2_000_000_000

NUM_UTTERANCES = 2_500  # in each published split
NUM_WORDS = {"train": 15_849, "test": 15_967}
NUM_DEV_SPEAKERS = 25
CHILD_BELOW = 16  # years, by the definition of the publisher


def download(target_dir: Path) -> Path:
    """Fetch and unpack the archive; return the corpus folder."""
    archive = target_dir / "speechocean762.tar.gz"
    download_archive(URLS, archive, None, max_bytes=MAX_ARCHIVE_BYTES)  # the publisher gives no checksum
    extract(archive, target_dir / "speechocean762", max_bytes=MAX_CORPUS_BYTES)
    return target_dir / "speechocean762"


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl, test.jsonl, train_all.jsonl (train and dev) and pronunciations.txt.

    The audio stays where it is.
    """
    root = find_corpus(corpus_dir, "train/wav.scp")
    published = {split: _read_split(root, split) for split in NUM_WORDS}
    train = published["train"]
    dev_speakers = _choose_dev_speakers(train)
    own = [u for u in train if u.speaker not in dev_speakers]
    pronunciations = _list_pronunciations(root, own)
    write_manifest(output_dir / "train.jsonl", own)
    write_manifest(output_dir / "train_all.jsonl", train)
    write_manifest(output_dir / "dev.jsonl", [u for u in train if u.speaker in dev_speakers])
    write_manifest(output_dir / "test.jsonl", published["test"])
    with replace_file(output_dir / "pronunciations.txt") as file:
        file.write("".join(f"{line}\n" for line in pronunciations).encode())


def _list_pronunciations(root: Path, train: list[Utterance]) -> list[str]:
    """Return the publisher's dictionary, with the pronunciation that is most frequent in train first."""
    uses: collections.Counter[tuple[str, str]] = collections.Counter()
    spoken = _read_table(root / "resource" / "text-phone")  # by utterance and position of the word
    for utterance in train:
        for place, word in enumerate((utterance.text or "").split()):
            phones = spoken.get(f"{utterance.id}.{place}", "").split()
            uses[word, " ".join(phone.partition("_")[0] for phone in phones)] += (
                1  # AH0_B: a word-initial phone
            )
    entries = []
    path = root / "resource" / "lexicon.txt"
    for number, line in read_decoded(path):
        word, *phones = line.split()
        if not phones:
            raise UserError(f"{path}:{number}: expected a word and its phones, found {line[:60]!r}")
        entries.append((word, " ".join(phones)))
    entries.sort(key=lambda entry: (entry[0], -uses[entry]))
    return [f"{word} {phones}" for word, phones in entries]


def _choose_dev_speakers(utterances: list[Utterance]) -> set[str]:
    """Choose the first speakers by the SHA-256 of their names."""
    speakers = {u.speaker for u in utterances if u.speaker}
    return set(sorted(speakers, key=lambda name: hashlib.sha256(name.encode()).digest())[:NUM_DEV_SPEAKERS])


def _read_split(root: Path, split: str) -> list[Utterance]:
    names = ("wav.scp", "text", "utt2spk", "spk2gender", "spk2age")
    audio, texts, speakers, genders, ages = (_read_table(root / split / name) for name in names)
    require_count(root, f"{split} utterances", len(audio), NUM_UTTERANCES)
    require_count(root, f"words of {split}", sum(len(t.split()) for t in texts.values()), NUM_WORDS[split])
    utterances = []
    for identifier, name in audio.items():
        speaker = speakers.get(identifier)
        if identifier not in texts or speaker not in genders or speaker not in ages:
            raise UserError(f"{root / split}: {identifier} has no text, speaker, gender or age")
        path = root / name
        utterances.append(
            Utterance(
                id=identifier,
                audio=str(path),
                duration=read_info(path).seconds,
                text=texts[identifier],
                speaker=speaker,
                language="en",
                extras={
                    "gender": "female" if genders[speaker] == "f" else "male",
                    "age": int(ages[speaker]),
                    "group": "child" if int(ages[speaker]) < CHILD_BELOW else "adult",
                },
            )
        )
    return utterances


def _read_table(path: Path) -> dict[str, str]:
    """Read a Kaldi table: a key, white space and a value on each line."""
    table = {}
    for number, _, line in read_lines(path):
        key, _, value = line.decode("utf-8", errors="replace").strip().replace("\t", " ").partition(" ")
        if not value or key in table:
            raise UserError(f"{path}:{number}: expected a new key and its value, found {line[:60]!r}")
        table[key] = " ".join(value.split())
    return table


RECIPE = Recipe(
    license="free for commercial and non-commercial use (openslr.org/101)",
    hours=5.57,
    has_results=True,
    prepare=prepare,
    urls=URLS,
    download=download,
    download_mb=520,
    text_fusion=True,
)
