"""What pages say of published results is what the hypotheses next to them contain."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asr.recipe.scores import read_table, score_texts
from asr.scoring.result import Score
from asr.scoring.scored_files import score_systems

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@dataclass(frozen=True)
class Shown:
    """Rates in percent; by itself it is WER with two digits."""

    wer: float
    score: Score | None = None

    def __getattr__(self, name: str) -> float:
        """low and high, the interval, and cer: computed where they are shown."""
        return 100 * float(getattr(self.score if name == "cer" else self.score.interval, name))

    def __format__(self, form: str) -> str:
        return format(self.wer, form or ".2f")


@functools.cache
def find(source: str) -> Shown:
    """Score TABLE#COLUMN, of one speaker by TABLE#COLUMN@SPEAKER; or read dev by STUDY:METHOD of the first run."""
    if "#" not in source:
        study, _, method = source.partition(":")
        return Shown(100 * read_json(study)["runs"][0]["methods"]["dev"][method]["wer"])
    table, column, speaker = [*re.split("[#@]", source), ""][:3]
    references, hypotheses = read_cached(table)
    own = {id: f for id, f in references.items() if speaker in (f.get("speaker"), "")}
    found = score_texts(own, hypotheses[column])
    return Shown(100 * found.error_rate, found)


@functools.cache
def read_cached(table: str) -> Any:
    return read_table(RECIPES / f"{table}.jsonl.gz")


@functools.cache
def read_json(folder: str) -> Any:
    return json.loads((RECIPES / folder / "results.json").read_text(encoding="utf-8"))


def read_page(name: str) -> str:
    """The page as one line, without bold type."""
    text = (RECIPES / name).read_text(encoding="utf-8")
    return " ".join(text.replace("**", "").split())


Claim = tuple[str, str, list[str]]  # page, text with a place for each source (… is anything), sources


def claim_guide() -> Iterator[Claim]:
    page, joined = "guided_attention.md", "an4/studies/joined#guide"
    for suffix in ("", "_window"):
        for digits, split in (("3 to 7", "test"), ("10", "test_10"), ("15", "test_15"), ("30", "test_30")):
            columns = [
                f"fsdd/studies/{split}#guide.{name}{suffix}" for name in ("ctc_greedy", "free", "guided")
            ]
            yield page, f"| {digits} | {{}} | {{}} | {{}} |", columns
    yield page, "joint {:.1f} %, guided {:.1f} %", [f"{joined}.free", f"{joined}.guided"]
    yield page, "CTC greedily {:.1f} %", [f"{joined}.ctc_greedy"]
    dev = "an4/studies/dev#guide"
    yield page, "{} and {} % (32 and 31 errors)", [f"{dev}.free", f"{dev}.guided"]
    clock = "speechocean762/studies/attention_clock/test"
    text = "has {} % on test instead of {} with the prior alone"
    yield page, text, [f"{clock}#clock.attention", f"{clock}#prior.attention"]
    table = "fsdd/studies/attention_guide/test"
    runs = [f"{table}#guide_windows{seed}" for seed in ("", "-seed-1", "-seed-2")]
    yield page, "has {}, {} and {} % at 3 to 7 digits", [f"{run}.attention" for run in runs]
    yield page, "free it has {} %", [f"{table}#free.attention"]
    yield page, "greedily, {}, {} and {} %", [f"{run}.ctc_greedy" for run in runs]
    rows = {
        "pretrained Conformer: joint": "pretrained.joint",
        "the same: joint, guided in decoding alone": "pretrained.guided",
        "CTC-guided window in training, local attention: joint": "guide_windows.joint",
        "the same: decoder alone": "guide_windows.attention",
    }
    for row, name in rows.items():
        sources = [f"an4/studies/{split}#joined.{name}" for split in ("test_30s", "test_60s")]
        yield page, f"| {row} | {{}} | {{}} |", sources


FAMILIES = {
    "LSTM, additive attention": ("additive", "systems/test#attention_additive", "prior", "guide", "clock"),
    "LSTM, raw dot product": ("dot", "systems/test#attention_dot", "clock"),
    "tanh cells": ("tanh", "systems/test#attention_tanh", "prior", "clock"),
    "convolutional encoder": ("convolutional", "systems/test#convolutional", "prior", "clock"),
}
TRAININGS = {"prior": "prior", "guide": "prior and guide", "clock": "prior and clock"}


