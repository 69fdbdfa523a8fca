from .distributed import (
    GradientSum as GradientSum,
    Process as Process,
    agree_on_name as agree_on_name,
    one_voice as one_voice,
    share_from_main as share_from_main,
)
from .learner import (
    Learner as Learner,
    MovingAverage as MovingAverage,
    Outcome as Outcome,
    build_optimizer as build_optimizer,
    choose_precision as choose_precision,
    halve_largest as halve_largest,
    keep_freed_memory as keep_freed_memory,
    learning_rate_at as learning_rate_at,
)
from .loop import (
    Ranked as Ranked,
    Run as Run,
    TrainingState as TrainingState,
    note_score as note_score,
    train as train,
    train_model as train_model,
)
from .preparation import (
    TrainingData as TrainingData,
    load_or_train_tokenizer as load_or_train_tokenizer,
    prepare_system as prepare_system,
)
