from .normalization import (
    MAX_MARKS as MAX_MARKS,
    RULES as RULES,
    SAFE_RULES as SAFE_RULES,
    Rule as Rule,
    TextConfig as TextConfig,
    normalize as normalize,
    normalize_english as normalize_english,
)
from .tokenizer import (
    BLANK_ID as BLANK_ID,
    EOS_ID as EOS_ID,
    PAD_ID as PAD_ID,
    SOS_ID as SOS_ID,
    SPECIAL_TOKENS as SPECIAL_TOKENS,
    UNK_ID as UNK_ID,
    UNKNOWN_MARK as UNKNOWN_MARK,
    Tokenizer as Tokenizer,
    TokenizerConfig as TokenizerConfig,
    TokenizerType as TokenizerType,
    compute_fingerprint as compute_fingerprint,
    read_dictionary as read_dictionary,
)
