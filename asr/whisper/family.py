"""Facts of Whisper that every run and every native model needs: names, settings, trained parts.

The family that `asr/files.py` knows is the package `asr.whisper`: it has these names, and those of
loading, converting and fine-tuning, which it imports when they are used.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pydantic

from asr.config import Config, DecoderConfig, EncoderConfig
from asr.decoding.hypothesis import DecodingConfig
from asr.errors import UserError, suggest

if TYPE_CHECKING:
    from asr.models.decoders import AnyDecoder
    from asr.models.encoders import Encoder
    from asr.system.run_config import RunConfig

name = "Whisper"
section = "whisper"  # of the settings of transcribing and evaluating; also the type of its tokenizer
prefers_int8 = True  # with precision auto, on a CPU with instructions for it

# --- names ------------------------------------------------------------------------------------------

# Names as in openai-whisper and faster-whisper, and where the hub has them.
_SIZES = "tiny tiny.en base base.en small small.en medium medium.en large-v2 large-v3 large-v3-turbo"
NAMES = {}
for _size in _SIZES.split():
    NAMES[_size] = f"openai/whisper-{_size}"
NAMES |= {"large-v1": "openai/whisper-large", "large": NAMES["large-v3"], "turbo": NAMES["large-v3-turbo"]}
for _size in ("small.en", "medium.en", "large-v2", "large-v3", "large-v3.5"):
    NAMES[f"distil-{_size}"] = f"distil-whisper/distil-{_size}"
model_names = tuple(NAMES)


def find_hub_name(name: str) -> str | None:
    """Find the name on the hub of a model that is given by its name."""
    if name in NAMES:
        return NAMES[name]
    if re.fullmatch(r"whisper-[\w.-]+", name):
        return f"openai/{name}"
    return name if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else None


_TABLE = """
en english, zh chinese, de german, es spanish, ru russian, ko korean, fr french, ja japanese, pt portuguese,
tr turkish, pl polish, ca catalan, nl dutch, ar arabic, sv swedish, it italian, id indonesian, hi hindi,
fi finnish, vi vietnamese, he hebrew, uk ukrainian, el greek, ms malay, cs czech, ro romanian, da danish,
hu hungarian, ta tamil, no norwegian, th thai, ur urdu, hr croatian, bg bulgarian, lt lithuanian, la latin,
mi maori, ml malayalam, cy welsh, sk slovak, te telugu, fa persian, lv latvian, bn bengali, sr serbian,
az azerbaijani, sl slovenian, kn kannada, et estonian, mk macedonian, br breton, eu basque, is icelandic,
hy armenian, ne nepali, mn mongolian, bs bosnian, kk kazakh, sq albanian, sw swahili, gl galician, mr marathi,
pa punjabi, si sinhala, km khmer, sn shona, yo yoruba, so somali, af afrikaans, oc occitan, ka georgian,
be belarusian, tg tajik, sd sindhi, gu gujarati, am amharic, yi yiddish, lo lao, uz uzbek, fo faroese,
ht haitian creole, ps pashto, tk turkmen, nn nynorsk, mt maltese, sa sanskrit, lb luxembourgish, my myanmar,
bo tibetan, tl tagalog, mg malagasy, as assamese, tt tatar, haw hawaiian, ln lingala, ha hausa, ba bashkir,
jw javanese, su sundanese, yue cantonese
"""
# Code to name. The first checkpoints have 99 of them; Cantonese came with large-v3.
languages: dict[str, str] = dict(re.findall("([a-z]+) ([a-z ]+)", _TABLE))

_OWN_NAMES = """
zh 中文, de deutsch, es español, ru русский, ko 한국어, fr français, ja 日本語, pt português, tr türkçe,
pl polski, ca català, nl nederlands, ar العربية, sv svenska, it italiano, id bahasa indonesia, hi हिन्दी,
fi suomi, vi tiếng việt, he עברית, uk українська, el ελληνικά, ms bahasa melayu, cs čeština, ro română,
da dansk, hu magyar, ta தமிழ், no norsk, th ไทย, ur اردو, hr hrvatski, bg български, lt lietuvių, la latina,
mi māori, ml മലയാളം, cy cymraeg, sk slovenčina, te తెలుగు, fa فارسی, lv latviešu, bn বাংলা, sr српски,
az azərbaycanca, sl slovenščina, kn ಕನ್ನಡ, et eesti, mk македонски, br brezhoneg, eu euskara, is íslenska,
hy հայերեն, ne नेपाली, mn монгол, bs bosanski, kk қазақша, sq shqip, sw kiswahili, gl galego, mr मराठी,
pa ਪੰਜਾਬੀ, si සිංහල, km ខ្មែរ, sn chishona, yo yorùbá, so soomaali, ka ქართული, be беларуская, tg тоҷикӣ,
sd سنڌي, gu ગુજરાતી, am አማርኛ, yi ייִדיש, lo ລາວ, uz oʻzbekcha, fo føroyskt, ht kreyòl ayisyen, ps پښتو,
tk türkmençe, mt malti, sa संस्कृतम्, lb lëtzebuergesch, my မြန်မာ, bo བོད་ཡིག, as অসমীয়া, tt татарча,
haw ʻōlelo hawaiʻi, ln lingála, ba башҡортса, jw basa jawa, su basa sunda, yue 粵語
"""  # where it is not the English one


def find_language(language: str) -> str:
    """The code of a language by code, English name or own name, in any case, with or without accents."""
    requested, codes = _strip_accents(language), dict(zip(languages, languages, strict=True))
    for code, own in [*languages.items(), *re.findall(r"([a-z]+) ([^,\n]+)", _OWN_NAMES)]:
        codes.setdefault(_strip_accents(own), code)
    if requested not in codes:
        expected = "give a code such as en, de or zh, or its name, in English or in the language itself"
        raise UserError(
            f"language {language!r}: not a language of Whisper; {suggest(requested, codes, expected)}"
        )
    return codes[requested]


def _strip_accents(text: str) -> str:
    split = unicodedata.normalize("NFKD", text.strip().casefold())
    return "".join(character for character in split if not unicodedata.combining(character))


Task = Literal["transcribe", "translate"]


class WhisperDecodingConfig(Config):
    """Settings of decoding by a Whisper model."""

    language: str | None = None
    """Language spoken: a code such as de, or its name. Null: the one that the model was fine-tuned
    on, else detected for each recording."""
    task: Task = "transcribe"
    """translate: into English. Word timestamps are then of little use."""
    prompt: str = ""
    """Text taken as what came before: it sets names, spelling and style."""

    @pydantic.field_validator("language")
    @classmethod
    def _check_language(cls, language: str | None) -> str | None:
        return None if language is None else find_language(language)


config_class = WhisperDecodingConfig
# Greedy, and at temperatures where the checks reject a text.
decoding = DecodingConfig(beam=1, temperatures=(0.2, 0.4))

# --- parts of models that are trained ---------------------------------------------------------------

FRAMES_PER_STEP = 2
MAX_LAYERS = 200  # and heads
MAX_STEPS = 1500  # of 20 ms: 30 seconds
FIRST_MULTILINGUAL = 51_865  # tokens; English-only models have one token of text less


class WhisperSizes(pydantic.BaseModel):
    """Sizes of a Whisper model, a fact of its checkpoint. The limits guard against damaged files."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    num_mels: Literal[80, 128]
    """Bands of the log-mel features: 128 in large-v3 and turbo, 80 in all others."""
    vocab_size: int = pydantic.Field(gt=0, le=200_000)
    """Tokens of text, of language and task, and of time."""
    dim: int = pydantic.Field(gt=0, le=8192)
    """Width of encoder and decoder."""
    encoder_layers: int = pydantic.Field(gt=0, le=MAX_LAYERS)
    encoder_heads: int = pydantic.Field(gt=0, le=MAX_LAYERS)
    decoder_layers: int = pydantic.Field(gt=0, le=MAX_LAYERS)
    decoder_heads: int = pydantic.Field(gt=0, le=MAX_LAYERS)
    max_steps: int = pydantic.Field(default=MAX_STEPS, gt=0, le=100_000)
    """Steps of 20 ms that the encoder has positions for."""
    max_tokens: int = pydantic.Field(default=448, gt=0, le=100_000)
    """Tokens that the decoder has positions for, those of the prompt included."""
    alignment_heads: tuple[tuple[int, int], ...] | None = None
    """Layer and head of the cross-attentions that follow the words; null where the checkpoint names none."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> WhisperSizes:
        for part in ("encoder_heads", "decoder_heads"):
            if self.dim % getattr(self, part):
                raise ValueError(f"dim = {self.dim} is no multiple of {part} = {getattr(self, part)}")
        for layer, head in self.alignment_heads or ():
            if not (0 <= layer < self.decoder_layers and 0 <= head < self.decoder_heads):
                raise ValueError(f"alignment_heads: the decoder has no head {head} of layer {layer}")
        return self

    @property
    def is_multilingual(self) -> bool:
        return self.vocab_size >= FIRST_MULTILINGUAL


class WhisperEncoderConfig(EncoderConfig):
    """Whisper's encoder in a model that is trained. Features are those of features.convention: whisper."""

    from_start: ClassVar[tuple[str, ...]] = ("sizes",)
    """Settings that are those of `start_from` where they are null."""

    type: Literal["whisper"] = "whisper"
    sizes: WhisperSizes | None = None
    """Sizes of the Whisper model of `start_from`, noted when training starts: leave this out."""


