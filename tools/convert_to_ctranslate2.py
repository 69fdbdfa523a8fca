"""Convert a Whisper model for faster-whisper: CTranslate2 weights in int8, and a vocabulary.

python tools/convert_to_ctranslate2.py whisper-base.en FOLDER
pip install ctranslate2 tokenizers
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def convert(model: Path, folder: Path) -> None:
    """Weights for CTranslate2, in int8, with the vocabulary as a file of the package tokenizers."""
    import numpy as np
    from ctranslate2.specs.whisper_spec import WhisperSpec

    from asr.text.tokenizer import EOS_ID
    from asr.whisper import find_alignment_heads, find_sizes, get_weights, load_source, units_of

    system = load_source(model)
    sizes, units = find_sizes(system), units_of(system.tokenizer)
    theirs = units.special.order()  # their id of each of ours
    weights = {name: weight.float().numpy() for name, weight in get_weights(system).items()}
    embedding_VD = np.empty_like(weights["decoder.embedding.weight"])
    embedding_VD[theirs] = weights["decoder.embedding.weight"]
    spec = WhisperSpec(sizes.encoder_layers, sizes.encoder_heads, sizes.decoder_layers, sizes.decoder_heads)

    def fill(part: Any, name: str) -> None:
        is_norm = hasattr(part, "gamma")
        part_names = ("gamma", "beta") if is_norm else ("weight", "bias")
        for theirs, ours in zip(part_names, ("weight", "bias"), strict=True):
            setattr(part, theirs, weights[f"{name}.{ours}"])

    for place in (1, 2):
        fill(getattr(spec.encoder, f"conv{place}"), f"encoder.convolution_{place}")
    spec.encoder.position_encodings.encodings = weights["encoder.positions_TD"]
    spec.decoder.position_encodings.encodings = weights["decoder.positions.table.weight"]
    spec.decoder.embeddings.weight = embedding_VD
    spec.decoder.projection.weight = embedding_VD
    fill(spec.encoder.layer_norm, "encoder.norm")
    fill(spec.decoder.layer_norm, "decoder.norm")
    for part, layers in (("encoder", spec.encoder.layer), ("decoder", spec.decoder.layer)):
        for index, layer in enumerate(layers):
            name, prefix = f"{part}.layers.{index}", "self_" if part == "decoder" else ""
            fill(layer.self_attention.layer_norm, f"{name}.{prefix}attention_block.norm")
            fill(layer.self_attention.linear[0], f"{name}.{prefix}attention.project_in")
            fill(layer.self_attention.linear[1], f"{name}.{prefix}attention.project_out")
            if part == "decoder":
                fill(layer.attention.layer_norm, f"{name}.cross_attention_block.norm")
                for place, ours in enumerate(("queries", "memory", "out")):
                    fill(layer.attention.linear[place], f"{name}.cross_attention.project_{ours}")
            fill(layer.ffn.layer_norm, f"{name}.feed_forward_block.norm")
            fill(layer.ffn.linear_0, f"{name}.feed_forward.expand")
            fill(layer.ffn.linear_1, f"{name}.feed_forward.contract")
    spec.register_vocabulary(write_tokenizer(units, folder / "tokenizer.json"))
    spec.config.suppress_ids = sorted(theirs[id] for id in units.find_suppressed())
    spec.config.suppress_ids_begin = [theirs[id] for id in (*units.encode_piece(" "), EOS_ID)]
    spec.config.lang_ids = [theirs[id] for id in units.special.languages.values()]
    heads = find_alignment_heads(sizes)
    spec.config.alignment_heads = [(layer, head) for layer, own in heads.items() for head in own]
    spec.validate()
    spec.optimize(quantization="int8")
    spec.save(str(folder))


def write_tokenizer(units: Any, path: Path) -> list[str]:
    """The names of all tokens, by id."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    from asr.whisper.whisper_tokenizer import SHOWN, split_once

    def spell(token: bytes) -> str:
        return "".join(SHOWN[byte] for byte in token)

    ids = {token: id for id, token in enumerate(units.vocabulary)}
    pairs = [split_once(ids, token) for token in units.vocabulary if len(token) > 1]
    special = {name: id for id, name in enumerate(units.special.their_names, len(units.vocabulary))}
    theirs = Tokenizer(
        models.BPE(
            {spell(token): id for token, id in ids.items()},
            [(spell(left), spell(right)) for left, right in pairs],
        )
    )
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    names = sorted(special, key=special.__getitem__)
    theirs.add_special_tokens([AddedToken(name, special=True) for name in names])
    assert all(theirs.token_to_id(name) == id for name, id in special.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    theirs.save(str(path))
    return [*(spell(token) for token in units.vocabulary), *names]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="any form of Whisper model")
    parser.add_argument("folder", type=Path, help="output folder")
    args = parser.parse_args()
    convert(args.model, args.folder)
