"""The vocabulary of Whisper in files: ranks as of tiktoken, and the JSON files of Hugging Face."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.files import read_limited, replace_file

FILE_NAME = "vocabulary.tiktoken"
END = "<|endoftext|>"
MAX_BYTES = 20_000_000  # Whisper's own have 0.8 MB, and 2.5 MB as JSON
TOO_LARGE = "which this file of a Whisper model never has"

Vocabulary = tuple[bytes, ...]


def read_ranks(path: Path) -> Vocabulary:
    """Lines of a token in base64, and its id."""
    ids: dict[int, bytes] = {}
    for number, line in enumerate(read_limited(path, MAX_BYTES, TOO_LARGE).splitlines(), start=1):
        token, _, id = line.rpartition(b" ")
        try:
            # The empty token of the multilingual vocabulary is written as a lone "=".
            ids[int(id)] = b"" if token == b"=" else base64.b64decode(token, validate=True)
        except (ValueError, binascii.Error):
            raise UserError(
                f"{path}:{number}: {line[:40]!r}, but expected a token in base64, a space and a number"
            ) from None
    return in_order(ids, path)


def write_ranks(path: Path, vocabulary: Vocabulary) -> None:
    with replace_file(path) as file:
        for id, token in enumerate(vocabulary):
            file.write((base64.b64encode(token) or b"=") + b" %d\n" % id)


def read_huggingface_vocabulary(folder: Path) -> Vocabulary | None:
    """Read vocab.json and merges.txt, else tokenizer.json; None where there is neither."""
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        path = folder / "merges.txt"
        lines = read_limited(path, MAX_BYTES, TOO_LARGE).decode("utf-8", errors="replace").splitlines()
        merges: Any = [line for line in lines if line and not line.startswith("#version")]
        tokens: Any = read_json(folder / "vocab.json", MAX_BYTES)
    elif (path := folder / "tokenizer.json").is_file():
        tree = read_json(path, MAX_BYTES)
        model = tree["model"] if isinstance(tree.get("model"), dict) else {}
        tokens, merges = model.get("vocab"), model.get("merges")
        if isinstance(tokens, dict):
            tokens |= _find_end(tree.get("added_tokens"))
    else:
        return None
    if not isinstance(tokens, dict) or not isinstance(merges, list):
        raise UserError(f"{path}: no vocabulary with merges; expected that of a byte-level BPE")
    end = tokens.get(END)
    if not isinstance(end, int):
        raise UserError(f"{path}: no token {END}, with which those that are no text begin")
    ids = {}
    for token, id in tokens.items():
        if not isinstance(id, int):
            raise UserError(
                f"{path}: the token {token[:40]!r} has the id {str(id)[:40]!r}; expected a number"
            )
        if id < end:
            ids[id] = to_bytes(token, path)
    ids.setdefault(end - 1, b"")  # the empty token of the multilingual vocabulary, where it is left out
    _check_merges(tokens, merges, path)
    return in_order(ids, path)


def read_json(path: Path, max_bytes: int) -> dict[str, Any]:
    """An object of JSON, small and whole."""
    tree = parse_json(path, max_bytes)
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected a JSON object")
    return tree


def parse_json(path: Path, max_bytes: int) -> Any:
    content = read_limited(path, max_bytes, TOO_LARGE)
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise UserError(f"{path}: not JSON, or nested too deep; download it anew") from None


def _find_end(added_tokens: Any) -> dict[str, int]:
    """The end of the text is either among the tokens or added to them."""
    for added in added_tokens if isinstance(added_tokens, list) else []:
        if isinstance(added, dict) and added.get("content") == END and isinstance(added.get("id"), int):
            return {END: added["id"]}
    return {}


def in_order(ids: Mapping[int, bytes], path: Path) -> Vocabulary:
    if sorted(ids) != list(range(len(ids))) or not ids:
        raise UserError(f"{path}: {len(ids):,} tokens, but their ids are not 0, 1, 2 ...; is it whole?")
    if len(set(ids.values())) != len(ids):
        raise UserError(f"{path}: the same token has two ids; is it Whisper's vocabulary?")
    return tuple(ids[id] for id in range(len(ids)))


def _check_merges(tokens: Mapping[str, int], merges: list[Any], path: Path) -> None:
    """The order of the ids must be that of the merges: encoding goes by it."""
    last = -1
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
        id = tokens.get("".join(pair), -1) if is_pair else -1
        if id < max(last, 0):
            raise UserError(
                f"{path}: the merge {str(merge)[:40]!r} makes no token, or one of an earlier merge; "
                "expected a vocabulary whose ids follow the merges, as Whisper's do"
            )
        last = id


def printable_bytes() -> dict[str, int]:
    """The character that stands for a byte in GPT-2's files: itself, if it shows, else one from U+0100 on."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in set(shown)]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


_BYTES = printable_bytes()


def to_bytes(token: str, path: Path) -> bytes:
    try:
        return bytes(_BYTES[character] for character in token)
    except KeyError:
        raise UserError(f"{path}: {token[:40]!r} is no token of a byte-level vocabulary") from None