class WhisperDecoderConfig(DecoderConfig):
    """Whisper's decoder in a model that is trained."""

    from_start: ClassVar[tuple[str, ...]] = ("sizes", "language")

    type: Literal["whisper"] = "whisper"
    sizes: WhisperSizes | None = None
    """Sizes of the Whisper model of `start_from`, noted when training starts: leave this out."""
    language: str | None = None
    """Language of the texts, for a multilingual model: a code such as en, or its name."""

    @property
    def cross_attention(self) -> tuple[int, int]:
        """Layers and heads; the most there may be as long as the sizes are not known."""
        if self.sizes is None:
            return MAX_LAYERS, MAX_LAYERS
        return self.sizes.decoder_layers, self.sizes.decoder_heads


def _build_encoder(config: WhisperEncoderConfig, num_features: int) -> Encoder:
    from asr.whisper.encoder_decoder import WhisperEncoder

    return WhisperEncoder(_require_sizes(config))


def _build_decoder(config: WhisperDecoderConfig, memory_dim: int, vocab_size: int) -> AnyDecoder:
    from asr.whisper.encoder_decoder import WhisperDecoder
    from asr.whisper.whisper_tokenizer import find_prompt

    sizes = _require_sizes(config)
    has_own_tokens = vocab_size == sizes.vocab_size
    prompt = find_prompt(sizes, config.language) if has_own_tokens else ()
    return WhisperDecoder(sizes, memory_dim, vocab_size, prompt)


