"""RunConfig: the YAML file of a run as one typed tree, and a map of the project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pydantic

from asr.config import Config, load_config
from asr.errors import UserError
from asr.families import find_families, find_model, require_trainable
from asr.features.filters import FeaturesConfig
from asr.files import find_shipped
from asr.models.speech_model import AnyModelConfig
from asr.text.normalization import TextConfig
from asr.text.tokenizer import TokenizerConfig


class DataConfig(Config):
    """Files of utterances."""

    train: str | tuple[str, ...]
    """Training set: a manifest (JSON Lines) or a folder of shards, local or at an address such as
    s3://bucket/corpus, or a list of either; for a language model also plain text (.txt), one sentence a line.
    The tokenizer learns from it too, so a language model for a speech model needs the same."""
    dev: str
    """Development set: a manifest or folder of shards that selects checkpoints and settings and says when to
    stop. Never the test set. For a language model also plain text (.txt)."""
    text: tuple[str, ...] = ()
    """Additional plain text for a language model, one sentence a line."""
    max_unknown: float = pydantic.Field(default=0.2, ge=0, le=1)
    """Maximum share of tokens in train or dev that the tokenizer may not know. With more, such as letters of
    another case or script, training stops before the first update."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> DataConfig:
        if not self.train:
            raise ValueError("train: expected the path of a manifest, or a list of one or more")
        return self

    @property
    def train_paths(self) -> tuple[str, ...]:
        return (self.train,) if isinstance(self.train, str) else self.train

    @property
    def named_paths(self) -> list[tuple[str, str]]:
        """Pairs of setting and path: all of train, then dev."""
        return [*(("train", path) for path in self.train_paths), ("dev", self.dev)]

    @property
    def train_name(self) -> str:
        """The training set as messages name it."""
        return " + ".join(self.train_paths)


class NoiseConfig(Config):
    """Noise added to the waveform."""

    probability: float = pydantic.Field(default=0.0, ge=0, le=1)
    """Probability that an utterance gets noise; 0 switches it off."""
    snr_db: tuple[float, float] = (10.0, 20.0)
    """Lowest and highest signal-to-noise ratio over the utterance, in dB; drawn uniformly."""
    kinds: tuple[Literal["white", "pink", "brown", "recorded"], ...] = ("white",)
    """Kinds of noise, drawn uniformly: synthetic noise of a color, or an excerpt from `recordings`."""
    recordings: str | None = None
    """Manifest of noise recordings, for the kind `recorded`."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> NoiseConfig:
        if not -30 <= self.snr_db[0] <= self.snr_db[1] <= 100:
            raise ValueError(f"snr_db = {list(self.snr_db)}: expected [low, high], from -30 to 100")
        if not self.kinds:
            raise ValueError("kinds: expected at least one kind")
        if ("recorded" in self.kinds) != (self.recordings is not None):
            raise ValueError("kinds has `recorded` if, and only if, recordings is set; change one of the two")
        return self


class SpecAugmentConfig(Config):
    """SpecAugment: masks and time warp on the features (Park et al. 2019, arXiv 1904.08779).

    Masked values become the mean of the utterance over frames and features.
    """

    time_warp: int = pydantic.Field(default=0, ge=0)
    """Maximum shift of a point of the utterance, in frames; 0: no warp. Utterances shorter than twice this
    plus 3 frames are not warped."""
    num_frequency_masks: int = pydantic.Field(default=0, ge=0, le=100)
    """Number of feature bands to mask in each utterance; they may overlap."""
    frequency_mask_width: int = pydantic.Field(default=27, ge=1)
    """Maximum width of a band, in features; the width is drawn uniformly from 0 to this."""
    num_time_masks: int = pydantic.Field(default=0, ge=0, le=1000)
    """Number of spans of frames to mask in each utterance; they may overlap."""
    time_mask_width: int | None = pydantic.Field(default=None, ge=1)
    """Maximum width of a span in frames, at most a fifth of the utterance; null: a fifth."""


class AugmentConfig(Config):
    """Augmentation of the training audio; the defaults change nothing."""

    speed: tuple[float, ...] = ()
    """Speed factors such as [0.9, 1.0, 1.1], which change tempo and pitch; one is drawn per utterance."""
    noise: NoiseConfig = NoiseConfig()
    """Noise added to the waveform."""
    spec_augment: SpecAugmentConfig = SpecAugmentConfig()
    """Masks and time warp on the features."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> AugmentConfig:
        if any(not 0.5 <= factor <= 2.0 for factor in self.speed):
            raise ValueError(f"speed = {list(self.speed)}: expected factors from 0.5 to 2.0")
        return self


