"""Counts, alignments and verdicts as of NIST sclite and sc_stats; `apt-get install sctk` provides both."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from asr.scoring.alignments import align
from asr.scoring.counting import score
from asr.scoring.significance import compare_scores

pytestmark = pytest.mark.skipif(
    shutil.which("sctk") is None, reason="sclite is missing; apt-get install sctk to compare with it"
)

NUM_PAIRS = 2_000


def corrupt(words: list[str], rate: float, vocabulary: list[str], rng: random.Random) -> list[str]:
    """Substitutes, deletes and inserts words, each with about a third of the rate."""
    heard = []
    for word in words:
        dice = rng.random() * 3 / rate
        if dice < 1:
            heard.append(rng.choice(vocabulary))
        elif dice >= 2:
            heard += [word, rng.choice(vocabulary)] if dice < 3 else [word]
    return heard


def write_trn(path: Path, texts: dict[str, list[str]]) -> None:
    path.write_text("".join(f"{' '.join(words)} ({id})\n" for id, words in texts.items()))


def run_sclite(folder: Path, hypothesis: str) -> str:
    """The alignments, as sgml."""
    arguments = (
        f"-s -r ref.trn trn -h {hypothesis}.trn trn {hypothesis} -i rm -o sgml -n {hypothesis} -f 0 -O ."
    )
    subprocess.run(["sctk", "sclite", *arguments.split()], cwd=folder, check=True, capture_output=True)
    return (folder / f"{hypothesis}.sgml").read_text()


def make_pairs(seed: int) -> dict[str, tuple[list[str], list[str]]]:
    """Few words, so that many alignments are as good; some hypotheses have nothing to do with the reference."""
    rng = random.Random(seed)
    pairs = {}
    for number in range(NUM_PAIRS):
        vocabulary = [f"w{letter}" for letter in "abcdefghijkl"[: rng.choice([2, 3, 5, 12])]]
        reference = rng.choices(vocabulary, k=rng.randint(1, rng.choice([4, 12, 30])))
        other = rng.choices(vocabulary, k=rng.randint(0, 15))
        heard = corrupt(reference, rng.choice([0.1, 0.3, 0.6]), vocabulary, rng)
        pairs[f"s{number % 7}-{number}"] = reference, rng.choice([other, heard])
    return pairs


def test_counts_and_alignments_of_random_pairs_are_sclites(tmp_path: Path) -> None:
    pairs = make_pairs(0)
    write_trn(tmp_path / "ref.trn", {id: reference for id, (reference, _) in pairs.items()})
    write_trn(tmp_path / "hyp.trn", {id: hypothesis for id, (_, hypothesis) in pairs.items()})
    paths = dict(
        re.findall(r'<PATH id="\((\S+)\)".*?>\n(.*?)\n?</PATH>', run_sclite(tmp_path, "hyp"), re.DOTALL)
    )
    assert len(paths) == NUM_PAIRS
    texts = [{id: " ".join(pair[side]) for id, pair in pairs.items()} for side in (0, 1)]
    counts_P4 = score(*texts, align="sclite").counts_P4
    for number, (id, pair) in enumerate(pairs.items()):
        theirs = [step[0] for step in paths[id].split(":") if step]
        assert counts_P4[number].tolist() == [theirs.count(letter) for letter in "CSDI"], pair
        if number % 5 == 0:
            assert [step.kind[0].upper() for step in align(*pair, "sclite")] == theirs, pair


RESULT = re.compile(
    r"MTCH_PR_RESULTS \(systems: (\w+) (\w+)\) \(# segs: (\d+)\).*\(mean: *(\S+)\)"
    r".*\(Z Stat: *(\S+)\) \(Stat Diff: (\w+)\)"
)


@pytest.mark.parametrize("seed", [0, 1])
def test_verdicts_on_pairs_of_systems_are_sc_stats(tmp_path: Path, seed: int) -> None:
    """Of four systems: one alike but for a few words, one a little worse, one with as many errors of its own."""
    rng = random.Random(seed)
    vocabulary = [f"w{number}" for number in range(60)]
    references = {
        f"s{number % 10}-{number}": rng.choices(vocabulary, k=rng.randint(3, 20)) for number in range(200)
    }
    systems = {"base": {id: corrupt(words, 0.08, vocabulary, rng) for id, words in references.items()}}
    for name, rate in (("alike", 0.003), ("worse", 0.02)):
        systems[name] = {id: corrupt(words, rate, vocabulary, rng) for id, words in systems["base"].items()}
    systems["other"] = {id: corrupt(words, 0.09, vocabulary, rng) for id, words in references.items()}
    write_trn(tmp_path / "ref.trn", references)
    for name, texts in systems.items():
        write_trn(tmp_path / f"{name}.trn", texts)
    sgml = "".join(run_sclite(tmp_path, name) for name in systems)
    arguments = ["sctk", "sc_stats", "-p", "-t", "mapsswe", "-v", "-n", "-"]
    output = subprocess.run(arguments, input=sgml, capture_output=True, text=True, check=True).stdout
    results = RESULT.findall(output)
    assert len(results) == 6
    said = {id: " ".join(words) for id, words in references.items()}
    scores = {
        name: score(said, {id: " ".join(words) for id, words in texts.items()}, align="sclite")
        for name, texts in systems.items()
    }
    verdicts = set()
    for first, second, segments, mean, z, differ in results:
        comparison = compare_scores(scores[first], scores[second], (first, second))
        pairs = comparison.matched_pairs
        assert pairs["segments"] == int(segments)
        assert pairs["mean_difference"] == pytest.approx(float(mean), abs=6e-4)
        assert pairs["z"] == pytest.approx(float(z), abs=6e-4)
        assert (comparison.verdict != "undecided") == (differ == "Yes")
        verdicts.add(differ)
    assert verdicts == {"Yes", "No"}