def claim_families() -> Iterator[Claim]:
    for title, (name, first, *trainings) in FAMILIES.items():
        rows = {"neither": first}
        rows |= {TRAININGS[one]: f"attention_families/test#{name}_{one}" for one in trainings}
        text = f"| {title} | " + " | | ".join(
            f"{row} | {{{n}}} | {{{n}.low:.2f}} to {{{n}.high:.2f}} |" for n, row in enumerate(rows)
        )
        yield ("guided_attention.md", text, [f"fsdd/studies/{source}.attention" for source in rows.values()])


AN4_ROWS = {
    "CTC, greedy": "ctc_greedy",
    "decoder alone": "attention",
    "joint": "joint",
    "joint, five speeds": "joint+speeds",
    "joint, lexicon and word 3-grams": "joint+ngrams",
    "the same, five speeds": "joint+ngrams+speeds",
    "CTC beam, lexicon and word 3-grams, five speeds": "ctc_beam+ngrams+speeds",
}


STREAMING_ROWS = {
    "CTC, greedy": "ctc_greedy",
    "decoder alone": "attention",
    "CTC beam, then rescoring by the decoder": "rescoring",
    "joint": "joint",
    "CTC beam, lexicon and word 3-grams": "ctc_beam+ngrams",
    "joint, lexicon and word 3-grams": "joint+ngrams",
}
TRANSDUCER_ROWS = {
    "transducer, greedy": "transducer_greedy",
    "transducer, beam of 10": "transducer",
    "its CTC head, beam": "ctc_beam",
}


def claim_an4() -> Iterator[Claim]:
    page, studies = "an4/experiments.md", "an4/studies"
    guide, lstm = (("attention_guide", "guide_windows"), ("lstm_guide", "guide"))
    phones = ("phones", "phones")

    def dev_and_test(system: tuple[str, str], method: str) -> list[str]:
        study, run = system
        return [f"{studies}/{study}:{method}", f"{studies}/{study}/test#{run}.{method}"]

    for row, method in AN4_ROWS.items():
        sources = [*dev_and_test(guide, method), *dev_and_test(lstm, method)]
        penalty = f"an4/results/test#transformer.{method}"
        yield page, f"| {row} | {' | '.join(['{}'] * 5)} |", [*sources, penalty]
        sources = [*dev_and_test(lstm, method), *dev_and_test(phones, method)]
        yield page, f"| {row} | {' | '.join(['{}'] * 4)} |", sources
    for row, method in STREAMING_ROWS.items():
        setups = [f"{method}{delay}" for delay in ("", "+640ms", "+320ms", "+160ms")]
        sources = [f"{studies}/streaming:{setup}" for setup in setups]
        sources += [f"{studies}/streaming/test#streaming.{setup}" for setup in setups]
        yield page, f"| {row} | {' | '.join(['{}'] * 8)} |", sources
    best = f"{studies}/streaming/test#streaming.ctc_beam+ngrams+speeds"
    yield (
        "an4/README.md",
        "(experiments.md#streaming) | {0} | {0.low:.2f} to {0.high:.2f} | {0.cer:.2f} |",
        [best],
    )
    for row, method in TRANSDUCER_ROWS.items():
        sources = [f"{studies}/test#transducer.{method}{speeds}" for speeds in ("", "+speeds")]
        yield page, f"| {row} | … | {{}} | … | {{}} |", sources
    moonshine = f"{studies}/moonshine_base/test#moonshine_base.attention"
    yield (
        "an4/README.md",
        "(experiments.md#moonshine) | {0} | {0.low:.2f} to {0.high:.2f} | {0.cer:.2f} |",
        [moonshine],
    )
    yield "an4/README.md", "| {} | | | five speeds |", [f"{moonshine}+speeds"]
    row = "and Conformer | {} | {.low:.2f} to {.high:.2f} | {.cer:.2f} |"
    yield "an4/README.md", row, ["an4/results/test#combination"] * 4
    yield page, "A combination of five … has {} %", [f"{studies}/lstm_guide/test#combination_of_five"]
    yield page, "{} % (4.14 to 9.43)", [f"{studies}/lstm_guide/test#all.ctc_beam+ngrams+speeds"]
    yield page, "{} % (4.91 to 10.52)", [f"{studies}/attention_clock/test#clock.joint+speeds"]
    table = f"{studies}/phones/test"
    for text, *names in (
        ("{} % on test (4.03 to 7.99)", "phones.rescoring+speeds"),
        ("has {} % (3.29 to 6.36)", "combination_of_four"),
        ("{} % (4.14 to 7.89) by rescoring", "all.rescoring+speeds"),
        ("{} (3.76 to 5.99), 37 errors", "all.joint+ngrams+speeds"),
        ("{} % (3.11 to 6.88), as many errors", "all.combination_of_four"),
        ("{} % (2.93 to 6.45): no gain", "all.together"),
        ("with seed 1 ({}) and with letters ({})", "all-seed-1.joint+ngrams+speeds", "all_characters.joint+ngrams+speeds"),
    ):  # fmt: skip
        yield page, text, [f"{table}#{name}" for name in names]
    rows = {"CTC beam": "ctc_beam", "decoder alone": "attention", "rescoring": "rescoring", "joint": "joint"}
    for row, method in rows.items():
        columns = [f"{studies}/dev#synthetic_phones.{texts}.{method}" for texts in ("alone", "an4", "both")]
        yield page, f"| {row} | {{}} | {{}} | {{}} |", columns
    test = [f"{studies}/test#synthetic_phones.both.ctc_beam"]
    yield page, "{} % (2.12 to 5.78), 27 of 773 words", test
    yield "an4/pretrained/README.md", "{} %, 27 of 773 words", test
    both = [
        f"{studies}/{split}#synthetic_phones.with_joe.{name}"
        for split in ("dev", "test")
        for name in ("combination", "both.ctc_beam")
    ]
    yield page, "dev had {} % in place of {}, test {} in place of {}", both