class BatchConfig(Config):
    """Grouping of utterances into batches."""

    max_seconds: float = pydantic.Field(default=160.0, gt=0)
    """Maximum seconds of a batch with its padding: number of utterances times the longest one."""
    max_tokens: int = pydantic.Field(default=4000, ge=2)
    """Maximum number of tokens in a batch of sentences, padding included, for a language model."""
    max_utterances: int = pydantic.Field(default=64, ge=1)
    """Maximum number of utterances in a batch."""
    min_seconds: float = pydantic.Field(default=0.1, ge=0)
    """Shorter utterances are left out of training."""
    max_utterance_seconds: float = pydantic.Field(default=30.0, gt=0)
    """Longer utterances are left out of training."""
    num_workers: int = pydantic.Field(default=2, ge=0, le=256)
    """Number of processes that read audio and compute features; 0: the training process does it itself."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> BatchConfig:
        if not self.min_seconds < self.max_utterance_seconds <= self.max_seconds:
            raise ValueError(
                f"expected min_seconds < max_utterance_seconds <= max_seconds, found {self.min_seconds}, "
                f"{self.max_utterance_seconds} and {self.max_seconds}"
            )
        return self


class OptimConfig(Config):
    """AdamW and its learning rate."""

    learning_rate: float = pydantic.Field(default=1e-3, gt=0)
    """Peak learning rate, which the warm-up ends with."""
    schedule: Literal["inverse_sqrt", "cosine", "constant"] = "inverse_sqrt"
    """Decay after the warm-up: as 1 / sqrt(update), as half a cosine to 1 % of the peak, or none."""
    warmup_steps: int = pydantic.Field(default=1000, ge=0)
    """Number of updates over which the learning rate rises linearly from near zero."""
    weight_decay: float = pydantic.Field(default=0.01, ge=0)
    """Weight decay of matrices; norms, biases and embeddings have none."""


HIGHER_IS_BETTER = {"token_accuracy", "accuracy", "updates"}  # among the choices of train.select_by


class TrainConfig(Config):
    """Length of training, precision, and the checkpoints that are kept."""

    steps: int = pydantic.Field(default=10_000, gt=0)
    """Number of updates in total."""
    batches_per_update: int | None = pydantic.Field(default=None, gt=0)
    """Batches in an update, across all processes; null: one for each process of the first start. If there are
    more than processes, each process computes several in turn (gradient accumulation)."""
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    """Precision of matrix products. auto: bf16 if the processor has instructions for it, else float32. fp16
    is for GPUs without bf16: it scales the loss, and skips an update if gradients overflow."""
    average_decay: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """Decay, such as 0.999, of an exponential moving average (EMA) of the weights, which is then validated
    and saved as the result; null: no average."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on. auto: a GPU if there is one."""
    threads: int | None = pydantic.Field(default=None, gt=0)
    """CPU threads of PyTorch; null: one for each core that other processes leave free at the start."""
    log_every: int = pydantic.Field(default=50, gt=0)
    """Updates between two lines in log.jsonl."""
    tensorboard: bool = False
    """Also write the numbers of log.jsonl to the folder `tensorboard` of the run; needs extra `tracking`."""
    validate_every: int = pydantic.Field(default=500, gt=0)
    """Updates between two validations, each of which writes a checkpoint."""
    save_every: int = pydantic.Field(default=500, gt=0)
    """Updates between two checkpoints. If training is killed, at most twice as many are lost."""
    select_by: Literal["wer", "cer", "token_accuracy", "accuracy", "loss", "updates"] = "wer"
    """Score on the dev set that selects the best checkpoints; ties go to the lower dev loss. wer and cer are
    computed from greedy output, of the decoder if there is one; token_accuracy is the share of tokens that
    the decoder predicts correctly after the true ones; accuracy is the share of correct labels. updates
    selects the latest checkpoints, for a dev set that is part of the training set."""
    keep_best: int = pydantic.Field(default=5, gt=0)
    """Number of best checkpoints to keep, and to average at the end."""


