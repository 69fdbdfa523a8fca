"""Features, encoder, scores, text and tokens as of openai-whisper and transformers.

Random weights are made here. OpenAI's weights are read from the folder that ASR_WHISPER_MODELS names, as
ggml-tiny.bin and ggml-base.en.bin, and AN4 in the one of ASR_CORPORA.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from asr.audio import reading as audio
from asr.decoding.decode import DecodingSetup
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig, EncodedAudio
from asr.models.speech_model import SpeechModel
from asr.system.system import System
from asr.text.tokenizer import BLANK_ID, EOS_ID, PAD_ID, SOS_ID, UNK_ID
from asr.whisper import (
    SpecialTokens,
    TokenizerUnits,
    WhisperDecodingConfig,
    WhisperManners,
    Windows,
    align_tokens,
    find_alignment_heads,
    find_sizes,
    get_weights,
    load_source,
    make_tokenizer,
    name_sizes,
    read_huggingface_vocabulary,
    split_weights,
    time_words,
    units_of,
)
from asr.whisper.single_files import KINDS, dequantize, read_ranks

pytestmark = pytest.mark.slow

NUM_CLIPS = 20
MODELS = ("ggml-tiny.bin", "ggml-base.en.bin")
needs_openai = "pip install --no-deps openai-whisper tiktoken more-itertools to compare with it"
needs_transformers = "pip install --no-deps transformers tokenizers to compare with it"


@pytest.fixture
def their_whisper() -> Any:
    pytest.importorskip("whisper.tokenizer", reason=needs_openai)  # tests/whisper is no package of this name
    return importlib.import_module("whisper")


@pytest.fixture(autouse=True)
def whole_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps of 30 s are encoded, as by theirs."""
    monkeypatch.setattr("asr.whisper.windows.SILENCES", {})


def real_model(name: str) -> Path:
    folder = os.environ.get("ASR_WHISPER_MODELS")
    if folder is None or not (Path(folder) / name).is_file():
        pytest.skip(f"no {name} in the folder that ASR_WHISPER_MODELS names")
    return Path(folder) / name


