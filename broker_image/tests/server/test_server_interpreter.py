"""Detection of the interpreter's build from the variables that real builds of CPython install."""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from delaymq import interpreter
from delaymq.interpreter import about_interpreter

Config = dict[str, object]

NAME = f"CPython {platform.python_version()}"
REQUIRED = ["--require-optimized"]
USE_FLAGS = "-fprofile-use -fprofile-correction"
LTO_FLAGS = "-flto -fuse-linker-plugin -ffat-lto-objects"

PYENV: Config = {
    "CONFIG_ARGS": "'--prefix=/opt/pyenv/versions/3.11.7' '--enable-shared'"
    " '--libdir=/opt/pyenv/versions/3.11.7/lib'"
    " 'LDFLAGS=-L/opt/pyenv/versions/3.11.7/lib -Wl,-rpath,/opt/pyenv/versions/3.11.7/lib'",
    "MULTIARCH": "x86_64-linux-gnu",
    "PGO_PROF_GEN_FLAG": "-fprofile-generate",
    "PGO_PROF_USE_FLAG": USE_FLAGS,
    "PY_CORE_CFLAGS": "-Wsign-compare -DNDEBUG -g -fwrapv -O3 -Wall -std=c11 -Wextra -fvisibility=hidden"
    " -I./Include/internal -I. -I./Include -fPIC -DPy_BUILD_CORE",
    "PY_CORE_LDFLAGS": "-L/opt/pyenv/versions/3.11.7/lib -Wl,-rpath,/opt/pyenv/versions/3.11.7/lib",
    "Py_DEBUG": 0,
}
"""pyenv install 3.11.7, without options."""
OFFICIAL_IMAGE: Config = {
    "CONFIG_ARGS": "'--build=x86_64-linux-gnu' '--enable-loadable-sqlite-extensions' '--enable-optimizations'"
    " '--enable-option-checking=fatal' '--enable-shared' '--with-lto' '--with-ensurepip'"
    " 'build_alias=x86_64-linux-gnu'",
    "MULTIARCH": "x86_64-linux-gnu",
    "PGO_PROF_GEN_FLAG": "-fprofile-generate",
    "PGO_PROF_USE_FLAG": USE_FLAGS,
    "PY_CORE_CFLAGS": "-Wsign-compare -DNDEBUG -g -fwrapv -O3 -Wall -fno-semantic-interposition"
    f" {LTO_FLAGS} -g -std=c11 -Wextra -fvisibility=hidden {USE_FLAGS} -I./Include/internal -fPIC -DPy_BUILD_CORE",
    "PY_CORE_LDFLAGS": f"-Wl,--strip-all -fno-semantic-interposition {LTO_FLAGS} -g",
    "Py_DEBUG": 0,
}
"""The arguments of configure of docker-library/python, 3.11/slim-bookworm; the flags are what configure makes of
them.
"""
DEBIAN: Config = {
    "CONFIG_ARGS": "'--enable-shared' '--prefix=/usr' '--libdir=/usr/lib/x86_64-linux-gnu' '--enable-ipv6'"
    " '--enable-loadable-sqlite-extensions' '--with-dbmliborder=bdb:gdbm' '--with-computed-gotos' '--without-ensurepip'"
    " '--with-system-expat' '--with-dtrace' '--with-wheel-pkg-dir=/usr/share/python-wheels/'"
    " '--with-ssl-default-suites=openssl' 'MKDIR_P=/bin/mkdir -p' '--with-system-ffi' 'CC=x86_64-linux-gnu-gcc'"
    " 'CFLAGS=-g   -fstack-protector-strong -Wformat -Werror=format-security ' 'LDFLAGS=  -g -fwrapv -O2   '"
    " 'CPPFLAGS=-Wdate-time -D_FORTIFY_SOURCE=2'",
    "MULTIARCH": "x86_64-linux-gnu",
    "PGO_PROF_GEN_FLAG": "-fprofile-generate",
    "PGO_PROF_USE_FLAG": "",
    "PY_CORE_CFLAGS": "-Wsign-compare -DNDEBUG -g -fwrapv -O2 -Wall -g   -fstack-protector-strong -Wformat"
    " -Werror=format-security  -g -fwrapv -O2    -std=c11 -Wextra -fvisibility=hidden  -I../Include/internal -IObjects"
    " -IInclude -IPython -I. -I../Include -Wdate-time -D_FORTIFY_SOURCE=2 -fPIC -DPy_BUILD_CORE",
    "PY_CORE_LDFLAGS": "  -g -fwrapv -O2   ",
    "Py_DEBUG": 0,
}
"""python3.11 3.11.2-6+deb12u6, amd64."""
STANDALONE_PLAIN: Config = {
    "CONFIG_ARGS": "'--build=x86_64-unknown-linux-gnu' '--host=x86_64-unknown-linux-gnu' '--prefix=/install'"
    " '--with-openssl=/tools/deps' '--with-system-expat' '--with-system-libmpdec' '--without-ensurepip'"
    " '--with-readline=editline' '--enable-shared' '--with-build-python=/tools/host/bin/python3.12'"
    " '--with-dbmliborder=bdb' 'CC=clang' 'CFLAGS=  -fPIC  ' 'LDFLAGS=  -Wl,--exclude-libs,ALL -LModules/_hacl'",
    "MULTIARCH": "x86_64-linux-gnu",
    "PGO_PROF_GEN_FLAG": "-fprofile-instr-generate",
    "PGO_PROF_USE_FLAG": '-fprofile-instr-use="$(shell pwd)/code.profclangd"',
    "PY_CORE_CFLAGS": "-fno-strict-overflow -Wsign-compare -Wunreachable-code -DNDEBUG -g -O3 -Wall  -fPIC   -std=c11"
    " -Wextra -fvisibility=hidden  -I./Include/internal -I. -I./Include  -fPIC   -fPIC -DPy_BUILD_CORE",
    "PY_CORE_LDFLAGS": " -Wl,--exclude-libs,ALL -LModules/_hacl",
    "Py_DEBUG": 0,
}
"""python-build-standalone without optimizations, by Clang: CPython 3.12.10 of google-cloud-cli."""
STANDALONE: Config = {
    **STANDALONE_PLAIN,
    "CONFIG_ARGS": "'--build=x86_64-unknown-linux-gnu' '--host=x86_64-unknown-linux-gnu' '--prefix=/install'"
    " '--with-openssl=/tools/deps' '--with-system-expat' '--with-system-libmpdec' '--without-ensurepip'"
    " '--with-readline=editline' '--enable-shared' '--with-mimalloc' '--enable-optimizations' '--with-lto'"
    " '--with-build-python=/tools/host/bin/python3.13' '--with-dbmliborder=bdb' 'CC=clang' 'CFLAGS= -fPIC '",
}
"""The arguments with which it builds what uv installs: CPython 3.13 for x86_64-unknown-linux-gnu."""


