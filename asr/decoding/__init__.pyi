from .arpa import (
    NO_PROBABILITY as NO_PROBABILITY,
    Arpa as Arpa,
    Ngram as Ngram,
    read_arpa as read_arpa,
    write_arpa as write_arpa,
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
from .core import (
    DecodedBatch as DecodedBatch,
    DecodedUtterance as DecodedUtterance,
    DecodingSetup as DecodingSetup,
    SpeechDecoder as SpeechDecoder,
    batch_by_length as batch_by_length,
    plan_attempts as plan_attempts,
)
from .ctc_beam import drop_certain_blanks as drop_certain_blanks, search_prefixes as search_prefixes
from .fusion import FusionModel as FusionModel, ShallowFusion as ShallowFusion, score_texts as score_texts
from .hypothesis import (
    DecodingConfig as DecodingConfig,
    EncodedAudio as EncodedAudio,
    Hypothesis as Hypothesis,
    NBest as NBest,
    find_best_paths as find_best_paths,
)
from .lexicon import Lexicon as Lexicon, collect_words as collect_words
from .methods import METHODS as METHODS, Method as Method
from .ngram import (
    NgramModel as NgramModel,
    WordNgramModel as WordNgramModel,
    token_vocabulary as token_vocabulary,
)
from .ngram_estimation import estimate_ngrams as estimate_ngrams
from .search import (
    decode_greedily as decode_greedily,
    offered_methods as offered_methods,
    resolve_method as resolve_method,
    search_encoded as search_encoded,
    search_quickly as search_quickly,
)
