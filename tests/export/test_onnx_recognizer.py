"""asr/export/onnx_recognizer and graph_search: exported graphs give texts without PyTorch, and errors when they are
broken. The graphs are small ones whose greedy path a few lines of numpy find too."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr

from asr.audio.segmentation import make_recording
from asr.audio.silero import SileroModel
from asr.cli import main
from asr.errors import UserError
from asr.recipe.speech_synthesis import synthesize
from asr.text.tokenizer import SPECIAL_TOKENS, Tokenizer
from asr.transcription.model import Model
from asr.transcription.transcribe import Request

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install '.[export]'")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install '.[export]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from asr.export.graph_search import ExportedModel  # noqa: E402
from asr.export.onnx_recognizer import OnnxSilero, load_export  # noqa: E402

TOKENS = (*SPECIAL_TOKENS, " ", *"abcde")
NUM_TOKENS, STEPS = len(TOKENS), 30
SPACE, A, B, C = (TOKENS.index(token) for token in " abc")
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
FEATURES_TF = np.zeros((4 * STEPS, 80), np.float32)
ANY: list[Any] = ["N", "T", "F"]


def write_graph(
    path: Path, nodes: list[Any], inputs: dict[str, Any], outputs: list[str], **constants: np.ndarray
) -> str:
    values = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
    found = [
        helper.make_tensor_value_info(name, INT64 if "lens" in name else FLOAT, None) for name in outputs
    ]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", values, found, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path.name


def describe(folder: Path, kind: str, files: dict[str, str], **more: Any) -> Path:
    Tokenizer("characters", TOKENS).save(folder / "tokenizer.json")
    about = {"format": 1, "kind": kind, "sample_rate": 16_000, "sample_scale": 32_768, "features": {}}
    about |= {"files": files, "tokenizer": "tokenizer.json", "blank": 0, "start": 2, "end": 3, "first": 4}
    about |= {"subsampling": 4, "streaming": None, "language": None, "max_tokens": 3, "durations": [], **more}
    (folder / "export.json").write_text(json.dumps(about))
    return folder


def write_encoder(folder: Path, steps_UV: np.ndarray) -> str:
    """An encoder that finds the same steps in everything, up to the length of the recording."""
    inputs = {"x": (FLOAT, ANY), "x_lens": (INT64, ["N"])}
    nodes = [helper.make_node("Identity", ["steps"], ["out"])]
    nodes += [helper.make_node("Div", ["x_lens", "four"], ["out_lens"])]
    names = ["out", "out_lens"]
    return write_graph(
        folder / "encoder.onnx", nodes, inputs, names, steps=steps_UV[None], four=np.array([4])
    )


def write_ctc(folder: Path, path: list[int]) -> Path:
    """A model whose best path is this, with probability 0.9 for each step."""
    scores_UV = np.full((len(path), NUM_TOKENS), np.log(0.1 / (NUM_TOKENS - 1)), np.float32)
    scores_UV[np.arange(len(path)), path] = np.log(0.9)
    return describe(folder, "ctc", {"encoder": write_encoder(folder, scores_UV)})


def write_transducer(folder: Path, steps_UJ: np.ndarray, after_VJ: np.ndarray, **more: Any) -> Path:
    """Logits are the sum of a row for the step and one for the last token."""
    last = [helper.make_node("Gather", ["y", "one"], ["last"], axis=1)]
    last += [helper.make_node("Gather", ["after", "last"], ["decoder_out"])]
    joined = [helper.make_node("Add", ["encoder_out", "decoder_out"], ["logit"])]
    rows = {name: (FLOAT, ["N", "J"]) for name in ("encoder_out", "decoder_out")}
    files = {
        "encoder": write_encoder(folder, steps_UJ),
        "decoder": write_graph(
            folder / "decoder.onnx",
            last,
            {"y": (INT64, ["N", 2])},
            ["decoder_out"],
            after=after_VJ,
            one=np.array(1),
        ),
        "joiner": write_graph(folder / "joiner.onnx", joined, rows, ["logit"]),
    }
    return describe(folder, "transducer", files, predictor="stateless", **more)


def write_lstm_transducer(folder: Path, steps_UJ: np.ndarray, after_VJ: np.ndarray) -> Path:
    """As above, with the sum over all tokens so far, which the state holds, instead of the last one's row."""
    write_transducer(folder, steps_UJ, after_VJ)
    width = after_VJ.shape[1]
    nodes = [helper.make_node("Gather", ["after", "y"], ["row"])]  # (N, 1, J)
    nodes += [helper.make_node("Add", ["hidden", "row"], ["next_hidden"])]
    nodes += [helper.make_node("Identity", ["cell"], ["next_cell"])]
    nodes += [helper.make_node("Squeeze", ["next_hidden", "axis"], ["decoder_out"])]
    states = {name: (FLOAT, ["N", 1, width]) for name in ("hidden", "cell")}
    names = ["decoder_out", "next_hidden", "next_cell"]
    constants = {"after": after_VJ, "axis": np.array([1])}
    write_graph(folder / "decoder.onnx", nodes, {"y": (INT64, ["N", 1]), **states}, names, **constants)
    files = {part: f"{part}.onnx" for part in ("encoder", "decoder", "joiner")}
    return describe(folder, "transducer", files, predictor="lstm")