SPEECHOCEAN762 = {
    ("lstm_transformer", "dev"): {
        "CTC, greedy": "ctc_greedy",
        "joint": "joint",
        "CTC beam, lexicon and word 3-grams": "ctc_beam+ngrams",
        "joint, lexicon and word 3-grams": "joint+ngrams",
    },
    ("attention_guide", "dev"): {
        "guide, dev | CTC, greedy": "ctc_greedy",
        "guide, dev | decoder alone": "attention",
        "guide, dev | joint": "joint",
        "guide, dev | joint, lexicon and word 3-grams": "joint+ngrams",
    },
    ("attention_guide", "test"): {"guide, test | joint, lexicon and word 3-grams": "joint+ngrams"},
    ("wide_augmentation", "dev"): {
        "wide, dev | joint": "joint",
        "wide, dev | joint, lexicon and word 3-grams": "joint+ngrams",
        "wide, dev | the same, five speeds": "joint+ngrams+speeds",
    },
    ("wide_augmentation", "test"): {"wide, test | the same, five speeds": "joint+ngrams+speeds"},
    ("synthetic_speech", "dev"): {
        "synthetic, dev | joint": "joint",
        "synthetic, dev | joint, lexicon and word 3-grams": "joint+ngrams",
        "synthetic, dev | the same, five speeds": "joint+ngrams+speeds",
    },
    ("synthetic_speech", "test"): {"synthetic, test | the same, five speeds": "joint+ngrams+speeds"},
    ("synthetic_phones", "dev"): {
        "synthetic phones, dev | …": "joint+ngrams",
        "synthetic phones, dev | … ": "joint+ngrams+speeds",
    },
    ("synthetic_phones", "test"): {"synthetic phones, test | …": "joint+ngrams+speeds"},
    ("recorded_voices", "dev"): {
        "recorded voices, dev | …": "joint+ngrams",
        "recorded voices, dev | … ": "joint+ngrams+speeds",
    },
    ("recorded_voices", "test"): {"recorded voices, test | …": "joint+ngrams+speeds"},
    ("wide_guide", "test"): {
        "wide guide, test | …": "joint+ngrams+speeds",
        "wide guide, test | … ": "last.joint+ngrams+speeds",
    },
    ("whisper_tiny", "dev"): {"dev | greedy": "greedy", "dev | beam 5": "beam_5"},
    ("whisper_tiny", "test"): {"test | beam 5": "beam_5"},
    ("moonshine_base", "dev"): {"Moonshine, dev | greedy": "greedy", "Moonshine, dev | beam 5": "beam_5"},
    ("moonshine_base", "test"): {"Moonshine, test | beam 5": "beam_5"},
    ("phones", "dev"): {
        "phones, dev | CTC, greedy": "ctc_greedy",
        "phones, dev | decoder alone": "attention",
        "phones, dev | joint": "joint",
        "phones, dev | joint, lexicon and word 3-grams": "joint+ngrams",
        "phones, dev | the same, five speeds, CTC weight 0.3": "joint+ngrams+speeds",
        "CTC alone, dev | CTC beam, lexicon and word 3-grams": "ctc_phones.ctc_beam+ngrams",
        "CTC alone, letters, dev | CTC beam, lexicon and word 3-grams": "ctc.ctc_beam+ngrams",
    },
    ("phones", "test"): {
        "phones, test | joint, lexicon and word 3-grams": "phones.joint+ngrams",
        "phones, test | the same, all 2.88 hours": "all.joint+ngrams",
        "CTC alone, test | CTC beam, lexicon and word 3-grams": "ctc_phones.ctc_beam+ngrams",
        "CTC alone, letters, test | CTC beam, lexicon and word 3-grams": "ctc.ctc_beam+ngrams",
    },
}