def _require_sizes(config: WhisperEncoderConfig | WhisperDecoderConfig) -> WhisperSizes:
    if config.sizes is None:
        raise UserError("an encoder or decoder of type whisper needs a Whisper model to start_from")
    return config.sizes


ENCODERS = {WhisperEncoderConfig: _build_encoder}
DECODERS = {WhisperDecoderConfig: _build_decoder}


def check_run(run: RunConfig) -> None:
    """Refuse, as a ValueError, the settings of a run that do not go with Whisper's parts."""
    encoder, decoder = (getattr(run.model, name, None) for name in ("encoder", "decoder"))
    has_tokens = run.tokenizer.type == "whisper"
    has_parts = isinstance(encoder, WhisperEncoderConfig) or isinstance(decoder, WhisperDecoderConfig)
    if run.start_from is None and (has_parts or has_tokens):
        raise ValueError(
            "an encoder, decoder or tokenizer of type whisper takes sizes and weights from a Whisper model: "
            "set start_from: openai/whisper-tiny, or the path of one"
        )
    if isinstance(decoder, WhisperDecoderConfig):
        decoder.refuse_idle(has_tokens, "tokenizer.type = whisper", "language")
    if not isinstance(encoder, WhisperEncoderConfig):
        return
    if run.features.convention != "whisper":
        raise ValueError(
            "model.encoder.type = whisper was trained on Whisper's features; set features.convention: whisper"
        )
    steps = MAX_STEPS if encoder.sizes is None else encoder.sizes.max_steps
    longest = steps * FRAMES_PER_STEP * run.features.shift_ms / 1000 * min(run.augment.speed, default=1.0)
    if run.batches.max_utterance_seconds > longest:
        raise ValueError(
            f"batches.max_utterance_seconds = {run.batches.max_utterance_seconds}, but at the slowest "
            f"augment.speed Whisper's encoder takes {longest:g} seconds; set it to {int(longest)}"
        )


# --- models -----------------------------------------------------------------------------------------


def matches(source: str | Path, as_run: bool = False) -> bool:
    """Recognize a Whisper model by its name, its files, or a file's first bytes.

    A run that fine-tuned one counts too, unless it is asked for `as_run`.
    """
    path = Path(source)
    try:
        if path.is_dir():
            return (path / "config.json").is_file() or (not as_run and find_run(path) is not None)
        if path.exists():
            with open(path, "rb") as file:
                return file.read(4) in (b"PK\x03\x04", b"lmgg")  # torch.save, whisper.cpp
    except OSError:
        return False
    return "whisper" in (find_hub_name(str(source)) or "").lower()


def find_run(path: Path) -> Path | None:
    """The model folder of a run that fine-tuned a whole Whisper, with its tokenizer; None if it is none."""
    from asr.families import find_model
    from asr.system.run_config import RunConfig

    try:
        folder = find_model(path)
        run: Any = RunConfig.load(folder / "config.yaml")
    except UserError:
        return None
    parts = (getattr(run.model, "encoder", None), getattr(run.model, "decoder", None), run.tokenizer)
    return folder if all(getattr(part, "type", None) == "whisper" for part in parts) else None
