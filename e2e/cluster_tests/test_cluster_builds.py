"""Concurrent builds, and builds after an interrupted one."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cluster import artifacts, build, commands, dockerd, images, machine, requirements
from cluster.artifacts import Artifact
from cluster.commands import Log, kill_group
from cluster.daemon import Daemon
from cluster.errors import ClusterError
from cluster.paths import artifacts_path, go_path
from harness import java, locks

LIMIT_S = 30

BUILD_OF_TWO = """\
import signal
import sys
from pathlib import Path

from cluster import __main__, build, commands
from cluster.artifacts import Artifact
from cluster.paths import go_path

# Below nohup, or in the background of a shell, these are ignored, and children inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

child = sys.argv[1]

def first(draft, log):
    (go_path() / "build").mkdir(parents=True)

def second(draft, log):
    script = f"sleep 600 & echo $! > {child}.new; mv {child}.new {child}; wait"
    commands.run(["sh", "-c", script, "compiler", draft / "program"], timeout_s=600)

build.ALL = {name: Artifact(name, (), make) for name, make in (("first", first), ("second", second))}
build.API_SERVER = tuple(build.ALL.values())
sys.argv[1:] = ["build", *build.ALL]
sys.exit(__main__.main())
"""
"""A build of two parts in its own process; the program that builds the second one runs until it is stopped."""


def make_nothing(draft: Path, log: Log) -> None:
    pass


def quiet(line: str) -> None:
    pass


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DELAYMQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(requirements, "install", lambda programs, log: None)
    return tmp_path / "cache"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Provide a function that replaces the parts to build."""

    def put(**makes: Callable[[Path, Log], None]) -> None:
        monkeypatch.setattr(build, "ALL", {name: Artifact(name, (), make) for name, make in makes.items()})

    return put


class CutOff:
    """A build in its own process, stopped in the middle of its second part."""

    def __init__(self, folder: Path) -> None:
        child = folder / "child"
        self.drafts = artifacts_path()
        environment = os.environ | {"PYTHONPATH": str(Path(build.__file__).parent.parent)}
        command = [sys.executable, "-c", BUILD_OF_TWO, str(child)]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + LIMIT_S
        while not child.exists():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.compiler = int(child.read_text())

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode

    def close(self) -> None:
        """Stop everything, whatever the result of the test."""
        self.process.kill()
        self.process.communicate()
        for pid in machine.processes_with(str(self.drafts)):
            kill_group(pid)


@pytest.fixture
def cut_off(tmp_path: Path) -> Iterator[CutOff]:
    build = CutOff(tmp_path)
    yield build
    build.close()


