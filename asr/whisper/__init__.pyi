from .decoding import (
    LOOP as LOOP,
    Beginning as Beginning,
    EncodedWindows as EncodedWindows,
    Rules as Rules,
    WhisperReading as WhisperReading,
    begin as begin,
    build_prompts as build_prompts,
    decode_windows as decode_windows,
    detect_languages as detect_languages,
    draw as draw,
    require_known as require_known,
    sample as sample,
    search as search,
)
from .encoder_decoder import (
    SILENCES as SILENCES,
    Silence as Silence,
    Whisper as Whisper,
    WhisperSystem as WhisperSystem,
    compute_window_features as compute_window_features,
    count_padded_samples as count_padded_samples,
    count_window_samples as count_window_samples,
    encode_audio as encode_audio,
)
from .family import (
    WhisperDecodingConfig as WhisperDecodingConfig,
    WhisperEncoderConfig as WhisperEncoderConfig,
    WhisperSizes as WhisperSizes,
    find_language as find_language,
)
from .loading import (
    Checkpoint as Checkpoint,
    build_sizes as build_sizes,
    build_tokenizer as build_tokenizer,
    find_files as find_files,
    load_whisper as load_whisper,
    name_sizes as name_sizes,
    read_checkpoint as read_checkpoint,
    read_huggingface as read_huggingface,
    read_openai as read_openai,
    rename_weights as rename_weights,
    require_language as require_language,
    split_weights as split_weights,
    write_huggingface as write_huggingface,
)
from .token_times import (
    align_tokens as align_tokens,
    find_alignment_heads as find_alignment_heads,
    warp_batch as warp_batch,
)
from .whisper_recognizer import WhisperRecognizer as WhisperRecognizer
from .whisper_tokenizer import (
    WhisperTokenizer as WhisperTokenizer,
    find_prompt as find_prompt,
    name_tokens as name_tokens,
    read_huggingface_vocabulary as read_huggingface_vocabulary,
    read_ranks as read_ranks,
    write_ranks as write_ranks,
)
from .words import (
    TimedSpan as TimedSpan,
    split_spans as split_spans,
    split_words as split_words,
    time_words as time_words,
)
