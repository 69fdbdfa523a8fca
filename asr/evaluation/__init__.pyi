from .attention_pictures import (
    END as END,
    compute_spectrogram as compute_spectrogram,
    draw as draw,
    draw_recording as draw_recording,
    draw_segment as draw_segment,
)
from .speech import (
    DecodedSplit as DecodedSplit,
    EvaluatedSplit as EvaluatedSplit,
    decode_utterances as decode_utterances,
    make_normalizer as make_normalizer,
    read_batch as read_batch,
    read_references as read_references,
    score_setups as score_setups,
    write_texts as write_texts,
)
from .word_times import align_utterances as align_utterances
