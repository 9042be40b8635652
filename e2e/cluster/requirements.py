"""What a machine must have for clusters, and getting what can be got without asking: Debian packages, as root."""

import os
import shutil
import sys

from cluster.artifacts import locked
from cluster.commands import Log, run
from cluster.errors import ClusterError
from cluster.paths import artifacts_path
from cluster.programs import why_no_go

# program → the Debian package that has it
BUILD_PROGRAMS = {"debootstrap": "debootstrap", "containerd": "containerd", "zstd": "zstd", "tar": "tar"}
DAEMON_PROGRAMS = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "zstd": "zstd",
}
APT_TIMEOUT_S = 900


def missing_packages(programs: dict[str, str]) -> list[str]:
    return sorted({package for program, package in programs.items() if shutil.which(program) is None})


def install(programs: dict[str, str], log: Log) -> None:
    """Install the packages of programs that are missing. Raises ClusterError where that cannot be done."""
    packages = missing_packages(programs)
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ClusterError(
            f"missing: {', '.join(packages)}; install these packages (apt-get install as root on Debian)"
        )
    with locked(artifacts_path() / ".apt.lock", log, what="another run that installs packages"):
        packages = missing_packages(programs)
        if not packages:
            return
        log(f"installing {' '.join(packages)}")
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        # A mirror that fails beside the one that is needed must not end it here: the installation tells.
        run(["apt-get", "update", "-q"], timeout_s=APT_TIMEOUT_S, environment=environment, check=False)
        install_them = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
        run(install_them, timeout_s=APT_TIMEOUT_S, environment=environment)


def why_no_build() -> str | None:
    """A sentence when the node image cannot be built here."""
    if sys.platform != "linux":
        return "the node image can be built on Linux only"
    if os.geteuid() != 0:
        return "the node image can be built by root only"
    missing = missing_packages(BUILD_PROGRAMS | DAEMON_PROGRAMS)
    if missing and shutil.which("apt-get") is None:
        return f"missing programs of {', '.join(missing)}, and there is no apt-get to install them"
    return why_no_go()
