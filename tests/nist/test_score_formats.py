"""The alignments that we write are what sclite writes."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from asr.scoring import Operation, Score, align_lines, score
from asr.scoring.nist import write_pra
from asr.transcripts import measure_width

needs_sclite = pytest.mark.skipif(
    shutil.which("sctk") is None, reason="sclite is missing; apt-get install sctk"
)
TALK = "a an the cat dog sat on mat in house big bird hello world of to and it's"
WORDS = TALK.split()
SCLITE = "-r ref trn -h hyp trn -i spu_id -o pra"

# Written by sclite 2.10 (options -i spu_id -o pra) for the four utterances below.
PRA = """

\t\tDUMP OF SYSTEM ALIGNMENT STRUCTURE

System name:   h.trn

Speakers: 
    0:  spk1
    1:  spk2

Speaker sentences   0:  spk1   #utts: 2
id: (spk1-u1)
Scores: (#C #S #D #I) 5 1 0 1
REF:  the cat sat on * THE mat 
HYP:  the cat sat on A MAT mat 
Eval:                I S       

id: (spk1-u2)
Scores: (#C #S #D #I) 1 0 1 0
REF:  hello WORLD 
HYP:  hello ***** 
Eval:       D     

Speaker sentences   1:  spk2   #utts: 1
id: (spk2-u3)
Scores: (#C #S #D #I) 0 0 0 1
REF:  ** 
HYP:  UH 
Eval: I  


"""


def score_by_speaker(references: dict[str, str], hypotheses: dict[str, str]) -> Score:
    speakers = {id: id.split("-")[0] for id in references}
    return score(references, hypotheses, speakers=speakers, align="sclite", resamples=0)


EXAMPLE = score_by_speaker(
    {"spk1-u1": "the cat sat on the mat", "spk1-u2": "hello world", "spk2-u3": ""},
    {"spk1-u1": "the cat sat on a mat mat", "spk1-u2": "hello", "spk2-u3": "uh"},
)


def test_pra_of_an_example() -> None:
    assert write_pra(EXAMPLE, "h.trn") == PRA


def make_pairs(seed: int) -> tuple[dict[str, str], dict[str, str]]:
    generator = random.Random(seed)
    references, hypotheses = {}, {}
    for number in range(120):
        said = [generator.choice(WORDS) for _ in range(generator.randint(0, 12))]
        heard = []
        for word in said:
            options = [[word], [], [generator.choice(WORDS)], [word, "uh"]]
            heard += generator.choices(options, [80, 8, 8, 4])[0]
        id = f"s{number // 40}-u{number:03d}"
        references[id], hypotheses[id] = " ".join(said), " ".join(heard)
    return references, hypotheses


def write_trn(path: Path, texts: dict[str, str]) -> None:
    path.write_text("".join(f"{text} ({id})\n" for id, text in texts.items()))


@needs_sclite
def test_pra_is_that_of_sclite(tmp_path: Path) -> None:
    references, hypotheses = make_pairs(0)
    write_trn(tmp_path / "ref", references)
    write_trn(tmp_path / "hyp", hypotheses)
    command = ["sctk", "sclite", *SCLITE.split()]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    result = score_by_speaker(references, hypotheses)
    assert write_pra(result, "hyp") == (tmp_path / "hyp.pra").read_text()


def test_columns_stay_below_each_other_in_any_script() -> None:
    said, heard, marks = align_lines(
        [
            Operation("substitution", "你好", "你"),
            Operation("correct", "x", "x"),
            Operation("substitution", "e\u0301te\u0301", "ete"),
            Operation("insertion", None, "straße"),
        ]
    )
    assert said == "REF:  你好 x E\u0301TE\u0301 ******* "
    assert heard == "HYP:  你   x ETE STRASSE "
    assert marks == "Eval: S      S   I       "
    assert len({measure_width(line) for line in (said, heard, marks)}) == 1


def test_unknown_speakers_and_no_words() -> None:
    nothing = score({"a": ""}, {"a": ""}, resamples=0)
    assert "0:  unknown" in write_pra(nothing, "x")
