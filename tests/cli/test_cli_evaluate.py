"""`asr evaluate`: the table, JSON, the effect of each option, bad files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import soundfile
from hostile_audio import make_speechlike
from system_examples import save_talker

import asr
from asr import cli
from asr.decoding import SpeechDecoder


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_talker(tmp_path_factory.mktemp("talker") / "model"))


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    rows = []
    for number in range(4):
        seconds = 0.6 + 0.2 * number
        soundfile.write(tmp_path / f"{number}.wav", make_speechlike(seconds, seed=number), 16_000)
        row = {"id": f"u{number}", "audio": f"{number}.wav", "duration": seconds, "text": "nine four two"}
        rows.append(json.dumps(row | {"speaker": f"s{number % 2}"}) + "\n")
    (tmp_path / "test.jsonl").write_text("".join(rows))
    return str(tmp_path / "test.jsonl")


def evaluate(*arguments: str) -> int:
    return cli.main(["evaluate", *arguments])


def read_ways(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert evaluate(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)["ways"]


def test_table(talker: str, manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(talker, manifest, "--decoding", "ctc_greedy", "--decoding", "joint") == 0
    title, _, header, *rows, _, rules = capsys.readouterr().out.splitlines()
    assert rules.startswith("texts were normalized by text.scoring: ")
    assert title == "4 utterances of 2 speakers, 12 words, 3.6 s of audio, checks: on"
    assert header.split() == [
        "decoding",
        "WER",
        "%",
        "95",
        "%",
        "interval",
        "CER",
        "%",
        "95",
        "%",
        "interval",
        "real-time",
        "factor",
        "rejected",
    ]
    assert [row.split()[0] for row in rows] == ["ctc_greedy", "joint"]
    ways = read_ways(capsys, talker, manifest, "--decoding", "ctc_greedy", "--decoding", "joint")
    for row, way in zip(rows, ways.values(), strict=True):
        assert row.split()[1] == f"{100 * way['score']['error_rate']:.2f}"
        low, high = way["score"]["interval"]
        assert f"{100 * low:.2f} to {100 * high:.2f}" in row
        low, high = way["score"]["character_interval"]
        assert row.count(f"{100 * low:.2f} to {100 * high:.2f}") >= 1
        assert way["real_time_factor"] == pytest.approx(way["seconds"] / way["audio_seconds"])


def test_the_rule_of_several_references_is_said(
    talker: str, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(talker, manifest) == 0
    assert "references" not in capsys.readouterr().out
    text = Path(manifest).read_text().replace('"speaker"', '"extras": {"reference_2": "two"}, "speaker"')
    Path(manifest).write_text(text)
    assert evaluate(talker, manifest) == 0
    rule = "references: up to 2 of an utterance, compared with the one that gives the fewest errors"
    assert rule in capsys.readouterr().out
    assert read_ways(capsys, talker, manifest)["joint"]["score"]["references"] == 2


def test_unknown_tokens_are_reported(
    talker: str, manifest: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def read(text: str) -> tuple[float, list[int]]:
        Path(manifest).write_text(Path(manifest).read_text().replace("nine four two", text))
        caplog.clear()
        with caplog.at_level("INFO"):
            assert evaluate(talker, manifest, "--decoding", "ctc_greedy", "--json") == 0
        levels = [r.levelno for r in caplog.records if "of the tokens are unknown" in r.getMessage()]
        return json.loads(capsys.readouterr().out)["unknown_share"], levels

    assert read("nine four two") == (0.0, [logging.INFO])
    assert read("Ω four two") == (pytest.approx(1 / 3), [logging.WARNING])


def test_decoding(talker: str, manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(read_ways(capsys, talker, manifest)) == ["joint"]
    everything = read_ways(capsys, talker, manifest, "--decoding", "all")
    assert list(everything) == ["ctc_greedy", "ctc_beam", "attention", "rescoring", "joint"]
    assert evaluate(talker, manifest, "--decoding", "joint", "--set", "decoding.method=joint") == 2
    assert "leave one out" in capsys.readouterr().err


def test_beam_and_set(talker: str, manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    def read(*arguments: str) -> Any:
        return read_ways(capsys, talker, manifest, "--decoding", "ctc_beam", *arguments)["ctc_beam"]

    greedy = read_ways(capsys, talker, manifest, "--decoding", "ctc_greedy")["ctc_greedy"]
    assert read("--beam", "1")["score"] == greedy["score"] != read("--beam", "10")["score"]
    assert read("--beam", "7")["decoding"]["beam"] == 7
    assert read("--set", "decoding.beam=7")["score"] == read("--beam", "7")["score"]
    assert evaluate(talker, manifest, "--set", "subtitles.line_width=9") == 2
    assert "unknown key subtitles" in capsys.readouterr().err


def test_language_model(talker: str, manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(manifest).with_name("one.arpa")
    path.write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-99\t<s>\n-0.1\tone\n-2\t</s>\n-9\t<unk>\n\n\\end\\\n"
    )
    plain = read_ways(capsys, talker, manifest, "--decoding", "all")
    fused = read_ways(capsys, talker, manifest, "--decoding", "all", "--language-model", str(path))
    assert list(fused) == list(plain)[1:]
    assert fused["ctc_beam"]["decoding"]["language_model_weight"] == 0.3
    assert fused["ctc_beam"]["score"] != plain["ctc_beam"]["score"]
    assert evaluate(talker, manifest, "--decoding", "ctc_greedy", "--language-model", str(path)) == 2
    message = "asr: decoding method ctc_greedy has no use for a language model; use ctc_beam\n"
    assert capsys.readouterr().err.endswith(message), "once, and not of each utterance"


def test_batch_size(
    talker: str, manifest: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    encode = SpeechDecoder.encode

    def count(self: Any, audio: Any, *arguments: Any) -> Any:
        sizes.append(len(audio))
        return encode(self, audio, *arguments)

    monkeypatch.setattr(SpeechDecoder, "encode", count)
    scores = [
        read_ways(capsys, talker, manifest, "--batch-size", size)["joint"]["score"] for size in ("1", "3")
    ]
    assert sizes == [1, 1, 1, 1, 3, 1] and scores[0] == scores[1]
    with pytest.raises(SystemExit):
        evaluate(talker, manifest, "--batch-size", "0")
    assert "--batch-size: '0': expected a whole number from 1 on" in capsys.readouterr().err


def test_device_and_rules_are_said(talker: str, manifest: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert evaluate(talker, manifest, "--device", "cpu") == 0
    assert "device: cpu (1 thread), float32" in caplog.messages
    assert "texts were normalized by text.scoring: strip_invisible, nfc, collapse_spaces" in caplog.messages


def test_output_dir(talker: str, manifest: str, tmp_path: Path) -> None:
    assert evaluate(talker, manifest, "--decoding", "ctc_beam", "--output-dir", str(tmp_path / "out")) == 0
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    hypotheses = ["ctc_beam.jsonl", "ctc_beam.raw.jsonl", "ctc_beam.trn"]
    assert written == [*hypotheses, "reference.jsonl", "reference.trn"]
    assert (tmp_path / "out" / "reference.trn").read_text().splitlines()[0] == "nine four two (u0)"


def test_a_bad_file_is_said(
    talker: str, manifest: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (Path(manifest).parent / "2.wav").unlink()
    assert evaluate(talker, manifest, "--json") == 1
    record = json.loads(capsys.readouterr().out)
    assert list(record["failed"]) == ["u2"] and record["ways"]["joint"]["score"]["utterances"] == 4
    assert record["ways"]["joint"]["score"]["missing_hypotheses"] == 1
    assert "1 of 4 utterances could not be decoded; their words count as deleted" in caplog.messages


@pytest.mark.parametrize("is_broken", [False, True])
def test_files_have_the_errors_that_are_reported(
    is_broken: bool, manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the rules of scoring: here references and hypotheses differ in case alone before them."""
    rules = 'text.scoring=["nfc", "lowercase"]'
    model, folder = save_talker(tmp_path / "model", rules), tmp_path / "out"
    path = Path(manifest)
    path.write_text(path.read_text().replace("nine four two", "NINE Four two"))
    if is_broken:
        (tmp_path / "2.wav").unlink()
    arguments = [str(model), manifest, "--decoding", "joint", "--output-dir", str(folder), "--json"]
    assert evaluate(*arguments) == is_broken
    expected = json.loads(capsys.readouterr().out)["ways"]["joint"]["score"]
    for kind in ("jsonl", "trn"):
        files = [str(folder / f"{name}.{kind}") for name in ("reference", "joint")]
        assert cli.main(["score", *files, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["systems"]
        for name in ("error_rate", "character_error_rate", "errors", "missing_hypotheses"):
            assert found[name] == expected[name], (kind, name)


def test_nothing_to_read_is_wrong_input(
    talker: str, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in Path(manifest).parent.glob("*.wav"):
        path.unlink()
    assert evaluate(talker, manifest) == 2
    assert "none of its 4 utterances could be decoded" in capsys.readouterr().err


def test_infinite_rates_are_null(talker: str, manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Words where none was said, and nothing else: the rate has no finite value."""
    path = Path(manifest)
    path.write_text(path.read_text().replace("nine four two", ""))
    assert read_ways(capsys, talker, manifest)["joint"]["score"]["error_rate"] is None
    assert evaluate(talker, manifest) == 0
    assert "inf" in capsys.readouterr().out


def test_one_of_each_is_singular(talker: str, manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(manifest)
    path.write_text(path.read_text().partition("\n")[0].replace("nine four two", "nine"))
    assert evaluate(talker, manifest, "--decoding", "ctc_greedy") == 0
    assert capsys.readouterr().out.startswith(
        "1 utterance of 1 speaker, 1 word, 0.6 s of audio, checks: on\n"
    )


@pytest.mark.parametrize(("num_rejected", "is_said"), [(1, False), (2, True)])
def test_texts_that_the_checks_rejected_are_said(
    num_rejected: int, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a weak model seems to have written nothing at all."""
    from types import SimpleNamespace

    from asr.cli.evaluation_job import print_table

    warnings = {str(number): ["no clear speech"] for number in range(num_rejected)}
    decoded: Any = SimpleNamespace(warnings=warnings, audio_seconds=2.0, real_time_factor=0.1)
    score = asr.score(["a b", "c", "d"], ["a b", "", ""])
    print_table(SimpleNamespace(setups={"joint": decoded}), {"joint": score}, "on")  # type: ignore[arg-type]
    assert (f"joint: the checks rejected {num_rejected} of 3 texts" in caplog.text) == is_said