def ended(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while machine.running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not machine.running(pid)


def drafts() -> list[str]:
    return [path.name for path in artifacts_path().glob(".draft-*")]


# Concurrent builds.


def test_debian_roots_are_built_concurrently_with_other_parts(
    parts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def meet(draft: Path, log: Log) -> None:
        both.wait(LIMIT_S)

    parts(program=meet, root=meet)
    monkeypatch.setattr(build, "DEBIAN_ROOTS", (build.ALL["root"],))
    build.build(["program", "root"], log=quiet)
    assert build.ALL["program"].made
    assert build.ALL["root"].made


def test_first_failed_job_stops_programs_of_other_jobs_and_is_raised(tmp_path: Path) -> None:
    started, cleaned, later = (tmp_path / name for name in ("started", "cleaned", "later"))

    def fails() -> None:
        deadline = time.monotonic() + LIMIT_S
        while not started.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        raise ClusterError("no space left")

    def goes_on() -> None:
        with suppress(ClusterError):
            commands.run(["sh", "-c", f"touch {started}; exec sleep 600"], timeout_s=600)
        # As when a draft's file systems are unmounted.
        commands.run(["touch", str(cleaned)], timeout_s=LIMIT_S, cleans_up=True)
        commands.run(["sh", "-c", f"sleep 600; touch {later}"], timeout_s=600)

    with pytest.raises(ClusterError, match="no space left"):
        commands.beside(fails, goes_on)
    assert cleaned.exists()
    assert not later.exists()
    assert commands.run(["echo", "again"], timeout_s=LIMIT_S).stdout == "again\n"


def test_shared_go_caches_are_kept_until_the_last_build_ends(parts: Callable[..., None]) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def make(draft: Path, log: Log) -> None:
        entered.set()
        assert go_on.wait(LIMIT_S)

    parts(slow=make, quick=make_nothing)
    (go_path() / "build").mkdir(parents=True)
    slow = threading.Thread(target=lambda: build.build(["slow"], log=quiet))
    slow.start()
    assert entered.wait(LIMIT_S)
    said: list[str] = []
    build.build(["quick"], log=said.append)
    assert (go_path() / "build").exists()
    assert said[-1] == "another run is building: Go's caches are kept until it ends"
    go_on.set()
    slow.join(LIMIT_S)
    assert not go_path().exists()


def test_nothing_is_removed_while_another_run_builds(parts: Callable[..., None]) -> None:
    parts()
    other = Artifact("of-another-checkout", (), make_nothing)
    other.obtain(quiet)
    with artifacts.building(quiet):
        assert not build.tidy(quiet, unused_after_s=0)
        with pytest.raises(ClusterError, match="another run is building"):
            build.clean_all(quiet)
        assert other.made
    assert build.tidy(quiet, unused_after_s=0)
    assert not other.made
    build.clean_all(quiet)
    assert not artifacts_path().exists()


def test_build_waits_while_another_run_removes_shared_caches() -> None:
    go_on = threading.Event()
    removing = threading.Event()
    said: list[str] = []

    def remove() -> None:
        with artifacts.nobody_builds() as alone:
            assert alone
            removing.set()
            assert go_on.wait(LIMIT_S)

    def log(line: str) -> None:
        said.append(line)
        go_on.set()

    other = threading.Thread(target=remove)
    other.start()
    assert removing.wait(LIMIT_S)
    Artifact("part", (), make_nothing).obtain(log)
    other.join(LIMIT_S)
    assert said[0] == "waiting for another run that removes shared files of builds"


def test_finished_part_in_cache_of_another_user_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Artifact("part", (), make_nothing)
    part.obtain(quiet)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(os, "utime", refuse)
    assert part.obtain(quiet).is_dir()


def test_docker_started_by_root_does_not_stop_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's folder is not readable: not even the existence of a socket or a state file can be determined."""

    def refuse(path: Any, **options: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse)
        assert not dockerd._answers()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        assert machine.recall() is None


def test_java_libraries_being_downloaded_by_another_run_are_downloaded_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    entered, go_on = threading.Event(), threading.Event()
    said: list[str] = []

    def make(draft: Path) -> None:
        made.append(draft)
        entered.set()
        assert go_on.wait(LIMIT_S)

    def say(line: str) -> None:
        said.append(line)
        go_on.set()

    monkeypatch.setattr(locks, "say", say)
    entry = java.cache_path() / "pom" / "client"
    first = threading.Thread(target=lambda: java._made_once(entry, make))
    first.start()
    assert entered.wait(LIMIT_S)
    assert java._made_once(entry, make).is_dir()
    first.join(LIMIT_S)
    assert len(made) == 1
    assert said == ["waiting for another run that prepares Java libraries"]


def said_by_the_second(call: Callable[[Log], object], entered: threading.Event, go_on: threading.Event) -> list[str]:
    """Return the log of the second of two concurrent calls; its first line releases the first call (``entered``)."""
    first = threading.Thread(target=lambda: call(quiet))
    first.start()
    assert entered.wait(LIMIT_S)
    said: list[str] = []

    def log(line: str) -> None:
        said.append(line)
        go_on.set()

    call(log)
    first.join(LIMIT_S)
    return said


def test_image_being_loaded_into_docker_by_another_run_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Artifact("node-image", (), make_nothing)
    part.obtain(quiet)
    loaded: list[str] = []
    entered, go_on = threading.Event(), threading.Event()

    def load(self: Daemon, archive: Path, tag: str, log: Log) -> None:
        entered.set()
        assert go_on.wait(LIMIT_S)
        loaded.append(tag)

    monkeypatch.setattr(Daemon, "_load", load)
    monkeypatch.setattr(Daemon, "image_key", lambda self, tag: part.key if loaded else None)
    ours = Daemon({}, own=True)
    said = said_by_the_second(lambda log: ours.load(part, "delaymq/node:1", log), entered, go_on)
    assert loaded == ["delaymq/node:1"]
    assert said == ["waiting for another run that loads delaymq/node:1 into Docker"]


def test_images_are_built_by_one_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    running: list[int] = []

    def build_all(daemon: Daemon, log: Log) -> dict[str, str]:
        running.append(1)
        assert sum(running) == 1
        entered.set()
        assert go_on.wait(LIMIT_S)
        running.append(-1)
        return {}

    monkeypatch.setattr(images, "_build_all", build_all)
    ours = Daemon({}, own=True)
    said = said_by_the_second(lambda log: images.build_images(ours, log=log), entered, go_on)
    assert said == ["waiting for another run that builds images"]


def test_image_held_by_another_run_is_not_removed_with_outdated_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    removed: list[str] = []

    def docker(self: Daemon, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        if words[0] == "rmi":
            removed.extend(words[1:])
        tags = "delaymq/broker:e2e-old\ndelaymq/broker:e2e-other\ndelaymq/broker:e2e-ours\n"
        return subprocess.CompletedProcess(words, 0, tags, "")

    monkeypatch.setattr(Daemon, "docker", docker)
    monkeypatch.setattr(images, "_held", [])
    images.hold("delaymq/broker:e2e-other")
    images._remove_former(Daemon({}, own=True), "delaymq/broker:e2e-ours")
    assert removed == ["delaymq/broker:e2e-old"]
    images._held.pop().close()
    images._remove_former(Daemon({}, own=True), "delaymq/broker:e2e-ours")
    assert removed[1:] == ["delaymq/broker:e2e-old", "delaymq/broker:e2e-other"]


def test_docker_installation_does_not_hold_the_lock_for_start_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InstalledError(Exception):
        pass

    def install(programs: dict[str, str], log: Log) -> None:
        lock = locks.take(dockerd.LOCK_PATH)
        assert lock is not None, "held during the installation"
        lock.close()
        raise InstalledError

    monkeypatch.setattr(dockerd, "LOCK_PATH", tmp_path / "docker.lock")
    monkeypatch.setattr(dockerd, "ordinary", lambda: None)
    monkeypatch.setattr(dockerd, "why_not", lambda: None)
    monkeypatch.setattr(dockerd, "_answers", lambda: False)
    monkeypatch.setattr(dockerd, "_remove_remains", quiet)
    monkeypatch.setattr(dockerd, "_start", lambda log: pytest.fail("Docker would be started"))
    monkeypatch.setattr(requirements, "install", install)
    with pytest.raises(InstalledError):
        dockerd.up(quiet)


# Builds after an interrupted one.


def test_build_after_a_kill_keeps_finished_parts_and_go_caches_and_stops_old_programs(
    cut_off: CutOff, parts: Callable[..., None]
) -> None:
    cut_off.end(signal.SIGKILL)
    assert machine.running(cut_off.compiler)

    def first(draft: Path, log: Log) -> None:
        pytest.fail("this part was finished")

    def second(draft: Path, log: Log) -> None:
        assert ended(cut_off.compiler)
        assert (go_path() / "build").exists()
        assert drafts() == [draft.name]

    parts(first=first, second=second)
    said: list[str] = []
    build.build(["first", "second"], log=said.append)
    assert said[0] == "second: building"
    assert not go_path().exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_build_stops_its_programs_and_keeps_finished_parts(cut_off: CutOff, number: signal.Signals) -> None:
    assert cut_off.end(number) == 128 + number
    assert ended(cut_off.compiler)
    assert not drafts()
    assert Artifact("first", (), make_nothing).made
    assert (go_path() / "build").exists()


def test_drafts_of_killed_builds_are_removed_and_those_of_running_builds_are_kept(
    parts: Callable[..., None],
) -> None:
    for name in ("killed", "running"):
        (artifacts_path() / f".draft-{name}-12345678").mkdir(parents=True)
    seen: list[str] = []
    parts(part=lambda draft, log: seen.extend(drafts()))
    with artifacts.locked(artifacts.lock_path("running"), quiet, what="nobody"):
        build.build(["part"], log=quiet)
    assert ".draft-running-12345678" in seen
    assert ".draft-killed-12345678" not in seen


def test_full_disk_is_reported_and_next_build_resumes(parts: Callable[..., None]) -> None:
    full = [True]

    def make(draft: Path, log: Log) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device", str(draft))

    parts(part=make)
    with pytest.raises(ClusterError, match=r"part cannot be built.*No space left on device"):
        build.build(["part"], log=quiet)
    full.clear()
    build.build(["part"], log=quiet)


def test_mounts_of_a_killed_build_are_unmounted_before_its_draft_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = artifacts_path() / ".draft-part-killed" / ".scratch-1" / "root" / "proc"
    (proc / "sys").mkdir(parents=True)
    mounts = tmp_path / "mounts"
    mounts.write_text(f"proc /proc proc rw 0 0\nproc {proc} proc rw 0 0\nsysfs {proc}/sys sysfs rw 0 0\n")
    unmounted: list[str] = []

    def run(command: list[str], **options: Any) -> None:
        assert proc.is_dir(), "the machine's own files would be removed"
        unmounted.append(command[-1])
        mounts.write_text("".join(line for line in mounts.open() if command[-1] not in line.split()))

    monkeypatch.setattr(machine, "MOUNTS_PATH", mounts)
    monkeypatch.setattr(machine, "run", run)
    Artifact("part", (), make_nothing).obtain(quiet)
    assert unmounted == [f"{proc}/sys", str(proc)]
    assert not drafts()


def test_draft_with_a_mount_that_cannot_be_unmounted_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = artifacts_path() / ".draft-part-killed" / "proc"
    proc.mkdir(parents=True)
    mounts = tmp_path / "mounts"
    mounts.write_text(f"proc {proc} proc rw 0 0\n")
    monkeypatch.setattr(machine, "MOUNTS_PATH", mounts)
    monkeypatch.setattr(machine, "run", lambda command, **options: None)
    with pytest.raises(ClusterError, match=r"proc cannot be unmounted"):
        Artifact("part", (), make_nothing).obtain(quiet)
    assert proc.exists()


def test_interrupted_removal_leaves_no_part_that_looks_complete(
    parts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts()
    part = Artifact("part", (), make_nothing)
    part.obtain(quiet)

    def cut_off(path: Path, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", cut_off)
        with pytest.raises(KeyboardInterrupt):
            artifacts.remove_unused(set(), unused_after_s=0)
    assert not part.made
    build.tidy(quiet)
    assert not list(artifacts_path().glob(".removed-*"))


def test_draft_of_killed_java_download_is_removed_by_next_download() -> None:
    entry = java.cache_path() / "pom" / "client"
    left = entry.with_name(".draft-client-12345678")
    left.mkdir(parents=True)
    java._made_once(entry, lambda draft: None)
    assert [path.name for path in entry.parent.iterdir()] == ["client"]
