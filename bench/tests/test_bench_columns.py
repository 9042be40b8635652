"""Columns of DelayMQ: interpreters, with and without compiled kernels."""

import sys

import pytest
from delaymq import kernels
from harness.errors import HarnessError
from subjects import contenders, interpreter_of


def test_column_without_kernels_states_that_they_are_off() -> None:
    with_kernels, plain, real = contenders([sys.executable], "both", also_plain=True)
    assert [with_kernels.label, plain.label, real.label] == ["ours A", "ours B", "real"]
    assert with_kernels.interpreter.endswith(f"kernels: {kernels.ABOUT}")
    assert plain.interpreter.endswith("kernels: off (DELAYMQ_KERNELS=off)")
    assert with_kernels.source == plain.source


def test_interpreter_that_cannot_run_delaymq_is_an_error() -> None:
    with pytest.raises(HarnessError, match="/none/python cannot run delaymq"):
        interpreter_of(("/none/python",))
