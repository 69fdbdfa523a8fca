"""Start training from a Whisper model: its weights, and its tokenizer where the run keeps that."""

from __future__ import annotations

from asr.config import dump_config
from asr.errors import UserError
from asr.models import Model, SpeechModelConfig, build_model
from asr.models.adaptation import is_low_rank
from asr.system.checkpoint import System
from asr.system.run_config import RunConfig
from asr.text.tokenizer import Tokenizer
from asr.text.units import SPECIAL_TOKENS
from asr.train.preparation import complete, load_weights
from asr.whisper.loading import WhisperSystem, build_tokenizer, read_checkpoint
from asr.whisper.sections import WhisperConfig, WhisperDecoderConfig, WhisperEncoderConfig
from asr.whisper.tokenizer_units import name_tokens, order_tokens
from asr.whisper.whisper_tokenizer import WhisperTokenizer

TOKEN_WEIGHTS = ("decoder.embedding.weight", "decoder.output.weight")  # a row for each token


def take_over_tokenizer(config: RunConfig, source: str) -> Tokenizer | None:
    """Tokenizer of the Whisper model `source`; None where the run learns its own."""
    if not config.keep_tokenizer:
        raise UserError(
            "keep_tokenizer = false is for a start_from that was trained here; remove it: with a Whisper "
            "model, tokenizer.type says whether its tokenizer is kept"
        )
    if config.tokenizer.type != "whisper":
        return None
    whisper = build_tokenizer(read_checkpoint(source), source)
    return Tokenizer("whisper", SPECIAL_TOKENS + name_tokens(whisper))


def take_over(config: RunConfig, tokenizer: Tokenizer, source: WhisperSystem) -> System[Model]:
    """A system with the weights of a Whisper model in those of its parts that are of type whisper."""
    sections = {name: getattr(config.model, name, None) for name in ("encoder", "decoder")}
    parts = tuple(
        f"{name}." for name, section in sections.items() if getattr(section, "type", "") == "whisper"
    )
    if not parts:
        raise UserError(
            f"start_from = {config.start_from} is a Whisper model, but neither model.encoder nor "
            "model.decoder has type: whisper; set it"
        )
    if config.features != source.front_end.config:
        raise UserError(
            f"start_from = {config.start_from} was trained on other features; set features: "
            f"{{convention: whisper, num_mels: {source.config.num_mels}}} and nothing else there"
        )
    own_tokens = tokenizer.type == "whisper"
    prompt = find_prompt(config, source.tokenizer) if own_tokens else ()
    sizes = source.config
    encoder, decoder = WhisperEncoderConfig(sizes=sizes), WhisperDecoderConfig(sizes=sizes, prompt=prompt)
    config = complete(config, SpeechModelConfig(encoder=encoder, decoder=decoder))
    model = build_model(config.model, source.front_end.num_features, len(tokenizer))
    weights = {name: weight for name, weight in source.model.state_dict().items() if name.startswith(parts)}
    order = order_tokens(source.tokenizer)
    for name in weights.keys() & set(TOKEN_WEIGHTS):
        if own_tokens:
            weights[name] = weights[name][order]
        else:
            del weights[name]

    def is_new(name: str) -> bool:
        return is_low_rank(name) or not name.startswith(parts) or (name in TOKEN_WEIGHTS and not own_tokens)

    load_weights(config, model, weights, is_new, f"its sizes are {_describe(sizes)}, or leave `sizes` out")
    return System(config, tokenizer, source.front_end, model)


def find_prompt(config: RunConfig, whisper: WhisperTokenizer) -> tuple[int, ...]:
    """Find the prompt in our ids, without the start, in whose place is ours."""
    language = getattr(getattr(config.model, "decoder", None), "language", None)
    try:
        prompt = whisper.prompt(language)
    except UserError as error:
        raise UserError(f"model.decoder.language: {error}") from None
    order = order_tokens(whisper)
    return tuple(order.index(id) for id in prompt[1:])


def _describe(sizes: WhisperConfig) -> str:
    return dump_config(sizes).strip().replace("\n", ", ")
