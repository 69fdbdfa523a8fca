from .arguments import (
    MAX_UNIT_ITEMS as MAX_UNIT_ITEMS,
    EvaluationSettings as EvaluationSettings,
    TranscriptionSettings as TranscriptionSettings,
    find_recordings as find_recordings,
    plan_units as plan_units,
    read_options as read_options,
)
from .model import Model as Model, Options as Options, load_model as load_model
from .transcribe import (
    Decoded as Decoded,
    End as End,
    Recognizer as Recognizer,
    Request as Request,
    load_recognizer as load_recognizer,
)
