"""Archive of the Helm chart, as `helm package` makes it, but with the same bytes for the same commit."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from pathlib import Path

import yaml

from release.errors import ReleaseError
from release.pins import ROOT

CHART = "helm/delaymq"
MODE = 0o644


def pack(folder: Path, epoch_s: int, root: Path = ROOT) -> Path:
    """Write the archive into `folder` and return its path. Files that git does not track are omitted."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", CHART], cwd=root, capture_output=True, text=True, check=False, timeout=60
    )
    names = [name.removeprefix(f"{CHART}/") for name in listed.stdout.split("\0") if name]
    if listed.returncode != 0 or "Chart.yaml" not in names:
        raise ReleaseError(
            f"git cannot list the files of {CHART}: make the release in a clone: {listed.stderr.strip()}"
        )
    metadata = yaml.safe_load((root / CHART / "Chart.yaml").read_text())
    # Helm reads Chart.yaml first.
    names = ["Chart.yaml", *sorted(name for name in names if name not in ("Chart.yaml", ".helmignore"))]
    path = folder / f"{metadata['name']}-{metadata['version']}.tgz"
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
        tarfile.open(mode="w", fileobj=packed, format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name in names:
            content = (root / CHART / name).read_bytes()
            entry = tarfile.TarInfo(f"{metadata['name']}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), MODE, epoch_s
            archive.addfile(entry, io.BytesIO(content))
    return path
