"""RunConfig: the whole YAML of a run as one typed tree, the map of the project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pydantic

from asr.config import Config, load_config
from asr.errors import UserError
from asr.families import find_families, find_model, require_trainable
from asr.features.front_end import FeaturesConfig
from asr.files import find_shipped
from asr.models.speech_model import AnyModelConfig
from asr.text.normalization import TextConfig
from asr.text.tokenizer import TokenizerConfig


class DataConfig(Config):
    """Files of utterances."""

    train: str | tuple[str, ...]
    """Manifest (JSON Lines) to learn from, or a list of them; or a folder of shards, here or at an address
    such as s3://bucket/corpus, or a list of such; for a language model also plain text (.txt), a sentence a
    line. The tokenizer learns from it too: the one of the speech model, if both have the same."""
    dev: str
    """Manifest or folder of shards to choose by: checkpoints, settings, when to stop. Never the test set. For
    a language model also plain text (.txt)."""
    text: tuple[str, ...] = ()
    """More files of plain text, a sentence a line, for a language model to learn from."""
    max_unknown: float = pydantic.Field(default=0.2, ge=0, le=1)
    """Stop before the first update if the tokenizer does not know a greater share of the tokens of train or
    dev: other letters, another case, another script."""

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
        """Each path of train and dev, behind the name of its setting."""
        return [*(("train", path) for path in self.train_paths), ("dev", self.dev)]

    @property
    def train_name(self) -> str:
        """The training set, in messages."""
        return " + ".join(self.train_paths)


class NoiseConfig(Config):
    """Noise added to the waveform."""

    probability: float = pydantic.Field(default=0.0, ge=0, le=1)
    """Share of the utterances that get noise; 0 switches it off."""
    snr_db: tuple[float, float] = (10.0, 20.0)
    """Lowest and highest ratio of the power of speech and noise over the utterance, in dB; drawn evenly."""
    kinds: tuple[Literal["white", "pink", "brown", "recorded"], ...] = ("white",)
    """Kinds of noise to choose from, evenly: synthetic of a color, or an excerpt of `recordings`."""
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
    """Masks and time warp on the features (Park et al. 2019, arXiv 1904.08779).

    Masked cells have the mean of the utterance over frames and features.
    """

    time_warp: int = pydantic.Field(default=0, ge=0)
    """Greatest shift of a point of the utterance, in frames; 0: no warp. Utterances shorter than twice this
    plus 3 frames stay as they are."""
    num_frequency_masks: int = pydantic.Field(default=0, ge=0, le=100)
    """Bands of features that are masked in each utterance; they may overlap."""
    frequency_mask_width: int = pydantic.Field(default=27, ge=1)
    """Greatest width of a band, in features; the width is drawn evenly from 0 to this."""
    num_time_masks: int = pydantic.Field(default=0, ge=0, le=1000)
    """Stretches of frames that are masked in each utterance; they may overlap."""
    time_mask_width: int | None = pydantic.Field(default=None, ge=1)
    """Greatest width of a stretch in frames, at most a fifth of the utterance; null: a fifth."""


class AugmentConfig(Config):
    """Augmentation of the training audio; the defaults change nothing."""

    speed: tuple[float, ...] = ()
    """Factors of tempo and pitch such as [0.9, 1.0, 1.1]: one is drawn for each utterance and epoch."""
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
    """Greatest length of a batch with its padding: the number of utterances times the longest."""
    max_tokens: int = pydantic.Field(default=4000, ge=2)
    """Greatest number of tokens in a batch of sentences, padding included, for a language model."""
    max_utterances: int = pydantic.Field(default=64, ge=1)
    """Greatest number of utterances in a batch."""
    min_seconds: float = pydantic.Field(default=0.1, ge=0)
    """Shorter utterances are left out of training."""
    max_utterance_seconds: float = pydantic.Field(default=30.0, gt=0)
    """Longer utterances are left out of training."""
    num_workers: int = pydantic.Field(default=2, ge=0, le=256)
    """Processes that read audio and compute features; 0: the training process does it itself."""

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
    """Learning rate at the peak, after the warm-up."""
    schedule: Literal["inverse_sqrt", "cosine", "constant"] = "inverse_sqrt"
    """After the warm-up: falls as 1 / sqrt(update); as half a cosine to a hundredth; or stays."""
    warmup_steps: int = pydantic.Field(default=1000, ge=0)
    """Updates over which the learning rate rises from near zero."""
    weight_decay: float = pydantic.Field(default=0.01, ge=0)
    """Weight decay of matrices; norms, biases and embeddings have none."""


HIGHER_IS_BETTER = {"token_accuracy", "accuracy", "updates"}  # of what training may select by


class TrainConfig(Config):
    """Length of training, precision, and the checkpoints that are kept."""

    steps: int = pydantic.Field(default=10_000, gt=0)
    """Updates in all."""
    batches_per_update: int | None = pydantic.Field(default=None, gt=0)
    """Batches of an update, of all processes together; null: one for each process of the first start. More
    of them than processes are done one after the other (gradient accumulation)."""
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    """Precision of matrix products. auto: bf16 where the processor has instructions for it, else float32.
    fp16 is for GPUs that have no bf16: it scales the loss, and skips an update if gradients overflow."""
    average_decay: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """Use a moving average of the weights (0.999, say) to validate and as the result; null: the weights."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    threads: int | None = pydantic.Field(default=None, gt=0)
    """Threads of PyTorch on a CPU; null: one for each core that other processes leave free at the start."""
    log_every: int = pydantic.Field(default=50, gt=0)
    """Updates between two lines in log.jsonl."""
    tensorboard: bool = False
    """Write the numbers of log.jsonl to the run folder `tensorboard` too; needs the extra `tracking`."""
    validate_every: int = pydantic.Field(default=500, gt=0)
    """Updates between two validations; each leaves a checkpoint."""
    save_every: int = pydantic.Field(default=500, gt=0)
    """Updates between two checkpoints: at most twice as many are lost when training is killed."""
    select_by: Literal["wer", "cer", "token_accuracy", "accuracy", "loss", "updates"] = "wer"
    """Score on the dev set that chooses the best checkpoints; of equal ones, the lower dev loss is better.
    wer and cer are of greedy output, the decoder's if there is one; token_accuracy is the share of tokens
    that the decoder predicts rightly after the true ones; accuracy is the share of right labels. updates: the
    latest checkpoints are the best, for a dev set that is part of the training."""
    keep_best: int = pydantic.Field(default=5, gt=0)
    """Number of the best checkpoints that are kept, and averaged at the end."""


