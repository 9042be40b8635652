"""Requirements of clusters on a machine, and installation of missing Debian packages (as root)."""

import os
import shutil
import sys

from harness import apt

from cluster.commands import Log
from cluster.errors import ClusterError
from cluster.programs import why_no_go

# Program → Debian package that contains it:
BUILD_PROGRAMS = {"debootstrap": "debootstrap", "containerd": "containerd", "zstd": "zstd", "tar": "tar"}
DAEMON_PROGRAMS = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "zstd": "zstd",
}


def missing_packages(programs: dict[str, str]) -> list[str]:
    return sorted({package for program, package in programs.items() if shutil.which(program) is None})


def install(programs: dict[str, str], log: Log) -> None:
    """Install packages of missing programs. Raises ClusterError if that is not possible."""
    packages = missing_packages(programs)
    if not packages:
        return
    if not apt.possible():
        raise ClusterError(
            f"missing: {', '.join(packages)}; install these packages (apt-get install as root on Debian)"
        )
    apt.install(lambda: missing_packages(programs), error=ClusterError, log=log)


def why_no_build() -> str | None:
    """Return why the node image cannot be built here, otherwise None."""
    if sys.platform != "linux":
        return "the node image can be built only on Linux"
    if os.geteuid() != 0:
        return "only root can build the node image"
    missing = missing_packages(BUILD_PROGRAMS | DAEMON_PROGRAMS)
    if missing and shutil.which("apt-get") is None:
        return f"missing packages: {', '.join(missing)}; install them (apt-get cannot be found here)"
    return why_no_go()
