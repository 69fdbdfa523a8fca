"""`asr evaluate`: the table, JSON, the effect of each option, bad files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import soundfile
from hostile_audio import make_speechlike
from system_examples import save_talker
from test_cli_transcribe import Done, Run

import asr
from asr import cli
from asr.cli.evaluation_job import Speech
from asr.decoding.decode import SpeechDecoder
from asr.decoding.hypothesis import ChecksConfig


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_talker(tmp_path_factory.mktemp("talker") / "model"))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    rows = []
    for number in range(4):
        seconds = 0.6 + 0.2 * number
        soundfile.write(tmp_path / f"{number}.wav", make_speechlike(seconds, seed=number), 16_000)
        row = {"id": f"u{number}", "audio": f"{number}.wav", "duration": seconds, "text": "nine four two"}
        rows.append(json.dumps(row | {"speaker": f"s{number % 2}"}) + "\n")
    (tmp_path / "test.jsonl").write_text("".join(rows))
    return tmp_path / "test.jsonl"


@pytest.fixture
def run(
    talker: str, manifest: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Run:
    def evaluate(*arguments: str, model: str = talker) -> Done:
        caplog.set_level("INFO")
        caplog.clear()
        status = cli.main(["evaluate", model, str(manifest), *arguments])
        shown = capsys.readouterr()
        return Done(status, shown.out, shown.err + "\n".join(caplog.messages))

    return evaluate


def read_ways(run: Run, *arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").out)["methods"]


def replace_text(manifest: Path, text: str, before: str = "nine four two") -> None:
    manifest.write_text(manifest.read_text().replace(before, text))


def test_table(run: Run) -> None:
    methods = ["--decoding", "ctc_greedy", "--decoding", "joint"]
    done = run(*methods, "--device", "cpu")
    rules, title, _, header, *rows = done.out.splitlines()
    assert rules == "texts were normalized by text.scoring: strip_invisible, nfc, collapse_spaces"
    assert title == "3.6 s of audio, checks: on"
    assert header.startswith("decoding ") and header.endswith("  RTF  rejected")
    assert [row.split()[:3] for row in rows] == [["ctc_greedy", "4", "12"], ["joint", "4", "12"]]
    for row, way in zip(rows, read_ways(run, *methods).values(), strict=True):
        assert row.split()[7] == f"{100 * way['score']['error_rate']:.2f}"
        assert way["score"]["interval"] is None and " to " not in row  # of two speakers
        assert way["real_time_factor"] == pytest.approx(way["seconds"] / way["audio_seconds"])


def test_the_rule_of_several_references_is_said(run: Run, manifest: Path) -> None:
    assert "references" not in run().out
    replace_text(manifest, '"extras": {"reference_2": "two"}, "speaker"', before='"speaker"')
    rule = "references: up to 2 of an utterance, compared with the one that gives the fewest errors"
    assert rule in run().out
    assert read_ways(run)["joint"]["score"]["references"] == 2


def test_unknown_tokens_are_reported(run: Run, manifest: Path, caplog: pytest.LogCaptureFixture) -> None:
    def read() -> tuple[float, list[int]]:
        share = json.loads(run("--decoding", "ctc_greedy", "--json").out)["unknown_share"]
        return share, [r.levelno for r in caplog.records if "of the tokens are unknown" in r.getMessage()]

    assert read() == (0.0, [])
    replace_text(manifest, "Ω four two")
    assert read() == (pytest.approx(1 / 3), [logging.WARNING])


def test_decoding_beam_and_set(run: Run) -> None:
    def read(*arguments: str) -> Any:
        return read_ways(run, "--decoding", "ctc_beam", *arguments)["ctc_beam"]

    assert list(read_ways(run)) == ["joint"]
    everything = read_ways(run, "--decoding", "all")
    assert list(everything) == ["ctc_greedy", "ctc_beam", "attention", "rescoring", "joint"]
    greedy, wide = everything["ctc_greedy"], everything["ctc_beam"]
    assert read("--beam", "1")["score"] == greedy["score"] != wide["score"] and wide["decoding"]["beam"] == 10
    by_option, by_setting = read("--beam", "7"), read("--set", "decoding.beam=7")
    assert by_option["decoding"]["beam"] == 7 and by_option["score"] == by_setting["score"]
    done = run("--set", "subtitles.line_width=9")
    assert done.status == 2 and "unknown key subtitles" in done.said


def test_language_model(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "one.arpa"
    path.write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-99\t<s>\n-0.1\tone\n-2\t</s>\n-9\t<unk>\n\n\\end\\\n"
    )
    plain = read_ways(run, "--decoding", "all")
    fused = read_ways(run, "--decoding", "all", "--language-model", str(path))
    assert list(fused) == list(plain)[1:]
    assert fused["ctc_beam"]["decoding"]["language_model_weight"] == 0.3
    assert fused["ctc_beam"]["score"] != plain["ctc_beam"]["score"]
    done = run("--decoding", "ctc_greedy", "--language-model", str(path))
    message = "asr: decoding method ctc_greedy has no use for a language model; use ctc_beam\n"
    assert done.status == 2 and done.said.count(message) == 1, "once, and not of each utterance"


def test_batch_size(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    encode = SpeechDecoder.encode

    def count(self: Any, audio: Any, *arguments: Any) -> Any:
        sizes.append(len(audio))
        return encode(self, audio, *arguments)

    monkeypatch.setattr(SpeechDecoder, "encode", count)
    scores = [read_ways(run, "--batch-size", size)["joint"]["score"] for size in ("1", "3")]
    assert sizes == [1, 1, 1, 1, 3, 1] and scores[0] == scores[1]


def test_a_bad_file_is_said(run: Run, manifest: Path) -> None:
    (manifest.parent / "2.wav").unlink()
    done = run("--json")
    record = json.loads(done.out)
    assert done.status == 1 and list(record["failed"]) == ["u2"]
    assert record["methods"]["joint"]["score"]["utterances"] == 4
    assert record["methods"]["joint"]["score"]["missing_hypotheses"] == 1
    assert "2.wav" in done.said
    assert "1 of 4 utterances could not be decoded; their words count as deleted" in done.said
    for path in manifest.parent.glob("*.wav"):
        path.unlink()
    done = run()
    assert done.status == 2 and "none of its 4 utterances could be decoded" in done.said


@pytest.mark.parametrize("is_broken", [False, True])
def test_files_have_the_errors_that_are_reported(
    is_broken: bool, run: Run, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the rules of scoring: here references and hypotheses differ in case alone before them."""
    model, folder = save_talker(tmp_path / "model", 'text.scoring=["nfc", "lowercase"]'), tmp_path / "out"
    replace_text(manifest, "NINE Four two")
    if is_broken:
        (tmp_path / "2.wav").unlink()
    done = run("--decoding", "joint", "--output-dir", str(folder), "--json", model=str(model))
    assert done.status == is_broken
    hypotheses = ["joint.jsonl", "joint.raw.jsonl", "joint.trn"]
    assert sorted(path.name for path in folder.iterdir()) == [*hypotheses, "reference.jsonl", "reference.trn"]
    assert (folder / "reference.trn").read_text().splitlines()[0] == "nine four two (u0)"
    expected = json.loads(done.out)["methods"]["joint"]["score"]
    for kind in ("jsonl", "trn"):
        files = [str(folder / f"{name}.{kind}") for name in ("reference", "joint")]
        assert cli.main(["score", *files, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["systems"]
        for name in ("error_rate", "character_error_rate", "errors", "missing_hypotheses"):
            assert found[name] == expected[name], (kind, name)


@pytest.mark.parametrize(("num_rejected", "is_said"), [(1, False), (2, True)])
def test_texts_that_the_checks_rejected_are_said(
    num_rejected: int, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a weak model seems to have written nothing at all."""
    warnings = {str(number): ["no clear speech"] for number in range(num_rejected)}
    decoded: Any = SimpleNamespace(warnings=warnings, audio_seconds=2.0, real_time_factor=0.1)
    score = asr.score(["a b", "c", "d"], ["a b", "", ""])
    model: Any = SimpleNamespace(checks=ChecksConfig())
    split: Any = SimpleNamespace(setups={"joint": decoded})
    Speech(model, [], {}, str.strip, "no rule").format(split, {"joint": score})
    assert (f"joint: the checks rejected {num_rejected} of 3 texts" in caplog.text) == is_said
