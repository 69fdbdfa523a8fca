"""Write an export to a new folder, which is kept only if its graphs give the same texts as the model."""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.evaluation.speech import read_utterances
from asr.export.plan import make_plan
from asr.export.proof import decode_examples, prove
from asr.export.writing import write_model
from asr.families import find_family, find_model
from asr.files import make_folder, require_local
from asr.system.system import load_state, load_system

README = Path(__file__).parent / "readme"


def export(args: argparse.Namespace) -> dict[str, int]:
    """Write FOLDER. Returns the names and sizes of its graphs."""
    if (family := find_family(args.model)) is not None:
        raise UserError(
            f"{args.model}: a {family.name} model, whose exports sherpa-onnx publishes itself; `asr export` "
            "writes models trained here, and `asr convert` the weights of a fine-tuned one for other tools"
        )
    folder = Path(args.folder)
    require_local(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: is not empty; choose a new folder")
    model = find_model(args.model)
    system, longest = load_system(model), load_state(model).get("longest_seconds")
    plan = make_plan(args.model, system, args.decoding, args.format == "sherpa", args.stream)
    manifest = args.manifest or system.config.data.dev
    if not Path(manifest).exists():
        raise UserError(f"{manifest}: no such file; give --manifest with utterances to compare texts on")
    utterances = read_utterances(manifest)
    if args.int8 and any(one.text is None for one in utterances):
        raise UserError(f"{manifest}: --int8 compares error rates, for which each utterance needs a text")
    examples = decode_examples(system, plan, utterances)
    if plan.sherpa is not None:
        plan = replace(plan, repeats=examples.most_at_step)
    make_folder(folder.absolute().parent)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as temporary:
        written = Path(temporary, folder.name)
        written.mkdir()
        about = write_model(written, system, plan, longest)
        about = prove(written, about, examples, plan, args.int8)
        write_readme(written, about)
        os.replace(written, folder)  # an empty folder gives way
    return {name: (folder / name).stat().st_size for name in about["files"].values()}


def write_readme(folder: Path, about: dict[str, Any]) -> None:
    """Write the commands that run the export."""
    call = about["sherpa"]
    page = "onnx.md" if call is None else "files.md" if about["streaming"] is None else "live.md"
    text = (README / page).read_text("utf-8")
    if call is not None:
        arguments = "".join(f"    {name}={value!r},\n" for name, value in call["arguments"].items())
        text = text.replace("CALL", f"sherpa_onnx.{call['constructor']}(\n{arguments})")
        options = " ".join(f"--{name}={value}" for name, value in call["options"].items())
        text = text.replace("OPTIONS", options)
    (folder / "README.md").write_text(text, encoding="utf-8")