SPEECHOCEAN762_SYSTEMS = [
    *("test#whisper_tiny.beam_5", "test#moonshine_base.beam_5"),
    *("test#recorded_voices.joint+ngrams+speeds", "test#synthetic_phones.joint+ngrams+speeds"),
    *("test#synthetic_speech.joint+ngrams+speeds", "phones/test#all.joint+ngrams"),
    *("phones/test#phones.joint+ngrams", "test#wide_augmentation.joint+ngrams+speeds"),
    *("phones/test#ctc_phones.ctc_beam+ngrams", "test#attention_guide.joint+ngrams"),
    *("phones/test#ctc.ctc_beam+ngrams", "test#lstm_transformer.joint+ngrams"),
]


def claim_speechocean762() -> Iterator[Claim]:
    page, studies = "speechocean762/experiments.md", "speechocean762/studies"
    for (study, split), rows in SPEECHOCEAN762.items():
        for row, column in rows.items():
            text = f"| {row.strip()} | {{0}} | {{0.low:.1f}} to {{0.high:.1f}} | {{0.cer:.1f}} |"
            published = (study, split) == ("phones", "test")
            table = f"{studies}/phones/test#" if published else f"{studies}/{split}#{study}."
            yield page, text, [f"{table}{column}"]
    interval = "{0} %, {0.low:.1f} to {0.high:.1f}"
    yield page, interval, [f"{studies}/test#lstm_transformer.joint+ngrams"]
    yield page, interval, [f"{studies}/fifth_of_test#lstm_transformer.whisper_tiny"]
    for source in (
        *("dev#phones.characters.joint+ngrams", "dev#phones.espeak.joint+ngrams"),
        "phones/test#wide.joint+ngrams+speeds",
    ):
        yield page, "{} %", [f"{studies}/{source}"]
    for source in SPEECHOCEAN762_SYSTEMS:
        row = "| {0} | {0.low:.1f} to {0.high:.1f} | {0.cer:.1f} |"
        yield "speechocean762/README.md", row, [f"{studies}/{source}"]


def claim_fsdd() -> Iterator[Claim]:
    page, names = "fsdd/README.md", ("george", "jackson", "lucas", "nicolas", "theo", "yweweler", "")
    wide, whisper = "fsdd/studies/wide_augmentation/test", "fsdd/studies/whisper_tiny/test"
    ends = "{{{0}}} ({{{0}.low:.2f}} to {{{0}.high:.2f}})"
    for name in names:
        cells = [ends.format(number) if not name else f"{{{number}}}" for number in range(4)]
        systems = ("transformer", "ctc_lstm", "five_speeds.transformer", "five_speeds.ctc_lstm")
        text = f"| {name or 'all'} | {cells[0]} | … | {cells[1]} | … | {cells[2]} | {cells[3]} |"
        yield page, text, [f"{wide}#{system}-seed-0.left_out@{name}" for system in systems]
        text = f"| {name or 'all'} | {cells[0]} | … | {cells[1]} | … |"
        yield page, text, [f"{whisper}#{system}-seed-0.left_out@{name}" for system in ("all_weights", "lora")]


