"""From audio to Transcript: the star in the middle of inference.

    read_source -> Segmenter -> front end -> model.encode -> decode_checked -> tokenizer.decode -> time_words

`Recognizer._read` goes from files to segments, `Recognizer.recognize` from samples to text. Reading goes on
in a thread meanwhile, and holds little more than what is decoded next: memory does not grow with the length
of a recording.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from asr.checkpoint import System, find_model, load_state, load_system
from asr.decoding.checked import Encoded, Reading, decode_checked
from asr.decoding.checks import ChecksConfig
from asr.decoding.fusion import FusionModel
from asr.decoding.search import DecodingConfig, resolve_method
from asr.errors import UserError
from asr.models.clock import make_clock
from asr.transcription.joining import End, Recognized, Recording, assemble, make_segment
from asr.transcription.segmentation import AudioSegment, SegmentationConfig, Segmenter
from asr.transcription.sources import (
    AudioFile,
    AudioPart,
    Samples,
    Source,
    describe_source,
    make_samples,
    read_ahead,
    read_source,
)
from asr.transcription.timestamps import (
    align_by_attention,
    align_by_ctc,
    has_spaces,
    split_words,
    time_words,
)
from asr.transcripts.transcript import Transcript

__all__ = ["AudioFile", "AudioPart", "Precision", "Recognizer", "Request", "choose_device", "load_model"]

# B segments, S samples, T frames or encoded steps, F features, D dimension, V vocabulary

Precision = Literal["float32", "bf16", "fp16"]
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Segments are padded to a multiple of so many encoded steps, and those of equal padded length go together. So
# the shapes of a segment's matrices, and with them the rounding, do not depend on its company: a Transformer
# encodes it to the same bits in any batch. The kernels of LSTM and Conformer still differ in the last digit.
STEP_MULTIPLE = 16
SHORTEST_LIMIT = 4.0  # seconds; shorter segments would cut through phrases, whatever training had
WINDOW = 8  # batches among whose segments those of similar length are sought


@dataclass(frozen=True)
class Request:
    """What is asked for in one call."""

    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    language_model: FusionModel | None = None
    batch_size: int = 8

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size is {self.batch_size}, expected 1 or more")


def load_model(
    path: str | Path,
    device: str = "auto",
    precision: Precision = "float32",
    *,
    segmentation: SegmentationConfig | None = None,
    checks: ChecksConfig | None = None,
) -> Recognizer:
    """The model of a run or of a checkpoint, both folders; `auto` takes a GPU if there is one."""
    folder = find_model(path)
    heard = load_state(folder).get("longest_seconds")
    return Recognizer(load_system(folder), device, precision, segmentation, checks, heard)


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"device {name}: cannot be used here ({reason}); expected auto, cpu or cuda"
        ) from None
    return device


class Recognizer:
    """A model with all that turns recordings into transcripts. Made by `load_model`."""

    def __init__(
        self,
        system: System,
        device: str = "auto",
        precision: Precision = "float32",
        segmentation: SegmentationConfig | None = None,
        checks: ChecksConfig | None = None,
        heard_seconds: float | None = None,
    ) -> None:
        """`heard_seconds`: of the longest training utterance; recordings are cut into segments no longer."""
        decoder = system.model.decoder
        if system.model.ctc_head is None and (decoder is None or decoder.num_heads == 0):
            raise UserError(
                "this model has neither a CTC head nor attention, and nothing else tells when a word was "
                "said: decode it with asr evaluate, or train one with model.ctc_weight above 0"
            )
        self.system = system
        self.device = choose_device(device)
        self.dtype = DTYPES[precision]
        longest = system.config.batches.max_utterance_seconds  # training used none above
        if heard_seconds is not None:
            longest = min(longest, max(heard_seconds, SHORTEST_LIMIT))
        self.segmentation = (segmentation or SegmentationConfig()).limited(longest)
        self.checks = checks or ChecksConfig()
        self.model = system.model.to(self.device).eval()
        self.front_end = system.front_end.to(self.device)
        self.clock = make_clock(system.config.features, self.model)
        self.separator = " " if has_spaces(system.tokenizer) else ""

    def transcribe(
        self,
        source: AudioFile | np.ndarray,
        sample_rate: int | None = None,
        *,
        decoding: DecodingConfig | None = None,
        language_model: FusionModel | None = None,
        batch_size: int = 8,
    ) -> Transcript:
        """One recording: a file, a part of one, or samples (float, mono, in [-1, 1]) with their sample rate.

        Raises UserError where nothing can be read. A file that breaks off later gives a transcript of what
        came before, which says so in its `warnings`.
        """
        if not isinstance(source, np.ndarray) and sample_rate is not None:
            raise UserError("sample_rate belongs to an array of samples; a file tells its own")
        own = make_samples(source, sample_rate) if isinstance(source, np.ndarray) else source
        ((_, result),) = self._transcribe_all(
            [own], Request(decoding or DecodingConfig(), language_model, batch_size)
        )
        if isinstance(result, UserError):
            raise result
        return result

    def transcribe_files(
        self,
        files: Iterable[AudioFile],
        batch_size: int = 8,
        *,
        decoding: DecodingConfig | None = None,
        language_model: FusionModel | None = None,
    ) -> Iterator[tuple[AudioFile, Transcript | UserError]]:
        """Each file with its transcript, or with the error that says why there is none, in the given order.

        `batch_size` segments, of several files where these are short, are decoded at once. What is heard in a
        file does not depend on the others.
        """
        for source, result in self._transcribe_all(
            files, Request(decoding or DecodingConfig(), language_model, batch_size)
        ):
            assert not isinstance(source, Samples)
            yield source, result

    def _transcribe_all(
        self, sources: Iterable[Source], request: Request
    ) -> Iterator[tuple[Source, Transcript | UserError]]:
        """Collects segments until there are enough for full batches of similar lengths."""
        resolve_method(self.model, request.decoding.method)  # wrong use is refused before any file is read
        waiting: deque[Recording] = deque()  # in the order of the files
        pending: list[tuple[Recording, int, AudioSegment]] = []
        with contextlib.closing(read_ahead(self._read(sources), 2 * request.batch_size)) as events:
            for recording, segment in events:
                if not waiting or waiting[-1] is not recording:
                    waiting.append(recording)
                if isinstance(segment, End):
                    recording.end = segment
                else:
                    pending.append((recording, recording.num_segments, segment))
                    recording.num_segments += 1
                    if self._is_enough(pending, request.batch_size):
                        self._recognize_pending(pending, request)
                yield from _take_finished(waiting, self.separator)
            self._recognize_pending(pending, request)
            yield from _take_finished(waiting, self.separator)

    def _is_enough(self, pending: list[tuple[Recording, int, AudioSegment]], batch_size: int) -> bool:
        """One batch of the longest segments, or several of short ones."""
        seconds = sum(segment.end - segment.start for _, _, segment in pending)
        return len(pending) >= WINDOW * batch_size or seconds >= batch_size * self.segmentation.max_seconds

    def _recognize_pending(
        self, pending: list[tuple[Recording, int, AudioSegment]], request: Request
    ) -> None:
        """In batches of equal padded length; empties the list."""
        by_length: dict[int, list[tuple[Recording, int, AudioSegment]]] = {}
        for item in pending:
            by_length.setdefault(self._padded_frames(len(item[2].audio_S)), []).append(item)
        pending.clear()
        for items in by_length.values():
            for first in range(0, len(items), request.batch_size):
                batch = items[first : first + request.batch_size]
                results = self.recognize([segment for _, _, segment in batch], request)
                for (recording, index, _), result in zip(batch, results, strict=True):
                    recording.recognized[index] = result

    # --- from a file to segments, in the reading thread ------------------------------------------

    def _read(self, sources: Iterable[Source]) -> Iterator[tuple[Recording, AudioSegment | End]]:
        """The segments of each recording, then its end. This runs in a thread; it changes no recording."""
        rate = self.system.config.features.sample_rate
        for source in sources:
            recording, fault = Recording(source), None
            segmenter = Segmenter(rate, self.segmentation, describe_source(source)[2])
            try:
                for block in read_source(source, rate):
                    for segment in segmenter.push(block):
                        yield recording, segment
            except UserError as error:
                fault = error
            for segment in segmenter.finish():
                yield recording, segment
            yield recording, End(segmenter.seconds, fault)

    # --- from samples to text --------------------------------------------------------------------

    def _padded_frames(self, num_samples: int) -> int:
        multiple = STEP_MULTIPLE * self.model.encoder.subsampling_factor
        return max(1, -(-self.front_end.num_frames(num_samples) // multiple)) * multiple

    @torch.inference_mode()
    def encode(self, segments: Sequence[AudioSegment]) -> Encoded:
        """One batch, from samples to encoded steps."""
        audio_BS, audio_lengths_B = _pad_audio(segments, self.device)
        features_BTF, feature_lengths_B = self.front_end(audio_BS, audio_lengths_B)
        num_frames = self._padded_frames(audio_BS.size(1))
        features_BTF = functional.pad(features_BTF, (0, 0, 0, num_frames - features_BTF.size(1)))
        with self._precision():
            encoded_BTD, lengths_B = self.model.encode(features_BTF, feature_lengths_B)
            scores_BTV = None
            if self.model.ctc_head is not None:
                scores_BTV = self.model.ctc_log_probabilities(encoded_BTD).cpu()
        return Encoded(encoded_BTD, lengths_B, scores_BTV, self.clock.seconds_per_step)

    @torch.inference_mode()
    def decode(self, encoded: Encoded, request: Request) -> list[Reading]:
        """From encoded steps to tokens."""
        spell = self.system.tokenizer.decode
        with self._precision():
            return decode_checked(
                self.model, encoded, request.decoding, self.checks, spell, request.language_model
            )

    @torch.inference_mode()
    def recognize(self, segments: Sequence[AudioSegment], request: Request) -> list[Recognized]:
        """One batch, from samples to text."""
        tokenizer, rate = self.system.tokenizer, self.system.config.features.sample_rate
        encoded = self.encode(segments)
        readings = self.decode(encoded, request)
        tokens = [reading.tokens for reading in readings]
        if encoded.scores_BTV is not None:
            times = align_by_ctc(encoded.scores_BTV, encoded.lengths_B, tokens)
        else:
            with self._precision():
                times = align_by_attention(self.model, encoded.encoded_BTD, encoded.lengths_B, tokens)
        results = []
        for segment, reading, token_times in zip(segments, readings, times, strict=True):
            spans = split_words(tokenizer, reading.tokens)
            words = time_words(spans, token_times, self.clock, segment.audio_S, rate, segment.start)
            text = tokenizer.decode(reading.tokens)
            found = make_segment(segment, text, words, reading.method, reading.warnings)
            results.append(Recognized(found, segment.cut_before, segment.cut_after))
        return results

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self.dtype != torch.float32:
                stack.enter_context(torch.autocast(self.device.type, self.dtype))
            elif self.device.type == "cuda":
                # By default cuDNN rounds the factors of a float32 convolution to 10 bits.
                stack.enter_context(torch.backends.cudnn.flags(allow_tf32=False))
            yield


def _pad_audio(segments: Sequence[AudioSegment], device: torch.device) -> tuple[Tensor, Tensor]:
    lengths = [len(segment.audio_S) for segment in segments]
    audio_BS = torch.zeros(len(segments), max(lengths))
    for row, segment in enumerate(segments):
        audio_BS[row, : lengths[row]] = torch.from_numpy(segment.audio_S)
    return audio_BS.to(device), torch.tensor(lengths, device=device)


def _take_finished(
    waiting: deque[Recording], separator: str
) -> Iterator[tuple[Source, Transcript | UserError]]:
    """From the front of the queue, so that results come in the order of the files."""
    while waiting and waiting[0].end and len(waiting[0].recognized) == waiting[0].num_segments:
        recording = waiting.popleft()
        yield recording.source, assemble(recording, separator)
