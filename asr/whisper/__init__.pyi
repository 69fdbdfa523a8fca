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
    WhisperSizes as WhisperSizes,
    check_run as check_run,
    config_class as config_class,
    decoding as decoding,
    find_language as find_language,
    languages as languages,
    matches as matches,
    model_names as model_names,
    name as name,
    prefers_int8 as prefers_int8,
    section as section,
)
from .loading import (
    build_sizes as build_sizes,
    convert as convert,
    describe as describe,
    find_files as find_files,
    find_weights as find_weights,
    get_weights as get_weights,
    inherit_run as inherit_run,
    inherit_tokenizer as inherit_tokenizer,
    load as load,
    load_whisper as load_whisper,
    make_system as make_system,
    name_sizes as name_sizes,
    rename_weights as rename_weights,
    split_weights as split_weights,
    write_model as write_model,
)
from .manners import (
    WhisperManners as WhisperManners,
    WhisperRules as WhisperRules,
    detect_languages as detect_languages,
    encode_context as encode_context,
)
from .openai_options import add_options as add_options
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
    split_words as split_words,
    time_words as time_words,
)
