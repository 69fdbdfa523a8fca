"""The page that runs an export in a browser: the same features, words and texts, and nothing leaves it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from ort_examples import load_talker
from system_examples import save_talker

from asr.decoding.hypothesis import ChecksConfig
from asr.evaluation.speech import read_utterances
from asr.features.front_end import FeaturesConfig, FrontEnd
from asr.system.system import load_system
from asr.text.tokenizer import Tokenizer, TokenizerConfig
from asr.transcription.transcribe import find_manners

pytest.importorskip("playwright")
from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
RUNTIME = os.environ.get("ASR_ONNXRUNTIME_WEB", "")
HAS_EXPORT = find_spec("onnx") is not None and find_spec("onnxruntime") is not None
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")]
needs_runtime = pytest.mark.skipif(
    not (RUNTIME and HAS_EXPORT),
    reason="needs the extra `export`, and the folder of onnxruntime-web's files in ASR_ONNXRUNTIME_WEB",
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "asr" / "export" / "browser"
RUNTIME_FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
SECONDS = 120_000  # milliseconds to wait: the runtime is compiled, and the machine may be busy

CONFORMER = ("model.encoder.type=conformer", "features.cmvn=utterance")
LIVE = (
    *("model.encoder.type=conformer", "model.encoder.positions=rotary"),
    *("model.encoder.chunk={live_left: 16}", "features.cmvn=running"),
)
SHERPA = ("features.num_mels=80", "features.convention=icefall")
TRANSDUCER = ("model.ctc_weight=0.3", "model.decoder={type: transducer, dim: 24}")
LSTM_PREDICTOR = (
    "model.ctc_weight=0.3",
    "model.decoder={type: transducer, dim: 24, predictor: lstm, num_layers: 2, durations: [0, 1, 2]}",
)


class QuietHandler(SimpleHTTPRequestHandler):
    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")  # files that change within a second have one time
        super().end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@contextlib.contextmanager
def serve(folder: Path, seen: list[str] | None = None) -> Iterator[str]:
    """Serve as `python -m http.server` does; `seen` gets the requested paths."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            if seen is not None:
                seen.append(self.path)
            super().do_GET()

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tones: Path) -> Iterator[Any]:
    """Its microphone plays the first tones in a loop."""
    arguments = [
        *("--no-sandbox", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"),
        f"--use-file-for-fake-audio-capture={tones}/dev-0.wav",
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def module_page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page without a model, for tests of single modules."""
    with open_page(browser, tmp_path_factory.mktemp("page")) as page:
        yield page


@contextlib.contextmanager
def open_page(browser: Any, folder: Path) -> Iterator[Page]:
    """Serve the page in a folder, and open it."""
    for path in PAGE.iterdir():
        shutil.copy(path, folder)
    if RUNTIME:
        (folder / "ort").mkdir(exist_ok=True)
        for name in RUNTIME_FILES:
            shutil.copy(Path(RUNTIME) / name, folder / "ort")
    problems: list[str] = []
    with serve(folder) as address:
        page = browser.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        yield page
        page.close()
    assert not problems


def write_export(
    folder: Path, *overrides: str, decoder: bool, options: str = "", manifest: Path | None = None
) -> Sequence[str]:
    """Export a model that says random words. Returns its texts of the utterances, by torch."""
    from asr.export.plan import make_plan
    from asr.export.proof import decode_examples
    from asr.export.writing import write_model

    model = save_talker(folder / "model", *overrides, decoder=decoder, sharpness=3.0)
    system = load_system(model)
    plan = make_plan(str(model), system, "auto", "sherpa" in options, "stream" in options)
    texts: Sequence[str] = []
    if manifest is not None:
        manners = find_manners(system)(system, ChecksConfig.off())
        examples = decode_examples(manners, plan, read_utterances(manifest))
        texts, repeats = examples.texts, examples.most_at_step if plan.sherpa is not None else 1
        plan = replace(plan, repeats=repeats)
    write_model(folder, system, plan)
    return texts


def transcribe(page: Page, *paths: Path) -> list[str]:
    expect(page.locator("#status")).to_have_text("Done", timeout=SECONDS)
    page.set_input_files("#file", paths)
    expect(page.locator("article")).to_have_count(len(paths), timeout=SECONDS)
    expect(page.locator("#status")).to_have_text("Done", timeout=SECONDS)
    return page.locator("article p").all_inner_texts()[::-1]  # the newest is the first


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sample_rate": 8000, "num_mels": 40},
        {"window_ms": 20, "shift_ms": 8, "sample_rate": 22050},
        {"convention": "icefall"},
        {"convention": "whisper", "num_mels": 128},
    ],
    ids=str,
)
def test_features_are_those_of_the_front_end(settings: dict[str, Any], module_page: Page) -> None:
    config = FeaturesConfig(**{"cmvn": "none", **settings})
    random = np.random.default_rng(0)
    scale = 1 if config.convention == "whisper" else 32768
    compute = """async ([settings, scale, samples, size]) => {
        const { FrontEnd, FeatureStream } = await import("/front_end.js");
        const frontEnd = new FrontEnd(settings, scale), stream = new FeatureStream(frontEnd);
        const audio = Float32Array.from(samples), pieces = [];
        for (let first = 0; first < audio.length; first += size) {
            pieces.push(...stream.push(audio.slice(first, first + size), first + size >= audio.length));
        }
        return [[...frontEnd.compute(audio)], pieces];
    }"""
    for length in (1, 199, 201, 400, 5_001, 20_000):
        audio_S = (0.1 * random.standard_normal(length)).astype(np.float32)
        expected_BTF, _ = FrontEnd(config)(torch.from_numpy(audio_S)[None], torch.tensor([length]))
        argument = [config.model_dump(mode="json"), scale, audio_S.tolist(), 777]
        whole, pieces = module_page.evaluate(compute, argument)
        np.testing.assert_allclose(whole, expected_BTF.flatten(), atol=1e-3)
        if config.convention != "whisper":
            assert pieces == whole


@pytest.mark.parametrize("type", ["characters", "words", "bpe", "unigram", "phones"])
def test_words_are_those_of_the_tokenizer(type: str, module_page: Page, tmp_path: Path) -> None:
    lexicon = tmp_path / "lexicon.txt"
    lines = ["TWO  T UW1 # a comment", "TOO(2)  T UW1", "TO  T UW0", ";;; none", "ÖL  O\u0308 L", "A  AH0"]
    lexicon.write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = {"bpe": {"vocab_size": 24}, "unigram": {"vocab_size": 14}, "phones": {"lexicon": str(lexicon)}}
    config = TokenizerConfig(type=type, **options.get(type, {}))
    tokenizer = Tokenizer.train(config, ["TWO TOO", "ÖL A", "TO TO A"])
    tokenizer.save(tmp_path / "tokenizer.json")
    random = np.random.default_rng(0)
    texts = [random.integers(0, len(tokenizer), 12).tolist() for _ in range(40)]
    texts += [tokenizer.encode(text) for text in ("TWO TO", "TOO", "ÖL A TOO", "")]
    decode = """async ([record, texts]) => {
        const { makeTokenizer } = await import("/tokenizer.js");
        return texts.map(makeTokenizer(record));
    }"""
    record = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    assert module_page.evaluate(decode, [record, texts]) == [tokenizer.decode(ids) for ids in texts]
    assert tokenizer.decode(texts[-2]) == "ÖL A TOO"


@needs_runtime
@pytest.mark.parametrize(
    ("overrides", "options", "decoder"),
    [
        (CONFORMER, "", False),
        (CONFORMER, "", True),
        (LIVE, "--stream", False),
        (LSTM_PREDICTOR, "", False),
        (LIVE + TRANSDUCER, "--stream", False),
        (LIVE + SHERPA, "--format sherpa --stream", False),
        (LIVE + TRANSDUCER + SHERPA, "--format sherpa --stream", False),
    ],
    ids=["ctc", "attention", "live ctc", "lstm predictor", "live", "sherpa ctc", "sherpa transducer"],
)
def test_texts_are_those_of_the_model(
    overrides: tuple[str, ...], options: str, decoder: bool, browser: Any, tones: Path, tmp_path: Path
) -> None:
    manifest = tones / "dev.jsonl"
    expected = write_export(tmp_path, *overrides, decoder=decoder, options=options, manifest=manifest)
    assert len({*expected}) > 1, "one text for everything shows nothing"
    with open_page(browser, tmp_path) as page:
        found = transcribe(page, *(tones / f"dev-{number}.wav" for number in range(5)))
    assert found == [text or "(no speech found)" for text in expected]


@needs_runtime
def test_texts_of_moonshine(
    browser: Any, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are whole, where sherpa-onnx would cut them."""
    from asr.export.plan import FAMILY_TYPES, Plan
    from asr.export.proof import decode_examples
    from asr.export.writing import write_family

    talker, plan = load_talker(tmp_path), Plan("moonshine", False, FAMILY_TYPES["moonshine"])
    monkeypatch.setattr("asr.export.proof.limit_tokens", lambda *_: 1_000)
    expected = decode_examples(talker, plan, read_utterances(tones / "dev.jsonl")).texts
    write_family(tmp_path, talker, plan)
    with open_page(browser, tmp_path) as page:
        found = transcribe(page, *(tones / f"dev-{number}.wav" for number in range(5)))
    assert all(expected) and found == [*expected]


@needs_runtime
def test_a_long_recording_is_cut_and_silence_is_no_speech(browser: Any, tones: Path, tmp_path: Path) -> None:
    write_export(tmp_path, *CONFORMER, decoder=False)
    about = json.loads((tmp_path / "export.json").read_text())
    (tmp_path / "export.json").write_text(json.dumps(about | {"longest_seconds": 1.5}))
    parts = [soundfile.read(tones / f"train-{number}.wav")[0] for number in range(2)]
    parts = [np.resize(part, 20_000) for part in parts]  # 1.25 s
    quiet = np.zeros(4_800)  # of which the first whole tenth of a second begins after 800 samples
    soundfile.write(tmp_path / "long.wav", np.concatenate([parts[0], quiet, parts[1]]), 16_000)
    soundfile.write(tmp_path / "one.wav", np.concatenate([parts[0], quiet[:1_600]]), 16_000)
    soundfile.write(tmp_path / "two.wav", np.concatenate([quiet[1_600:], parts[1]]), 16_000)
    soundfile.write(tmp_path / "none.wav", np.zeros(16_000), 16_000)
    with open_page(browser, tmp_path) as page:
        names = ("long.wav", "one.wav", "two.wav", "none.wav")
        long, one, two, none = transcribe(page, *(tmp_path / name for name in names))
    assert one and two and long == f"{one} {two}"
    assert none == "(no speech found)"


@needs_runtime
def test_the_microphone_is_transcribed_while_it_is_on(browser: Any, tmp_path: Path) -> None:
    write_export(tmp_path, *LIVE, decoder=False, options="--stream")
    with open_page(browser, tmp_path) as page:
        expect(page.locator("#status")).to_have_text("Done", timeout=SECONDS)
        page.focus("#talk")
        page.keyboard.press("Enter")
        expect(page.locator("article p")).not_to_be_empty(timeout=SECONDS)
        expect(page.locator("#level")).to_be_visible()
        assert page.locator("#level").evaluate("meter => meter.value") > 0
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_have_text("Done", timeout=SECONDS)
        expect(page.locator("#level")).to_be_hidden()
        assert page.locator("#talk").get_attribute("aria-pressed") == "false"


@needs_runtime
def test_the_text_is_copied_and_its_worker_can_reach_no_other_origin(
    browser: Any, tones: Path, tmp_path: Path
) -> None:
    write_export(tmp_path, *CONFORMER, decoder=False)
    seen: list[str] = []
    with open_page(browser, tmp_path) as page, serve(tmp_path, seen) as elsewhere:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        (text,) = transcribe(page, tones / "dev-0.wav")
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("() => navigator.clipboard.readText()") == text
        send = "address => fetch(address, { mode: 'no-cors' }).then(() => 'sent', () => 'refused')"
        assert page.workers[0].evaluate(send, page.url) == "sent"
        assert page.workers[0].evaluate(send, elsewhere) == "refused"
        assert page.evaluate(send, elsewhere) == "refused"
    assert seen == []


@needs_runtime
def test_problems_are_told_in_sentences(browser: Any, tmp_path: Path) -> None:
    error = "#error"
    with open_page(browser, tmp_path) as page:
        expect(page.locator(error)).to_contain_text("export.json is missing from", timeout=SECONDS)
        assert page.locator("#choose").is_disabled() and page.locator("#talk").is_disabled()
    write_export(tmp_path, *CONFORMER, decoder=False)
    (tmp_path / "noise.mp3").write_bytes(b"no sound" * 100)
    with open_page(browser, tmp_path) as page:
        expect(page.locator("#status")).to_have_text("Done", timeout=SECONDS)
        page.set_input_files("#file", tmp_path / "noise.mp3")
        expect(page.locator(error)).to_contain_text("noise.mp3 is not audio that this browser can read")
        page.evaluate(
            "() => { navigator.mediaDevices.getUserMedia = async () => { throw new Error('none') } }"
        )
        page.click("#talk")
        expect(page.locator(error)).to_have_text("The microphone cannot be used: none.")


@needs_runtime
def test_a_wrong_export_is_refused(browser: Any, tmp_path: Path) -> None:
    write_export(tmp_path, *CONFORMER, decoder=False)
    about = json.loads((tmp_path / "export.json").read_text())
    cases = [
        ({"format": 2}, "does not describe an export of format 1"),
        ({"kind": "constructor"}, "does not describe an export of format 1"),
        ({"files": {"encoder": "../model.onnx"}}, "which is not in its folder"),
        ({"files": {"encoder": "nowhere.onnx"}}, "nowhere.onnx is missing from"),
        ({"files": {"encoder": "tokens.txt"}}, "tokens.txt is not a graph that this browser can load"),
        ({"features": {"convention": "kaldi", "type": "mfcc"}}, "the model's features: type mfcc"),
        ({"features": about["features"] | {"dither": 1}}, "the model's features: dither"),
    ]
    with open_page(browser, tmp_path) as page:
        for changed, message in cases:
            (tmp_path / "export.json").write_text(json.dumps(about | changed))
            page.reload()
            expect(page.locator("#error")).to_contain_text(message, timeout=SECONDS)
        (tmp_path / "export.json").write_text(json.dumps(about))
        os.truncate(tmp_path / "model.onnx", 1_200_000_000)  # takes no room on the disk
        page.reload()
        expect(page.locator("#error")).to_contain_text("too large for a browser: 1.2 GB", timeout=SECONDS)
