from .beam_search import (
    LOOP as LOOP,
    Beginning as Beginning,
    Rules as Rules,
    begin as begin,
    draw as draw,
    sample as sample,
    search as search,
)
from .decoding import (
    EncodedWindows as EncodedWindows,
    WhisperDecodingConfig as WhisperDecodingConfig,
    WhisperReading as WhisperReading,
    build_prompts as build_prompts,
    decode_windows as decode_windows,
    detect_languages as detect_languages,
    require_known as require_known,
)
from .encoder_decoder import Whisper as Whisper
from .family import FAMILY as FAMILY
from .fine_tuning import find_prompt as find_prompt
from .huggingface import read_huggingface as read_huggingface
from .loading import (
    WhisperSystem as WhisperSystem,
    build_tokenizer as build_tokenizer,
    find_files as find_files,
    is_whisper as is_whisper,
    load_whisper as load_whisper,
    read_checkpoint as read_checkpoint,
    require_language as require_language,
)
from .naming import rename_weights as rename_weights, split_weights as split_weights
from .openai import build_config as build_config, read_openai as read_openai
from .sections import WhisperConfig as WhisperConfig, WhisperEncoderConfig as WhisperEncoderConfig
from .token_times import (
    align_tokens as align_tokens,
    find_alignment_heads as find_alignment_heads,
    warp_batch as warp_batch,
)
from .tokenizer_units import name_tokens as name_tokens
from .vocabulary import (
    printable_bytes as printable_bytes,
    read_huggingface_vocabulary as read_huggingface_vocabulary,
    read_ranks as read_ranks,
    write_ranks as write_ranks,
)
from .whisper_recognizer import WhisperRecognizer as WhisperRecognizer
from .whisper_tokenizer import (
    LANGUAGES as LANGUAGES,
    WhisperTokenizer as WhisperTokenizer,
    find_language as find_language,
)
from .windows import (
    SILENCES as SILENCES,
    Silence as Silence,
    compute_window_features as compute_window_features,
    count_padded_samples as count_padded_samples,
    count_window_samples as count_window_samples,
    encode_audio as encode_audio,
)
from .words import (
    TimedSpan as TimedSpan,
    split_spans as split_spans,
    split_words as split_words,
    time_words as time_words,
)
