"""Systems that decode together: texts and scores against those computed one by one, and the command."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from decoding_examples import BigramModel, build_talker, ctc_scores, decoder_scores, random_encoded
from hostile_audio import make_speechlike
from system_examples import WORDS, save_talker

from asr.cli import main
from asr.decoding import DecodingConfig, EncodedAudio, Hypothesis, search_encoded
from asr.evaluation import Member, decode_batch, score_hypotheses
from asr.system import load_system
from asr.transcription import Recognizer

RATE = 16_000


def load(folder: Path) -> Recognizer:
    return Recognizer(load_system(folder), "cpu", needs_times=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three systems that hear other words in the same audio; the last has no decoder."""
    folder = tmp_path_factory.mktemp("runs")
    return [save_talker(folder / str(seed), seed=seed, decoder=seed < 2) for seed in range(3)]


@pytest.mark.parametrize("language_model_weight", [0.0, 0.7])
@pytest.mark.parametrize(
    ("name", "method", "guide_width"),
    [
        *(("transformer-hybrid", method, None) for method in ("ctc_beam", "attention", "rescoring", "joint")),
        *(("transformer-hybrid", method, 2.0) for method in ("attention", "joint")),
        *(("transformer-attention", "attention", None), ("lstm-ctc", "ctc_beam", None)),
    ],
)
@torch.inference_mode()
def test_a_text_has_the_score_that_it_had_in_the_search(
    name: str, method: str, guide_width: float | None, language_model_weight: float
) -> None:
    model, bigrams = build_talker(name), BigramModel() if language_model_weight else None
    encoded = EncodedAudio(model, *random_encoded(model, [5, 3]))
    config = DecodingConfig(method=method, guide_width=guide_width, beam=50, nbest=3, length_bonus=0.5)
    config = config.model_copy(update={"language_model_weight": language_model_weight})
    found = search_encoded(encoded, config, bigrams)
    scored = score_hypotheses(encoded, found, config, bigrams)
    assert [{one.tokens: pytest.approx(one.score, abs=1e-3) for one in own} for own in found] == [
        {one.tokens: one.score for one in own} for own in scored
    ]


@torch.inference_mode()
def test_the_text_with_the_highest_sum_of_the_scores_of_all_systems_wins(runs: list[Path]) -> None:
    audio = [make_speechlike(seconds, seed=seed) for seed, seconds in enumerate((1.0, 2.3, 1.6))]
    config = DecodingConfig(beam=4, nbest=4)
    members = [
        Member(load(run), config.model_copy(update={"method": method}))
        for run, method in zip(runs, ("joint", "joint", "ctc_beam"), strict=True)
    ]
    together = decode_batch(members, audio, RATE)
    alone = [decode_batch([member], audio, RATE) for member in members]
    for row, audio_S in enumerate(audio):
        heard: list[tuple[Member, EncodedAudio]] = []
        proposed: set[str] = set()
        for member in members:
            heard.append((member, member.recognizer.decoder.encode([audio_S])))
            (found,) = search_encoded(heard[-1][1], member.decoding, None)
            proposed |= {member.tokenizer.decode(one.tokens) for one in found}
        totals = dict.fromkeys(proposed, 0.0)
        for text, (member, encoded) in itertools.product(proposed, heard):
            tokens = tuple(member.tokenizer.encode(text))
            model, steps_TD = member.recognizer.model, encoded.encoded_BTD[0, : int(encoded.lengths_B[0])]
            share = 1.0 if model.decoder is None else 0.3
            totals[text] += share * ctc_scores(model, steps_TD, [tokens])[0]
            if model.decoder is not None:
                totals[text] += 0.7 * decoder_scores(model, steps_TD, [tokens])[0]
        ranked = sorted(totals, key=totals.__getitem__, reverse=True)
        assert together[row] == ranked[0]
        assert totals[ranked[0]] - totals[ranked[1]] > 1e-2  # or float32 decides
    assert together not in alone  # not one system outvoted the others everywhere


