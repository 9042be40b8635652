"""Repository files on which an image depends, read from its Dockerfile: unchanged ones require no build."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cluster.artifacts import content_digest
from cluster.errors import ClusterError

NOT_SOURCES = ("__pycache__", ".pyc")
"""Files that Python creates in source folders; .dockerignore excludes them too."""


@dataclass
class Stage:
    """One ``FROM … AS name`` of a Dockerfile."""

    base: str
    sources: list[str] = field(default_factory=list)
    """Paths that it copies from the build's folder."""
    stages: list[str] = field(default_factory=list)
    """Stages that it copies from."""


def read_stages(text: str) -> dict[str, Stage]:
    """Return the stages by name, in file order; unnamed stages have their number as name."""
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0].upper() == "FROM":
            arguments = [word for word in words[1:] if not word.startswith("--")]
            name = arguments[2] if len(arguments) == 3 and arguments[1].upper() == "AS" else str(len(stages))
            current = stages[name] = Stage(arguments[0])
        elif words[0].upper() in ("COPY", "ADD") and current is not None:
            others = [word.removeprefix("--from=") for word in words if word.startswith("--from=")]
            arguments = [word for word in words[1:] if not word.startswith("--")]
            if others:
                current.stages += others
            else:
                current.sources += arguments[:-1]
    return stages


def sources_of(text: str, target: str) -> list[str]:
    """Return the paths that any stage copies into the image of a target. Raises ClusterError for an unknown target."""
    stages = read_stages(text)
    if target not in stages:
        raise ClusterError(f"the Dockerfile has no target {target}; it has {', '.join(stages)}")
    found: list[str] = []
    todo, seen = [target], {target}
    while todo:
        stage = stages[todo.pop()]
        found += stage.sources
        for name in (stage.base, *stage.stages):
            if name in stages and name not in seen:
                seen.add(name)
                todo.append(name)
    return sorted(set(found))


def digest_of(folder: Path, patterns: Iterable[str], *more: str) -> str:
    """Return twelve hex digits for the content of paths below ``folder``, which may be patterns, and of ``more``."""
    digest = hashlib.sha256()
    for pattern in sorted(set(patterns)):
        paths = sorted(folder.glob(pattern))
        if not paths:
            raise ClusterError(f"{folder / pattern} is missing, from which an image is built")
        for path in paths:
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(content_digest(path, leave_out=NOT_SOURCES))
    for text in more:
        digest.update(f"\0{text}".encode())
    return digest.hexdigest()[:12]
