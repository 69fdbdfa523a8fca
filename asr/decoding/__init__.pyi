from .beam import (
    drop_certain_blanks as drop_certain_blanks,
    score_texts as score_texts,
    search_prefixes as search_prefixes,
)
from .checks import (
    ChecksConfig as ChecksConfig,
    CtcText as CtcText,
    Evidence as Evidence,
    count_repeats as count_repeats,
    find_faults as find_faults,
    is_agreed as is_agreed,
    is_speech as is_speech,
)
from .decode import (
    METHODS as METHODS,
    DecodedBatch as DecodedBatch,
    DecodedUtterance as DecodedUtterance,
    DecodingSetup as DecodingSetup,
    SpeechDecoder as SpeechDecoder,
    batch_by_length as batch_by_length,
    offered_methods as offered_methods,
    plan_attempts as plan_attempts,
    resolve_method as resolve_method,
    search_encoded as search_encoded,
    search_quickly as search_quickly,
)
from .hypothesis import (
    DecodingConfig as DecodingConfig,
    EncodedAudio as EncodedAudio,
    FusionModel as FusionModel,
    Hypothesis as Hypothesis,
    NBest as NBest,
    find_best_paths as find_best_paths,
)
from .ngram import (
    NO_PROBABILITY as NO_PROBABILITY,
    Arpa as Arpa,
    Lexicon as Lexicon,
    Ngram as Ngram,
    NgramModel as NgramModel,
    ShallowFusion as ShallowFusion,
    WordNgramModel as WordNgramModel,
    collect_words as collect_words,
    estimate_ngrams as estimate_ngrams,
    read_arpa as read_arpa,
    token_vocabulary as token_vocabulary,
    write_arpa as write_arpa,
)
from .timestamps import (
    TokenTime as TokenTime,
    align_by_attention as align_by_attention,
    align_by_ctc as align_by_ctc,
    find_boundary as find_boundary,
    find_ends as find_ends,
    has_spaces as has_spaces,
    split_words as split_words,
    time_words as time_words,
    warp as warp,
    warp_batch as warp_batch,
)