def read_clips() -> tuple[Tensor, Tensor]:
    folder = os.environ.get("ASR_CORPORA")
    clips = sorted(Path(folder or "").glob("an4/an4/wav/an4test_clstk/*/*.sph")) if folder else []
    if len(clips) < NUM_CLIPS:
        pytest.skip("no AN4 in the folder that ASR_CORPORA names")
    audios = [
        torch.from_numpy(audio.read(clip, 16_000)) for clip in clips[:: len(clips) // NUM_CLIPS][:NUM_CLIPS]
    ]
    lengths_B = torch.tensor([len(audio) for audio in audios])
    return torch.nn.utils.rnn.pad_sequence(audios, batch_first=True), lengths_B


def compare(name: str, ours: Tensor, theirs: Tensor, atol: float) -> None:
    assert ours.shape == theirs.shape
    difference = (ours.float() - theirs.float()).abs().max().item()
    print(f"{name}: largest difference {difference:.2e}")
    assert difference <= atol, name


def load_both(their_whisper: Any, path: Path) -> tuple[System, Any]:
    """Our model and openai-whisper's, of a ggml file."""
    ours = load_source(path)
    ours.model.float()
    sizes = their_whisper.model.ModelDimensions(**name_sizes(find_sizes(ours), "OpenAI"))
    theirs = their_whisper.model.Whisper(sizes).eval()
    theirs.load_state_dict({name: own.float() for name, own in split_weights(get_weights(ours)).items()})
    return ours, theirs


def decode_clips(ours: System) -> Iterator[tuple[Tensor, Tensor, EncodedAudio, list[list[int]]]]:
    """Batches of clips: numbers of samples, features, encoded steps, and the tokens of texts, greedily."""
    audio_BS, lengths_B = read_clips()
    decoder = WhisperManners(ours, ChecksConfig.off())
    setup = DecodingSetup(DecodingConfig(beam=1), None, WhisperDecodingConfig(language="en"))
    for batch in torch.arange(NUM_CLIPS).split(5):
        features_BTF, frames_B = decoder.windows.compute_features(audio_BS[batch], lengths_B[batch])
        with torch.inference_mode():
            steps = ours.model.encode(features_BTF, frames_B)
        encoded = EncodedAudio(ours.model, *steps, rules=decoder.rules)
        encoded = decoder.introduce(encoded, [None] * len(batch), setup)  # type: ignore[list-item]
        texts = decoder.decode(encoded, setup)
        tokens = [list(decoder.rules.spoken(text.tokens)) for text in texts]
        yield lengths_B[batch], features_BTF, encoded, tokens


SENTENCES = (
    " I don't think we'll see 12,345 of them -- it's they've, he'd've... ok?",
    "Grüße aus Österreich!  Das sind   3 Leerzeichen.\n\nEnde ",
    "今日は天気がいいですね。 Привет, как дела? مرحبا بالعالم 👩‍👩‍👧 नमस्ते",
    "<|endof text|> <|e n|> is text here",
)

# --- tokens ---------------------------------------------------------------------------------------


def their_tokenizer(their_whisper: Any, name: str, num_languages: int) -> tuple[TokenizerUnits, Any]:
    folder = Path(their_whisper.__file__).parent / "assets"
    is_multilingual = name == "multilingual"
    theirs = their_whisper.tokenizer.get_tokenizer(is_multilingual, num_languages=num_languages)
    ranks = read_ranks(folder / f"{name}.tiktoken")
    return units_of(make_tokenizer(ranks, theirs.encoding.n_vocab)), theirs


@pytest.mark.parametrize(
    ("name", "num_languages"), [("gpt2", 99), ("multilingual", 99), ("multilingual", 100)]
)
def test_special_tokens(their_whisper: Any, name: str, num_languages: int) -> None:
    ours, theirs = their_tokenizer(their_whisper, name, num_languages)
    special, order = ours.special, ours.special.order()
    found = {id: order[id] for id in (BLANK_ID, PAD_ID, SOS_ID, EOS_ID, UNK_ID, special.no_times)}
    assert [*found.values()] == [
        *(theirs.no_speech, theirs.sot_prev, theirs.sot, theirs.eot, theirs.sot_lm, theirs.no_timestamps)
    ]
    tasks = {task: order[id] for task, id in special.tasks.items()}
    assert tasks == {"translate": theirs.translate, "transcribe": theirs.transcribe}
    assert order[special.no_times + 1] == theirs.timestamp_begin
    languages = {code: order[id] for code, id in special.languages.items()}
    assert languages == dict(zip(theirs.all_language_codes, theirs.all_language_tokens, strict=True))
    never = {theirs.transcribe, theirs.translate, theirs.sot, theirs.sot_prev, theirs.sot_lm}
    suppressed = sorted(order[id] for id in ours.find_suppressed())
    assert suppressed == sorted({*never, theirs.no_speech, *theirs.non_speech_tokens})


@pytest.mark.parametrize("name", ["gpt2", "multilingual"])
def test_tokens_of_any_text(their_whisper: Any, name: str) -> None:
    ours, theirs = their_tokenizer(their_whisper, name, 99)
    order = ours.special.order()

    @settings(max_examples=2000)
    @given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("aeinst 's'll\n\t 0½Ⅷ一字")))
    def check(text: str) -> None:
        ids = theirs.encoding.encode_ordinary(text)
        found = ours.encode_piece(text)
        assert [order[id] for id in found] == ids
        assert b"".join(ours.pieces[id] for id in found).decode() == text

    check()
    for text in SENTENCES:
        found = [order[id] for id in ours.encode_piece(text)]
        assert found == theirs.encoding.encode_ordinary(text), text


def test_text_of_any_tokens(their_whisper: Any) -> None:
    ours, theirs = their_tokenizer(their_whisper, "multilingual", 99)

    @settings(max_examples=500)
    @given(st.lists(st.integers(0, len(ours.vocabulary) - 1)))
    def check(ids: list[int]) -> None:
        found = b"".join(ours.vocabulary[id] for id in ids).decode("utf-8", "replace")
        assert found == theirs.decode(ids)

    check()


@pytest.mark.parametrize("kind", [2, 3, 6, 7, 8])
def test_quantized_blocks_of_ggml(kind: int) -> None:
    """Any bits, but for scales that are no numbers."""
    gguf = pytest.importorskip("gguf", reason="pip install gguf to compare with it")
    from gguf import quants

    dtype = KINDS[kind]
    random = np.random.default_rng(0)
    blocks = np.frombuffer(random.bytes(500 * dtype.itemsize), dtype).copy()
    for name in {"scale", "lowest"} & set(dtype.names or ()):
        blocks[name] = random.standard_normal(500).astype(np.float16)
    theirs = quants.dequantize(blocks.view(np.uint8), gguf.GGMLQuantizationType(kind))
    np.testing.assert_allclose(dequantize(blocks), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "multilingual"])
