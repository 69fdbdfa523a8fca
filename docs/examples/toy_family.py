"""A family of models: NUMBER.toy is a small CTC model whose weights are drawn from that seed."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import torch

from asr.config import Config
from asr.decoding.hypothesis import DecodingConfig
from asr.features.front_end import FeaturesConfig, FrontEnd
from asr.models.encoders import LSTMEncoderConfig
from asr.models.speech_model import SpeechModel, SpeechModelConfig
from asr.text.normalization import TextConfig
from asr.text.tokenizer import Tokenizer, TokenizerConfig
from asr.transcription.transcribe import Recognizer


class ToyConfig(Config):
    """Settings that only these models have; none."""


name, section, config_class, model_names, languages = "toy", "toy", ToyConfig, ("1.toy",), {"en": "english"}
decoding, prefers_int8 = DecodingConfig(beam=3), False
matches = lambda source, as_run=False: str(source).endswith(".toy")  # noqa: E731
find_weights = Path
describe = lambda source: {"files": source, "seed": int(Path(source).stem)}  # noqa: E731
convert = lambda source, target, dtype: shutil.copy(source, target)  # noqa: E731


def load(source, device, precision, segmentation, checks):
    torch.manual_seed(int(Path(source).stem))
    tokenizer, features = Tokenizer.train(TokenizerConfig(), ["one two"]), FeaturesConfig()
    config = SpeechModelConfig(encoder=LSTMEncoderConfig(dim=16, num_layers=1), ctc_weight=1.0)
    model = SpeechModel(config, features.num_features, len(tokenizer)).eval()
    system = SimpleNamespace(model=model, front_end=FrontEnd(features), tokenizer=tokenizer)
    system.text, system.longest_seconds = TextConfig(), 10.0
    return Recognizer(system, device, precision, segmentation, checks, family=__import__("asr.toy").toy)
