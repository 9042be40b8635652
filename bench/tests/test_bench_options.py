"""Options that the programs of the benchmark share, and errors about invalid ones."""

import argparse

import pytest
from options import Options
from rows import GROUPS
from runner import add_options, add_pending, options_of, pairs_of


def chosen(*words: str) -> tuple[Options, int]:
    """Return the options and the number of pairs of a command line, of which 3 is the default."""
    parser = argparse.ArgumentParser()
    add_options(parser, pairs=3)
    add_pending(parser)
    parsed = parser.parse_args(words)
    return options_of(parser, parsed), pairs_of(parser, parsed)


def test_all_rows_are_measured_by_default() -> None:
    options, pairs = chosen()
    assert options == Options(groups=frozenset(GROUPS), sizes=(1024,), quick=False, pending=1_000_000)
    assert pairs == 3


def test_quick_run_has_one_pair_unless_pairs_are_specified() -> None:
    assert chosen("--quick")[1] == 1
    assert chosen("--quick", "--pairs", "4")[1] == 4


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--rows", "sync8,sync9,x"), "--rows: unknown groups: sync9, x: use start, idle,"),
        (("--rows", ""), "--rows: unknown groups: ''"),
        (("--pairs", "0"), "--pairs is 0: use at least 1"),
        (("--quick", "--pairs", "-1"), "--pairs is -1: use at least 1"),
        (("--pending", "0"), "--pending is 0: use at least 1000"),
        (("--sizes", "1024,big"), "--sizes is 1024,big: use numbers of bytes above 0, separated by commas"),
        (("--sizes", "0"), "--sizes is 0: use numbers of bytes above 0, separated by commas"),
    ],
)
def test_invalid_option_is_an_error(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], problem: str) -> None:
    with pytest.raises(SystemExit) as stop:
        chosen(*words)
    assert stop.value.code == 2
    assert problem in capsys.readouterr().err
