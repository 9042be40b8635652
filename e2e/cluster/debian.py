"""Small Debian root file systems created with debootstrap, and images containing one: no image registry is required.

They contain the versions that the suite had when they were built, without later security updates: for tests only.
"""

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from cluster import archives
from cluster.artifacts import Artifact, scratch_folder
from cluster.commands import Log, run
from cluster.errors import ClusterError

SUITE = "bookworm"
"""systemd 252 is the last version that accepts control groups v1 by default; python3 is 3.11."""
MIRROR = "http://deb.debian.org/debian"
DEBOOTSTRAP_TIMEOUT_S = 1800
UNPACK_TIMEOUT_S = 300
RECIPE = 1
"""Increment if this file builds something else from the same packages."""

NODE_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "containerd", "runc", "iptables", "nftables", "iproute2", "conntrack", "socat",
    "ethtool", "ebtables", "kmod", "mount", "procps", "util-linux", "hostname", "ca-certificates",
    "containernetworking-plugins", "busybox-static",
)  # fmt: skip
PYTHON_PACKAGES = ("python3", "ca-certificates", "tzdata")
PYTHON_BUILD_PACKAGES = (*PYTHON_PACKAGES, "python3-pip", "python3-venv", "cargo-web", "libc6-dev")
"""With the C library's headers, since debootstrap does not resolve the virtual package libc-dev."""
JAVA_PACKAGES = ("openjdk-17-jre-headless", "ca-certificates", "tzdata")
SPARK_PACKAGES = (*PYTHON_PACKAGES, "openjdk-17-jre-headless")

USELESS = (
    "var/cache/apt/archives/*.deb", "var/cache/apt/*.bin", "var/lib/apt/lists/*", "var/log/*.log", "var/log/apt/*",
    "var/cache/debconf/*-old", "var/cache/ldconfig/aux-cache",
    "usr/share/doc/*", "usr/share/man/*", "usr/share/info/*", "usr/share/locale/*", "usr/share/lintian/*",
    "usr/share/gcc", "usr/share/common-licenses", "usr/lib/python3*/test", "usr/lib/python3*/idlelib",
)  # fmt: skip
"""Folders that no program reads: a third of a small root file system."""


def make_root(root: Path, packages: Sequence[str]) -> None:
    """Build a minimal Debian with these packages in the folder ``root``; requires root and a Debian mirror."""
    include = ",".join(packages)
    command = ["debootstrap", "--variant=minbase", f"--include={include}", SUITE, str(root), MIRROR]
    run(command, timeout_s=DEBOOTSTRAP_TIMEOUT_S)
    for pattern in USELESS:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _node_root(draft: Path, log: Log) -> None:
    with _scratch(draft) as scratch:
        root, packed = scratch / "root", draft / "root.tar.zst"
        make_root(root, NODE_PACKAGES)
        pack = ["tar", "--numeric-owner", "--xattrs", "-C", str(root), "--zstd", "-cf", str(packed), "."]
        run(pack, timeout_s=UNPACK_TIMEOUT_S)


def unpack_node_root(target: Path, log: Log) -> None:
    """Unpack a node's Debian into an empty folder, building it first if it is missing."""
    packed = NODE_ROOT.obtain(log) / "root.tar.zst"
    run(["tar", "--numeric-owner", "--xattrs", "-C", target, "--zstd", "-xf", packed], timeout_s=UNPACK_TIMEOUT_S)


def _image(
    name: str, packages: Sequence[str], environment: Sequence[str] = (), command: Sequence[str] = ()
) -> Artifact:
    """Return an artifact whose folder contains ``image.tar.zst`` with the image ``delaymq/<name>:bookworm``."""

    def make(draft: Path, log: Log) -> None:
        with _scratch(draft) as scratch:
            root = scratch / "root"
            make_root(root, packages)
            # Processes and devices are the container's own, whatever debootstrap needed.
            for folder in ("proc", "sys", "dev"):
                if any((root / folder).iterdir()):
                    shutil.rmtree(root / folder)
                    (root / folder).mkdir()
            image = archives.Image(
                name=f"delaymq/{name}:{SUITE}",
                layers=("root",),
                command=command,
                environment=environment,
                labels={LABEL: artifact.key},
            )
            archives.write_compressed(draft / "image.tar.zst", {"root": root}, [image], owners=True)

    artifact = Artifact(name, (f"{RECIPE} {SUITE}", *packages, *environment, *command, *USELESS), make)
    return artifact


def _scratch(draft: Path) -> AbstractContextManager[Path]:
    if shutil.which("debootstrap") is None:
        raise ClusterError("debootstrap cannot be found: apt-get install debootstrap")
    return scratch_folder(draft)


LABEL = "io.delaymq.e2e.key"
"""Label of every image built here: the key of its artifact."""

NODE_ROOT = Artifact("node-root", (f"{RECIPE} {SUITE}", *NODE_PACKAGES, *USELESS), _node_root)
PYTHON_RUNTIME = _image("python-runtime", PYTHON_PACKAGES, ("PYTHONUNBUFFERED=1", "LANG=C.UTF-8"), ("python3",))
PYTHON_BUILD = _image("python-build", PYTHON_BUILD_PACKAGES, ("LANG=C.UTF-8",), ("python3",))
JAVA_RUNTIME = _image("java-runtime", JAVA_PACKAGES, ("LANG=C.UTF-8",), ("java",))
SPARK_RUNTIME = _image("spark-runtime", SPARK_PACKAGES, ("PYTHONUNBUFFERED=1", "LANG=C.UTF-8"), ("python3",))