@torch.inference_mode()
def test_a_system_hears_an_utterance_at_its_likeliest_speed(runs: list[Path]) -> None:
    audio = [make_speechlike(0.3 + 0.15 * (seed % 7), seed=seed) for seed in range(12)]
    config = DecodingConfig(method="joint", beam=3, nbest=3, speeds=(0.7, 1.0, 1.4))
    member = Member(load(runs[0]), config)

    def decode(one: np.ndarray, choose: Callable[[list[float]], float]) -> str:
        heard = [member.recognizer.decoder.encode([one], speed) for speed in config.speeds]
        found = [search_encoded(encoded, config)[0] for encoded in heard]
        likelihoods = [own[0].likelihood for own in found]
        encoded = heard[likelihoods.index(choose(likelihoods))]
        texts = dict.fromkeys(text.tokens for own in found for text in own)
        (scored,) = score_hypotheses(encoded, [[Hypothesis(text, 0.0) for text in texts]], config, None)
        return member.tokenizer.decode(max(scored, key=lambda text: text.score).tokens)

    texts = decode_batch([member], audio, RATE)
    assert texts == [decode(one, max) for one in audio]
    for other in (min, itemgetter(0), itemgetter(-1)):
        assert texts != [decode(one, other) for one in audio]


def test_a_text_that_one_system_cannot_spell_loses(runs: list[Path], tmp_path: Path) -> None:
    few = save_talker(tmp_path / "few", seed=5, words=WORDS[:6])
    config = DecodingConfig(method="joint", beam=4, nbest=4)
    both = [Member(load(run), config) for run in (runs[0], few)]
    audio = [make_speechlike(0.4, seed=seed) for seed in range(4)]
    assert any(set(text.split()) - set(WORDS[:6]) for text in decode_batch(both[:1], audio, RATE))
    assert not any(set(text.split()) - set(WORDS[:6]) for text in decode_batch(both, audio, RATE))


def test_audio_of_no_frame_has_no_text(runs: list[Path]) -> None:
    member = Member(load(runs[0]), DecodingConfig(beam=2, nbest=2, method="joint"))
    speech = make_speechlike(1.0)
    both = decode_batch([member] * 2, [speech, np.zeros(10, np.float32)], RATE)
    assert both == [*decode_batch([member], [speech], RATE), ""]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    rows = []
    for number, seconds in enumerate((1.2, 0.6)):
        soundfile.write(tmp_path / f"{number}.wav", make_speechlike(seconds, seed=number), RATE)
        rows.append({"id": f"u{number}", "audio": f"{number}.wav", "duration": seconds, "text": "one two"})
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_command_writes_the_texts_in_the_order_of_the_manifest(
    runs: list[Path], manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "combined.jsonl"
    command = ["combine", *map(str, runs), "--manifest", str(manifest), "--beam", "4"]
    assert main([*command, "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    texts = [json.loads(line) for line in output.read_text().splitlines()]
    assert [item["id"] for item in texts] == ["u0", "u1"]
    audio = [soundfile.read(manifest.parent / f"{number}.wav", dtype="float32")[0] for number in range(2)]
    members = [
        Member(load(run), DecodingConfig(method=method, beam=4, nbest=4))
        for run, method in zip(runs, ("joint", "joint", "ctc_beam"), strict=True)
    ]
    assert [item["text"] for item in texts] == [decode_batch(members, [one], RATE)[0] for one in audio]
    assert main(command) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == texts


def test_what_cannot_be_done_is_said_before_the_work(
    runs: list[Path], manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, ctc = map(str, runs)
    for arguments, expected in (
        ([first, "--manifest", manifest], "give two or more"),
        ([first, second, ctc, "--decoding", "joint"], "--decoding"),
        ([first, second, "--manifest", manifest, "--set", "checks=off"], "checks"),
        ([first, ctc, "--manifest", manifest, "--decoding", "joint"], "joint"),
    ):
        assert main(["combine", *map(str, arguments)]) == 2
        printed = capsys.readouterr()
        assert expected in printed.err and not printed.out
