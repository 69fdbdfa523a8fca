from .arguments import (
    MAX_UNIT_ITEMS as MAX_UNIT_ITEMS,
    EvaluationSettings as EvaluationSettings,
    ReadyEvaluationSettings as ReadyEvaluationSettings,
    TranscriptionSettings as TranscriptionSettings,
    find_recordings as find_recordings,
    plan_units as plan_units,
)
from .transcribe import (
    Decoded as Decoded,
    End as End,
    Recognizer as Recognizer,
    Request as Request,
    Transcriber as Transcriber,
    load_model as load_model,
)