def about(monkeypatch: pytest.MonkeyPatch, config: Config) -> str:
    """What the function says after the name and the version."""
    monkeypatch.setattr(sysconfig, "get_config_vars", lambda: config)
    text = about_interpreter()
    assert text.startswith(f"{NAME}, ")
    return text.removeprefix(f"{NAME}, ")


def with_arguments(config: Config, *arguments: str) -> Config:
    quoted = " ".join(f"'{argument}'" for argument in arguments)
    return {**config, "CONFIG_ARGS": f"{config['CONFIG_ARGS']} {quoted}"}


def with_flags(config: Config, flags: str) -> Config:
    return {**config, "PY_CORE_CFLAGS": f"{config['PY_CORE_CFLAGS']} {flags}"}


def test_build_without_options_has_neither_pgo_nor_lto(monkeypatch: pytest.MonkeyPatch) -> None:
    assert about(monkeypatch, PYENV) == "neither PGO nor LTO"
    assert about(monkeypatch, {**PYENV, "CONFIG_ARGS": ""}) == "neither PGO nor LTO"
    assert about(monkeypatch, STANDALONE_PLAIN) == "neither PGO nor LTO"


def test_official_image_and_python_build_standalone_have_pgo_and_lto(monkeypatch: pytest.MonkeyPatch) -> None:
    assert about(monkeypatch, OFFICIAL_IMAGE) == "PGO and LTO"
    assert about(monkeypatch, STANDALONE) == "PGO and LTO"


def test_debians_package_has_pgo_and_lto_without_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    assert about(monkeypatch, DEBIAN) == "PGO and LTO (Debian packaging)"
    assert about(monkeypatch, {**DEBIAN, "MULTIARCH": "aarch64-linux-gnu"}) == "PGO and LTO (Debian packaging)"


def test_debians_package_is_unknown_on_other_architectures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert about(monkeypatch, {**DEBIAN, "MULTIARCH": "riscv64-linux-gnu"}) == "build flags unknown"


