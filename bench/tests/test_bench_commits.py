"""Identification of the measured commit, and errors about commits that cannot be compared."""

import subprocess
from pathlib import Path

import pytest
from harness.errors import HarnessError
from reporting import commits

OWN = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *OWN, *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose second commit has the files that an installation needs."""
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "empty")
    for name in (commits.PINS, f"{commits.PACKAGE}/pyproject.toml", "broker_image/src/delaymq/__init__.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "broker: add files")
    return tmp_path


def package(checkout: Path) -> Path:
    return checkout / "broker_image/src/delaymq"


def test_name_of_a_commit_is_resolved_to_its_hash(checkout: Path) -> None:
    found = commits.resolve("HEAD", checkout)
    assert len(found) == 40
    assert commits.resolve(found[:12], checkout) == found
    assert commits.subject_line(found, checkout) == f"{found[:12]} broker: add files"


@pytest.mark.parametrize("name", ["nope", "", "--all", "HEAD:requirements/run.txt", "HEAD~5", "a b"])
def test_name_that_is_not_a_commit_is_an_error(checkout: Path, name: str) -> None:
    with pytest.raises(HarnessError, match=r"is not a commit of .*: use a hash, a branch or a tag"):
        commits.resolve(name, checkout)


def test_commit_without_a_broker_is_an_error(checkout: Path) -> None:
    with pytest.raises(HarnessError, match=r"commit HEAD~1 has no requirements/run.txt: choose a newer commit"):
        commits.resolve("HEAD~1", checkout)


def test_state_names_the_commit_and_changed_or_new_files(checkout: Path) -> None:
    clean = commits.state(package(checkout))
    assert clean == {"hash": commits.resolve("HEAD", checkout), "is_dirty": False}
    (checkout / "new.py").touch()
    assert commits.state(package(checkout)) == {**clean, "is_dirty": True}


def test_recorded_history_does_not_make_a_checkout_dirty(checkout: Path) -> None:
    page = checkout / commits.HISTORY_PATH.relative_to(commits.ROOT)
    page.parent.mkdir(parents=True)
    page.touch()
    found = commits.state(package(checkout))
    assert found is not None
    assert found["is_dirty"] is False


def test_package_that_is_installed_below_a_checkout_has_no_commit(checkout: Path) -> None:
    installed = checkout / "build/venv/lib/delaymq"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    assert commits.state(installed) is None
    assert commits.state(checkout / "missing") is None


def test_checkout_that_changes_during_a_run_is_dirty() -> None:
    clean: commits.State = {"hash": "a", "is_dirty": False}
    other: commits.State = {"hash": "b", "is_dirty": False}
    assert commits.during({"ours": clean}, {"ours": clean}) == {"ours": clean}
    assert commits.during({"ours": clean}, {"ours": other}) == {"ours": {"hash": "a", "is_dirty": True}}
    assert commits.during({"ours": None}, {"ours": clean}) == {"ours": None}


def test_failed_step_of_an_installation_is_an_error(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="/bin/false cannot create an environment: exit code 1"):
        commits.install(commits.resolve("HEAD", checkout), tmp_path / "environment", "/bin/false", checkout)