def test_vocabulary_of_tokenizers(their_whisper: Any, name: str, tmp_path: Path) -> None:
    """The ranks as vocabulary and merges in tokenizer.json, read back; and what that file makes of texts."""
    tokenizers = pytest.importorskip("tokenizers", reason=needs_transformers)
    conversion = pytest.importorskip("transformers.convert_slow_tokenizer", reason=needs_transformers)
    path = Path(their_whisper.__file__).parent / "assets" / f"{name}.tiktoken"
    if name == "multilingual":  # their converter does not read the empty token at the end
        lines = path.read_bytes().splitlines(keepends=True)
        (path := tmp_path / path.name).write_bytes(b"".join(lines[:-1]))
    vocabulary, merges = conversion.TikTokenConverter(str(path)).extract_vocab_merges_from_model(str(path))
    vocabulary["<|endoftext|>"] = len(vocabulary)
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.save(str(tmp_path / "tokenizer.json"))
    assert read_huggingface_vocabulary(tmp_path) == read_ranks(path)
    ranks = read_ranks(path)
    if name == "multilingual":
        ranks = (*ranks, b"")
    ours = units_of(make_tokenizer(ranks, len(ranks) + 1608))
    for text in SENTENCES:
        assert [id - 5 for id in ours.encode_piece(text)] == theirs.encode(text).ids, text


