"""Rules of global mapping files rewrite as NIST csrfilt.sh does; golden texts are its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings, strategies as st

from asr.cli import main
from asr.errors import UserError
from asr.scoring.nist.glm import Rule, parse_rule, read_mapping

TOOLS = Path("/usr/lib/sctk/bin")
needs_csrfilt = pytest.mark.skipif(
    not (TOOLS / "csrfilt.sh").exists(), reason="csrfilt.sh is missing; apt-get install sctk"
)

RULES = """\
;; comment mark
* name "test"
* format = 'NIST1'
* max_nrules = '2500'
* case_sensitive = 'F'
;; a comment
OKAY => O. K. / [ ] __ [ ]  ;; with a reason
AIN'T => [{ARE NOT / HAVE NOT}] / [ ] __ [ ]
uh => %HESITATION / [ ] __ [ ]
GONNA => GOING TO
B C => BC
[ D ] => []
E => F / [G ] __
F => E
CO- => CO / [ ] __ [ ]
'EM => { THEM / @ } / __ [ ]
"""
# What csrfilt.sh 1.17 -dh -i trn makes of them.
GOLDEN = [
    ("okay uh Okay", "O. K. %HESITATION O. K."),
    ("you ain't", "YOU {ARE NOT / HAVE NOT}"),
    ("gonnas", "GOING TOS"),
    ("a b c d e", "A BCE"),
    ("g e f e", "G F E E"),  # a rule sees the text as it was
    ("(uh) i (okay uh) see", "(%HESITATION) I (O.) (K.) (%HESITATION) SEE"),
    ("get 'em", "GET { THEM / @ }"),
    ("a{ok/okay}", "A{OK/OKAY}"),
    ("well-known (w- a-b) -x y- a-b-c", "WELL KNOWN (W-) (A) (B) -X Y- A B C"),
    ("", ""),
]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "test.glm"
    path.write_text(RULES)
    return path


@pytest.mark.parametrize(("text", "expected"), GOLDEN)
def test_texts_are_rewritten(rules: Path, text: str, expected: str) -> None:
    assert read_mapping(rules).rewrite(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("b c b d", "X C B D"), ("bc b c b", "BC X C B"), ("a c d b d c d b", "A C Y B D C Y B")],
)
def test_what_must_stand_to_the_right(tmp_path: Path, text: str, expected: str) -> None:
    """Golden texts come from csrfilt.sh and rfilter1."""
    path = tmp_path / "a.glm"
    path.write_text(
        ";;\n* format = 'NIST1'\n* case_sensitive = 'F'\nB => X / __ [ C]\nD => Y / [C ] __ [ B]\n"
    )
    assert read_mapping(path).rewrite(text) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("A => B", Rule("A", "B", "", "")),
        ("[A ] => [ B] / [C ] __ [ D]", Rule("A ", " B", "C ", " D")),
        ('" A " => " B "', Rule(" A ", " B ", "", "")),
        ("A => B / __ [ ]", Rule("A", "B", "", " ")),
        ("A => B / [ ] __", Rule("A", "B", " ", "")),
        ("A => [{B / C}] / [ ] __ [ ]", Rule("A", "{B / C}", " ", " ")),
        ("A => { B / C }", Rule("A", "{ B", "", "")),  # as rfilter1: the last slash begins the contexts
        ("A =>", Rule("A", "", "", "")),
        ("A => / [ ] __ [ ]", Rule("A", "", " ", " ")),
    ],
)
def test_rules_are_read(line: str, expected: Rule) -> None:
    assert parse_rule(line) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A => B\n", ":1: 'A => B': expected the mark of comments"),
        ("", None),
        (";;\n* CASE_SENSITIVE = F\nA => B\n", ":2: .*: expected \\* name = 'value'"),
        (";;\n* format = 'NIST2'\nA => B\n", ":2: format 'NIST2': expected NIST1"),
        (";;\nA B\n", ":2: 'A B': expected a rule, FOUND => REPLACEMENT"),
        (';;\n;; INPUT_DEPENDENT_APPLICATION = "hyp"\nA => B\n', ":2: .*: expected rules for all files"),
        (";;\n* copy_no_hit = 'F'\nA => B\n", ":2: .*: expected T, as words without a rule stay"),
    ],
)
def test_what_is_no_rule(tmp_path: Path, text: str, message: str | None) -> None:
    path = tmp_path / "a.glm"
    path.write_text(text)
    if message is None:
        assert read_mapping(path).rewrite("a") == "A"
        return
    with pytest.raises(UserError, match=message):
        read_mapping(path)


def test_from_the_command_line(
    rules: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(rules.parent)
    Path("ref.trn").write_text("you ain't well-known okay (u1)\n")
    Path("hyp.ctm").write_text("u1 1 0 1 you\nu1 1 1 1 have\nu1 1 2 1 not\nu1 1 3 1 well\nu1 1 4 1 known\n")
    arguments = ["score", "ref.trn", "hyp.ctm", "--glm", "test.glm", "--json"]
    assert main([*arguments, "--align", "sclite", "--show", "0"]) == 0
    output = capsys.readouterr().out
    assert '"reference_length": 7' in output and '"deletions": 2' in output and '"errors": 2' in output
    assert main(arguments) == 2
    assert "test.glm: its rules may offer alternatives" in capsys.readouterr().err


WORDS = [
    *("okay", "uh", "Ain't", "gonna", "a", "b", "c", "d", "e", "f", "g", "co-", "co-op", "'em", "x/y"),
    *("(uh)", "(a b)", "{ e / gonna }", "{ uh / @ }"),
]


def filter_by_nist(path: Path, texts: list[str], *options: str) -> list[str]:
    lines = "".join(f"{text} (s-{number})\n" for number, text in enumerate(texts))
    output = subprocess.run(
        [TOOLS / "csrfilt.sh", "-dh", *options, "-i", "trn", path],
        input=lines, check=True, capture_output=True, text=True,
        env=os.environ | {"PATH": f"{TOOLS}:{os.environ['PATH']}"},
    ).stdout  # fmt: skip
    return [line.rpartition("(")[0].strip() for line in output.splitlines()]


@needs_csrfilt
@pytest.mark.slow
@settings(max_examples=5, phases=[Phase.generate])
@given(texts=st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), min_size=60, max_size=80))
def test_random_texts_become_what_nist_makes_of_them(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("glm") / "test.glm"
    path.write_text(RULES)
    mapping = read_mapping(path)
    assert [mapping.rewrite(text) for text in texts] == filter_by_nist(path, texts)
