"""RocketMQ's libraries and compiled Java sources, both stored in a cache directory.

The cache is ``$DELAYMQ_CACHE`` or ``~/.cache/delaymq``; the name of each entry is a hash of its inputs, so entries
never become stale. Maven runs with the machine's own settings and only if an entry is missing; one run at a time
creates entries, and others wait for it.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from harness import apt, locks
from harness.caching import cache_root
from harness.errors import HarnessError

Profile = Literal["client", "client5", "broker", "broker5"]
"""``client``: client and tools, newest 4.9; ``client5``: those of 5.3; ``broker``: broker and NameServer, newest 4.9 on
Maven Central; ``broker5``: those of 5.3."""
BrokerProfile = Literal["broker", "broker5"]
ClientProfile = Literal["client", "client5"]

JAVA_PATH = Path(__file__).resolve().parent.parent / "compat" / "java"
POM_PATH = JAVA_PATH / "pom.xml"
POM_5_PATH = JAVA_PATH / "pom5.xml"
SOURCES_PATH = JAVA_PATH / "src"
# Driver sources that differ for RocketMQ 5, and the packages that were moved in it:
SOURCES_5_PATH = JAVA_PATH / "src5"
MOVED_IN_5 = {
    "org.apache.rocketmq.common.admin.": "org.apache.rocketmq.remoting.protocol.admin.",
    "org.apache.rocketmq.common.protocol.": "org.apache.rocketmq.remoting.protocol.",
}

MAVEN_TIMEOUT_S = 600
"""A first download takes a minute; a registry that does not respond must not block a build."""
JAVAC_TIMEOUT_S = 120
LOCK_TIMEOUT_S = 1800.0
"""Longer than another run may take: three downloads and two compilations."""

PROGRAMS = ("java", "javac", "mvn")
PACKAGES = ("openjdk-17-jdk-headless", "maven")

ADD_OPENS = tuple(
    option
    for package in ("java.nio", "sun.nio.ch", "java.util", "java.lang", "jdk.internal.ref")
    for option in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
)
"""Java 17 does not open the internals that 4.9 accesses by reflection (direct buffers, mapped files, fastjson)."""


def cache_path() -> Path:
    """Return the directory of expensive artifacts, which may be deleted at any time."""
    return cache_root() / "java"


def libraries(profile: Profile, *, pom_path: Path | None = None) -> Path:
    """Return the folder with all jars of a profile of the pom, downloaded by Maven on the first call.

    Raises HarnessError if Maven is missing or fails.
    """
    pom_path = pom_path or (POM_5_PATH if profile.endswith("5") else POM_PATH)
    entry = cache_path() / hashlib.sha256(pom_path.read_bytes()).hexdigest()[:16] / profile

    def copy_dependencies(target: Path) -> None:
        command = ["mvn", "-q", "-B", "-f", str(pom_path), "-P", profile, "dependency:copy-dependencies"]
        _run([*command, f"-DoutputDirectory={target}"], timeout_s=MAVEN_TIMEOUT_S)

    return _made_once(entry, copy_dependencies)


def compiled(class_path: str, *, sources_path: Path = SOURCES_PATH) -> Path:
    """Return the folder with the classes of all Java sources below ``sources_path``, compiled on the first call.

    Raises HarnessError with the compiler's messages if they do not compile.
    """
    sources = sorted(sources_path.rglob("*.java"))
    if not sources:
        raise HarnessError(f"no Java sources in {sources_path}")
    digest = hashlib.sha256(class_path.encode())
    for source in sources:
        digest.update(f"\0{source.relative_to(sources_path)}\0".encode() + source.read_bytes())

    def compile_all(target: Path) -> None:
        command = ["javac", "--release", "17", "-Xlint:all,-processing,-classfile", "-Werror", "-encoding", "UTF-8"]
        _run([*command, "-cp", class_path, "-d", str(target), *map(str, sources)], timeout_s=JAVAC_TIMEOUT_S)

    return _made_once(cache_path() / "classes" / digest.hexdigest()[:16], compile_all)


def class_path(profile: Profile, *folders: Path) -> str:
    """Return the class path of a profile, preceded by the given directories."""
    return os.pathsep.join([*map(str, folders), f"{libraries(profile)}{os.sep}*"])


def client_class_path(*, sources_path: Path = SOURCES_PATH) -> str:
    """Return the class path of the client, the tools and the compiled sources of a directory (by default the
    driver's).
    """
    return class_path("client", compiled(class_path("client"), sources_path=sources_path))


def driver_class_path(profile: ClientProfile = "client") -> str:
    """Return the class path of client, tools and driver, compiled for the profile's version of RocketMQ.

    Raises HarnessError with the compiler's messages if the driver does not compile.
    """
    if profile == "client":
        return client_class_path()
    with tempfile.TemporaryDirectory(prefix="delaymq-driver-sources-") as name:
        sources_path = Path(name) / "src"
        shutil.copytree(SOURCES_PATH, sources_path)
        for source in sources_path.rglob("*.java"):
            text = source.read_text()
            for before, after in MOVED_IN_5.items():
                text = text.replace(before, after)
            source.write_text(text)
        shutil.copytree(SOURCES_5_PATH, sources_path, dirs_exist_ok=True)
        return class_path(profile, compiled(class_path(profile), sources_path=sources_path))


def command(class_path: str, main_class: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command line of a Java program; ``options`` are those of the JVM (heap, properties)."""
    return ["java", *ADD_OPENS, *options, "-cp", class_path, main_class, *arguments]


def prepare() -> None:
    """Fill the cache with everything that tests need, while Maven can still reach its repository.

    Raises HarnessError, which states how to obtain what is missing.
    """
    install_missing()
    for broker_profile in get_args(BrokerProfile):
        libraries(broker_profile)
    for profile in get_args(ClientProfile):
        driver_class_path(profile)


def install_missing() -> None:
    """Install a JDK and Maven if that requires no permission: as root on Debian. Raises HarnessError otherwise."""
    missing = missing_programs()
    if not missing:
        return
    if not apt.possible():
        raise HarnessError(
            f"{', '.join(missing)} cannot be found: install a JDK 17 and Maven (apt-get install {' '.join(PACKAGES)})"
        )
    apt.install(lambda: PACKAGES if missing_programs() else (), error=HarnessError)


def missing_programs() -> list[str]:
    return [program for program in PROGRAMS if shutil.which(program) is None]


def _made_once(entry: Path, make: Callable[[Path], None]) -> Path:
    """Return ``entry``, created by ``make`` in a temporary folder and renamed, so that no partial entry can remain.

    One lock protects all entries: two concurrent Mavens would write to the same repository in the home folder.
    """
    if entry.is_dir():
        return entry
    what = "another run that prepares Java libraries"
    lock = cache_path() / ".lock"
    with locks.locked(lock, locks.say, what=what, timeout_s=LOCK_TIMEOUT_S, error=HarnessError):
        if entry.is_dir():
            return entry
        entry.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".draft-{entry.name}-"
        for left in entry.parent.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix=prefix, dir=entry.parent))
        try:
            make(draft)
            try:
                draft.rename(entry)
            except OSError:  # a run of an earlier version, which takes no lock, was faster
                if not entry.is_dir():
                    raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return entry


def _run(arguments: Sequence[str], *, timeout_s: float) -> None:
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, check=False)
    except FileNotFoundError as e:
        raise HarnessError(f"{arguments[0]} is not installed; it is needed to run RocketMQ's own programs") from e
    except subprocess.TimeoutExpired as e:
        raise HarnessError(f"{arguments[0]} took longer than {timeout_s:.0f} s") from e
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()[-4000:]
        raise HarnessError(f"{arguments[0]} failed with exit code {done.returncode}:\n{output}")
