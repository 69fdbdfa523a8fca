"""Write an export to a new folder, which is kept only if its graphs give the same texts as the model."""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from asr.decoding.decode import SpeechDecoder
from asr.decoding.hypothesis import ChecksConfig
from asr.errors import UserError
from asr.evaluation.speech import read_utterances
from asr.export.graph_search import MAX_GRAPH_BYTES
from asr.export.plan import FAMILY_TYPES, Plan, make_plan
from asr.export.proof import decode_examples, prove
from asr.export.writing import write_family, write_model
from asr.families import find_family, find_model
from asr.files import make_folder, require_local
from asr.system.system import load_state, load_system
from asr.transcription.transcribe import find_manners

README = Path(__file__).parent / "readme"


def export(args: argparse.Namespace) -> dict[str, int]:
    """Write FOLDER. Returns the names and sizes of its graphs."""
    folder = Path(args.folder)
    require_local(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: is not empty; choose a new folder")
    decoder, plan = load_decoder(args)
    require_sizes(args.model, decoder)
    manifest = args.manifest or (None if decoder.system.is_published else decoder.system.config.data.dev)
    if manifest is None or not Path(manifest).exists():
        missing = f"{args.model}: has no dev set" if manifest is None else f"{manifest}: no such file"
        raise UserError(f"{missing}; give --manifest with utterances to compare texts on")
    utterances = read_utterances(manifest)
    if args.int8 and any(one.text is None for one in utterances):
        raise UserError(f"{manifest}: --int8 compares error rates, for which each utterance needs a text")
    examples = decode_examples(decoder, plan, utterances)
    if plan.sherpa is not None:
        plan = replace(plan, repeats=examples.most_at_step)
    make_folder(folder.absolute().parent)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as temporary:
        written = Path(temporary, folder.name)
        written.mkdir()
        if plan.is_family:
            about = write_family(written, decoder, plan)
        else:
            longest = load_state(find_model(args.model)).get("longest_seconds")
            about = write_model(written, decoder.system, plan, longest)
        about = prove(written, about, examples, plan, args.int8)
        write_readme(written, about, plan)
        os.replace(written, folder)  # an empty folder gives way
    return {name: (folder / name).stat().st_size for name in about["files"].values()}


def load_decoder(args: argparse.Namespace) -> tuple[SpeechDecoder, Plan]:
    """Load a model to be decoded in float32 without checks, and choose what to export."""
    if (family := find_family(args.model)) is None:
        system = load_system(find_model(args.model))
        plan = make_plan(args.model, system, args.decoding, args.format == "sherpa", args.stream)
        return find_manners(system)(system, ChecksConfig.off()), plan
    if family.section not in FAMILY_TYPES:
        raise UserError(f"{args.model}: a {family.name} model, which cannot be exported; give a run instead")
    if (args.format, args.decoding, args.stream) != ("sherpa", "auto", False):
        raise UserError(
            f"{args.model}: a {family.name} model, which is exported for sherpa-onnx as a whole; leave out "
            "--format, --decoding and --stream"
        )
    if find_spec("sherpa_onnx") is None:
        raise UserError(f"{args.model}: sherpa-onnx compares the texts; run: pip install sherpa-onnx")
    decoder = family.load(args.model, "cpu", "float32", None, ChecksConfig.off()).decoder
    return decoder, Plan(family.section, False, FAMILY_TYPES[family.section])


def require_sizes(source: str, decoder: SpeechDecoder) -> None:
    """Refuse parts whose graphs would be larger than ONNX allows."""
    for name, part in decoder.model.named_children():
        size = 4 * sum(weight.numel() for weight in part.parameters())
        if size > MAX_GRAPH_BYTES:
            raise UserError(
                f"{source}: its {name} has {size / 1e9:.1f} GB in float32, and a graph of ONNX at most "
                f"{MAX_GRAPH_BYTES / 1e9:.1f} GB; export a smaller model"
            )


def write_readme(folder: Path, about: dict[str, Any], plan: Plan) -> None:
    """Write the commands that run the export."""
    page = "onnx.md" if plan.sherpa is None else "live.md" if plan.is_live else "files.md"
    text = (README / page).read_text("utf-8")
    if plan.sherpa is not None:
        call, names = about["sherpa"], plan.sherpa.options
        arguments = "".join(f"    {name}={value!r},\n" for name, value in call["arguments"].items())
        text = text.replace("CALL", f"sherpa_onnx.{call['constructor']}(\n{arguments})")
        options = [f"--{names.get(name, name)}={value}" for name, value in call["arguments"].items()]
        text = text.replace("OPTIONS", " ".join(options))
        if plan.is_live:  # two chunks of silence, with which the texts were compared
            frames = 2 * about["streaming"]["frames"]
            text = text.replace("SILENCE", f"{frames * about['features']['shift_ms'] / 1000:g}")
    (folder / "README.md").write_text(text, encoding="utf-8")
