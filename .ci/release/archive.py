"""Contents of an image, read from the archive that `docker save` writes: Debian packages and Python distributions."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from packaging.utils import canonicalize_name

from release.errors import ReleaseError
from release.sbom import Package

STATUS = "var/lib/dpkg/status"
FILE_BYTES = 64 << 20
"""Limit of each file that is read from an archive."""

_STATUS_PART = re.compile(r"var/lib/dpkg/status\.d/[^/]+")
_LIBRARY = re.compile(r"opt/delaymq/lib/([^/]+?)-([^/-]+)(?:-py3\.\d+)?\.(?:dist|egg)-info")
"""Metadata of a distribution; pip before 23.1 makes an egg-info folder for a source distribution."""


@dataclass
class Contents:
    """Installed software of an image."""

    packages: set[Package] = field(default_factory=set)
    distributions: set[tuple[str, str]] = field(default_factory=set)
    """Canonical name and version of each distribution in /opt/delaymq/lib."""


def read(path: Path) -> Contents:
    """Read the archive of one image. Raises ReleaseError if it is not one."""
    contents = Contents()
    try:
        with tarfile.open(path) as archive:
            (manifest,) = json.loads(_bytes(archive, "manifest.json"))
            for layer in manifest["Layers"]:
                with _file(archive, layer) as file, tarfile.open(fileobj=file) as tree:
                    _read_layer(tree, contents)
    except (OSError, EOFError, tarfile.TarError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReleaseError(f"{path.name} is not the archive of an image ({error!r}): build it again") from error
    return contents


def _read_layer(tree: tarfile.TarFile, contents: Contents) -> None:
    """Apply a layer. The list of packages is one file, which a later layer replaces; distributions are only added."""
    for member in tree:
        name = member.name.removeprefix("./")
        if found := _LIBRARY.fullmatch(name):
            contents.distributions.add((canonicalize_name(found[1]), found[2]))
        elif name == STATUS and member.isfile():
            contents.packages = set(packages(_bytes(tree, member).decode()))
        elif _STATUS_PART.fullmatch(name) and member.isfile():
            contents.packages |= set(packages(_bytes(tree, member).decode()))


def packages(status: str) -> Iterator[Package]:
    """Yield the installed packages in dpkg's list. Parts without a status, as in distroless images, are installed."""
    for paragraph in re.split(r"\n\n+", status):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): *(.*)$", paragraph, re.MULTILINE))
        state = fields.get("Status", "installed").split()
        if {"Package", "Version", "Architecture"} <= set(fields) and state[-1:] == ["installed"]:
            yield Package(fields["Package"], fields["Version"], fields["Architecture"])


def _file(archive: tarfile.TarFile, name: str | tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file


def _bytes(archive: tarfile.TarFile, name: str | tarfile.TarInfo) -> bytes:
    with _file(archive, name) as file:
        content = file.read(FILE_BYTES + 1)
    if len(content) > FILE_BYTES:
        raise ReleaseError(f"a file of the image is larger than {FILE_BYTES} bytes: choose another base image")
    return content
