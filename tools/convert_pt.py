"""A pickled Whisper as a folder of safetensors, which `asr transcribe --model` reads.

python tools/convert_pt.py base.en.pt FOLDER                a file of openai-whisper, with gpt2.tiktoken or
                                                            multilingual.tiktoken of that package beside it
python tools/convert_pt.py OLD FOLDER                       a folder of Hugging Face with pytorch_model.bin

Nothing is executed: a file whose pickle asks for more than tensors is refused.
"""

from __future__ import annotations

import argparse
import base64
import pickletools
import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from asr.errors import UserError
from asr.whisper import WhisperSystem, build_sizes, load_whisper, make_system, rename_weights, write_model
from asr.whisper.whisper_tokenizer import check_order, read_small

MAX_INDEX_BYTES = 10_000_000  # of a pickle: that of large-v3 has 0.2 MB
# The files of the package openai-whisper that hold its vocabularies.
RANKS = {True: "multilingual.tiktoken", False: "gpt2.tiktoken"}
PICKLED = "pytorch_model.bin"
OUTPUT = "proj_out.weight"
# All that a dict of tensors needs. PyTorch's own list is longer, and has things that fill the memory.
HARMLESS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch FloatStorage",
    "torch HalfStorage",
    "torch BFloat16Storage",
}


def read_openai(path: Path) -> WhisperSystem:
    """Read a .pt file, and the vocabulary from a file of `RANKS` in the same folder."""
    tree = read_pickled(path)
    dims = tree.get("dims")
    if not isinstance(dims, dict) or dims.get("n_text_state") != dims.get("n_audio_state"):
        raise UserError(f"{path}: dims is {str(dims)[:80]}, but expected the sizes of a Whisper model")
    sizes = build_sizes(dims, str(path))
    theirs = check_tensors(tree.get("model_state_dict"), path)
    weights = rename_weights(sizes, theirs, str(path))
    ranks = path.parent / RANKS[sizes.is_multilingual]
    if not ranks.is_file():
        raise UserError(
            f"{path}: holds no vocabulary. Put {ranks.name} of whisper/assets into the same folder"
        )
    return make_system(path, sizes, read_ranks(ranks), weights)


def read_ranks(path: Path) -> tuple[bytes, ...]:
    """Lines of a token in base64, and its id, as tiktoken has them."""
    ids: dict[int, bytes] = {}
    for number, line in enumerate(read_small(path).splitlines(), start=1):
        token, _, id = line.rpartition(b" ")
        try:
            # The empty token of the multilingual vocabulary is written as a lone "=".
            ids[int(id)] = b"" if token == b"=" else base64.b64decode(token, validate=True)
        except ValueError:
            raise UserError(
                f"{path}:{number}: {line[:40]!r}, but expected a token in base64, a space and a number"
            ) from None
    return check_order(ids, path)


def convert_folder(old: Path, folder: Path) -> None:
    """Copy a folder of Hugging Face, with its weights as safetensors."""
    weights = check_tensors(read_pickled(old / PICKLED), old / PICKLED)
    folder.mkdir(parents=True)
    for path in old.glob("*.json"):
        shutil.copy(path, folder)
    save_file({name: weight.clone() for name, weight in weights.items()}, folder / "model.safetensors")
    load_whisper(folder)


def read_pickled(path: Path) -> dict[str, Any]:
    """The dict that a file of torch.save holds; tensors are mapped from the file, nothing is executed."""
    try:
        _check_archive(path)
        tree = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UserError:
        raise
    except Exception as error:  # PyTorch says in many ways, and at length, what is wrong
        raise _damaged(path, type(error).__name__) from None
    if not isinstance(tree, dict):
        raise _damaged(path, "no dict of weights")
    return tree


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path}: no file of weights by torch.save, or a damaged one ({reason}); download it again"
    )


def _check_archive(path: Path) -> None:
    """Check that the archive holds plain bytes, and its pickle only what makes tensors."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise _damaged(path, "a compressed archive, as torch.save never writes it")
        (pickle,) = (entry for entry in entries if entry.filename.endswith("data.pkl"))
        num_bytes = sum(entry.file_size for entry in entries)
        if pickle.file_size > MAX_INDEX_BYTES or num_bytes > path.stat().st_size:
            raise _damaged(path, f"{pickle.file_size:,} bytes of index, {num_bytes:,} in all")
        content = archive.read(pickle)
    calls = ("INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4")
    names = {
        str(argument) if opcode.name == "GLOBAL" else opcode.name
        for opcode, argument, _ in pickletools.genops(content)
        if opcode.name in ("GLOBAL", *calls)
    }
    if unknown := names - HARMLESS:
        raise UserError(
            f"{path}: would run code ({min(unknown)[:60]}); nothing was run. Weights need none: do not "
            "use this file, take safetensors, or a file of a source that you trust"
        )


def check_tensors(tensors: Any, path: Path) -> dict[str, Tensor]:
    """Names to tensors that are no larger than the file: else a few bytes could ask for any memory."""
    is_plain = isinstance(tensors, Mapping) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    )
    if not is_plain:
        raise _damaged(path, "no names and tensors")
    num_bytes = sum(tensor.nbytes for name, tensor in tensors.items() if name != OUTPUT)  # the embeddings
    if num_bytes > path.stat().st_size:
        raise _damaged(path, f"{num_bytes:,} bytes of weights in a smaller file")
    return dict(tensors)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a .pt file of OpenAI, or a folder with pytorch_model.bin")
    parser.add_argument("folder", type=Path, help="where to write the model; a new folder")
    args = parser.parse_args(arguments)
    try:
        if args.model.is_dir():
            convert_folder(args.model, args.folder)
        else:
            write_model(args.folder, read_openai(args.model))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
