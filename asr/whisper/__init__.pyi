from .encoder_decoder import (
    Bf16Linear as Bf16Linear,
    WhisperDecoder as WhisperDecoder,
    WhisperEncoder as WhisperEncoder,
    quantize as quantize,
)
from .family import (
    DECODERS as DECODERS,
    ENCODERS as ENCODERS,
    WhisperDecodingConfig as WhisperDecodingConfig,
    WhisperEncoderConfig as WhisperEncoderConfig,
    check_run as check_run,
    config_class as config_class,
    decoding as decoding,
    find_default as find_default,
    find_prompt as find_prompt,
    matches as matches,
    model_names as model_names,
    name as name,
    prefers_int8 as prefers_int8,
    section as section,
)
from .graphs import write_graphs as write_graphs
from .language_names import find_language as find_language, languages as languages
from .loading import (
    convert as convert,
    describe as describe,
    find_files as find_files,
    find_weights as find_weights,
    load as load,
    load_source as load_source,
    write_model as write_model,
)
from .manners import (
    WhisperManners as WhisperManners,
    WhisperRules as WhisperRules,
    detect_languages as detect_languages,
    encode_context as encode_context,
)
from .openai_options import add_options as add_options
from .sizes import WhisperSizes as WhisperSizes
from .weights import (
    build_sizes as build_sizes,
    get_weights as get_weights,
    make_system as make_system,
    name_sizes as name_sizes,
    split_weights as split_weights,
)
from .whisper_tokenizer import (
    SpecialTokens as SpecialTokens,
    TokenizerUnits as TokenizerUnits,
    make_tokenizer as make_tokenizer,
    read_huggingface_vocabulary as read_huggingface_vocabulary,
    units_of as units_of,
    write_huggingface_vocabulary as write_huggingface_vocabulary,
)
from .windows import SILENCES as SILENCES, Silence as Silence, Windows as Windows, find_sizes as find_sizes
from .words import (
    align_tokens as align_tokens,
    find_alignment_heads as find_alignment_heads,
    time_words as time_words,
)
