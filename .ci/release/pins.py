"""Pinned dependencies: distributions in requirements/*.txt, crates in Cargo.lock."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from release.errors import ReleaseError

ROOT = Path(__file__).resolve().parents[2]
LOCK = "broker_image/kernels/Cargo.lock"
KERNELS = "delaymq-kernels"
IMAGES = ("broker", "operator", "spark")

TARGET: Mapping[str, str] = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.11.0",
    "python_version": "3.11",
    "sys_platform": "linux",
}
"""Environment of the images. Pins whose markers exclude it are not installed."""

_HASH = re.compile(r"\s--hash=sha256:([0-9a-f]{64})(?=\s|$)")


@dataclass(frozen=True)
class Pin:
    """A pinned distribution."""

    name: str
    version: str
    hashes: tuple[str, ...]
    """SHA-256 of each file that pip may install: one for each platform, in ascending order."""


@dataclass(frozen=True)
class Crate:
    """A crate of the kernels."""

    name: str
    version: str
    checksum: str | None
    """SHA-256 of its archive; None for the crate of the kernels itself."""
    dependencies: tuple[str, ...]
    """Names as in Cargo.lock: `syn`, or `syn 2.0.1` if there are several versions."""


def pins_of(image: str, root: Path = ROOT) -> list[Pin]:
    """Return the distributions that are installed in an image, by name. Raises ReleaseError for an invalid line."""
    path = root / "requirements" / f"{'spark-image' if image == 'spark' else image}.txt"
    return sorted(_read(path), key=lambda pin: pin.name)


def _read(path: Path) -> Iterator[Pin]:
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        hashes = _HASH.findall(line)
        try:
            requirement = Requirement(line.partition(" --hash=")[0].strip())
        except InvalidRequirement as error:
            raise ReleaseError(f"{path}: {line[:60]!r} is not a requirement: run make pins") from error
        specifiers = list(requirement.specifier)
        if len(specifiers) != 1 or specifiers[0].operator != "==" or not hashes:
            raise ReleaseError(f"{path}: {requirement.name} is not pinned with a version and hashes: run make pins")
        # `extra` is no part of the pins: they are flat.
        if requirement.marker is None or requirement.marker.evaluate(dict(TARGET)):
            yield Pin(canonicalize_name(requirement.name), specifiers[0].version, tuple(sorted(hashes)))


def crates(root: Path = ROOT) -> list[Crate]:
    """Return the crates in Cargo.lock, including that of the kernels, by name and version."""
    packages = tomllib.loads((root / LOCK).read_text())["package"]
    found = [
        Crate(entry["name"], entry["version"], entry.get("checksum"), tuple(entry.get("dependencies", ())))
        for entry in packages
    ]
    for crate in found:
        if crate.checksum is None and crate.name != KERNELS:
            raise ReleaseError(f"{LOCK}: {crate.name} has no checksum: use a version from the registry of crates")
    return sorted(found, key=lambda crate: (crate.name, crate.version))
