"""Paths of caches and of the daemon.

``cache`` (``$DELAYMQ_CACHE`` or ``~/.cache/delaymq``, then ``cluster/``) may be deleted while nothing runs. The
daemon's own folder is fixed: a machine has one set of firewall chains, so it can run only one such daemon.
"""

from pathlib import Path

from harness.caching import cache_root

PACKAGE_PATH = Path(__file__).resolve().parent
FILES_PATH = PACKAGE_PATH / "files"
GO_SOURCES_PATH = PACKAGE_PATH / "go"
REPOSITORY_PATH = PACKAGE_PATH.parent.parent

DAEMON_RUN_PATH = Path("/run/delaymq-e2e")
"""Socket, process id and the state to restore; lost at a reboot, as are the changes that it describes."""


def cache_path() -> Path:
    return cache_root() / "cluster"


def artifacts_path() -> Path:
    """Return the folder of built artifacts, the only one worth copying between machines."""
    return cache_path() / "artifacts"


def go_path() -> Path:
    """Return the folder of Go's modules and compiled packages, needed only while building."""
    return cache_path() / "go"


def docker_data_path() -> Path:
    """Return the data folder of our own Docker daemon: loaded images, nodes' volumes."""
    return cache_path() / "docker"


def run_path() -> Path:
    """Return the folder of kubeconfigs and locks of clusters that may be running."""
    return cache_path() / "run"


def log_path() -> Path:
    return cache_path() / "log"
