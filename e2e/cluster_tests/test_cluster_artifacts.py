import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import artifacts
from cluster.artifacts import Artifact
from cluster.commands import Log
from cluster.errors import ClusterError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DELAYMQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cluster" / "artifacts"


def make_file(draft: Path, log: Log) -> None:
    (draft / "made").write_text("whole")


def test_artifact_is_built_once_and_build_time_is_logged(cache: Path) -> None:
    made: list[Path] = []
    said: list[str] = []

    def make(draft: Path, log: Log) -> None:
        made.append(draft)
        make_file(draft, log)

    artifact = Artifact("part", ("1",), make)
    assert (artifact.obtain(said.append) / "made").read_text() == "whole"
    artifact.obtain(said.append)
    assert len(made) == 1
    assert [line.split(" in ")[0] for line in said] == ["part: building", "part: built"]


def test_failed_build_leaves_no_draft_and_can_be_repeated(cache: Path) -> None:
    attempts: list[Path] = []

    def make(draft: Path, log: Log) -> None:
        attempts.append(draft)
        make_file(draft, log)
        if len(attempts) == 1:
            raise ClusterError("the mirror does not answer")

    artifact = Artifact("part", (), make)
    with pytest.raises(ClusterError, match="mirror"):
        artifact.obtain(lambda _: None)
    assert not artifact.made
    assert not list(cache.glob(".draft-*"))
    assert artifact.obtain(lambda _: None).is_dir()


def test_draft_of_killed_build_is_removed_by_next_build(cache: Path) -> None:
    left = cache / ".draft-part-killed"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    other = cache / ".draft-particular-running"
    other.mkdir()
    Artifact("part", (), make_file).obtain(lambda _: None)
    assert not left.exists()
    assert other.exists(), "a build of another artifact may be running"


def test_changed_input_changes_keys_of_artifact_and_its_dependents(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()

    def keys() -> list[str]:
        base = Artifact("base", (source,), make_file)
        return [
            item.key for item in (base, Artifact("image", (base,), make_file), Artifact("image", ("x",), make_file))
        ]

    (source / "main.go").write_text("1")
    before = keys()
    (source / "main.go").write_text("2")
    assert [one == other for one, other in zip(before, keys(), strict=True)] == [False, False, True]


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "b").write_text("a new file"),
        lambda folder: (folder / "a").rename(folder / "c"),
        lambda folder: (folder / "a").chmod(0o755),
        lambda folder: (folder / "link").symlink_to("a"),
    ],
    ids=["added", "renamed", "executable", "linked"],
)
def test_folder_digest_changes_with_every_kind_of_change(tmp_path: Path, change: Callable[[Path], object]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("1")
    (folder / "a").chmod(0o644)
    before = artifacts.content_digest(folder)
    assert artifacts.content_digest(folder) == before
    change(folder)
    assert artifacts.content_digest(folder) != before


def test_concurrent_requests_build_an_artifact_once_and_the_second_logs_its_wait(cache: Path) -> None:
    made: list[Path] = []
    entered, go_on = threading.Event(), threading.Event()

    def make(draft: Path, log: Log) -> None:
        made.append(draft)
        entered.set()
        assert go_on.wait(10)
        make_file(draft, log)

    said: list[str] = []

    def second_log(line: str) -> None:
        said.append(line)
        go_on.set()

    first = threading.Thread(target=lambda: Artifact("part", (), make).obtain(lambda _: None))
    first.start()
    assert entered.wait(10)
    path = Artifact("part", (), make).obtain(second_log)
    first.join(10)
    assert len(made) == 1
    assert (path / "made").exists()
    assert said == ["waiting for another run that builds part"]


def test_timeout_of_a_lock_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        artifacts.locked(path, lambda _: None, what="another run"),
        pytest.raises(ClusterError, match="another run"),
        artifacts.locked(path, lambda _: None, what="another run", timeout_s=0.3),
    ):
        pass


def test_only_artifacts_both_long_unused_and_unwanted_are_removed(cache: Path) -> None:
    old = Artifact("kube", ("old",), make_file).obtain(lambda _: None)
    recent = Artifact("kube", ("recent",), make_file).obtain(lambda _: None)
    wanted = Artifact("kube", ("wanted",), make_file).obtain(lambda _: None)
    long_ago = time.time() - artifacts.UNUSED_AFTER_S - 60
    for path in (old, wanted):
        os.utime(path, (long_ago, long_ago))
    assert artifacts.remove_unused({wanted.name}) == [old.name]
    assert sorted(item.name for item in cache.glob("kube-*")) == sorted([recent.name, wanted.name])
