"""Build of the running interpreter. PGO and LTO save 0 to 22 % of a broker's processor time (docs/performance.md).

PGO is profile-guided optimization (`configure --enable-optimizations`), LTO is link-time optimization (`--with-lto`).

`python -m delaymq.interpreter` prints the build. The Dockerfile runs this file alone, in the base image: it needs
only the standard library.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

EXIT_OK: Final = 0
EXIT_NOT_OPTIMIZED: Final = 1

PGO_FLAGS: Final = ("-fprofile-use", "-fprofile-instr-use")
"""Flags of GCC and Clang. `make profile-opt` sets them whatever the arguments of configure are."""
DEBIAN_OPTIMIZED: Final = frozenset({
    "aarch64-linux-gnu", "arm-linux-gnueabi", "arm-linux-gnueabihf", "i386-linux-gnu", "powerpc-linux-gnu",
    "powerpc64-linux-gnu", "powerpc64le-linux-gnu", "s390x-linux-gnu", "x86_64-linux-gnu",
})  # fmt: skip
"""Architectures for which debian/rules of python3.11 sets `with_pgo` and `with_lto`, as MULTIARCH names them."""


class _Build(NamedTuple):
    pgo: bool
    lto: bool
    debian: bool = False

    def __str__(self) -> str:
        if self.pgo:
            text = "PGO and LTO" if self.lto else "PGO without LTO"
        else:
            text = "LTO without PGO" if self.lto else "neither PGO nor LTO"
        return f"{text} (Debian packaging)" if self.debian else text


def about_interpreter() -> str:
    """Return the name, the version and the build of the running interpreter. Never raises.

    Shapes: `CPython 3.11.7, PGO and LTO`, `…, PGO without LTO`, `…, LTO without PGO`, `…, neither PGO nor LTO`, or
    `…, build flags unknown` if the installation does not record them. A debug build is
    `CPython 3.11.7, debug build, neither PGO nor LTO`.

    The source is `sysconfig.get_config_vars()`: CONFIG_ARGS holds the arguments of configure, PY_CORE_CFLAGS and
    PY_CORE_LDFLAGS hold the flags of the interpreter's own files. PGO_PROF_USE_FLAG proves nothing: configure sets it
    for every build.

    Debian's packages record neither. For /usr/bin/python3.11, debian/rules runs `make profile-opt` with LTO flags; then
    it installs the variables of another build and removes the flags of PGO and LTO from them. Such a package is
    recognized by the removal. The text then says what debian/rules does on this architecture and ends with
    `(Debian packaging)`. The packages of deadsnakes have the same rules.
    """
    return _described(_config_vars())


def _described(config: Mapping[str, object]) -> str:
    parts = [f"{platform.python_implementation()} {platform.python_version()}"]
    if _is_debug(config):
        parts.append("debug build")
    parts.append(str(_build(config) or "build flags unknown"))
    return ", ".join(parts)


def main(words: Sequence[str] | None = None) -> int:
    """Print the build. With `--require-optimized` return 1 unless it is a release build that is known to have PGO."""
    parser = argparse.ArgumentParser(prog="python -m delaymq.interpreter", description="Print the interpreter's build.")
    about = "fail unless the interpreter is a release build with PGO"
    parser.add_argument("--require-optimized", action="store_true", help=about)
    required = parser.parse_args(words).require_optimized
    config = _config_vars()
    build = _build(config)
    if not required or (build is not None and build.pgo and not _is_debug(config)):
        print(_described(config))
        return EXIT_OK
    print(
        f"{sys.executable} is {_described(config)}; a release build with PGO is required. Use Debian's python3.11, an"
        " official python image, or a CPython configured with --enable-optimizations --with-lto.",
        file=sys.stderr,
    )
    return EXIT_NOT_OPTIMIZED


def _config_vars() -> Mapping[str, object]:
    """The variables of the build; empty if the installation has none."""
    try:
        return sysconfig.get_config_vars()
    except Exception:  # stripped images lack the module that holds them
        return {}


def _is_debug(config: Mapping[str, object]) -> bool:
    # Only debug builds have the function; the variables may be missing.
    return str(config.get("Py_DEBUG")) == "1" or hasattr(sys, "gettotalrefcount")


def _build(config: Mapping[str, object]) -> _Build | None:
    """The build that the variables record; None if they do not record it."""
    arguments, compiled = config.get("CONFIG_ARGS"), config.get("PY_CORE_CFLAGS")
    if not isinstance(arguments, str) or not isinstance(compiled, str) or not compiled:
        return None
    options = _words(arguments)
    flags = [*_words(compiled), *_words(str(config.get("PY_CORE_LDFLAGS") or ""))]
    pgo = _is_on(options, "--enable-optimizations", "--disable-optimizations")
    lto = _is_on(options, "--with-lto", "--without-lto")
    build = _Build(
        pgo=pgo or any(flag.startswith(PGO_FLAGS) for flag in flags),
        lto=lto or _is_on(flags, "-flto", "-fno-lto"),
    )
    # debian/rules optimizes no debug build.
    if build.pgo or _is_debug(config) or not _is_debian(config):
        return build
    return _Build(pgo=True, lto=True, debian=True) if config.get("MULTIARCH") in DEBIAN_OPTIMIZED else None


def _is_debian(config: Mapping[str, object]) -> bool:
    """Whether debian/rules removed the flags: configure sets both of these variables, or neither."""
    generate, use = config.get("PGO_PROF_GEN_FLAG"), config.get("PGO_PROF_USE_FLAG")
    return bool(generate) and isinstance(use, str) and not use.strip()


def _is_on(words: Iterable[str], on: str, off: str) -> bool:
    """Whether the last word that is `on`, `on=VALUE` or `off` turns it on."""
    found = False
    for word in words:
        name, _, value = word.partition("=")
        if name == on:
            found = value != "no"
        elif name == off:
            found = False
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote without its end
        return text.split()


if __name__ == "__main__":
    sys.exit(main())
