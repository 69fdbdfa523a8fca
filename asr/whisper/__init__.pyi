from .encoder_decoder import (
    SILENCES as SILENCES,
    Bf16Linear as Bf16Linear,
    EncodedSteps as EncodedSteps,
    Silence as Silence,
    Whisper as Whisper,
    WhisperSystem as WhisperSystem,
)
from .family import (
    DECODERS as DECODERS,
    ENCODERS as ENCODERS,
    WhisperDecodingConfig as WhisperDecodingConfig,
    WhisperEncoderConfig as WhisperEncoderConfig,
    check_run as check_run,
    config_class as config_class,
    decoding as decoding,
    matches as matches,
    model_names as model_names,
    name as name,
    prefers_int8 as prefers_int8,
    section as section,
)
from .language_names import find_language as find_language, languages as languages
from .loading import (
    convert as convert,
    describe as describe,
    find_files as find_files,
    find_weights as find_weights,
    inherit_run as inherit_run,
    inherit_tokenizer as inherit_tokenizer,
    load as load,
    load_whisper as load_whisper,
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
    rename_weights as rename_weights,
    split_weights as split_weights,
)
from .whisper_tokenizer import (
    TokenizerUnits as TokenizerUnits,
    WhisperTokenizer as WhisperTokenizer,
    find_prompt as find_prompt,
    name_tokens as name_tokens,
    read_huggingface_vocabulary as read_huggingface_vocabulary,
    write_huggingface_vocabulary as write_huggingface_vocabulary,
)
from .words import (
    align_tokens as align_tokens,
    find_alignment_heads as find_alignment_heads,
    time_words as time_words,
)