class RunConfig(Config):
    """One YAML file is one run; each section below is a class of its own."""

    output_dir: str
    """Folder of the run: tokenizer, checkpoints and logs go there."""
    seed: int = 0
    """Start of every random choice: weights, order of the batches, augmentation, dropout."""
    start_from: str | None = None
    """Model whose weights, tokenizer and front end this run begins with: the folder of a run or checkpoint
    (sizes of the model and `features` must be the same), or a published model (a folder, or its name on the
    hub) for an encoder or decoder of its type. Null: random weights, a tokenizer of the training texts."""
    keep_tokenizer: bool = True
    """Take the tokenizer of `start_from` too; false: learn one from the training texts, for another language
    or script. Embeddings and output layers, which have a row for each token, are then new."""
    data: DataConfig
    """Files of utterances."""
    text: TextConfig = TextConfig()
    """Normalization of transcripts, for training and for scoring."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """Tokenizer: text to tokens."""
    features: FeaturesConfig = FeaturesConfig()
    """Front end: audio to feature vectors."""
    augment: AugmentConfig = AugmentConfig()
    """Augmentation of the training audio."""
    batches: BatchConfig = BatchConfig()
    """Grouping of utterances into batches."""
    model: AnyModelConfig
    """The model to train: of speech, or of language alone."""
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
                f"tokenizer.type = {self.tokenizer.type} does not go with a model of type {self.model.type}; "
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
    """The model folder of a run, if encoder, decoder and these sections are of this type; else None."""
    try:
        folder = find_model(path)
        run = RunConfig.load(folder / "config.yaml")
    except UserError:
        return None
    parts = [getattr(run.model, name, None) for name in ("encoder", "decoder")]
    parts += [getattr(run, name) for name in sections]
    return folder if all(getattr(part, "type", None) == kind for part in parts) else None
