from .checkpoint import (
    BackgroundWriter as BackgroundWriter,
    average_weights as average_weights,
    copy_tensors as copy_tensors,
    describe_commit as describe_commit,
    find_commit as find_commit,
    save_checkpoint as save_checkpoint,
    write_checkpoint as write_checkpoint,
)
from .decoding_resources import (
    DecodingResources as DecodingResources,
    find_resources as find_resources,
    load_language_model as load_language_model,
)
from .run_config import (
    AugmentConfig as AugmentConfig,
    BatchConfig as BatchConfig,
    NoiseConfig as NoiseConfig,
    OptimConfig as OptimConfig,
    RunConfig as RunConfig,
    SpecAugmentConfig as SpecAugmentConfig,
    TrainConfig as TrainConfig,
)
from .system import (
    System as System,
    load_any_system as load_any_system,
    load_state as load_state,
    load_system as load_system,
    read_tensors as read_tensors,
)
