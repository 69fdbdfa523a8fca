from .front_end import (
    FeaturesConfig as FeaturesConfig,
    FrontEnd as FrontEnd,
    compute_kaldi_filters as compute_kaldi_filters,
    compute_whisper_filters as compute_whisper_filters,
    speech_spans as speech_spans,
)
