from .distributed import (
    GradientSum as GradientSum,
    Process as Process,
    broadcast_from_main as broadcast_from_main,
    rendezvous_key as rendezvous_key,
    report_error_once as report_error_once,
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
    rank_checkpoint as rank_checkpoint,
    train as train,
    train_model as train_model,
)
from .preparation import prepare_system as prepare_system
from .run_tokenizer import load_or_train_tokenizer as load_or_train_tokenizer
from .training_data import TrainingData as TrainingData, read_training_texts as read_training_texts