CLAIMS = [*claim_guide(), *claim_families(), *claim_an4(), *claim_speechocean762(), *claim_fsdd()]


@pytest.mark.parametrize("page", sorted({page for page, _, _ in CLAIMS}))
def test_pages_say_what_the_hypotheses_hold(page: str) -> None:
    text = read_page(page)
    claims = [(form, sources) for own, form, sources in CLAIMS if own == page]
    missing = []
    for form, sources in claims:
        said = form.format(*map(find, sources))
        if not re.search(re.escape(said).replace("…", "[^|]+"), text):
            missing.append((said, sources))
    assert not missing


@pytest.mark.parametrize(
    ("study", "heading", "dev"),
    [
        ("attention_guide", "## CTC-guided window", ()),
        ("attention_clock", "## Learned monotonic window", ("clock", "clock_windows")),
    ],
)
def test_the_page_of_attention_says_how_wer_grows_with_length(
    study: str, heading: str, dev: tuple[str, ...]
) -> None:
    """Rows of each variant: runs, WER of 3 to 7, 10, 15 and 30 digits with a beam of 10, and greedily."""
    page = (RECIPES / "guided_attention.md").read_text(encoding="utf-8")
    part = page.split(heading)[1].split("\n## ")[0]
    published = read_json(f"fsdd/studies/{study}")
    by_beam = [published["lengths"][f"WER on test by the number of words, beam {beam}"] for beam in (10, 1)]
    rows = re.findall(r"^\| (\w+)(?: \(prior alone\))? \| (\d) \| (\d.*) \|$", part, re.MULTILINE)
    assert {name for name, _, _ in rows} == {system["name"] for system in published["systems"]}
    for name, runs, figures in rows:
        assert int(runs) == sum(run["variant"] == name for run in published["runs"])
        found = []
        for lengths in by_beam:
            short = [lengths[name][str(count)] for count in range(3, 8)]
            found.append(sum(one["errors"] for one in short) / sum(one["words"] for one in short))
            found += [lengths[name][count]["wer"] for count in ("10", "15", "30")]
        assert figures.replace("*", "") == " | ".join(f"{100 * rate:.2f}" for rate in found)
    rates = {run["name"]: f"{100 * run['methods']['dev']['attention']['wer']:.2f}" for run in published["runs"]} if dev else {}  # fmt: skip
    for name in dev:
        assert (
            "{}, {} and {}".format(*(rates[f"{name}{seed}"] for seed in ("", "-seed-1", "-seed-2"))) in part
        )


def test_the_page_of_attention_says_how_far_word_times_are_off() -> None:
    page = (RECIPES / "guided_attention.md").read_text(encoding="utf-8")
    _, columns = read_table(RECIPES / "fsdd/studies/word_times/word_times.jsonl.gz")

    def read_times(name: str) -> np.ndarray:
        times = " ".join(columns[name].values())
        return np.array(re.findall(r":([0-9.]+)-([0-9.]+)", times), float)

    rows = re.findall(r"^\| ([\w +]+|[\w ]+, no CTC) \| (CTC|attention) \| ([\d*].*) \|$", page, re.MULTILINE)
    runs = {
        "CTC + prior": "ctc_prior",
        "prior, no CTC": "prior_100_500",
        "clock and windows, no CTC": "clock_windows",
    }
    assert len(rows) == 4
    for run, by, figures in rows:
        errors_W2 = 1000 * abs(read_times(f"{runs[run]}.{by.lower()}") - read_times("reference"))
        found = [np.quantile(errors_W2[:, side], share) for side in (0, 1) for share in (0.5, 0.9)]
        assert len(errors_W2) == 750
        assert figures.replace("*", "") == " | ".join(f"{error:.0f}" for error in found)


def test_the_page_of_speechocean762_says_what_whisper_has() -> None:
    """By the rules for English."""
    page = read_page("speechocean762/experiments.md")
    table = str(RECIPES / "speechocean762/studies/test.jsonl.gz")
    _, systems, _ = score_systems(
        table, [f"{table}#whisper_tiny.{name}" for name in ("base_en", "beam_5")], normalize="english"
    )
    base, tuned = (100 * system.score.error_rate for system in systems)
    assert f"{base:.2f} %" in page and f"{tuned:.2f} %" in page and f"{base - tuned:.1f} points less" in page
