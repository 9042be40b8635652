"""Images of a release: base images by digest, contents of archives, and the requests to Docker."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from release import archive, images
from release.errors import ReleaseError
from release.pins import IMAGES, LOCK, ROOT, pins_of
from release.sbom import OWN_IN_IMAGE, Package, Writer

DIGEST = "sha256:" + "0123456789abcdef" * 4
BASES = (f"python:3.11-slim-bookworm@{DIGEST}", f"registry.test:5000/team/build@{DIGEST}")
LIBC = "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\n"
Layer = Mapping[str, str]

DOCKER = """#!/bin/sh
printf '%s\\n' "$@" >> "$0.log"
case "$1" in
    build) [ ! -e "$0.fails" ] || { echo 'no such image' >&2; exit 1; } ;;
    save) cp "$0.$(echo "$4" | sed 's|delaymq/||; s|:.*||').tar" "$3" ;;
esac
"""
"""Stand-in for the Docker client: records its arguments, and saves prepared archives."""


def write_archive(path: Path, layers: Sequence[Layer]) -> Path:
    """Write an archive as `docker save` does, with a layer for each table of file contents by path."""
    with tarfile.open(path, "w") as outer:
        names = [f"{number}/layer.tar" for number in range(len(layers))]
        for name, layer in zip(names, layers, strict=True):
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as inner:
                for file, content in layer.items():
                    add(inner, file, content.encode())
            add(outer, name, packed.getvalue())
        add(outer, "manifest.json", json.dumps([{"Config": "config.json", "Layers": names}]).encode())
    return path


def add(target: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    target.addfile(entry, io.BytesIO(content))


def image_layers(image: str) -> list[Layer]:
    """Return the layers of an image that contains exactly its pins."""
    found = {(pin.name, pin.version) for pin in pins_of(image)} | {(name, "0.1.0") for name in OWN_IN_IMAGE[image]}
    files = {
        f"opt/delaymq/lib/{name.replace('-', '_')}-{version}.dist-info/METADATA": "" for name, version in sorted(found)
    }
    folders = {str(Path(name).parent): "" for name in files}
    return [{"var/lib/dpkg/status": LIBC}, folders | files]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a clone with the files from which the bills are derived."""
    root = tmp_path / "tree"
    shutil.copytree(ROOT / "requirements", root / "requirements")
    (root / LOCK).parent.mkdir(parents=True)
    for name in (LOCK, "broker_image/pyproject.toml"):
        shutil.copy2(ROOT / name, root / name)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(root)]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *arguments], check=True, timeout=60)
    return root


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in for Docker first on the PATH, with an archive for each image."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    for image in IMAGES:
        write_archive(folder / f"docker.{image}.tar", image_layers(image))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return program


def build(tmp_path: Path, tree: Path, flags: Sequence[str] = ()) -> list[Path]:
    (tmp_path / "release").mkdir()
    return images.build_images(tmp_path / "release", Writer.of(tree, 1_790_000_000), BASES, flags, tree)


@pytest.mark.parametrize(
    "reference",
    [
        "",
        "python:3.11-slim-bookworm",
        "python@sha256:",
        "python@" + DIGEST[:-1],
        "python@" + DIGEST.upper(),
        "python@sha512:" + "0" * 128,
        DIGEST,
        "@" + DIGEST,
        "--network=host@" + DIGEST,
        "python@" + DIGEST + "\n",
        "py thon@" + DIGEST,
    ],
)
def test_base_image_without_a_digest_is_rejected(reference: str) -> None:
    with pytest.raises(ReleaseError, match="images of a release need BASE_IMAGE=NAME@sha256:DIGEST"):
        images.base_of(reference, "BASE_IMAGE")


@pytest.mark.parametrize("reference", BASES)
def test_base_image_is_split_into_its_name_and_digest(reference: str) -> None:
    base = images.base_of(reference, "BUILD_IMAGE")
    assert (base.name, base.digest) == (reference.partition("@")[0], DIGEST)


def test_images_are_built_on_digests_and_labelled_with_them(tmp_path: Path, tree: Path, docker: Path) -> None:
    paths = build(tmp_path, tree, ["--network", "host"])
    assert [path.name for path in paths] == [f"delaymq-{image}-image-0.1.0.tar" for image in IMAGES]
    commands = (tmp_path / "bin/docker.log").read_text().split("build\n")[1:]
    commit = images.revision(tree)
    for command, image in zip(commands, IMAGES, strict=True):
        words = command.splitlines()
        assert {f"BASE_IMAGE={BASES[0]}", f"BUILD_IMAGE={BASES[1]}", "VERSION=0.1.0", "--network", "host"} <= set(words)
        assert [word.removeprefix("--label=org.opencontainers.image.") for word in words if "--label" in word] == [
            "base.name=python:3.11-slim-bookworm",
            f"base.digest={DIGEST}",
            f"revision={commit}",
        ]
        assert words[words.index("--target") + 1] == image


