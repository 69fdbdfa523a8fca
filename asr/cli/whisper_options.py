"""Options of openai-whisper, whisper-ctranslate2, whisperX and whisper.cpp, and what each of them is here."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from asr.errors import UserError

logger = logging.getLogger(__name__)

SAME = "="  # always so here: nothing to do
ABSENT = "!"  # then comes what to do instead

# Theirs -> ours. A rule applies to the values that it names (or to any, VALUE; or to an option without one);
# the first that fits is taken. Underscores are dashes already.
_TABLE = """
-m, --model-directory VALUE               -> --model=VALUE
-l, --language auto|None                  -> =
-l, --language VALUE                      -> --language=VALUE
-tr, --translate                          -> --task=translate
-f, --output-format tsv                   -> --format=whisper.tsv
-f txt|vtt|srt|json|all                   -> --format=VALUE
-f, --file VALUE                          -> VALUE
--output-format VALUE                     -> --format=VALUE
-otxt, --output-txt                       -> --format=txt
-ovtt, --output-vtt                       -> --format=vtt
-osrt, --output-srt                       -> --format=srt
-oj, -ojf, --output-json                  -> --format=json
--output-json-full                        -> --format=json
-ocsv, --output-csv                       -> ! give --format tsv
-olrc, --output-lrc                       -> --format=lrc
-owts, --output-words                     -> ! give --format json, which has the times of words
-o VALUE                                  -> --output-dir=VALUE
-of, --output-file                        -> ! give --output-dir DIR: files are named as the audio is
--pretty-json, -p True                    -> =
--pretty-json, -p False                   -> ! give --format jsonl
--verbose True|False|None                 -> =
--print-progress True|False               -> =
--batched True                            -> =
--print-progress, -pp, -np, --no-prints   -> =
-nt, --no-timestamps                      -> =
-pc, --print-colors                       -> ! --format json tells the confidence of each word
--model-dir                               -> ! models are kept where HF_HOME in the environment says
--model-cache-only, --local-files-only False -> =
--model-cache-only, --local-files-only    -> ! set HF_HUB_OFFLINE=1 in the environment
-t VALUE                                  -> --threads=VALUE
--device 0|1|2|3|4|5|6|7                  -> --device=cuda:VALUE
--device VALUE                            -> --device=VALUE
--device-index 0                          -> =
--device-index VALUE                      -> --device=cuda:VALUE
-ng, --no-gpu                             -> --device=cpu
-fa, --flash-attn, --flash-attention      -> ! PyTorch chooses how attention is computed; leave it out
-p, --processors 1                        -> =
-p, --processors                          -> ! give --batch-size N or --threads N
--fp16 True                               -> --set=precision=fp16
--fp16 False                              -> --set=precision=float32
--compute-type default|auto               -> =
--compute-type int8|int8_float32          -> --set=precision=int8
--compute-type int8_bfloat16              -> --set=precision=int8_bf16
--compute-type float16                    -> --set=precision=fp16
--compute-type bfloat16                   -> --set=precision=bf16
--compute-type float32                    -> --set=precision=float32
--compute-type                            -> ! give --set precision=int8, int8_bf16, bf16, fp16 or float32
--beam-size, -bs None                     -> =
--beam-size, -bs VALUE                    -> --beam=VALUE
--best-of, -bo None                       -> =
--best-of, -bo VALUE                      -> --set=whisper.samples=VALUE
--temperature, -tp 0|0.0|0.00             -> =
--temperature, -tp                        -> ! decoding begins at 0; others follow by --set whisper.temperatures=[...]
--temperature-increment-on-fallback, --temperature-inc, -tpi 0.2|0.20 -> =
--temperature-increment-on-fallback, --temperature-inc, -tpi 0|0.0|None -> --set=whisper.temperatures=[]
--temperature-increment-on-fallback, --temperature-inc, -tpi -> ! give --set whisper.temperatures=[0.5,1.0]
-nf, --no-fallback                        -> --set=whisper.temperatures=[]
--patience 1|1.0|None                     -> =
--patience, --length-penalty              -> ! beams have neither here; leave it out
--repetition-penalty, --no-repeat-ngram-size -> ! see --set checks.max_repeats=... and checks.max_compression=...
--no-speech-threshold, --no-speech-thold, -nth None -> --set=whisper.max_no_speech=null
--no-speech-threshold, --no-speech-thold, -nth VALUE -> --set=whisper.max_no_speech=VALUE
--logprob-threshold, --logprob-thold, -lpt None -> --set=checks.min_log_probability=null
--logprob-threshold, --logprob-thold, -lpt VALUE -> --set=checks.min_log_probability=VALUE
--compression-ratio-threshold None        -> --set=checks.max_compression=null
--compression-ratio-threshold VALUE       -> --set=checks.max_compression=VALUE
-et, --entropy-thold                      -> ! give --set checks.max_compression=2.4
--initial-prompt VALUE                    -> --prompt=VALUE
--carry-initial-prompt True               -> =
--carry-initial-prompt                    -> ! --prompt goes before every segment
--prefix                                  -> ! give --prompt, or --hotwords
--condition-on-previous-text True         -> --set=whisper.windows=sequential --set=whisper.condition_on_previous_text=true
--condition-on-previous-text False        -> =
-mc, --max-context -1                     -> --set=whisper.windows=sequential --set=whisper.condition_on_previous_text=true
-mc, --max-context 0                      -> =
-mc, --max-context                        -> ! give --set whisper.condition_on_previous_text=...
-ac, --audio-ctx 0                        -> =
-ac, --audio-ctx                          -> ! see --set whisper.padding_seconds=...
--suppress-tokens -1                      -> =
--suppress-tokens, --suppress-numerals    -> ! which tokens are left out cannot be changed
--suppress-blank, --without-timestamps True -> =
-sns, --suppress-nst, -sow, --split-on-word -> =
--word-timestamps True                    -> =
--word-timestamps, --no-align             -> ! words always have times, in --format json and ctm; leave it out
--align-model, --interpolate-method       -> ! words have times from the Whisper model itself; leave it out
--return-char-alignments                  -> ! --format json has the times of words
--prepend-punctuations, --append-punctuations -> ! punctuation stays with its word; leave it out
--highlight-words False                   -> =
--highlight-words                         -> ! --format json has the times of words
--max-line-width VALUE                    -> --set=subtitles.line_width=VALUE
--max-line-count VALUE                    -> --set=subtitles.max_lines=VALUE
-ml, --max-len, --max-words-per-line      -> ! give --set subtitles.line_width=... and subtitles.max_lines=...
--segment-resolution                      -> ! give --set subtitles.max_seconds=...
--vad-filter, --vad True                  -> =
--vad-filter, --batched False             -> --set=whisper.windows=sequential
--vad                                     -> =
--vad-method silero                       -> --set=segmentation.method=silero
--vad-method                              -> ! give --set segmentation.method=silero or energy
--vad-model, -vm                          -> ! the model of silero-vad is installed already; leave it out
--vad-onset, --vad-threshold, -vt VALUE   -> --set=segmentation.speech_threshold=VALUE
--vad-offset                              -> ! speech ends 0.15 below --set segmentation.speech_threshold=...
--chunk-size VALUE                        -> --set=segmentation.max_seconds=VALUE
--clip-timestamps VALUE                   -> --clip=VALUE
-ot, --offset-t, -d, --duration           -> ! give --clip START,END in seconds
-di                                       -> --channels=separate
--diarize, --min-speakers, --max-speakers, --diarize-model -> ! speakers are not told apart here, but channels are: give --channels separate
-tdrz, --tinydiarize, --speaker-num, --speaker-name, --hf-token -> ! speakers are not told apart here
-dl, --detect-language                    -> ! --format json tells the language
--live-transcribe, --live-input-device    -> ! pipe 16 kHz PCM into --stream
--hallucination-silence-threshold         -> ! speech is found before decoding; see --set checks.max_skipped_seconds=...
"""  # noqa: E501 (a table)


def _read_table() -> dict[str, list[tuple[str, str]]]:
    """Map the name of an option to its rules: values ("" for none), and their replacement."""
    rules: dict[str, list[tuple[str, str]]] = {}
    for line in _TABLE.strip().splitlines():
        left, right = line.split(" -> ")
        words = left.replace(",", " ").split()
        names = [word for word in words if re.match(r"--?[a-z]", word)]
        values = " ".join(words[len(names) :])
        for name in names:
            rules.setdefault(name, []).append((values, right))
    return rules


RULES = _read_table()


def translate_options(arguments: Sequence[str]) -> list[str]:
    """Translate a command line into our options. Raises UserError where there is no equal one."""
    ours: list[str] = []
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            return [*ours, word, *waiting]
        name, equals, value = word.partition("=")
        if name not in RULES:
            ours.append(word)
            continue
        if not equals:
            value = waiting[0] if waiting and _is_value(waiting[0]) else ""
        values, replacement = _find_rule(name, value)
        if values and not equals and not replacement.startswith(ABSENT):
            waiting.pop(0)
        shown = f"{name} {value}".strip() if values else name
        if replacement.startswith(ABSENT):
            raise UserError(f"{shown}: {replacement.removeprefix(ABSENT).strip()}")
        if replacement == SAME:
            logger.info("%s: it is always so here", shown)
            continue
        words = [word.replace("VALUE", value) for word in replacement.split()]
        ours += [word for word in words if word not in ours or not word.startswith("--set=")]
    return ours


def _find_rule(name: str, value: str) -> tuple[str, str]:
    for values, replacement in RULES[name]:
        if not values or (values == "VALUE" and value) or value.lower() in values.lower().split("|"):
            return values, replacement
    expected = " or ".join(values.replace("|", ", ") for values, _ in RULES[name])
    raise UserError(f"{name} {value}".strip() + f": expected {expected}")


def _is_value(word: str) -> bool:
    """Tell values from options: a negative number, and - for standard input, are no options."""
    return not word.startswith("-") or word == "-" or re.fullmatch(r"-[\d.]+", word) is not None
