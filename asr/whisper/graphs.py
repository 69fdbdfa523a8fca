"""Whisper's encoder and decoder as graphs, with the inputs and the metadata that sherpa-onnx expects.

sherpa-onnx passes keys and values on without reading them, so they have the form that suits the graphs.
Tokens have our IDs, because sherpa-onnx reads the IDs of all special tokens from the metadata.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asr.export.traceable import GivenCache, TiedTable, copy_traceable
from asr.export.writing import write_graph, write_pieces
from asr.models.layers import EncoderKV
from asr.text.tokenizer import BLANK_ID, EOS_ID, SOS_ID
from asr.whisper.manners import WhisperManners
from asr.whisper.sizes import FRAMES_PER_STEP
from asr.whisper.windows import ROUND_SECONDS

# T frames, F mel bands, S encoded steps, U tokens, P tokens before them, D model dimension, V vocabulary,
# L layers, H heads, K head dimension

FLOOR, RANGE = -1.5, 2.0  # of scaled features: the lowest one, and the 80 dB below the loudest
FRAMES_PER_SECOND = 100
UNIT = round(ROUND_SECONDS * FRAMES_PER_SECOND)  # windows have a multiple
AXES = {
    "mel": {2: "T"},
    "tokens": {1: "U"},
    "logits": {1: "U"},
    **{f"n_layer_cross_{part}": {3: "S"} for part in "kv"},
    **{f"{side}_n_layer_self_{part}_cache": {2: "P"} for side in ("in", "out") for part in "kv"},
}


class WhisperEncoding(nn.Module):
    """Computes keys and values of the decoder's layers, with the silence that `Windows` adds to audio."""

    def __init__(self, manners: WhisperManners) -> None:
        super().__init__()
        self.model, self.silence = copy_traceable(manners.model), manners.windows.silence
        self.most = FRAMES_PER_STEP * manners.sizes.max_steps

    def forward(self, mel_1FT: Tensor) -> tuple[Tensor, Tensor]:
        encoder: Any = self.model.encoder
        decoder: Any = self.model.decoder
        # sherpa-onnx appends zeros, which are not silence, and has one frame more than we.
        places_T = (mel_1FT != 0).any(1)[0].nonzero()[:-1, 0]
        x_1TF, bias_1S = mel_1FT.transpose(1, 2).index_select(1, places_T), None
        num_frames = x_1TF.size(1)
        if self.silence.seconds:
            silence_111 = (x_1TF.amax((1, 2), keepdim=True) - RANGE).clamp(min=FLOOR)
            x_1TF = torch.cat([x_1TF, silence_111.expand(1, self.most, x_1TF.size(2))], dim=1)[:, : self.most]
        if self.silence.stride is None:
            encoded_1SD, _ = encoder(x_1TF, torch.tensor([self.most]))
        else:
            needed = num_frames + int(FRAMES_PER_SECOND * self.silence.seconds)
            window = (needed + UNIT - 1) // UNIT * UNIT
            encoded_1SD, bias_1S = encoder.encode_with_silence(x_1TF[:, :window], self.silence.stride)
        memories = [layer.cross_attention.precompute_kv(encoded_1SD, None) for layer in decoder.layers]
        keys, values = [one.keys_BHSK for one in memories], [one.values_BHSK for one in memories]
        if bias_1S is not None:  # it is one layer more of the keys
            keys.append(bias_1S[:, None, :, None].expand_as(keys[0]))
        return torch.stack(keys), torch.stack(values)


class WhisperStep(nn.Module):
    """Scores the tokens that may follow each of the given ones. sherpa-onnx takes the likeliest."""

    def __init__(self, manners: WhisperManners) -> None:
        super().__init__()
        self.decoder: Any = copy_traceable(manners.model).decoder
        self.table, self.has_bias = TiedTable(self.decoder), manners.windows.silence.stride is not None
        none_1V = torch.zeros(1, len(manners.tokenizer))
        self.first_1V, self.later_1V = (manners.rules.forbid(none_1V, place) for place in (0, 1))

    def forward(self, tokens_1U: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        past, (cross_keys, cross_values, offset_1) = inputs[:2], inputs[2:]
        heads = (self.decoder.num_heads, past[0].size(3) // self.decoder.num_heads)
        past = tuple(part[:, :, : offset_1[0]].unflatten(3, heads).transpose(2, 3) for part in past)
        caches = [GivenCache(own) for own in torch.stack(past, dim=1)]
        bias_1S = cross_keys[-1, :, 0, :, 0] if self.has_bias else None
        x_1UD = self.decoder.positions(self.table(tokens_1U), offset_1[0])
        for index, (layer, cache) in enumerate(zip(self.decoder.layers, caches, strict=True)):
            memory = EncoderKV(cross_keys[index], cross_values[index], bias_1S)
            x_1UD, _ = layer(x_1UD, memory, cache, ())
        kept = torch.stack([torch.stack([*cache.parts]) for cache in caches], dim=1)
        forbidden_1V = torch.where(offset_1[:, None] == 0, self.first_1V, self.later_1V)
        scores_1UV = self.table.score(self.decoder.norm(x_1UD)) + forbidden_1V
        return scores_1UV, *kept.transpose(3, 4).flatten(4)


def write_graphs(folder: Path, manners: WhisperManners) -> dict[str, str]:
    """Write graphs and tokens. Returns how sherpa-onnx is called."""
    sizes, special, encoding = manners.sizes, manners.special, WhisperEncoding(manners)
    metadata = {
        "model_type": "whisper",
        "version": 1,
        "n_mels": sizes.num_mels,
        "n_text_layer": sizes.decoder_layers,
        "n_text_ctx": sizes.max_tokens,
        "n_text_state": sizes.dim,
        "n_vocab": sizes.vocab_size,
        "sot": SOS_ID,
        "sot_sequence": ",".join(map(str, special.prompt("en")[:-1])),
        "eot": EOS_ID,
        "blank_id": manners.units.encode_piece(" ")[0],
        "no_speech": BLANK_ID,
        "no_timestamps": special.no_times,
        "is_multilingual": int(sizes.is_multilingual),
        "all_language_codes": ",".join(special.languages),
        "all_language_tokens": ",".join(map(str, special.languages.values())),
        **special.tasks,
    }
    mel, names = torch.ones(1, sizes.num_mels, 300), ["n_layer_cross_k", "n_layer_cross_v"]
    write_graph(folder / "encoder.onnx", encoding, {"mel": mel}, names, metadata, AXES)
    with torch.no_grad():
        cross = dict(zip(names, encoding(mel), strict=True))
    cache = torch.zeros(sizes.decoder_layers, 1, sizes.max_tokens, sizes.dim)
    inputs = {"tokens": torch.full((1, 4), SOS_ID)}
    inputs |= {f"in_n_layer_self_{part}_cache": cache for part in "kv"}
    inputs |= {**cross, "offset": torch.tensor([2])}
    outputs = ["logits", *(f"out_n_layer_self_{part}_cache" for part in "kv")]
    write_graph(folder / "decoder.onnx", WhisperStep(manners), inputs, outputs, axes=AXES)
    write_pieces(folder, manners.units.pieces)
    return {"encoder": "encoder.onnx", "decoder": "decoder.onnx", "language": manners.language or ""}
