from .joining import (
    clip_words as clip_words,
    join_segments as join_segments,
    join_words as join_words,
    make_segment as make_segment,
    merge_channels as merge_channels,
)
from .recordings import (
    MAX_UNIT_ITEMS as MAX_UNIT_ITEMS,
    find_recordings as find_recordings,
    plan_units as plan_units,
)
from .settings import (
    EvaluationSettings as EvaluationSettings,
    ReadyEvaluationSettings as ReadyEvaluationSettings,
    ScoringConfig as ScoringConfig,
    TranscriptionSettings as TranscriptionSettings,
)
from .transcribe import (
    Decoded as Decoded,
    End as End,
    Recognizer as Recognizer,
    Request as Request,
    Transcriber as Transcriber,
    choose_device as choose_device,
    load_model as load_model,
)
