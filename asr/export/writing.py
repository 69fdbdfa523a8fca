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
STATE_ROWS = 64  # of the cache in which sherpa-onnx passes the state
BY_ROWS = ("key", "nonlin_attn", "val1", "val2")  # caches whose second dimension is the batch
# Variable dimensions of inputs and outputs; of those that are not here, the first one, which is the batch.
AXES = {
    "x": {0: "N", 1: "T"},
    "log_probs": {0: "N", 1: "U"},
    "encoder_out": {0: "N", 1: "U"},
    "cross": {2: "N", 4: "U"},
    "past": {2: "N", 4: "P"},
    "next_past": {2: "N", 4: "Q"},
    **{f"{when}cached_{part}": {1: "N"} for when in ("", "next_") for part in BY_ROWS},
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
        "sherpa": None if plan.sherpa is None else describe_call(plan, files),
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


def describe_call(plan: Plan, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Describe how sherpa-onnx loads the files."""
    assert plan.sherpa is not None
    arguments = {"tokens": "tokens.txt", **arguments}
    if plan.kind == "ctc":
        arguments["model"] = arguments.pop("encoder")
    recognizer = "OnlineRecognizer" if plan.is_live else "OfflineRecognizer"
    return {"constructor": f"{recognizer}.from_{plan.sherpa.constructor}", "arguments": arguments}


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
    frames, state_size = encoder.frames, sum(encoder.sizes)
    inputs = {"x": torch.zeros(1, frames, system.front_end.num_features)}
    if plan.sherpa is None:
        module: nn.Module = encoder
        inputs["x_lens"] = torch.tensor([frames])
        outputs, caches, sizes = OUTPUTS[plan.kind], {"state": torch.zeros(1, state_size)}, dict[str, int]()
    else:
        module, outputs = SherpaChunks(encoder), OUTPUTS[plan.kind][:1]
        caches, sizes = make_caches(state_size)
    metadata = make_metadata(plan, T=frames, decode_chunk_len=frames, **sizes)
    outputs = [*outputs, *(f"next_{name}" for name in caches)]
    write_graph(path, module, inputs | caches, outputs, metadata)
    described = [
        {"input": name, "shape": [*cache.shape], "type": str(cache.dtype).removeprefix("torch.")}
        for name, cache in caches.items()
    ]
    lengths = {"frames": frames, "steps": encoder.num_steps, "left": encoder.left}
    return {**lengths, "takes_lengths": plan.sherpa is None, "caches": described}


def make_caches(state_size: int) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Make the caches of a Zipformer of one layer, the first of which holds the state, and their metadata."""
    width = -(-state_size // STATE_ROWS)
    value, convolution = torch.zeros(STATE_ROWS, 1, 1), torch.zeros(1, 2, 1)
    caches = {
        "cached_key": torch.zeros(STATE_ROWS, 1, width),
        "cached_nonlin_attn": torch.zeros(1, 1, STATE_ROWS, 1),
        "cached_val1": value,
        "cached_val2": value,
        "cached_conv1": convolution,
        "cached_conv2": convolution,
        "embed_states": torch.zeros(1, 128, 3, 19),  # the same for all models
        "processed_lens": torch.zeros(1, dtype=torch.long),
    }
    sizes = {"num_encoder_layers": 1, "left_context_len": STATE_ROWS, "query_head_dims": width}
    return caches, {**sizes, "num_heads": 1, "value_head_dims": 1, "encoder_dims": 2, "cnn_module_kernels": 2}


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