def write_attention(folder: Path, script: list[int]) -> Path:
    """A decoder that writes the script: the place in it is the number of tokens in the cache."""
    cross = np.zeros((1, 2, 1, 1, STEPS, 1), np.float32)
    nodes = [helper.make_node("Identity", ["cross_kv"], ["out"])]
    nodes += [helper.make_node("Div", ["x_lens", "four"], ["out_lens"])]
    inputs = {"x": (FLOAT, ANY), "x_lens": (INT64, ["N"])}
    names = ["out", "out_lens"]
    write_graph(folder / "encoder.onnx", nodes, inputs, names, cross_kv=cross, four=np.array([4]))
    logits_PV = np.full((len(script), NUM_TOKENS), -5.0, np.float32)
    logits_PV[np.arange(len(script)), script] = 5.0
    logits_PV[:, :3] = 9.0  # special tokens, which no text has
    nodes = [helper.make_node("Shape", ["past"], ["place"], start=4, end=5)]
    nodes += [helper.make_node("Gather", ["logits_of", "place"], ["logits"])]
    nodes += [helper.make_node("Concat", ["past", "entry"], ["next_past"], axis=4)]
    inputs = {"y": (INT64, ["N", 1]), "cross": (FLOAT, [None] * 6), "lens": (INT64, ["N"])}
    inputs |= {"past": (FLOAT, [1, 2, "N", 1, "P", 1])}
    entry = np.zeros((1, 2, 1, 1, 1, 1), np.float32)
    names = ["logits", "next_past"]
    write_graph(folder / "step.onnx", nodes, inputs, names, logits_of=logits_PV, entry=entry)
    return describe(folder, "attention", {"encoder": "encoder.onnx", "step": "step.onnx"})


def write_noise(path: Path, seconds: float = 1.2) -> Path:
    audio_S = np.random.default_rng(0).normal(scale=0.1, size=round(16_000 * seconds))
    soundfile.write(path, audio_S.astype(np.float32), 16_000)
    return path


# --- search ---------------------------------------------------------------------------------------------------


def test_ctc(tmp_path: Path) -> None:
    """Repeated steps are one token, unless blank is between them."""
    path = [0, A, A, 0, A, B, B, B, 0, 0]
    found = ExportedModel(write_ctc(tmp_path, path)).search(FEATURES_TF)
    assert found.tokens == [A, A, B]
    assert [(one.first, one.last) for one in found.times] == [(1, 2), (4, 4), (5, 7)]
    assert [one.probability for one in found.times] == pytest.approx([0.9] * 3)
    assert found.log_probability == pytest.approx(10 * np.log(0.9))


def follow(
    steps_UJ: np.ndarray, look: Callable[[list[int]], np.ndarray], durations: list[int]
) -> list[tuple[int, int]]:
    """Tokens and their steps of the greedy path of a transducer with at most 3 tokens at a step."""
    emitted, place = list[tuple[int, int]](), 0
    while place < len(steps_UJ):
        logits_V = steps_UJ[place] + look([token for token, _ in emitted])
        token, move = int(logits_V[:NUM_TOKENS].argmax()), 0
        if durations:
            move = durations[int(logits_V[NUM_TOKENS:].argmax())]
        if token == 0:
            place += max(move, 1)
            continue
        emitted.append((token, place))
        is_full = sum(step == place for _, step in emitted) >= 3
        place += max(move, int(is_full))
    return emitted


