"""Images of a release: built by Docker on base images that are named by digest, and saved as archives."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

from release import archive
from release.errors import ReleaseError
from release.pins import IMAGES, ROOT, pins_of
from release.sbom import OWN_IN_IMAGE, SUFFIX, Base, Writer

BUILD_TIMEOUT_S = 3600
SAVE_TIMEOUT_S = 1800

_REFERENCE = re.compile(r"(?P<name>[A-Za-z0-9][\w.:/-]{0,200})@(?P<digest>sha256:[0-9a-f]{64})")


def base_of(reference: str, variable: str) -> Base:
    """Parse `NAME@sha256:DIGEST`. Raises ReleaseError, naming the variable of `make`, for anything else."""
    if found := _REFERENCE.fullmatch(reference):
        return Base(found["name"], found["digest"])
    given = f"not {reference!r}" if reference else "which is missing"
    raise ReleaseError(
        f"images of a release need {variable}=NAME@sha256:DIGEST, {given}: a tag can be moved to another image. After"
        " `docker pull NAME:TAG`, `docker image inspect --format '{{index .RepoDigests 0}}' NAME:TAG` prints the digest"
    )


def revision(root: Path = ROOT) -> str:
    """Return the commit. Raises ReleaseError if tracked files differ from it."""
    if changed := _run(["git", "status", "--porcelain", "--untracked-files=no"], root, 60, "git fails").strip():
        raise ReleaseError(f"images of a release state their commit, but there are changes: commit them:\n{changed}")
    return _run(["git", "rev-parse", "HEAD"], root, 60, "git fails").strip()


def version_of(root: Path = ROOT) -> str:
    """Return the version of the project."""
    return str(tomllib.loads((root / "broker_image/pyproject.toml").read_text())["project"]["version"])


def build_images(
    folder: Path, writer: Writer, bases: tuple[str, str], flags: Sequence[str] = (), root: Path = ROOT
) -> list[Path]:
    """Write an archive and its bill of materials for each image into `folder`, and return the archives' paths.

    `bases` are the references of the base image and of the image of the build stages; `flags` are further flags of
    `docker build`. Raises ReleaseError.
    """
    base, _ = base_of(bases[0], "BASE_IMAGE"), base_of(bases[1], "BUILD_IMAGE")
    commit, version = revision(root), version_of(root)
    arguments = {"BASE_IMAGE": bases[0], "BUILD_IMAGE": bases[1], "VERSION": version}
    labels = {"base.name": base.name, "base.digest": base.digest, "revision": commit}
    words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    words += [f"--label=org.opencontainers.image.{name}={value}" for name, value in labels.items()]
    written = []
    for image in IMAGES:
        tag = f"delaymq/{image}:{version}"
        print(f"building {tag}", flush=True)
        _run(
            ["docker", "build", *words, *flags, "--target", image, "--tag", tag, str(root)],
            root,
            BUILD_TIMEOUT_S,
            f"{tag} cannot be built",
        )
        path = folder / f"delaymq-{image}-image-{version}.tar"
        _run(["docker", "save", "--output", str(path), tag], root, SAVE_TIMEOUT_S, f"{tag} cannot be saved")
        path.chmod(0o644)
        contents = archive.read(path)
        _compare(image, version, contents, root)
        packages = sorted(contents.packages, key=lambda package: (package.name, package.version))
        path.with_name(path.name + SUFFIX).write_text(writer.of_image(image, version, path, base, packages))
        written.append(path)
    return written


def _compare(image: str, version: str, contents: archive.Contents, root: Path) -> None:
    """Raise ReleaseError if an image does not contain exactly what its bill of materials will list."""
    expected = {(pin.name, pin.version) for pin in pins_of(image, root)}
    expected |= {(name, version) for name in OWN_IN_IMAGE[image]}
    if different := sorted(expected ^ contents.distributions):
        listed = ", ".join(f"{name} {number}" for name, number in different)
        raise ReleaseError(f"the image {image} and its pins differ ({listed}): run make pins, and build it again")
    if not contents.packages:
        raise ReleaseError(f"the image {image} has no list of Debian packages: choose a BASE_IMAGE that has one")


def _run(command: Sequence[str], root: Path, timeout_s: float, problem: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except FileNotFoundError as error:
        raise ReleaseError(f"{problem}: {command[0]} is missing: install it") from error
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(f"{problem}: {command[0]} did not end within {timeout_s:g} s") from error
    if done.returncode != 0:
        raise ReleaseError(f"{problem}: {(done.stderr.strip() or done.stdout.strip())[-1500:]}")
    return done.stdout
