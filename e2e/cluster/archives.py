"""Image archives in the form that ``docker load`` and containerd read, written without a Docker daemon.

Several images in one archive may share layers. Times and owners are fixed, so the same content gives the same digests.
"""

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.commands import run
from cluster.errors import ClusterError

CREATED = "2026-01-01T00:00:00Z"
PATH_VARIABLE = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TAR_TIMEOUT_S = 600
COMPRESS_TIMEOUT_S = 600

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Machine name of the kernel → architecture name in images and Debian."""


def architecture() -> str:
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise ClusterError(f"images cannot be built on {machine}, only on {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[machine]


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image of an archive."""

    name: str
    """Repository and tag."""
    layers: Sequence[str]
    """Names of layers, lowest first."""
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    user: str = ""
    environment: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    stop_signal: str = ""

    def configuration(self, digests: Mapping[str, str]) -> bytes:
        settings: dict[str, object] = {"Env": [PATH_VARIABLE, *self.environment], "Labels": dict(self.labels)}
        if self.entrypoint:
            settings["Entrypoint"] = list(self.entrypoint)
        if self.command:
            settings["Cmd"] = list(self.command)
        if self.user:
            settings["User"] = self.user
        if self.stop_signal:
            settings["StopSignal"] = self.stop_signal
        return json.dumps(
            {
                "architecture": architecture(),
                "os": "linux",
                "created": CREATED,
                "config": settings,
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digests[layer]}" for layer in self.layers]},
                "history": [{"created": CREATED, "created_by": f"layer {layer}"} for layer in self.layers],
            }
        ).encode()


def write_archive(target: Path, layers: Mapping[str, Path], images: Sequence[Image], *, owners: bool = False) -> None:
    """Write the images to ``target``; ``layers`` are folders by name.

    ``owners`` keeps the files' owners and extended attributes; otherwise all belong to root.
    """
    with tempfile.TemporaryDirectory(prefix=".layers-", dir=target.parent) as scratch:
        tars = {name: Path(scratch) / f"{name}.tar" for name in layers}
        for name, folder in layers.items():
            _write_layer(tars[name], folder, owners=owners)
        digests = {name: _sha256(tar) for name, tar in tars.items()}
        with tarfile.open(target, "w") as archive:
            for name, digest in digests.items():
                archive.add(tars[name], f"{digest}/layer.tar")
            entries = []
            for image in images:
                configuration = image.configuration(digests)
                configuration_name = f"{hashlib.sha256(configuration).hexdigest()}.json"
                _add(archive, configuration_name, configuration)
                paths = [f"{digests[layer]}/layer.tar" for layer in image.layers]
                entries.append({"Config": configuration_name, "RepoTags": [image.name], "Layers": paths})
            _add(archive, "manifest.json", json.dumps(entries).encode())


def write_compressed(target: Path, layers: Mapping[str, Path], images: Sequence[Image], *, owners: bool) -> None:
    """Write the images as `write_archive` does, compressed; ``target`` ends in ``.zst``."""
    plain = target.with_suffix("")
    write_archive(plain, layers, images, owners=owners)
    run(["zstd", "-q", "-3", "-T0", "--rm", plain, "-o", target], timeout_s=COMPRESS_TIMEOUT_S)


def layer_digests(archive: Path) -> list[str]:
    """Return the SHA-256 digests of all layers of an uncompressed archive."""
    with tarfile.open(archive) as content:
        return [Path(name).parent.name for name in content.getnames() if name.endswith("/layer.tar")]


def _write_layer(target: Path, folder: Path, *, owners: bool) -> None:
    command: list[str | Path] = ["tar", "--numeric-owner", "--sort=name", "--mtime=2026-01-01 00:00:00Z"]
    command += ["--xattrs"] if owners else ["--owner=0", "--group=0"]
    run([*command, "-C", folder, "-cf", target, "."], timeout_s=TAR_TIMEOUT_S)


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
