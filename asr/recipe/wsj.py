"""The corpora WSJ0 and WSJ1, whose prompts Aurora-4, CHiME-4, REVERB and WSJ-2mix share."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from asr.data.manifest import Utterance, shorten
from asr.data.text_lines import read_decoded
from asr.errors import UserError
from asr.recipe.corpora import build_whole, find_files

logger = logging.getLogger(__name__)

# From wsj0 or wsj1 on; one above the folder of a disc, such as 11-13.1, is not meant.
_INSIDE = re.compile(r"(?:^|/)(wsj[01]/(?!.*\d\d[-_]\d+[._]\d/).*)$")
_MAX_SHOWN = 3

INDICES = {
    "train_si84": ("wsj0/doc/indices/train/tr_s_wv1.ndx",),
    "train_si284": ("wsj0/doc/indices/train/tr_s_wv1.ndx", "wsj1/doc/indices/si_tr_s.ndx"),
    "dev93": ("wsj1/doc/indices/h1_p0.ndx",),
    "eval92": ("wsj0/doc/indices/test/nvp/si_et_20.ndx",),
}

Index = Mapping[str, Path]


def index_wsj(root: Path, *suffixes: str) -> dict[str, Path]:
    """Each file by its path from wsj0 or wsj1 on, in lower case, whatever folders of discs are above."""
    found: dict[str, Path] = {}
    for path in find_files(root, ".dot", ".ndx", *suffixes):
        if match := _INSIDE.search(path.relative_to(root).as_posix().lower()):
            found.setdefault(match[1], path)
    if not found:
        raise UserError(
            f"{root}: no file in a folder wsj0 or wsj1; expected the folder above them, with files such as "
            ".../wsj0/transcrp/dots/si_tr_s/01i/01ic0200.dot"
        )
    return found


def read_wsj(root: Path, index: Index, name: str) -> Iterator[Utterance]:
    """The utterances of a set of INDICES that are there, in the order of its index."""
    files = {}
    for key in _read_indices(root, index, name):
        files[Path(key).stem] = (key, index.get(key))
    if missing := [key for key, path in files.values() if path is None]:
        shown = ", ".join(missing[:_MAX_SHOWN]) + ", ..." * (len(missing) > _MAX_SHOWN)
        logger.warning("%s: %s lacks %s files: %s", root, name, f"{len(missing):,}", shown)
    there = {id: path for id, (_, path) in files.items() if path is not None}
    texts = read_prompts(root, index, there)
    for id, path in there.items():
        yield build_whole(path, id=id, text=normalize_prompt(texts[id]), speaker=id[:3], language="en")


def _read_indices(root: Path, index: Index, name: str) -> Iterator[str]:
    for key in INDICES[name]:
        if key not in index:
            raise UserError(f"{root}: {key} is missing, the list of {name}; is a disc of WSJ missing?")
        for number, line in read_decoded(index[key], "latin-1"):
            if line.startswith(";"):
                continue
            match = re.fullmatch(r"\d+_\d+_\d+\s*:\s*(\S+?)(\.wv1)?", line.lower())
            if match is None:
                raise UserError(
                    f"{index[key]}:{number}: expected a disc and a file, such as "
                    f"11_1_1:wsj0/si_tr_s/01i/01ic0201.wv1, found {shorten(line)}"
                )
            if not match[1].startswith("wsj0/si_tr_s/401/"):  # a speaker who was withdrawn
                yield f"{match[1].lstrip('/')}.wv1"


def read_prompts(root: Path, index: Index, ids: Iterable[str]) -> dict[str, str]:
    """The transcript of each id as it stands in the .dot files: 01ic0201 is in 01ic0200.dot."""
    files = {path.name.lower()[:6]: path for key, path in index.items() if re.search(r"/\w{6}00\.dot$", key)}
    wanted = sorted(set(ids))
    texts = {}
    for prefix in sorted({id[:6] for id in wanted}):
        if prefix not in files:
            raise UserError(
                f"{root}: {prefix}00.dot is missing, the transcripts of {prefix}..; is a disc missing?"
            )
        texts.update(read_dots(files[prefix]))
    if lacking := [id for id in wanted if id not in texts]:
        raise UserError(f"{files[lacking[0][:6]]}: no transcript of {lacking[0]}; get a complete copy")
    return texts


def read_dots(path: Path) -> dict[str, str]:
    """Text by id, in lower case, of lines such as `Shares of Example Corp\\. rose (01ic0201)`."""
    texts = {}
    for number, line in read_decoded(path, "latin-1"):
        match = re.fullmatch(r"(.*?)\s*\((\w+)\)", line)
        if match is None:
            raise UserError(
                f"{path}:{number}: expected a text and its id in parentheses, found {shorten(line)}"
            )
        texts[match[2].lower()] = match[1]
    return texts


_SPELLED = {"%PERCENT": "PERCENT", ".POINT": "POINT", "--DASH": "-DASH"}


def normalize_prompt(text: str) -> str:
    """Write a transcript in capitals as Kaldi does; pauses go, noises become <NOISE>, <words> were spoken."""
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
