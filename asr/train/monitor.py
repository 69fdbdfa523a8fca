"""Reports the progress of training: log.jsonl, log lines, TensorBoard, callback and learning curve."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.errors import UserError, import_extra
from asr.evaluation.plots import draw_learning_curve
from asr.files import replace_file
from asr.models.layers import name_means
from asr.system.run_config import RunConfig
from asr.train.learner import Outcome

logger = logging.getLogger(__name__)

UNSHOWN = {"learning_rate", "gradient_norm", "skipped_updates", "training_seconds", "audio_hours"}
UNSHOWN |= {"tokens_per_second", "audio_seconds_per_second", "ctc", "cross_entropy", "guided_attention"}
LINES = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")


@contextlib.contextmanager
def show_progress() -> Iterator[None]:
    """Send log lines to standard error within the block, even if a program has set up no logging."""
    logger = logging.getLogger("asr")
    if logger.hasHandlers():
        yield
        return
    handler, level = logging.StreamHandler(), logger.level
    handler.setFormatter(LINES)
    logger.addHandler(handler)
    if level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


Callback = Callable[[int, Mapping[str, float]], None]
"""Called with the number of the update and values such as train/loss, dev/wer or model/loss."""


class Monitor:
    """Writes numbers to log.jsonl, the log, TensorBoard and a callback, in the main process only."""

    def __init__(
        self,
        config: RunConfig,
        start_step: int,
        *,
        is_main: bool,
        callback: Callback | None = None,
        draws: bool = False,
    ) -> None:
        self.is_main = is_main
        self._selects_by = config.train.select_by if draws else None
        self._path = Path(config.output_dir) / "log.jsonl"
        self._start_step, self._num_steps, self._started = start_step, config.train.steps, time.monotonic()
        self._callbacks = [] if callback is None else [callback]
        if is_main:
            _truncate_log(self._path, start_step)
            if config.train.tensorboard:
                self._callbacks.append(open_tensorboard(config, start_step))

    def record(self, step: int, kind: str, values: Mapping[str, Any]) -> None:
        """Write a line to log.jsonl and, without UNSHOWN, to the log. `kind` is train, dev or an event."""
        if not self.is_main:
            return
        line = {"step": step, "kind": kind, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")} | dict(values)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        shown = ", ".join(
            f"{name} {show_value(name, value)}"
            for name, value in drop_repeated_rates(values).items()
            if name not in UNSHOWN
        )
        logger.info("%s %d/%d%s: %s", kind, step, self._num_steps, self._describe_time_left(step), shown)
        numbers = {f"{kind}/{k}": float(v) for k, v in values.items() if isinstance(v, (int, float))}
        for callback in list(self._callbacks):
            try:
                callback(step, numbers)
            except Exception as error:  # a callback may fail in any way, such as a tracking server
                self._callbacks.remove(callback)
                message = "the callback failed (%s: %s); training continues; log.jsonl has everything"
                logger.warning(message, type(error).__name__, error)
        if kind == "dev" and self._selects_by is not None:
            draw_log(self._path.parent, self._selects_by)

    def _describe_time_left(self, step: int) -> str:
        done, left = step - self._start_step, self._num_steps - step
        if done <= 0 or left <= 0:
            return ""
        minutes = round((time.monotonic() - self._started) / done * left / 60)
        return f", {minutes // 60} h {minutes % 60} min left" if minutes >= 60 else f", {minutes} min left"


def open_tensorboard(config: RunConfig, start_step: int) -> Callback:
    """Return a callback that writes to the folder `tensorboard` of the run."""
    tensorboard = import_extra("torch.utils.tensorboard", "train.tensorboard", "tracking")
    folder = Path(config.output_dir) / "tensorboard"
    writer = tensorboard.SummaryWriter(str(folder), purge_step=start_step + 1)

    def record(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return record


def compute_means(outcomes: Sequence[Outcome], seconds: float) -> dict[str, float]:
    """Compute means over updates that took `seconds` in total."""
    finite = [outcome for outcome in outcomes if outcome.is_finite]
    tokens = max(sum(outcome.num_tokens for outcome in finite), 1.0)
    sums: Counter[str] = Counter()
    for outcome in finite:
        sums.update(outcome.sums)
    seconds, audio_seconds = max(seconds, 1e-9), sum(outcome.audio_seconds for outcome in outcomes)
    speed = {"audio_seconds_per_second": audio_seconds / seconds} if audio_seconds else {}
    return name_means({name: total / tokens for name, total in sums.items()}) | {
        "learning_rate": outcomes[-1].learning_rate,
        "gradient_norm": sum(outcome.gradient_norm for outcome in finite) / max(len(finite), 1),
        "skipped_updates": len(outcomes) - len(finite),
        "tokens_per_second": tokens / seconds,
        **speed,
    }


def read_log(run_dir: Path) -> list[dict[str, Any]]:
    """Read the lines of log.jsonl."""
    return [json.loads(line) for line in (run_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def draw_log(output_dir: Path, select_by: str) -> None:
    """Draw learning_curve.png from log.jsonl: loss, WER, and the score that selects checkpoints."""
    path, lines = output_dir / "learning_curve.png", read_log(output_dir)
    train, dev = ([line for line in lines if line["kind"] == kind] for kind in ("train", "dev"))
    points = {
        (split, name): [(line["step"], line[name]) for line in lines if name in line]
        for split, lines in (("train", train), ("dev", dev))
        for name in ("loss", "wer", select_by)
    }
    curves = {"loss": {split: points[split, "loss"] for split in ("train", "dev")}}
    others = {"wer", select_by} - {"loss"}
    curves |= {name: {"dev": points["dev", name]} for name in sorted(others) if points["dev", name]}
    try:
        draw_learning_curve(path, curves)
    except UserError as error:
        logger.warning("%s", error)  # training continues without the curve


def drop_repeated_rates(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the rates of the head that `wer` and `cer` are copied from."""
    head = next((head for head in ("decoder", "ctc") if f"wer_{head}" in scores), "")
    return {name: value for name, value in scores.items() if name not in (f"wer_{head}", f"cer_{head}")}


def show_value(name: str, value: Any) -> str:
    if name.startswith(("wer", "cer")):
        return f"{100 * value:.4g} %"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _truncate_log(path: Path, step: int) -> None:
    """Drop the lines that a resume writes again: updates after the checkpoint, and the final model."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # a killed process may leave an incomplete last line
        if record["step"] <= step and record["kind"] != "model":
            kept.append(line + "\n")
    with replace_file(path) as file:
        file.write("".join(kept).encode())
