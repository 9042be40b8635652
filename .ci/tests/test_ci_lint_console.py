"""Linter of the console's JavaScript: pinned download, caching, and behaviour where it cannot run."""

import json
import os
from pathlib import Path

import lint_console
import pytest
from lint_console import PINS_PATH, lint, main
from linters import ROOT, UnavailableError, run

NPM = """#!/bin/sh
echo fetched >> "$FETCHES"
[ -z "$FAILS" ] || { echo "npm error code ENOTFOUND"; exit 1; }
cmp -s package-lock.json "$PINS/package-lock.json" || exit 9
mkdir -p node_modules/.bin
printf '#!/bin/sh\\necho "biome $*"; exit ${FINDINGS:-0}\\n' > node_modules/.bin/biome
chmod 755 node_modules/.bin/biome
"""
"""Replacement for npm without network access: the linter that it "installs" reports its arguments."""


@pytest.fixture
def fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with a line for each run of npm; node and npm are the only programs besides those of the system."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("npm", NPM), ("node", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("FETCHES", str(tmp_path / "fetches"))
    monkeypatch.setenv("PINS", str(PINS_PATH))
    monkeypatch.setenv("DELAYMQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path / "fetches"


def count_of(fetches: Path) -> int:
    return len(fetches.read_text().splitlines())


def test_linter_is_downloaded_once_and_treats_warnings_as_errors(
    fetches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [main(), main()] == [0, 0]
    assert capsys.readouterr().out == "biome lint --error-on-warnings\n" * 2
    assert count_of(fetches) == 1


def test_findings_fail_the_check(fetches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINDINGS", "3")
    assert main() == 3


def test_check_without_node_is_skipped_with_the_reason(
    fetches: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/no/such/folder")
    assert main() == 0
    assert capsys.readouterr().out == (
        "Skipped linting the console's JavaScript: node is not on the PATH; install Node.js 20 or newer\n"
    )


def test_failed_download_is_skipped_leaves_no_files_and_is_retried(
    fetches: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAILS", "1")
    assert main() == 0
    assert "npm cannot fetch it (exit code 1):\n  npm error code ENOTFOUND\n" in capsys.readouterr().out
    assert list((tmp_path / "cache/biome").iterdir()) == []
    monkeypatch.delenv("FAILS")
    assert main() == 0
    assert count_of(fetches) == 2


@pytest.mark.parametrize(("variable", "value"), [("PATH", "/no/such/folder"), ("FAILS", "1")])
def test_check_that_cannot_run_fails_in_ci(
    fetches: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv(variable, value)
    assert main() == 1
    assert capsys.readouterr().err.startswith("The console's JavaScript cannot be linted: ")


def test_result_of_a_faster_concurrent_run_is_used(
    fetches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While this run fetches, another one puts its own result in place."""
    fetch = lint_console.fetch

    def slow_fetch(folder: Path) -> None:
        monkeypatch.setattr(lint_console, "fetch", fetch)
        lint()
        fetch(folder)

    monkeypatch.setattr(lint_console, "fetch", slow_fetch)
    assert lint()[0] == 0
    assert len(list((tmp_path / "cache/biome").iterdir())) == 1


def test_hanging_command_is_killed_with_its_children(tmp_path: Path) -> None:
    """A pipe ends when the last process that can write to it has ended."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(UnavailableError, match=r"sh did not end within 0\.3 s"):
        run(["/bin/sh", "-c", "exec 3> pipe; sleep 1000 & wait"], tmp_path, 0.3)
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_unwritable_cache_is_named(
    fetches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DELAYMQ_CACHE", str(tmp_path / "file"))
    assert main() == 0
    assert f"{tmp_path}/file/biome cannot be written: Not a directory\n" in capsys.readouterr().out


def test_rules_are_written_for_the_pinned_version() -> None:
    version = json.loads((PINS_PATH / "package.json").read_text())["devDependencies"]["@biomejs/biome"]
    lock = json.loads((PINS_PATH / "package-lock.json").read_text())["packages"]
    assert lock["node_modules/@biomejs/biome"]["version"] == version
    assert f"/{version}/" in json.loads((ROOT / "biome.json").read_text())["$schema"]


def test_lock_file_has_a_hash_per_package_and_the_usual_platforms() -> None:
    packages = json.loads((PINS_PATH / "package-lock.json").read_text())["packages"]
    fetched = {name.rpartition("/")[2]: entry for name, entry in packages.items() if name}
    assert {"cli-darwin-arm64", "cli-darwin-x64", "cli-linux-arm64", "cli-linux-x64"} <= set(fetched)
    assert all(entry["integrity"].startswith("sha512-") for entry in fetched.values())