# --- model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_mels", [80, 128])
def test_random_weights_of_transformers(
    tmp_path: Path, num_mels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written by transformers, in both of its formats, and read by us."""
    transformers = pytest.importorskip("transformers", reason=needs_transformers)
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=51_866, num_mel_bins=num_mels, d_model=64, encoder_layers=2, decoder_layers=3,
        encoder_attention_heads=4, decoder_attention_heads=2, encoder_ffn_dim=256, decoder_ffn_dim=256,
        max_source_positions=1500, max_target_positions=448,
    )  # fmt: skip
    theirs = transformers.WhisperForConditionalGeneration(config).eval()
    for parameter in theirs.parameters():  # biases and norms are trivial at first
        parameter.data += 0.05 * torch.randn_like(parameter)
    theirs.tie_weights()
    theirs.save_pretrained(tmp_path)
    vocabulary = (*(bytes([byte]) for byte in range(256)), *(b"%d" % number for number in range(50_001)))
    monkeypatch.setattr("asr.whisper.loading.read_huggingface_vocabulary", lambda folder: vocabulary)
    ours = load_source(tmp_path).model
    features_BTF = torch.randn(2, 3000, num_mels)
    tokens_BU, order = torch.randint(51_866, (2, 9)), torch.tensor(SpecialTokens(51_866).order())
    with torch.inference_mode():
        encoded_BTD, lengths_B = ours.encode(features_BTF, torch.tensor([3000, 3000]))
        scores_BUV, weights = ours.decoder(tokens_BU, encoded_BTD, lengths_B, {1: (0, 1)})
        expected = theirs(features_BTF.mT, decoder_input_ids=order[tokens_BU])
    compare("encoder", encoded_BTD, expected.encoder_last_hidden_state, 1e-3)
    compare("scores", scores_BUV, expected.logits[..., order], 1e-3)
    assert weights[1].shape == (2, 2, 9, 1500)

    pickled = tmp_path / "pickled"
    pickled.mkdir()
    torch.save(theirs.state_dict(), pickled / "pytorch_model.bin")
    (pickled / "config.json").write_bytes((tmp_path / "config.json").read_bytes())
    for name, weight in load_source(pickled).model.state_dict().items():
        torch.testing.assert_close(weight, ours.state_dict()[name], rtol=0, atol=0)


def test_checkpoint_of_openai(tmp_path: Path, their_whisper: Any) -> None:
    """Their model with random weights, saved as they save it."""
    torch.manual_seed(1)
    dims = their_whisper.model.ModelDimensions(80, 1500, 48, 3, 2, 51_864, 448, 48, 2, 2)
    theirs = their_whisper.model.Whisper(dims).eval()
    for parameter in theirs.parameters():
        parameter.data = 0.1 * torch.randn_like(parameter)
    torch.save({"dims": dims.__dict__, "model_state_dict": theirs.state_dict()}, tmp_path / "small.en.pt")
    shutil.copy(Path(their_whisper.__file__).parent / "assets" / "gpt2.tiktoken", tmp_path)
    ours = load_source(tmp_path / "small.en.pt").model
    features_BTF, tokens_BU = torch.randn(2, 3000, 80), torch.randint(51_864, (2, 7))
    with torch.inference_mode():
        encoded_BTD, lengths_B = ours.encode(features_BTF, torch.tensor([3000, 3000]))
        compare("encoder", encoded_BTD, theirs.embed_audio(features_BTF.mT), 1e-3)
        scores_BUV, _ = ours.decoder(tokens_BU, encoded_BTD, lengths_B)
        order = torch.tensor(SpecialTokens(51_864).order())
        compare("scores", scores_BUV, theirs.logits(order[tokens_BU], encoded_BTD)[..., order], 1e-3)
        assert score_step_by_step(ours, tokens_BU, encoded_BTD, lengths_B).allclose(scores_BUV, atol=1e-4)


def score_step_by_step(
    model: SpeechModel, tokens_BU: Tensor, encoded_BTD: Tensor, lengths_B: Tensor
) -> Tensor:
    state = model.decoder.start(encoded_BTD, lengths_B)
    return torch.cat(
        [model.decoder.step(tokens_B1, state)[0] for tokens_B1 in tokens_BU.split(1, dim=1)], dim=1
    )


# --- the real ones --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_real_weights(their_whisper: Any, name: str) -> None:
    ours, theirs = load_both(their_whisper, real_model(name))
    audio_BS, lengths_B = read_clips()
    audio_BS, lengths_B = audio_BS[:2], lengths_B[:2]
    special = units_of(ours.tokenizer).special
    tokens_BU, order = torch.tensor([special.prompt("en")]).repeat(2, 1), torch.tensor(special.order())
    with torch.inference_mode():
        features_BTF, feature_lengths_B = Windows.of(ours).compute_features(audio_BS, lengths_B)
        audios = [audio_S[:length] for audio_S, length in zip(audio_BS, lengths_B.tolist(), strict=True)]
        mel_BFT = torch.stack(
            [their_whisper.log_mel_spectrogram(their_whisper.pad_or_trim(audio)) for audio in audios]
        )
        compare("log-mel", features_BTF, mel_BFT.mT, 1e-4)
        encoded_BTD, encoded_lengths_B = ours.model.encode(features_BTF, feature_lengths_B)
        compare("encoder", encoded_BTD, theirs.embed_audio(mel_BFT), 1e-3)
        scores_BUV, _ = ours.model.decoder(tokens_BU, encoded_BTD, encoded_lengths_B)
        compare("scores", scores_BUV, theirs(mel_BFT, order[tokens_BU])[..., order], 1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_real_text(their_whisper: Any, name: str) -> None:
    """Greedy, without times, of each of 20 clips; theirs one by one, ours in batches."""
    ours, theirs = load_both(their_whisper, real_model(name))
    audio_BS, lengths_B = read_clips()
    options = their_whisper.DecodingOptions(language="en", without_timestamps=True, fp16=False)
    expected, found = [], []
    for audio_S, length in zip(audio_BS, lengths_B.tolist(), strict=True):
        mel_FT = their_whisper.log_mel_spectrogram(their_whisper.pad_or_trim(audio_S[:length]))
        expected.append(their_whisper.decode(theirs, mel_FT, options).text)
    for _, _, _, tokens in decode_clips(ours):
        found += [ours.tokenizer.decode(ids).strip() for ids in tokens]
    assert found == expected
    assert len({*expected}) > NUM_CLIPS / 2


@pytest.mark.parametrize("name", MODELS)
def test_times_of_words(their_whisper: Any, name: str) -> None:
    """Within 20 ms of theirs: the same tokens on the same features, theirs one by one, ours in batches."""
    timing = pytest.importorskip("whisper.timing", reason="pip install numba to compare word times")
    ours, theirs = load_both(their_whisper, real_model(name))
    theirs.set_alignment_heads(
        their_whisper._ALIGNMENT_HEADS[name.removeprefix("ggml-").removesuffix(".bin")]
    )
    their_tokens = their_whisper.tokenizer.get_tokenizer(
        theirs.is_multilingual, num_languages=99, language="en", task="transcribe"
    )
    differences = []
    for lengths_B, features_BTF, encoded, tokens in decode_clips(ours):
        units, heads = units_of(ours.tokenizer), find_alignment_heads(find_sizes(ours))
        prompts = [units.special.prompt("en")] * len(tokens)
        steps = (lengths_B // 320).tolist()
        firsts, probabilities = align_tokens(encoded, heads, units.special.first, steps, prompts, tokens)
        for row, ids in enumerate(tokens):
            own = [id - 5 for id in ids]
            found = timing.find_alignment(theirs, their_tokens, own, features_BTF[row].T, 2 * steps[row])
            timing.merge_punctuations(found, "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、")
            expected: dict[str, list[tuple[float, float]]] = {}
            for word in found:
                expected.setdefault(word.word.strip(), []).append((word.start, word.end))
            for word in time_words(units.pieces, ids, "en", firsts[row], probabilities[row]):
                if expected.get(word.text):  # they cut words in two at hyphens
                    start, end = expected[word.text].pop(0)
                    differences.append(max(abs(word.start - start), abs(word.end - end)))
    print(f"{len(differences)} words, largest difference {max(differences):.3f} s")
    assert len(differences) > NUM_CLIPS and max(differences) <= 0.0201


@pytest.mark.parametrize("name", MODELS)
def test_vocabulary_of_ggml_is_theirs(their_whisper: Any, name: str) -> None:
    assets = Path(their_whisper.__file__).parent / "assets"
    ranks = "gpt2" if ".en" in name else "multilingual"
    units = units_of(load_source(real_model(name)).tokenizer)
    assert units.vocabulary == read_ranks(assets / f"{ranks}.tiktoken")