class RunConfig(Config):
    """The settings of a run, which one YAML file contains; each section is a class of its own."""

    output_dir: str
    """Folder of the run, for its tokenizer, checkpoints and logs."""
    seed: int = 0
    """Seed of all random choices: weights, batch order, augmentation, dropout."""
    start_from: str | None = None
    """Model that provides initial weights, tokenizer and front end: the folder of a run or checkpoint (with
    the same model sizes and `features`), or a published model (a folder, or its name on the hub) for an
    encoder or decoder of its type. Null: random weights, and a tokenizer learned from the training texts."""
    keep_tokenizer: bool = True
    """Use the tokenizer of `start_from` too; false: learn one from the training texts, for another language
    or script. Embeddings and output layers, which have one row for each token, then start from scratch."""
    data: DataConfig
    """Files of utterances."""
    text: TextConfig = TextConfig()
    """Normalization of transcripts, for training and for scoring."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """Tokenizer: converts text to tokens."""
    features: FeaturesConfig = FeaturesConfig()
    """Front end: converts audio to feature vectors."""
    augment: AugmentConfig = AugmentConfig()
    """Augmentation of the training audio."""
    batches: BatchConfig = BatchConfig()
    """Grouping of utterances into batches."""
    model: AnyModelConfig
    """The model to train: a speech model or a language model."""
    optim: OptimConfig = OptimConfig()
    """Optimizer and learning rate."""
    train: TrainConfig = TrainConfig()
    """Training loop: length, precision, checkpoints."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> RunConfig:
        if self.train.select_by not in (*self.model.scores, "updates"):
            raise ValueError(
                f"train.select_by = {self.train.select_by}, but a model of type {self.model.type} has "
                f"{', '.join(self.model.scores)}; set train.select_by: {self.model.scores[0]}"
            )
        makes_labels = self.model.find_labels(self.text) is not None
        if makes_labels != (self.tokenizer.type == "labels"):
            required = "labels" if makes_labels else "characters"
            raise ValueError(
                f"tokenizer.type = {self.tokenizer.type} does not suit a model of type {self.model.type}; "
                f"set tokenizer.type: {required}"
            )
        for name, rules in self.text:
            if {"lowercase", "uppercase"} <= {*rules}:
                raise ValueError(f"text.{name}: lowercase and uppercase exclude each other; remove one")
        self._check_augment()
        self.model.check_run(self)
        parts = (self.tokenizer, *(getattr(self.model, name, None) for name in ("encoder", "decoder")))
        types = {getattr(part, "type", None) for part in parts}
        for family in find_families():
            if family.section in types:
                require_trainable(family).check_run(self)
        return self

    def _check_augment(self) -> None:
        masks, width = self.augment.spec_augment, self.features.num_features
        if masks.num_frequency_masks and masks.frequency_mask_width > width:
            raise ValueError(
                f"augment.spec_augment.frequency_mask_width = {masks.frequency_mask_width} is wider than "
                f"the {width} features; lower it"
            )
        slowest, longest = min(self.augment.speed, default=1.0), self.batches.max_utterance_seconds
        if longest / slowest > self.batches.max_seconds:
            raise ValueError(
                f"batches.max_utterance_seconds = {longest} becomes {longest / slowest:g} at the slowest "
                f"augment.speed, more than batches.max_seconds = {self.batches.max_seconds}; change one"
            )

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
        return load_config(cls, find_shipped(path), overrides)


def find_run_of(path: Path, kind: str, *sections: str) -> Path | None:
    """Return the model folder of a run if its encoder, decoder and `sections` have type `kind`; else None."""
    try:
        folder = find_model(path)
        run = RunConfig.load(folder / "config.yaml")
    except UserError:
        return None
    parts = [getattr(run.model, name, None) for name in ("encoder", "decoder")]
    parts += [getattr(run, name) for name in sections]
    return folder if all(getattr(part, "type", None) == kind for part in parts) else None
