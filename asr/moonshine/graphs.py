"""Moonshine's encoder and decoder as graphs, with the inputs that sherpa-onnx gives to `moonshine_v2`.

Tokens have Moonshine's IDs, of which sherpa-onnx knows the start and the end. The encoder returns keys and
values of the decoder's layers, which sherpa-onnx passes on without reading them, so their own inputs stay
empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.export.traceable import GivenCache, TiedTable, copy_traceable
from asr.export.writing import write_graph, write_pieces
from asr.models.layers import EncoderKV
from asr.moonshine.encoder_decoder import FIRST_KERNEL, KERNELS, STRIDES
from asr.moonshine.manners import MoonshineManners
from asr.moonshine.sizes import FRAME_SAMPLES
from asr.moonshine.tokens import BYTE, SPACE, UNSPOKEN, WITHOUT_TEXT, order_rows

# S samples, T encoded steps, C channels, K kernel or head dimension, D model dimension, L layers, H heads,
# P tokens before, V vocabulary

START, END = 1, 2  # Moonshine's IDs
STATES = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")  # of each layer
AXES = {"audio": {1: "S"}, "cross": {1: "T"}}


class MoonshineEncoding(nn.Module):
    """Computes keys and values of the decoder's layers from samples."""

    def __init__(self, manners: MoonshineManners) -> None:
        super().__init__()
        self.model = copy_traceable(manners.model)

    def forward(self, audio_1S: Tensor) -> Tensor:
        encoder: Any = self.model.encoder
        decoder: Any = self.model.decoder
        x_1CT = audio_1S[:, None]
        sizes = zip((FIRST_KERNEL, *KERNELS), (FRAME_SAMPLES, *STRIDES), strict=True)
        for place, (kernel, stride) in enumerate(sizes, start=1):
            linear = getattr(encoder, f"convolution_{place}")
            weight_DCK = linear.weight.unflatten(1, (kernel, -1)).transpose(1, 2)
            x_1CT = F.conv1d(x_1CT, weight_DCK, linear.bias, stride)
            x_1CT = encoder.group_norm(x_1CT.tanh()) if place == 1 else F.gelu(x_1CT)
        x_1TD = x_1CT.transpose(1, 2)
        for layer in encoder.layers:
            x_1TD = layer(x_1TD, None)
        x_1TD = encoder.norm(x_1TD)
        memories = [layer.cross_attention.precompute_kv(x_1TD, None) for layer in decoder.layers]
        cross = torch.stack([torch.stack([one.keys_BHSK, one.values_BHSK]) for one in memories])
        return cross.permute(2, 4, 0, 1, 3, 5)  # (1, T, L, 2, H, K), as sherpa-onnx reads the length


class MoonshineStep(nn.Module):
    """Scores the tokens that may come next. sherpa-onnx takes the likeliest."""

    def __init__(self, manners: MoonshineManners, order_V: Tensor) -> None:
        """`order_V`: our ID for each of Moonshine's."""
        super().__init__()
        self.decoder: Any = copy_traceable(manners.model).decoder
        self.table = TiedTable(self.decoder, order_V)
        self.is_end_V = torch.arange(len(order_V)) == END
        is_special_V = (order_V < manners.rules.first) & ~self.is_end_V
        self.never_V = torch.zeros(len(order_V)).masked_fill(is_special_V, -torch.inf)

    def forward(self, token_11: Tensor, cross: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        *given, uses_cache_1 = states
        pairs = list(zip(given[::2], given[1::2], strict=True))  # of the tokens and of the encoder, by turns
        memories, kept, num_tokens = cross.permute(2, 3, 0, 4, 1, 5), list[Tensor](), given[0].size(2)
        x_11D = self.table(token_11)
        for index, (layer, (keys, values)) in enumerate(zip(self.decoder.layers, memories, strict=True)):
            cache = GivenCache(torch.stack(pairs[2 * index]))
            x_11D, _ = layer(x_11D, EncoderKV(keys, values, None), cache, ())
            kept += [*cache.parts, *pairs[2 * index + 1]]
        scores_11V = self.table.score(self.decoder.norm(x_11D)) + self.never_V
        limit_1 = self.decoder.limit_tokens(torch.ones(1) * cross.size(1), 1)
        scores_11V = scores_11V.masked_fill(self.is_end_V & (num_tokens == 0), -torch.inf)
        scores_11V = scores_11V.masked_fill(~self.is_end_V & (num_tokens >= limit_1), -torch.inf)
        # An input that nothing reads would be left out of the graph, and sherpa-onnx passes all of them.
        return scores_11V + 0 * uses_cache_1, *kept


def write_graphs(folder: Path, manners: MoonshineManners) -> dict[str, str]:
    """Write graphs and tokens. Returns how sherpa-onnx is called."""
    order_V, encoding = order_rows(torch.arange(len(manners.tokenizer))).argsort(), MoonshineEncoding(manners)
    audio = torch.zeros(1, 16_000)
    write_graph(folder / "encoder.onnx", encoding, {"audio": audio}, ["cross"], axes=AXES)
    with torch.no_grad():
        cross = encoding(audio)
    layers, _, heads, head_dim = cross.shape[2:]
    names = [f"key_values.{layer}.{kind}" for layer in range(layers) for kind in STATES]
    states = dict.fromkeys(names, torch.zeros(1, heads, 3, head_dim))
    inputs = {"token": torch.tensor([[START]]), "cross": cross, **states, "uses_cache": torch.tensor([True])}
    outputs = ["logits", *(f"next_{name}" for name in names)]
    axes = AXES | {name: {2: "P"} for name in (*names, *outputs[1:])}
    write_graph(folder / "decoder.onnx", MoonshineStep(manners, order_V), inputs, outputs, axes=axes)
    tokens, first = manners.tokenizer.tokens, manners.rules.first
    write_pieces(folder, [spell(tokens[id]) if id >= first else b"" for id in order_V.tolist()])
    return {"encoder": "encoder.onnx", "decoder": "decoder.onnx"}


def spell(token: str) -> bytes:
    """Return the text of a token; none for those that have none, or that are not spoken."""
    if found := BYTE.fullmatch(token):
        return bytes([int(found[1], 16)])
    return WITHOUT_TEXT.sub("", token).translate(UNSPOKEN).replace(SPACE, " ").encode()
