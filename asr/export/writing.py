"""Write a model as graphs with the names, metadata and tokens that a runtime expects."""

from __future__ import annotations

import base64
import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from asr.decoding.decode import SpeechDecoder
from asr.errors import UserError
from asr.export.plan import Plan
from asr.export.traceable import (
    ChunkEncoder,
    Joiner,
    LSTMGraph,
    RecordingEncoder,
    SherpaChunks,
    StatelessGraph,
    TokenStep,
)
from asr.families import find_families
from asr.system.system import System
from asr.text.tokenizer import BLANK_ID, EOS_ID, SOS_ID, SPACE, UNK_ID, UNKNOWN_MARK, Tokenizer

OPSET = 17
STATE_ROWS = 64  # of the cache in which the type conformer of sherpa-onnx passes the state
# Variable dimensions of inputs and outputs; of those that are not here, the first one, which is the batch.
AXES = {
    "x": {0: "N", 1: "T"},
    "log_probs": {0: "N", 1: "U"},
    "encoder_out": {0: "N", 1: "U"},
    "cross": {2: "N", 4: "U"},
    "past": {2: "N", 4: "P"},
    "next_past": {2: "N", 4: "Q"},
    **{f"{when}cached_{kind}": {2: "N"} for when in ("", "next_") for kind in ("attn", "conv")},
}
OUTPUTS = {
    "ctc": ["log_probs", "log_probs_lens"],
    "transducer": ["encoder_out", "encoder_out_lens"],
    "attention": ["cross", "encoder_out_lens"],
}


def write_model(
    folder: Path, system: System, plan: Plan, longest_seconds: float | None = None
) -> dict[str, Any]:
    """Write graphs, tokens and description. Returns the description."""
    symbols = enumerate(list_symbols(system.tokenizer))
    (folder / "tokens.txt").write_text(
        "".join(f"{symbol} {id}\n" for id, symbol in symbols), encoding="utf-8"
    )
    system.tokenizer.save(folder / "tokenizer.json")
    files = {"encoder": "model.onnx" if plan.kind == "ctc" else "encoder.onnx"}
    write_encoder = write_live_encoder if plan.is_live else write_recording_encoder
    streaming = write_encoder(folder / files["encoder"], system, plan)
    if plan.kind == "transducer":
        files |= write_transducer(folder, system)
    elif plan.kind == "attention":
        files |= write_step(folder, system)
    config, decoder = system.config, system.model.config.decoder
    about = {
        "format": 1,
        "kind": plan.kind,
        "sample_rate": config.features.sample_rate,
        "sample_scale": plan.scale,
        "features": config.features.model_dump(mode="json"),
        "files": files,
        "tokenizer": "tokenizer.json",
        "blank": BLANK_ID,
        "start": SOS_ID,
        "end": EOS_ID,
        "first": UNK_ID,
        "predictor": getattr(decoder, "predictor", None),
        "durations": list(getattr(decoder, "durations", ())),
        "max_tokens": find_max_tokens(system, plan),
        "subsampling": system.model.subsampling_factor,
        "streaming": streaming,
        "max_seconds": system.longest_seconds,
        "longest_seconds": longest_seconds,
        "language": getattr(decoder, "language", None),
        "text_rules": list(config.text.training),
        "sherpa": None if plan.sherpa is None else describe_call(plan, files, streaming),
    }
    write_description(folder, about)
    return about


def write_family(folder: Path, decoder: SpeechDecoder, plan: Plan) -> dict[str, Any]:
    """Write a model of a family for sherpa-onnx. Returns the description."""
    family: Any = next(one for one in find_families() if one.section == plan.kind)
    arguments = family.write_graphs(folder, decoder)
    files = {part: arguments[part] for part in ("encoder", "decoder")}
    about = {"format": 1, "kind": plan.kind, "sample_rate": decoder.sample_rate, "files": files}
    about |= {"streaming": None, "sherpa": describe_call(plan, arguments)}
    write_description(folder, about)
    return about


