"""Write a speech data set of Hugging Face as WAV files and a manifest: FOLDER/*.wav and FOLDER/SPLIT.jsonl.

Needs `pip install datasets`; its audio decoder is not needed, files are decoded here.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from asr.audio import read, write
from asr.data import Utterance, write_manifest

SAMPLE_RATE = 16_000


def export(rows: Iterable[dict[str, Any]], folder: Path, split: str, text: str, speaker: str | None) -> int:
    """Write each row, whose `audio` is not decoded yet: {"bytes": the file or None, "path": its path}."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_manifest(folder / f"{split}.jsonl", _write_rows(rows, folder, split, text, speaker))


def _write_rows(
    rows: Iterable[dict[str, Any]], folder: Path, split: str, text: str, speaker: str | None
) -> Iterator[Utterance]:
    for index, row in enumerate(rows):
        path = folder / f"{split}-{index:07}.wav"
        samples = _read(row["audio"])
        write(path, samples, SAMPLE_RATE)
        yield Utterance(
            id=path.stem,
            audio=path.name,
            duration=len(samples) / SAMPLE_RATE,
            text=row[text],
            speaker=str(row[speaker]) if speaker else None,
        )


def _read(audio: dict[str, Any]) -> Any:
    if audio["bytes"] is None:
        return read(audio["path"], SAMPLE_RATE)
    with tempfile.NamedTemporaryFile() as file:
        file.write(audio["bytes"])
        file.flush()
        return read(file.name, SAMPLE_RATE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="its name on the Hub, or a folder of Parquet files")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--config", help="such as a language")
    parser.add_argument("--split", default="train")
    parser.add_argument("--text", default="text", help="column of the texts")
    parser.add_argument("--speaker", help="column of the speakers, if there is one")
    args = parser.parse_args()
    import datasets

    rows = datasets.load_dataset(args.dataset, args.config, split=args.split, streaming=True)
    rows = rows.cast_column("audio", datasets.Audio(decode=False))
    count = export(rows, args.folder, args.split, args.text, args.speaker)
    print(f"{args.folder / args.split}.jsonl: {count:,} utterances")


if __name__ == "__main__":
    main()
