"""Measure time and memory of decoding, compared with SpeechBrain's S2STransformerBeamSearcher.

    python tools/bench_decode.py                        # 5 and 30 million parameters, 1 and 16 utterances
    python tools/bench_decode.py --sizes 5 --batches 1  # a smaller benchmark
    pip install speechbrain                             # for the comparison; left out if missing

Models with random weights never stop, so both sides are made to output exactly 4 tokens per second. Both
decode the output of the same encoder with decoders of the same size. Contenders take turns in one process
and medians are compared, because machines are noisy but ratios within one run are not. Memory is the growth
of the peak above the loaded model, with each case in its own process. CTC modes use a head that mostly
outputs blanks. Mask-CTC ignores its output and gets as many gaps as the others output tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from asr.decoding.decode import search_encoded
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio
from asr.models.decoders import Decoder
from asr.models.speech_model import SpeechModel, SpeechModelConfig, build_model
from asr.research.non_autoregressive import LengthDecoder, NonAutoregressiveDecoder
from asr.text.tokenizer import BLANK_ID, EOS_ID, SOS_ID, UNK_ID

NUM_MELS = 80
FRAMES_PER_SECOND = 100
TOKENS_PER_SECOND = 4
SIZES: dict[str, dict[str, int]] = {
    "5": {"dim": 144, "encoder": 7, "decoder": 4, "heads": 4, "feed_forward": 576, "vocabulary": 500},
    "30": {"dim": 256, "encoder": 13, "decoder": 7, "heads": 4, "feed_forward": 1024, "vocabulary": 1000},
}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"method": "attention", "beam": 1},
    "beam 10": {"method": "attention", "beam": 10},
    "joint beam 10": {"method": "joint", "beam": 10, "ctc_weight": 0.3},
    "joint, guided": {"method": "joint", "beam": 10, "ctc_weight": 0.3, "window_width": 2.0},
    "CTC greedy": {"method": "ctc_greedy"},
    "CTC beam 10": {"method": "ctc_beam", "beam": 10},
    "rescoring 10": {"method": "rescoring", "beam": 10},
    # All tokens at once, by a decoder of the same size.
    "length": {"method": "parallel", "beam": 1, "decoder": "parallel_length"},
    "length 10": {"method": "parallel", "beam": 10, "decoder": "parallel_length"},
    "mask-CTC 10": {"method": "parallel", "decoder": "mask_ctc"},
}
Searcher = Callable[[Tensor, Tensor], Any]


def build_ours(size: dict[str, int], decoder: str = "transformer") -> SpeechModel:
    shared = {"dim": size["dim"], "num_heads": size["heads"], "feed_forward_dim": size["feed_forward"]}
    config = {
        "encoder": {"type": "conformer", "num_layers": size["encoder"], **shared},
        "decoder": {"type": decoder, "num_layers": size["decoder"], **shared},
    }
    torch.manual_seed(0)
    config = SpeechModelConfig.model_validate_json(json.dumps(config))
    model = build_model(config, NUM_MELS, size["vocabulary"]).eval()
    assert isinstance(model.decoder, Decoder | NonAutoregressiveDecoder) and model.ctc_head is not None
    with torch.no_grad():
        model.decoder.output.bias[EOS_ID] = -1e4  # never stops by itself
        if isinstance(model.decoder, LengthDecoder):
            model.decoder.length_predictor.count.bias.zero_()  # longer than the limit
        model.ctc_head.weight.mul_(4)  # varied but mostly blank, as in a trained model
        model.ctc_head.bias[BLANK_ID] = 10.0
    return model


def let_ctc_doubt(model: SpeechModel, num_tokens: int) -> None:
    """Model whose head outputs a given number of tokens, all with low confidence."""
    compute = model.ctc_log_probabilities

    def say(encoded_BTD: Tensor) -> Tensor:
        scores_BTV = 0 * compute(encoded_BTD)
        scores_BTV[..., BLANK_ID] = 3.0
        steps_U = torch.arange(num_tokens) * encoded_BTD.size(1) // num_tokens
        scores_BTV[:, steps_U, UNK_ID + 1] = 4.0
        return scores_BTV.log_softmax(-1)

    model.ctc_log_probabilities = say


def our_searcher(model: SpeechModel, size: dict[str, int], mode: str, num_tokens: int) -> Searcher:
    options = dict(MODES[mode])
    if "decoder" in options:  # reads the output of the other model's encoder
        model = build_ours(size, options.pop("decoder"))
        let_ctc_doubt(model, num_tokens)
    model.limit_tokens = lambda lengths_B: num_tokens * (lengths_B > 0)  # type: ignore[method-assign]
    config = DecodingConfig.model_validate(options)
    return lambda *encoded: search_encoded(EncodedAudio(model, *encoded), config)


def their_searcher(
    model: SpeechModel, size: dict[str, int], mode: str, num_tokens: int, num_steps: int
) -> Searcher:
    """SpeechBrain's search, with a decoder of the same size and our CTC head."""
    from speechbrain.decoders import S2STransformerBeamSearcher, S2STransformerGreedySearcher
    from speechbrain.decoders.scorer import CTCScorer, ScorerBuilder
    from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR
    from speechbrain.nnet.linear import Linear

    torch.manual_seed(0)
    network = TransformerASR(
        size["vocabulary"], NUM_MELS, size["dim"], size["heads"], 1, size["decoder"], size["feed_forward"],
        activation=nn.GELU, causal=False,
    )  # fmt: skip
    head = Linear(size["vocabulary"], input_size=size["dim"])
    with torch.no_grad():
        head.w.bias[EOS_ID] = -1e4
    ratio = (num_tokens + 0.5) / num_steps  # it rounds the product down
    shared = {
        "modules": [network, head],
        "bos_index": SOS_ID,
        "eos_index": EOS_ID,
        "min_decode_ratio": 0.0 if mode == "greedy" else ratio,
        "max_decode_ratio": ratio,
    }
    scorer = None
    if mode == "joint beam 10":
        ctc = CTCScorer(ctc_fc=model.ctc_head, blank_index=BLANK_ID, eos_index=EOS_ID)
        scorer = ScorerBuilder(partial_scorers=[ctc], weights={"ctc": 0.3}, scorer_beam_scale=1.5)
    if mode == "greedy":
        searcher = S2STransformerGreedySearcher(**shared)
    else:
        searcher = S2STransformerBeamSearcher(
            **shared, beam_size=10, using_eos_threshold=False, scorer=scorer
        )
    searcher.eval()

    def run(encoded_BTD: Tensor, lengths_B: Tensor) -> Any:
        with torch.no_grad():
            return searcher(encoded_BTD, lengths_B / encoded_BTD.size(1))

    return run