@pytest.mark.parametrize(
    ("predictor", "durations"), [("stateless", []), ("stateless", [0, 1, 2, 4]), ("lstm", [])]
)
def test_transducer(tmp_path: Path, predictor: str, durations: list[int]) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        width = NUM_TOKENS + len(durations)
        steps_UJ = rng.normal(size=(STEPS, width)).astype(np.float32)
        after_VJ = rng.normal(size=(NUM_TOKENS, width)).astype(np.float32)
        steps_UJ[:, 0] += 2.0
        write = write_lstm_transducer if predictor == "lstm" else write_transducer
        more = {} if predictor == "lstm" else {"durations": durations}
        found = ExportedModel(write(tmp_path, steps_UJ, after_VJ, **more)).search(FEATURES_TF)

        def look(tokens: list[int], after_VJ: np.ndarray = after_VJ) -> np.ndarray:
            read = [2, *tokens]
            row_J: np.ndarray = after_VJ[read].sum(0) if predictor == "lstm" else after_VJ[read[-1]]
            return row_J

        expected = follow(steps_UJ, look, durations)
        assert len(expected) > 2
        assert list(zip(found.tokens, (one.first for one in found.times), strict=True)) == expected


def test_attention(tmp_path: Path) -> None:
    found = ExportedModel(write_attention(tmp_path, [A, SPACE, B, 3])).search(FEATURES_TF)
    assert found.tokens == [A, SPACE, B] and found.log_probability < 0


def test_attention_ends(tmp_path: Path) -> None:
    """After three tokens for each step of the recording, if the decoder would write on."""
    model = ExportedModel(write_attention(tmp_path, [A] * 100))
    assert model.search(FEATURES_TF[:80]).tokens == [A] * 60


def test_chunks(tmp_path: Path) -> None:
    """The cache of a chunk is what the one before returned: here the sum of all frames so far."""
    nodes = [helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=1)]
    nodes += [helper.make_node("Add", ["before", "sum"], ["after"])]
    nodes += [helper.make_node("Identity", ["after"], ["log_probs"])]
    inputs = {"x": (FLOAT, [1, 8, NUM_TOKENS]), "before": (FLOAT, [1, 1, NUM_TOKENS])}
    outputs = ["log_probs", "after"]
    write_graph(tmp_path / "encoder.onnx", nodes, inputs, outputs, axis=np.array([1]))
    caches = [{"input": "before", "shape": [1, 1, NUM_TOKENS], "type": "float32"}]
    streaming = {"frames": 8, "takes_lengths": False, "left": 0, "caches": caches}
    folder = describe(tmp_path, "ctc", {"encoder": "encoder.onnx"}, streaming=streaming)
    x_TV = np.random.default_rng(0).normal(size=(50, NUM_TOKENS)).astype(np.float32)
    x_TV *= np.exp(np.arange(50, dtype=np.float32) / 10)[:, None]  # so that each chunk changes the sums
    sums_CV = np.add.reduceat(x_TV, np.arange(0, 50, 8)).cumsum(0)
    path = [0, *sums_CV.argmax(1).tolist()]
    expected = [token for before, token in itertools.pairwise(path) if token not in (0, before)]
    assert ExportedModel(folder).search(x_TV).tokens == expected and len(expected) > 1


def test_nothing_in_nothing(tmp_path: Path) -> None:
    assert ExportedModel(write_ctc(tmp_path, [A])).search(FEATURES_TF[:0]).tokens == []


# --- recordings -----------------------------------------------------------------------------------------------

PATH = [0, 0, A, B, SPACE, 0, 0, 0, 0, 0, 0, 0, 0, 0, C, C, 0, 0, 0, 0]


def test_words_have_times(tmp_path: Path) -> None:
    recognizer = load_export(write_ctc(tmp_path, PATH))
    transcript = Model(recognizer).transcribe(write_noise(tmp_path / "noise.wav"))
    assert transcript.text == "ab c" and [word.text for word in transcript.words] == ["ab", "c"]
    for word, step in zip(transcript.words, (2, 14), strict=True):
        assert word.start <= 0.0125 + 0.04 * step <= word.end
        assert word.confidence == pytest.approx(0.9, abs=1e-3)