def write_description(folder: Path, about: Mapping[str, Any]) -> None:
    (folder / "export.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def describe_call(plan: Plan, arguments: Mapping[str, Any], streaming: Any = None) -> dict[str, Any]:
    """Describe how sherpa-onnx loads the files: by a constructor in Python, or by options of its programs."""
    assert plan.sherpa is not None
    arguments = {"tokens": "tokens.txt", **arguments}
    if plan.kind == "ctc":
        arguments["model"] = arguments.pop("encoder")
        if streaming is not None:
            arguments |= {"chunk_size": streaming["steps"], "num_left_chunks": 1}
    options = {plan.sherpa.options.get(name, name): value for name, value in arguments.items()}
    return {"constructor": plan.sherpa.constructor, "arguments": arguments, "options": options}


def find_max_tokens(system: System, plan: Plan) -> int:
    if plan.kind == "transducer" and plan.sherpa is None:
        from asr.transducer.label_looping import MAX_TOKENS_AT_STEP

        return MAX_TOKENS_AT_STEP
    return int(system.model.limit_tokens(torch.tensor([1]))) if plan.kind == "attention" else 1


def list_symbols(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens by ID as sherpa-onnx joins them: a ▁ at their beginning is a space."""
    mark = "▁" * (tokenizer.type in ("words", "labels"))
    symbols = ["<blk>", *tokenizer.tokens[1:UNK_ID], mark + UNKNOWN_MARK]
    symbols += ["▁" if token == SPACE else mark + token for token in tokenizer.tokens[UNK_ID + 1 :]]
    for symbol, count in Counter(symbols).items():
        if len(symbol.split()) != 1 or count > 1:
            raise UserError(
                f"token {symbol!r} cannot be a line of tokens.txt, or would be there twice; rename it"
            )
    return symbols


def write_pieces(folder: Path, pieces: Sequence[bytes]) -> None:
    """Write the texts of tokens by ID, as sherpa-onnx reads bytes; it skips tokens that are not listed."""
    lines = [f"{base64.b64encode(piece).decode()} {id}\n" for id, piece in enumerate(pieces) if piece]
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")


def write_graph(
    path: Path,
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    metadata: Mapping[str, object] | None = None,
    axes: Mapping[str, dict[int, str]] = AXES,
) -> None:
    """Trace a module with these inputs, and check the graph."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # PyTorch has a newer exporter, which fixes the length for an LSTM
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=[*inputs],
            output_names=[*outputs],
            dynamic_axes={name: axes.get(name, {0: "N"}) for name in (*inputs, *outputs)},
        )
    graph = onnx.load(str(path))
    onnx.helper.set_model_props(graph, {name: str(value) for name, value in (metadata or {}).items()})
    onnx.checker.check_model(graph)
    onnx.save(graph, str(path))


def make_metadata(plan: Plan, **values: object) -> dict[str, object]:
    """Metadata of an encoder. If some were missing, sherpa-onnx would end the whole process."""
    if plan.sherpa is None:
        return {}
    common = {"model_type": plan.sherpa.name, "version": 1, "model_author": "asr", "subsampling_factor": 4}
    return {**common, **values}


def write_recording_encoder(path: Path, system: System, plan: Plan) -> None:
    size = system.front_end.num_features
    # Two utterances of different length, since a dimension of 1 would be taken for a constant.
    inputs = {"x": torch.zeros(2, 99, size), "x_lens": torch.tensor([99, 77])}
    module = RecordingEncoder(system, plan.kind, plan.scale, plan.repeats)
    no_cmvn = {"cmvn_mean": ",".join(["0"] * size), "cmvn_inv_stddev": ",".join(["1"] * size)}
    write_graph(path, module, inputs, OUTPUTS[plan.kind], make_metadata(plan, **no_cmvn))


def write_live_encoder(path: Path, system: System, plan: Plan) -> dict[str, Any]:
    """Write the graph of a chunk. Returns `streaming` of the description."""
    encoder = ChunkEncoder(system, plan.kind, plan.scale, plan.repeats)
    module: nn.Module = encoder
    steps, frames, state_size = encoder.num_steps, encoder.frames, sum(encoder.sizes)
    metadata = make_metadata(plan, cnn_module_kernel=2)
    inputs = {"x": torch.zeros(1, frames, system.front_end.num_features)}
    output, caches = OUTPUTS[plan.kind][0], dict[str, Tensor]()
    if plan.sherpa is None:
        inputs["x_lens"] = torch.tensor([frames])
        caches["state"] = torch.zeros(1, state_size)
        outputs = [*OUTPUTS[plan.kind], "next_state"]
    elif plan.kind == "ctc":
        width = -(-state_size // (2 * steps))  # one layer, one head, and as many steps before as in a chunk
        caches |= {name: torch.zeros(1, dtype=torch.long) for name in ("offset", "required_cache_size")}
        caches |= {"att_cache": torch.zeros(1, 1, steps, 2 * width), "cnn_cache": torch.zeros(1, 1, width, 1)}
        caches["att_mask"] = torch.zeros(1, 1, 2 * steps, dtype=torch.bool)
        outputs = [output, "next_att_cache", "next_cnn_cache"]
        module = SherpaChunks(encoder, (2, 3, 0, 1, 4), 0)
        metadata |= {"head": 1, "num_blocks": 1, "output_size": width, "chunk_size": steps, "left_chunks": 1}
        metadata |= {"right_context": frames - (steps - 1) * 4 - 1, "vocab_size": len(system.tokenizer)}
    else:
        width = -(-state_size // STATE_ROWS)
        caches["cached_attn"] = torch.zeros(1, STATE_ROWS, 1, width)
        caches["cached_conv"] = torch.zeros(1, 1, 1, width)
        caches["processed_lens"] = torch.zeros(1, dtype=torch.long)
        outputs = [output, "next_cached_attn", "next_cached_conv"]
        module = SherpaChunks(encoder, (0, 1, 2), 2)
        metadata |= {"num_encoder_layers": 1, "left_context": STATE_ROWS, "encoder_dim": width}
        metadata |= {"T": frames, "decode_chunk_len": frames, "pad_length": 0}
    write_graph(path, module, inputs | caches, outputs, metadata)
    described = [
        {
            "input": name,
            "output": f"next_{name}" if f"next_{name}" in outputs else None,
            "shape": list(cache.shape),
            "type": str(cache.dtype).removeprefix("torch."),
        }
        for name, cache in caches.items()
    ]
    sizes = {"frames": frames, "steps": steps, "left": encoder.left}
    return {**sizes, "takes_lengths": plan.sherpa is None, "caches": described}


def write_transducer(folder: Path, system: System) -> dict[str, str]:
    """Write predictor and joint network. Returns their files."""
    decoder: Any = system.model.decoder
    width, layers = decoder.output.in_features, getattr(decoder.predictor, "shape", (0,))[0]
    module: nn.Module = LSTMGraph(decoder) if layers else StatelessGraph(decoder)
    inputs = {"y": torch.zeros(2, 1 if layers else 2, dtype=torch.long)}
    outputs = ["predicted"]
    if layers:
        inputs |= {name: torch.zeros(2, layers, width) for name in ("hidden", "cell")}
        outputs += ["next_hidden", "next_cell"]
    metadata: dict[str, object] = {"vocab_size": len(system.tokenizer), "context_size": 2}
    write_graph(folder / "decoder.onnx", module, inputs, outputs, metadata)
    inputs = {name: torch.zeros(2, width) for name in ("encoded", "predicted")}
    write_graph(folder / "joiner.onnx", Joiner(decoder), inputs, ["logit"], {"joiner_dim": width})
    return {"decoder": "decoder.onnx", "joiner": "joiner.onnx"}


def write_step(folder: Path, system: System) -> dict[str, str]:
    decoder: Any = system.model.decoder
    head_dim = decoder.output.in_features // decoder.num_heads
    cache = torch.zeros(decoder.num_layers, 2, 1, decoder.num_heads, 3, head_dim)
    inputs = {"y": torch.zeros(1, 1, dtype=torch.long), "cross": cache}
    inputs |= {"encoder_out_lens": torch.tensor([3]), "past": cache}
    write_graph(folder / "step.onnx", TokenStep(system), inputs, ["logits", "next_past"])
    return {"step": "step.onnx"}
