from .beam import (
    drop_certain_blanks as drop_certain_blanks,
    score_texts as score_texts,
    search_prefixes as search_prefixes,
)
from .decode import (
    METHODS as METHODS,
    Attempt as Attempt,
    DecodedBatch as DecodedBatch,
    DecodedUtterance as DecodedUtterance,
    DecodingSetup as DecodingSetup,
    SpeechDecoder as SpeechDecoder,
    batch_by_length as batch_by_length,
    offered_methods as offered_methods,
    plan_fallbacks as plan_fallbacks,
    resolve_method as resolve_method,
    search_encoded as search_encoded,
    search_greedy as search_greedy,
)
from .fusion import Renumbered as Renumbered, ShallowFusion as ShallowFusion, Weighted as Weighted
from .greedy import (
    LOOP as LOOP,
    draw as draw,
    is_loop as is_loop,
    read_prompts as read_prompts,
    sample as sample,
)
from .hotwords import Hotwords as Hotwords
from .hypothesis import (
    ChecksConfig as ChecksConfig,
    CtcText as CtcText,
    DecodingConfig as DecodingConfig,
    EncodedAudio as EncodedAudio,
    Evidence as Evidence,
    FusionModel as FusionModel,
    Hypothesis as Hypothesis,
    NBest as NBest,
    SearchRules as SearchRules,
    count_repeats as count_repeats,
    find_best_paths as find_best_paths,
    find_faults as find_faults,
    is_agreed as is_agreed,
    is_speech as is_speech,
)
from .ngram import (
    NO_PROBABILITY as NO_PROBABILITY,
    Arpa as Arpa,
    Lexicon as Lexicon,
    Ngram as Ngram,
    NgramModel as NgramModel,
    WordNgramModel as WordNgramModel,
    collect_words as collect_words,
    estimate_ngrams as estimate_ngrams,
    read_arpa as read_arpa,
    read_word_list as read_word_list,
    token_vocabulary as token_vocabulary,
    write_arpa as write_arpa,
)
from .timestamps import (
    TokenTime as TokenTime,
    align_by_attention as align_by_attention,
    align_by_ctc as align_by_ctc,
    align_tokens as align_tokens,
    find_boundary as find_boundary,
    find_ends as find_ends,
    has_spaces as has_spaces,
    pad_tokens as pad_tokens,
    split_words as split_words,
    time_words as time_words,
    warp as warp,
    warp_batch as warp_batch,
)
