from .front_end import FeaturesConfig as FeaturesConfig, FrontEnd as FrontEnd, fit_front_end as fit_front_end
from .mel import (
    compute_kaldi_filters as compute_kaldi_filters,
    compute_povey_window as compute_povey_window,
    compute_whisper_filters as compute_whisper_filters,
)
from .padded import speech_spans as speech_spans
from .reduction import (
    Moments as Moments,
    ReductionConfig as ReductionConfig,
    Subspace as Subspace,
    accumulate_moments as accumulate_moments,
    fit_pca as fit_pca,
    fit_reduction as fit_reduction,
    fit_smart_pca as fit_smart_pca,
)
