"""Selection of compiled kernels, which the optional distribution delaymq-kernels provides (docs/kernels.md).

The choice is made once, at the first import of this module. It is an environment variable instead of a setting of the
broker, because modules choose their kernels before any configuration is read, and clients and tools have none.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Final, TypeVar

VARIABLE: Final = "DELAYMQ_KERNELS"
"""Environment variable; with the value `off`, kernels are not used."""
INTERFACE: Final = 16
"""Version of the kernels' signatures and results that this program expects."""

Twin = TypeVar("Twin")


def _load() -> tuple[Any, str]:
    """Return the package, None if it is not to be used, and a description. Never raises."""
    if os.environ.get(VARIABLE, "").strip().lower() == "off":
        return None, f"off ({VARIABLE}=off)"
    try:
        package = importlib.import_module("delaymq_kernels")
    except ModuleNotFoundError:
        return None, "off (delaymq-kernels is not installed)"
    except Exception as error:  # a library for another machine must not prevent a start
        return None, f"off (delaymq-kernels cannot be loaded: {error})"
    found = getattr(package, "INTERFACE", None)
    if found != INTERFACE:
        return None, f"off (delaymq-kernels has interface {found} instead of {INTERFACE}: install its current version)"
    return package, f"delaymq-kernels {package.__version__}"


_package, ABOUT = _load()
"""`ABOUT` describes the choice: `delaymq-kernels 0.1.0`, or `off` with the reason in parentheses."""

IS_COMPILED: Final = _package is not None
"""Whether compiled kernels are used."""


def compiled(name: str) -> Any:
    """Return the compiled kernel of this name, or None if compiled kernels are not used."""
    return None if _package is None else getattr(_package, name)


def choose(name: str, twin: Twin) -> Twin:
    """Return the compiled kernel of this name, or its twin if compiled kernels are not used."""
    return twin if _package is None else getattr(_package, name)
