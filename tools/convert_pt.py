"""A pickled Whisper as a folder of safetensors, which `asr transcribe --model` reads.

python tools/convert_pt.py base.en.pt FOLDER                a file of openai-whisper, with gpt2.tiktoken or
                                                            multilingual.tiktoken of that package beside it
python tools/convert_pt.py OLD FOLDER                       a folder of Hugging Face with pytorch_model.bin

Nothing is executed: a file whose pickle asks for more than tensors is refused.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import sys
from pathlib import Path

from safetensors.torch import save_file

from asr.errors import UserError
from asr.system.shipping import check_tensors, read_pickled
from asr.whisper import WhisperSystem, build_sizes, load_whisper, make_system, rename_weights, write_model
from asr.whisper.whisper_tokenizer import check_order, read_small

# The files of the package openai-whisper that hold its vocabularies.
RANKS = {True: "multilingual.tiktoken", False: "gpt2.tiktoken"}
PICKLED = "pytorch_model.bin"
OUTPUT = "proj_out.weight"  # the embeddings once more


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
    weights = check_tensors(read_pickled(old / PICKLED), old / PICKLED, tied=OUTPUT)
    folder.mkdir(parents=True)
    for path in old.glob("*.json"):
        shutil.copy(path, folder)
    save_file({name: weight.clone() for name, weight in weights.items()}, folder / "model.safetensors")
    load_whisper(folder)


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
