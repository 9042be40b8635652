"""Paths of caches and of the daemon.

``cache`` (``$DELAYMQ_CACHE`` or ``~/.cache/delaymq``, then ``cluster/``) is safe to delete while nothing runs. The
daemon's own folder is fixed: a machine has one set of firewall chains, so it can have one such daemon.
"""

from pathlib import Path

from harness.caching import cache_root

PACKAGE_PATH = Path(__file__).resolve().parent
FILES_PATH = PACKAGE_PATH / "files"
GO_SOURCES_PATH = PACKAGE_PATH / "go"
REPOSITORY_PATH = PACKAGE_PATH.parent.parent

DAEMON_RUN_PATH = Path("/run/delaymq-e2e")
"""Socket, process id and what is to be put back; gone after a reboot, as are the things it speaks of."""


def cache_path() -> Path:
    return cache_root() / "cluster"


def artifacts_path() -> Path:
    """What was built: the one folder here worth keeping between machines."""
    return cache_path() / "artifacts"


def go_path() -> Path:
    """Go's modules and compiled packages: needed only while building."""
    return cache_path() / "go"


def docker_data_path() -> Path:
    """Data of our own Docker daemon: loaded images, nodes' volumes."""
    return cache_path() / "docker"


def run_path() -> Path:
    """Kubeconfigs and locks of clusters that may be running."""
    return cache_path() / "run"


def log_path() -> Path:
    return cache_path() / "log"
