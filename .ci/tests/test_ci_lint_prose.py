"""Prose linter Vale: pinned build, caching, findings, and behaviour where it cannot run."""

from pathlib import Path

import lint_prose
import pytest
from lint_prose import PINS_PATH, VALE, main
from linters import ROOT, UnavailableError, run

GO = """#!/bin/sh
[ "$1" = env ] && { echo "${GO:-go1.99.1}"; exit; }
echo built >> "$BUILDS"
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\nshift 2; printf "%%s\\\\n" "$@"; exit ${FINDINGS:-0}\\n' > "$2"
chmod 755 "$2"
"""
"""Replacement for Go that compiles nothing: the linter that it "builds" lists the files that it gets."""


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with a line for each build; Go is the only program besides those of the system."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/go").write_text(GO)
    (tmp_path / "bin/go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("BUILDS", str(tmp_path / "builds"))
    monkeypatch.setenv("DELAYMQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path / "builds"


def test_linter_is_built_once_and_checks_the_files_in_git(builds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [main(["--build"]), main([])] == [0, 0]
    names = capsys.readouterr().out.splitlines()[1:]
    assert {"README.md", ".ci/lint_prose.py", "crds/broker.yaml"} <= set(names)
    assert all((ROOT / name).is_file() for name in names)
    assert builds.read_text() == "built\n"


def test_findings_fail_the_check(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINDINGS", "1")
    assert main([]) == 1


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [("PATH", "/usr/bin:/bin", "Go cannot be found"), ("GO", "go1.20.3", "go1.20.3 is too old")],
)
def test_check_that_cannot_run_is_skipped_locally_and_fails_in_ci(
    builds: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    reason: str,
) -> None:
    monkeypatch.setenv(variable, value)
    assert main([]) == 0
    assert capsys.readouterr().out.startswith(f"Skipped linting prose: {reason}: install Go 1.")
    monkeypatch.setenv("CI", "true")
    assert main([]) == 1
    assert capsys.readouterr().err.startswith(f"Prose cannot be linted: {reason}: install Go 1.")


def test_go_builds_the_version_pinned_in_go_mod() -> None:
    assert f"tool {VALE}\n" in (PINS_PATH / "go.mod").read_text()
    assert f"{VALE.removesuffix('/cmd/vale')} v" in (PINS_PATH / "go.sum").read_text()


@pytest.mark.parametrize("text", ["Requests were left" + " out.", "It goes on" + " with the next file."])
@pytest.mark.parametrize(
    ("name", "form"),
    [("page.md", "# Page\n\n{}\n"), ("code.py", '"""{}"""\n'), ("code.py", "# {}\n"), ("code.py", 'print(f"{}")\n')],
)
def test_phrases_are_found_in_pages_docstrings_comments_and_messages(
    tmp_path: Path, name: str, form: str, text: str
) -> None:
    """Uses the real linter if it is available."""
    try:
        vale = lint_prose.program()
    except UnavailableError as error:
        pytest.skip(str(error))
    (tmp_path / name).write_text(form.format(text))
    command: list[str | Path] = [vale, "--no-global", "--config", ROOT / ".vale.ini", "--output=line", tmp_path / name]
    exit_code, output = run(command, tmp_path, 60)
    assert exit_code == 1, output
    assert "DelayMQ.Phrases" in output
