"""Selection of compiled kernels."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest
from delaymq import kernels


def load_with(monkeypatch: pytest.MonkeyPatch, package: object) -> tuple[object, str]:
    def imported(name: str) -> object:
        assert name == "delaymq_kernels"
        if isinstance(package, Exception):
            raise package
        return package

    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    monkeypatch.setattr(importlib, "import_module", imported)
    return kernels._load()


def test_installed_package_of_the_right_interface_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(INTERFACE=kernels.INTERFACE, __version__="7.8.9")
    assert load_with(monkeypatch, package) == (package, "delaymq-kernels 7.8.9")


def test_variable_disables_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "delaymq_kernels", SimpleNamespace(INTERFACE=kernels.INTERFACE))
    monkeypatch.setenv(kernels.VARIABLE, "OFF")
    assert kernels._load() == (None, "off (DELAYMQ_KERNELS=off)")


@pytest.mark.parametrize(
    ("package", "reason"),
    [
        (ModuleNotFoundError("No module named 'delaymq_kernels'"), "off (delaymq-kernels is not installed)"),
        (ImportError("wrong ELF class"), "off (delaymq-kernels cannot be loaded: wrong ELF class)"),
        (
            SimpleNamespace(INTERFACE=kernels.INTERFACE + 1),
            f"off (delaymq-kernels has interface {kernels.INTERFACE + 1} instead of {kernels.INTERFACE}: install its"
            " current version)",
        ),
        (
            SimpleNamespace(),
            f"off (delaymq-kernels has interface None instead of {kernels.INTERFACE}: install its current version)",
        ),
    ],
)
def test_unusable_package_is_not_used_and_the_reason_is_stated(
    monkeypatch: pytest.MonkeyPatch, package: object, reason: str
) -> None:
    assert load_with(monkeypatch, package) == (None, reason)
