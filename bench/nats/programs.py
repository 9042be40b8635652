"""The NATS server and its load program, compiled from Go modules whose checksums are in this repository."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.artifacts import Artifact
from cluster.build import tidy
from cluster.commands import Log
from cluster.errors import ClusterError
from cluster.programs import compile_package, why_no_go

GO_PATH = Path(__file__).resolve().parent / "go"
SERVER_MODULE = "github.com/nats-io/nats-server/v2"
GO_VERSION = (1, 26)
"""Required by the server."""


def server_version(module_file: str) -> str:
    """Return the version of the server that the text of a go.mod pins, such as 2.15.3; ClusterError without one."""
    found = re.search(rf"^(?:require )?\s*{re.escape(SERVER_MODULE)} v(\S+)", module_file, re.MULTILINE)
    if found is None:
        raise ClusterError(f"go.mod does not require {SERVER_MODULE}: restore {GO_PATH / 'server' / 'go.mod'}")
    return found[1]


def _program(name: str, module: str, package: str) -> Artifact:
    sources = GO_PATH / module

    def make(draft: Path, log: Log) -> None:
        if reason := why_no_go(GO_VERSION):
            raise ClusterError(reason)
        compile_package(sources, package, draft / name)

    return Artifact(name, (sources, package), make)


SERVER = _program("nats-server", "server", SERVER_MODULE)
LOAD = _program("nats-load", "load", ".")


def version() -> str:
    """Return the version of the server."""
    return server_version((GO_PATH / "server" / "go.mod").read_text())


def obtain() -> None:
    """Compile both programs if the cache does not contain them, and remove Go's caches. Raises ClusterError."""
    missing = [artifact for artifact in (SERVER, LOAD) if not artifact.made]
    for artifact in missing:
        artifact.obtain()
    if missing:
        tidy()


def server_path() -> Path:
    return SERVER.path / SERVER.name


def load_path() -> Path:
    return LOAD.path / LOAD.name