def test_silence_is_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where CTC finds all tokens unlikely nobody speaks, as `find_problems` has it for other models."""
    folder, audio = write_ctc(tmp_path, PATH), write_noise(tmp_path / "noise.wav")
    scores_UV = np.full((20, NUM_TOKENS), np.log(0.05), np.float32)
    scores_UV[:, A] = np.log(0.3)
    write_encoder(folder, scores_UV)
    words = ["transcribe", str(audio), "--model", str(folder)]
    assert main(words) == 0 and capsys.readouterr().out == ""
    assert main([*words, "--set", "checks=off"]) == 0 and capsys.readouterr().out == "a\n"


@pytest.mark.parametrize("kind", ["ctc", "transducer", "attention"])
def test_formats(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "attention":
        folder = write_attention(tmp_path, [A, B, SPACE, C, 3])
    elif kind == "ctc":
        folder = write_ctc(tmp_path, PATH)
    else:
        steps_UJ = np.zeros((20, NUM_TOKENS), np.float32)
        steps_UJ[np.arange(20), [0, 0, A, B, SPACE, 0, C, *[0] * 13]] = 9.0
        after_VJ = np.diag(np.full(NUM_TOKENS, -18.0, np.float32))  # no token twice in a row
        after_VJ[0, 0] = 0
        folder = write_transducer(tmp_path, steps_UJ, after_VJ)
    words = ["transcribe", str(write_noise(tmp_path / "noise.wav")), "--model", str(folder), "--format"]
    found = {}
    for name in ("txt", "srt", "vtt", "json"):
        assert main([*words, name]) == 0
        found[name] = capsys.readouterr().out
    assert found["txt"] == "ab c\n" and "ab c" in found["srt"] and found["vtt"].startswith("WEBVTT")
    (segment,) = json.loads(found["json"])[0]["segments"]
    assert [word["text"] for word in segment["words"]] == ([] if kind == "attention" else ["ab", "c"])
    assert main([*words, "ctm"]) == (1 if kind == "attention" else 0)


REFUSED = {
    "--beam 5": "decoding.beam",
    "--decoding ctc_beam": "decoding.method",
    "--hotwords ab": "decoding.hotwords",
    "--set decoding.speeds=[0.9,1.0]": "decoding.speeds",
    "--words WORDS": "words",
    "--language-model WORDS": "language_model",
    "--language de": "--language",
    "--device cuda": "device cuda",
    "--set precision=int8": "precision int8",
    "--diarize": "--diarize",
    "--plot-attention a.png": "--plot-attention",
}


@pytest.mark.parametrize("options", REFUSED)
def test_refused_options(tmp_path: Path, options: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder, audio = write_ctc(tmp_path, PATH), write_noise(tmp_path / "noise.wav")
    (tmp_path / "words.txt").write_text("ab\n")
    given = options.replace("WORDS", str(tmp_path / "words.txt")).split()
    assert main(["transcribe", str(audio), "--model", str(folder), *given]) == 2
    assert f"asr: {REFUSED[options]}" in capsys.readouterr().err


def test_what_greedy_search_obeys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, audio = write_ctc(tmp_path, PATH), write_noise(tmp_path / "noise.wav")
    options = ["--beam", "1", "--decoding", "ctc_greedy", "--threads", "1", "--device", "cpu"]
    assert main(["transcribe", str(audio), "--model", str(folder), *options]) == 0
    assert capsys.readouterr().out == "ab c\n"


def test_speech_is_found_as_in_pytorch() -> None:
    pytest.importorskip("espeakng_loader")
    words_S, rate = synthesize("one two three, four five six seven")
    spoken_S = np.pad(soxr.resample(words_S, rate, 16_000), 16_000)
    audio_S = spoken_S + 1e-3 * np.random.default_rng(0).standard_normal(len(spoken_S))
    chunks_CS = audio_S[: len(audio_S) // 512 * 512].reshape(-1, 512).astype(np.float32)
    detector = OnnxSilero(1)
    found_C, state = detector(chunks_CS[:15], None)
    rest_C, _ = detector(chunks_CS[15:], state)
    expected_C, _ = SileroModel(16_000)(chunks_CS, None)
    assert expected_C.min() < 0.1 and expected_C.max() > 0.9
    np.testing.assert_allclose(np.concatenate([found_C, rest_C]), expected_C, rtol=0, atol=1e-3)


# --- without PyTorch ------------------------------------------------------------------------------------------

ALONE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "scipy", "av", "matplotlib", "safetensors", "huggingface_hub", "fsspec"}:
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Missing())
from asr.cli import main
words = ["transcribe", *sys.argv[1:]]
mp3 = sys.argv[1] + ".mp3"
open(mp3, "wb").write(b"ID3" + bytes(5000))
assert main(["transcribe", mp3, *sys.argv[2:]]) == 1
assert main([*words, "--set", "segmentation.method=none"]) == main(words) == 0
assert "torch" not in sys.modules
"""