def test_compiler_without_pgo_support_in_configure_is_not_debians(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert about(monkeypatch, {**PYENV, "PGO_PROF_GEN_FLAG": "", "PGO_PROF_USE_FLAG": ""}) == "neither PGO nor LTO"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--enable-optimizations"], "PGO without LTO"),
        (["--enable-optimizations=yes", "--with-lto=thin"], "PGO and LTO"),
        (["--with-lto=full"], "LTO without PGO"),
        (["--enable-optimizations=no", "--with-lto=no"], "neither PGO nor LTO"),
        (["--enable-optimizations", "--with-lto", "--disable-optimizations"], "LTO without PGO"),
        (["--enable-optimizations", "--with-lto", "--without-lto"], "PGO without LTO"),
        (["CFLAGS=--enable-optimizations --with-lto"], "neither PGO nor LTO"),
    ],
)
def test_configure_arguments_are_read_as_by_configure(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    assert about(monkeypatch, with_arguments(PYENV, *arguments)) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (USE_FLAGS, "PGO without LTO"),
        ("-fprofile-instr-use=/build/code.profclangd", "PGO without LTO"),
        ("-flto=auto -ffat-lto-objects", "LTO without PGO"),
        (f"{USE_FLAGS} {LTO_FLAGS}", "PGO and LTO"),
        ("-flto -fno-lto", "neither PGO nor LTO"),
        ("-fprofile-generate", "neither PGO nor LTO"),
    ],
)
def test_flags_count_without_a_configure_argument(monkeypatch: pytest.MonkeyPatch, flags: str, expected: str) -> None:
    assert about(monkeypatch, with_flags(PYENV, flags)) == expected


def test_debug_build_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert about(monkeypatch, {**PYENV, "Py_DEBUG": 1}) == "debug build, neither PGO nor LTO"
    assert about(monkeypatch, {**OFFICIAL_IMAGE, "Py_DEBUG": 1}) == "debug build, PGO and LTO"
    assert about(monkeypatch, {**DEBIAN, "Py_DEBUG": 1}) == "debug build, neither PGO nor LTO"


def test_debug_build_without_variables_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "gettotalrefcount", lambda: 0, raising=False)
    assert about(monkeypatch, {}) == "debug build, build flags unknown"


@pytest.mark.parametrize("missing", ["CONFIG_ARGS", "PY_CORE_CFLAGS"])
def test_missing_variables_leave_the_build_unknown(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    config = {name: value for name, value in PYENV.items() if name != missing}
    assert about(monkeypatch, config) == "build flags unknown"
    assert about(monkeypatch, {**PYENV, missing: None}) == "build flags unknown"


def test_unterminated_quotes_do_not_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert about(monkeypatch, {**PYENV, "CONFIG_ARGS": "--enable-optimizations 'CFLAGS=-g"}) == "PGO without LTO"


@pytest.mark.parametrize("error", [ModuleNotFoundError("_sysconfigdata"), SyntaxError("truncated"), OSError(5, "I/O")])
def test_unreadable_variables_leave_the_build_unknown(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail() -> Config:
        raise error

    monkeypatch.setattr(sysconfig, "get_config_vars", fail)
    assert about_interpreter() == f"{NAME}, build flags unknown"


@pytest.mark.parametrize(
    "config", [OFFICIAL_IMAGE, DEBIAN, STANDALONE, with_arguments(PYENV, "--enable-optimizations")]
)
def test_pgo_build_fulfils_the_requirement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: Config
) -> None:
    text = about(monkeypatch, config)
    assert interpreter.main(REQUIRED) == 0
    assert capsys.readouterr().out == f"{NAME}, {text}\n"


@pytest.mark.parametrize("config", [PYENV, with_arguments(PYENV, "--with-lto"), {**OFFICIAL_IMAGE, "Py_DEBUG": 1}, {}])
def test_other_builds_are_rejected_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: Config
) -> None:
    text = about(monkeypatch, config)
    assert interpreter.main([]) == 0
    capsys.readouterr()
    assert interpreter.main(REQUIRED) == 1
    refusal = capsys.readouterr().err
    assert refusal.startswith(f"{sys.executable} is {NAME}, {text}; a release build with PGO is required.")
    assert refusal.count("\n") == 1


def test_file_runs_without_the_package_as_in_the_dockerfile() -> None:
    path = Path(interpreter.__file__)
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-B", str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout == f"{about_interpreter()}\n"