def test_bill_beside_each_archive_lists_its_debian_packages(tmp_path: Path, tree: Path, docker: Path) -> None:
    for path in build(tmp_path, tree):
        bill = json.loads(path.with_name(path.name + ".cdx.json").read_text())
        found = [component["purl"] for component in bill["components"] if component["purl"].startswith("pkg:deb/")]
        assert found == ["pkg:deb/debian/libc6@2.36-9?arch=amd64"]


def test_image_that_differs_from_its_pins_is_rejected(tmp_path: Path, tree: Path, docker: Path) -> None:
    layers = [*image_layers("broker"), {"opt/delaymq/lib/extra-2.0.dist-info/METADATA": ""}]
    layers.append({"opt/delaymq/lib/extra-2.0.dist-info": ""})
    write_archive(docker.with_name("docker.broker.tar"), layers)
    with pytest.raises(ReleaseError, match=r"the image broker and its pins differ \(extra 2\.0\): run make pins"):
        build(tmp_path, tree)


def test_image_without_a_list_of_packages_is_rejected(tmp_path: Path, tree: Path, docker: Path) -> None:
    write_archive(docker.with_name("docker.broker.tar"), image_layers("broker")[1:])
    with pytest.raises(ReleaseError, match="has no list of Debian packages: choose a BASE_IMAGE that has one"):
        build(tmp_path, tree)


def test_changed_tree_is_rejected(tmp_path: Path, tree: Path, docker: Path) -> None:
    (tree / LOCK).write_text((tree / LOCK).read_text() + "\n")
    with pytest.raises(ReleaseError, match="images of a release state their commit, but there are changes: commit"):
        build(tmp_path, tree)
    assert not (tmp_path / "bin/docker.log").exists()


def test_failed_build_states_the_reason_of_docker(tmp_path: Path, tree: Path, docker: Path) -> None:
    docker.with_name("docker.fails").touch()
    with pytest.raises(ReleaseError, match=r"delaymq/broker:0\.1\.0 cannot be built: no such image"):
        build(tmp_path, tree)


def test_missing_docker_is_an_error(tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = shutil.which("git")
    assert git is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").symlink_to(git)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(ReleaseError, match="docker is missing: install it"):
        build(tmp_path, tree)


def test_later_layer_replaces_the_list_of_packages(tmp_path: Path) -> None:
    status = "Package: zlib1g\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:1.2.13\n"
    path = write_archive(
        tmp_path / "image.tar", [{"var/lib/dpkg/status": LIBC}, {"./var/lib/dpkg/status": f"{LIBC}\n{status}"}]
    )
    assert archive.read(path).packages == {Package("libc6", "2.36-9", "amd64"), Package("zlib1g", "1:1.2.13", "amd64")}


def test_packages_of_distroless_images_are_read(tmp_path: Path) -> None:
    part = "Package: libc6\nVersion: 2.36-9\nArchitecture: amd64\n"
    layers = [{"var/lib/dpkg/status.d/libc6": part}, {"var/lib/dpkg/status.d/base": part.replace("libc6", "base")}]
    found = archive.read(write_archive(tmp_path / "image.tar", layers)).packages
    assert {package.name for package in found} == {"libc6", "base"}


@pytest.mark.parametrize(
    "state", ["deinstall ok config-files", "install ok not-installed", "install ok half-installed"]
)
def test_packages_that_are_not_installed_are_left_out(state: str) -> None:
    assert len(list(archive.packages(LIBC))) == 1
    assert list(archive.packages(LIBC.replace("install ok installed", state))) == []


def test_distributions_from_source_are_read(tmp_path: Path) -> None:
    names = ["py4j-0.10.9.9.dist-info", "pyspark-4.3.0-py3.11.egg-info", "typing_extensions-4.1.dist-info", "bin"]
    path = write_archive(tmp_path / "image.tar", [{f"opt/delaymq/lib/{name}": "" for name in names}])
    expected = {("py4j", "0.10.9.9"), ("pyspark", "4.3.0"), ("typing-extensions", "4.1")}
    assert archive.read(path).distributions == expected


@pytest.mark.parametrize(
    "content", [b"", b"no archive", b"\0" * 10240], ids=["an empty file", "text", "an archive without files"]
)
def test_file_that_is_not_an_archive_of_an_image_is_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(content)
    with pytest.raises(ReleaseError, match=r"image\.tar is not the archive of an image \(.+\): build it again"):
        archive.read(tmp_path / "image.tar")


def test_archive_of_several_images_or_with_a_missing_layer_is_rejected(tmp_path: Path) -> None:
    manifests: list[object] = [[], [{"Layers": []}] * 2, [{"Layers": ["missing"]}], [{}], {}, [{"Layers": [{}]}]]
    for manifest in manifests:
        with tarfile.open(tmp_path / "image.tar", "w") as outer:
            add(outer, "manifest.json", json.dumps(manifest).encode())
        with pytest.raises(ReleaseError, match="is not the archive of an image"):
            archive.read(tmp_path / "image.tar")


def test_file_of_excessive_size_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FILE_BYTES", 1000)
    path = write_archive(tmp_path / "image.tar", [{"var/lib/dpkg/status": LIBC * 100}])
    with pytest.raises(ReleaseError, match="larger than 1000 bytes"):
        archive.read(path)