def test_without_pytorch(tmp_path: Path) -> None:
    """Nothing of what docs/install.md leaves out is imported, up to the text; a long recording is cut too."""
    folder, audio = write_ctc(tmp_path, PATH), write_noise(tmp_path / "noise.wav", seconds=6)
    words = [sys.executable, "-c", ALONE, str(audio), "--model", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ab c\n"), done.stderr
    assert "the package av is not installed; run: pip install av" in done.stderr


# --- folders of strangers -------------------------------------------------------------------------------------


def change(**values: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "export.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return spoil


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-40]) and None


def store_outside(folder: Path) -> None:
    """Weights that are the content of another file of the machine."""
    weights = TensorProto(name="steps", data_type=FLOAT, dims=[1, 20, NUM_TOKENS], data_location=1)
    entry = weights.external_data.add()
    entry.key, entry.value = "location", "../../secret"
    model = onnx.load(folder / "encoder.onnx")
    model.graph.initializer[0].CopyFrom(weights)
    (folder / "encoder.onnx").write_bytes(model.SerializeToString())


def take_other_inputs(folder: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["out"])]
    write_graph(folder / "encoder.onnx", nodes, {"x": (FLOAT, ANY)}, ["out"])


def know_more_tokens(folder: Path) -> None:
    write_encoder(folder, np.eye(NUM_TOKENS + 50, dtype=np.float32)[[NUM_TOKENS + 40] * 20])


HUGE = {"shape": [100_000] * 4, "type": "float32"}
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no JSON": (write("export.json", b"{"), "export the model again"),
    "not UTF-8": (write("export.json", b"\xff\xfe"), "export the model again"),
    "too large": (write("export.json", b" " * 2_000_000), "over 1,000,000 bytes"),
    "another format": (change(format=2), "format"),
    "another kind": (change(kind="hybrid"), "kind"),
    "a kind that sherpa-onnx runs": (change(kind="whisper"), "or run it as README.md says"),
    "another feature": (change(features={"num_mels": 10**9}), "num_mels"),
    "a file elsewhere": (change(files={"encoder": "../encoder.onnx"}), "next to it"),
    "an absolute path": (change(files={"encoder": "/etc/passwd"}), "next to it"),
    "a folder": (change(files={"encoder": "."}), "next to it"),
    "a missing file": (change(tokenizer="none.json"), "next to it"),
    "no encoder": (change(files={}), "encoder"),
    "no joiner": (change(kind="transducer", predictor="stateless"), "decoder"),
    "no step": (change(kind="attention"), "export again"),
    "another tokenizer": (write("tokenizer.json", b"[]"), "tokenizer.json"),
    "a cut graph": (cut("encoder.onnx"), "not a graph"),
    "a picture": (write("encoder.onnx", b"\x89PNG\r\n"), "not a graph"),
    "an empty graph": (write("encoder.onnx", b""), "not a graph"),
    "weights elsewhere": (store_outside, "weights are in another file"),
    "other inputs": (take_other_inputs, "export again"),
    "more tokens": (know_more_tokens, "expected 0 to"),
    "a huge cache": (change(streaming={"frames": 8, "takes_lengths": False, "caches": [HUGE]}), "elements"),
    "a chunk too many": (change(streaming={"frames": 0, "takes_lengths": False, "caches": []}), "frames"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, message = BROKEN[case]
    (folder := tmp_path / "model").mkdir()
    spoil(write_ctc(folder, PATH))
    with pytest.raises(UserError, match=message):
        load_export(folder).transcribe_recording(
            make_recording(write_noise(tmp_path / "noise.wav")), Request()
        )
    assert main(["transcribe", str(tmp_path / "noise.wav"), "--model", str(folder)]) == 2
    assert capsys.readouterr().err.startswith("asr: ")
