"""One helper for all tables of results: columns below each other, text that is no markup, both ends shown."""

from __future__ import annotations

from asr.scoring import Interval, markdown_table, percent, show_interval, text_table

ROWS = [["system", "WER %"], ["a|b <i>", "2.50"], ["c", "12.00"]]


def test_the_first_column_stands_left_the_others_right() -> None:
    assert text_table(ROWS) == ["system   WER %", "a|b <i>   2.50", "c        12.00"]
    assert text_table([["", "n"], ["", "10"]]) == [" n", "10"], "no names, no column for them"


def test_markdown_has_a_rule_below_the_headings_and_no_bars_in_cells() -> None:
    assert markdown_table(ROWS) == "| system | WER % |\n|---|---|\n| a/b <i> | 2.50 |\n| c | 12.00 |\n"


def test_rates_are_in_percent() -> None:
    assert percent(0.02437) == "2.44" and percent(0.5, 1) == "50.0" and percent(float("nan")) == "-"
    assert show_interval(Interval(0.01, 0.125)) == show_interval([0.01, 0.125]) == "1.00 to 12.50"
    assert show_interval((0.01, 0.125), "[{}, {}]") == "[1.00, 12.50]"
    assert (show_interval(None), show_interval(None, unknown="-")) == ("", "-")
