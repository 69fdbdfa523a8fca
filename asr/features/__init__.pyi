from .front_end import FeaturesConfig as FeaturesConfig, FrontEnd as FrontEnd, fit_front_end as fit_front_end
from .mel import (
    compute_kaldi_filters as compute_kaldi_filters,
    compute_povey_window as compute_povey_window,
    compute_whisper_filters as compute_whisper_filters,
)
from .padded import (
    Moments as Moments,
    ReductionConfig as ReductionConfig,
    Subspace as Subspace,
    accumulate_moments as accumulate_moments,
    speech_spans as speech_spans,
)