def has_speechbrain() -> bool:
    with contextlib.suppress(ImportError):
        import speechbrain  # noqa: F401

        return True
    return False


def contenders_of(mode: str) -> list[str]:
    has_rival = mode in ("greedy", "beam 10", "joint beam 10") and has_speechbrain()
    return ["ours", "SpeechBrain"] if has_rival else ["ours"]


def build_searcher(
    contender: str, model: SpeechModel, size: dict[str, int], mode: str, seconds: float, num_steps: int
) -> Searcher:
    num_tokens = int(seconds * TOKENS_PER_SECOND)
    if contender == "ours":
        return our_searcher(model, size, mode, num_tokens)
    return their_searcher(model, size, mode, num_tokens, num_steps)


@torch.inference_mode()
def encode(model: SpeechModel, batch: int, seconds: float) -> tuple[Tensor, Tensor]:
    frames = int(seconds * FRAMES_PER_SECOND)
    features = torch.randn(batch, frames, NUM_MELS, generator=torch.Generator().manual_seed(0))
    return model.encode(features, torch.full((batch,), frames))


def measure_memory(
    contender: str, name: str, batch: int, mode: str, seconds: float, threads: int, results: Any
) -> None:
    """Return the megabytes that the search adds to the peak of a process after encoding."""
    torch.set_num_threads(threads)
    model = build_ours(SIZES[name])
    encoded_BTD, lengths_B = (tensor.clone() for tensor in encode(model, batch, seconds))
    search = build_searcher(contender, model, SIZES[name], mode, seconds, encoded_BTD.size(1))
    search(encoded_BTD[:1, :20], lengths_B[:1].clamp(max=20))  # imports and compilation are not counted
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    before = read_status("VmRSS")
    search(encoded_BTD, lengths_B)
    results.put(max(read_status("VmHWM") - before, 0.0))


def read_status(key: str) -> float:
    """Return the megabytes of this process as reported by Linux."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(key + ":"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory_of(*case: Any) -> float:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=measure_memory, args=(*case, results))
    process.start()
    process.join()
    return math.nan if process.exitcode else float(results.get())


def compare(name: str, batch: int, modes: list[str], seconds: float, rounds: int) -> None:
    size = SIZES[name]
    model = build_ours(size)
    started = time.perf_counter()
    encoded_BTD, lengths_B = (tensor.clone() for tensor in encode(model, batch, seconds))
    started, _ = time.perf_counter(), encode(model, batch, seconds)
    encode_seconds = time.perf_counter() - started
    searchers = {
        (mode, contender): build_searcher(contender, model, size, mode, seconds, encoded_BTD.size(1))
        for mode in modes
        for contender in contenders_of(mode)
    }
    times: dict[tuple[str, str], list[float]] = {key: [] for key in searchers}
    for round_number in range(rounds + 1):
        for key, searcher in searchers.items():
            started = time.perf_counter()
            searcher(encoded_BTD, lengths_B)
            if round_number:  # the first is a warm-up
                times[key].append(time.perf_counter() - started)
    medians = {key: statistics.median(values) for key, values in times.items()}
    parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    threads = torch.get_num_threads()
    print(f"\n{parameters:.0f} million parameters, {batch} x {seconds:g} s, {threads} threads, "
          f"median of {rounds}; encoder {encode_seconds:.2f} s")  # fmt: skip
    print(f"{'decoding':16}{'contender':13}{'search':>9}{'real-time factor':>18}{'ours is':>14}"
          f"{'to attention':>14}{'memory':>10}")  # fmt: skip
    for (mode, contender), median in medians.items():
        factor = (encode_seconds + median) / (batch * seconds)
        ratio = median / medians[mode, "ours"]
        to_attention = ""
        if mode.startswith("joint") and ("beam 10", contender) in medians:
            to_attention = f"{median / medians['beam 10', contender]:.2f} x"
        megabytes = memory_of(contender, name, batch, mode, seconds, threads)
        print(f"{mode:16}{contender:13}{median:7.2f} s{factor:18.3f}"
              + (f"{ratio:7.2f} x fast" if contender != "ours" else " " * 14)
              + f"{to_attention:>14}{megabytes:7.0f} MB", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="million parameters")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16], help="utterances per batch")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds per utterance (default 10)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each contender (default 3)")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if not has_speechbrain():
        print("SpeechBrain is not installed and left out: pip install speechbrain")
    for name in args.sizes:
        for batch in args.batches:
            compare(name, batch, args.modes, args.seconds, args.rounds)


if __name__ == "__main__":
    main()
