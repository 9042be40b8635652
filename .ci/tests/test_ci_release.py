"""Files of a release: chart, bills of materials, checksums and signature."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from release import __main__ as steps
from release import chart, signing
from release.errors import ReleaseError
from release.licences import read_table
from release.pins import IMAGES, ROOT, crates, pins_of
from release.sbom import IMAGE_OF, Base, Package, Writer, sha256_of

EPOCH_S = 1_790_000_000
WHEELS = {
    "delaymq": "delaymq-0.1.0-py3-none-any.whl",
    "delaymq-operator": "delaymq_operator-0.1.0-py3-none-any.whl",
    "delaymq-spark": "delaymq_spark-0.1.0-py3-none-any.whl",
    "delaymq-kernels": "delaymq_kernels-0.1.0-cp311-abi3-manylinux_2_34_x86_64.whl",
}
BASE = Base("python:3.11-slim-bookworm", "sha256:" + "5" * 64)
PINNED = f"{BASE.name}@{BASE.digest}"
PACKAGES = [Package("libc6", "2.36-9+deb12u10", "amd64"), Package("tzdata", "2026a-0+deb12u1", "all")]
Json = dict[str, Any]


def fill(folder: Path) -> Path:
    """Write files that are named like the wheels of a release."""
    folder.mkdir()
    for name in WHEELS.values():
        (folder / name).write_text(f"the content of {name}")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a release."""
    return fill(tmp_path / "release")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of wheels that no test changes."""
    return fill(tmp_path_factory.mktemp("bills") / "release")


@pytest.fixture(scope="module")
def bills(wheels: Path) -> dict[str, Json]:
    """Return the bills of all wheels and images. The archives of the images are those of a wheel here."""
    writer = Writer.of(ROOT, EPOCH_S)
    written = {name: writer.of_wheel(wheels / WHEELS[name], sorted(wheels.iterdir())) for name in WHEELS}
    for image in IMAGES:
        written[image] = writer.of_image(image, "0.1.0", wheels / WHEELS["delaymq"], BASE, PACKAGES)
    return {name: json.loads(text) for name, text in written.items()}


@pytest.fixture
def make_key(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes an SSH key pair."""

    def make(name: str = "key", passphrase: str = "") -> Path:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f", str(tmp_path / name)]
        subprocess.run(command, check=True, timeout=60)
        return tmp_path / name

    return make


def components(bill: Json, kind: str) -> dict[str, Json]:
    """Return the components whose package URL has a type, by name."""
    return {found["name"]: found for found in bill["components"] if found["purl"].startswith(f"pkg:{kind}/")}


def hashes(component: Json) -> list[str]:
    assert {entry["alg"] for entry in component["hashes"]} == {"SHA-256"}
    return [entry["content"] for entry in component["hashes"]]


@pytest.mark.parametrize("name", IMAGE_OF)
def test_bill_of_a_wheel_lists_the_pins_with_hashes_and_licences(name: str, bills: dict[str, Json]) -> None:
    found = components(bills[name], "pypi")
    found.pop("delaymq", None)
    pins = pins_of(IMAGE_OF[name])
    assert {key: value["version"] for key, value in found.items()} == {pin.name: pin.version for pin in pins}
    licences = read_table().python
    for pin in pins:
        assert found[pin.name]["purl"] == f"pkg:pypi/{pin.name}@{pin.version}"
        assert hashes(found[pin.name]) == list(pin.hashes)
        assert found[pin.name]["licenses"] == [{"expression": licences[pin.name]}]


def test_bill_of_the_kernels_lists_their_crates_and_who_needs_them(bills: dict[str, Json]) -> None:
    bill = bills["delaymq-kernels"]
    found = components(bill, "cargo")
    locked = {crate.name: crate for crate in crates() if crate.checksum}
    assert len(bill["components"]) == len(found)
    assert {name: hashes(component) for name, component in found.items()} == {
        name: [crate.checksum] for name, crate in locked.items()
    }
    needs = {entry["ref"]: entry.get("dependsOn", []) for entry in bill["dependencies"]}
    names = [ref.partition("/")[2].partition("@")[0] for ref in needs["pkg:pypi/delaymq-kernels@0.1.0"]]
    assert names == ["crc32fast", "ctutils", "hmac", "memchr", "pyo3", "sha1"]
    assert [ref.partition("@")[0] for ref in needs[found["crc32fast"]["bom-ref"]]] == ["pkg:cargo/cfg-if"]


@pytest.mark.parametrize("name", WHEELS)
def test_bill_states_the_wheel_and_the_time_of_the_commit(name: str, wheels: Path, bills: dict[str, Json]) -> None:
    metadata = bills[name]["metadata"]
    assert metadata["component"]["purl"] == f"pkg:pypi/{name}@0.1.0"
    assert hashes(metadata["component"]) == [sha256_of(wheels / WHEELS[name])]
    assert metadata["timestamp"] == "2026-09-21T14:13:20+00:00"


@pytest.mark.parametrize("name", ["delaymq-operator", "delaymq-spark"])
def test_bill_names_the_wheel_of_the_same_release_that_it_needs(
    name: str, wheels: Path, bills: dict[str, Json]
) -> None:
    found = components(bills[name], "pypi")["delaymq"]
    assert hashes(found) == [sha256_of(wheels / WHEELS["delaymq"])]


@pytest.mark.parametrize("image", IMAGES)
def test_bill_of_an_image_lists_all_its_parts(image: str, bills: dict[str, Json]) -> None:
    bill = bills[image]
    own = {"broker": "delaymq-kernels", "operator": "delaymq-operator", "spark": "delaymq-spark"}[image]
    assert set(components(bill, "pypi")) == {pin.name for pin in pins_of(image)} | {"delaymq", own}
    assert (set(components(bill, "cargo")) == set()) == (image != "broker")
    assert {found["purl"] for found in components(bill, "deb").values()} == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64",
        "pkg:deb/debian/tzdata@2026a-0%2Bdeb12u1?arch=all",
    }
    (base,) = components(bill, "oci").values()
    assert (base["name"], base["version"]) == (BASE.name, BASE.digest)
    assert base["purl"] == f"pkg:oci/python@{BASE.digest}"


def test_same_content_gives_the_same_bytes(wheels: Path, bills: dict[str, Json]) -> None:
    """In other processes too, whose hashes of strings differ."""
    code = (
        "import sys; from pathlib import Path; from release.sbom import Writer, ROOT;"
        f"writer = Writer.of(ROOT, {EPOCH_S}); print(*map(writer.of_wheel, map(Path, sys.argv[1:])), sep='', end='')"
    )
    command = [sys.executable, "-c", code, *(str(wheels / WHEELS[name]) for name in ("delaymq", "delaymq-kernels"))]
    written = set()
    for seed in ("0", "1"):
        environment = os.environ | {"PYTHONPATH": str(ROOT / ".ci"), "PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        written.add(done.stdout)
    (text,) = written
    assert text.count(bills["delaymq"]["serialNumber"]) == text.count(bills["delaymq-kernels"]["serialNumber"]) == 1


def test_other_content_gives_another_serial_number(folder: Path, bills: dict[str, Json]) -> None:
    wheel = folder / WHEELS["delaymq-kernels"]
    wheel.write_text("another content")
    text = Writer.of(ROOT, EPOCH_S).of_wheel(wheel)
    assert json.loads(text)["serialNumber"] != bills["delaymq-kernels"]["serialNumber"]


def test_dependency_without_a_recorded_licence_ends_the_release(folder: Path) -> None:
    table = read_table()
    python = {name: licence for name, licence in table.python.items() if name != "msgspec"}
    writer = Writer.of(ROOT, EPOCH_S)
    writer = Writer(type(table)(table.allowed, table.exceptions, python, table.crates), writer.created)
    with pytest.raises(ReleaseError, match=r"msgspec \S+ has no recorded licence: run make check"):
        writer.of_wheel(folder / WHEELS["delaymq"])


def test_chart_is_packed_twice_with_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first, second = chart.pack(tmp_path, EPOCH_S), chart.pack(tmp_path / "again", EPOCH_S)
    assert first.name == "delaymq-0.1.0.tgz"
    assert first.read_bytes() == second.read_bytes()


def test_chart_contains_the_tracked_files_in_the_layout_of_helm(tmp_path: Path) -> None:
    with tarfile.open(chart.pack(tmp_path, EPOCH_S)) as archive:
        members = archive.getmembers()
        contents = {}
        for member in members:
            file = archive.extractfile(member)
            assert file is not None
            contents[member.name] = file.read()
    assert members[0].name == "delaymq/Chart.yaml"
    assert {(member.mode, member.uid, member.uname, member.mtime) for member in members} == {(0o644, 0, "", EPOCH_S)}
    files = [path for path in (ROOT / chart.CHART).rglob("*") if path.is_file() and not path.name.startswith(".")]
    expected = {f"delaymq/{path.relative_to(ROOT / chart.CHART)}": path.read_bytes() for path in files}
    assert contents == expected


def test_chart_is_not_packed_outside_a_clone(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="make the release in a clone"):
        chart.pack(tmp_path, EPOCH_S, tmp_path)


def test_checksums_cover_all_files_in_the_format_of_sha256sum(folder: Path) -> None:
    (folder / signing.SIGNATURE).write_text("a former signature")
    signing.write_checksums(folder)
    lines = (folder / signing.SUMS).read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == sorted(WHEELS.values())
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", signing.SUMS], cwd=folder, check=True, timeout=60)
    signing.write_checksums(folder)
    assert (folder / signing.SUMS).read_text().splitlines() == lines


def verify(folder: Path, key: Path) -> bool:
    """Run the commands of SECURITY.md in the folder of a release; `key` is the one that the user trusts."""
    page = (ROOT / "SECURITY.md").read_text()
    (block,) = re.findall(r"```sh\n(.*?)```", page.partition("## Verify a release")[2], re.DOTALL)
    public = " ".join(key.with_suffix(".pub").read_text().split())
    script, replaced = re.subn(r"ssh-ed25519 AAAA[^'\s]*", public, block)
    assert replaced == 1
    return subprocess.run(["bash", "-ec", script], cwd=folder, capture_output=True, timeout=60).returncode == 0


def test_documented_commands_verify_a_signed_release(folder: Path, make_key: Callable[..., Path]) -> None:
    key = make_key()
    signing.write_checksums(folder)
    signing.sign(folder, key)
    assert verify(folder, key)
    assert not verify(folder, make_key("another"))


@pytest.mark.parametrize("changed", [*WHEELS.values(), signing.SUMS, signing.SIGNATURE])
def test_changed_file_fails_verification(changed: str, folder: Path, make_key: Callable[..., Path]) -> None:
    key = make_key()
    signing.write_checksums(folder)
    signing.sign(folder, key)
    content = (folder / changed).read_bytes()
    position = len(content) // 2
    (folder / changed).write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
    assert not verify(folder, key)


def test_signature_for_another_purpose_fails_verification(folder: Path, make_key: Callable[..., Path]) -> None:
    key = make_key()
    signing.write_checksums(folder)
    command = ["ssh-keygen", "-Y", "sign", "-q", "-n", "git", "-f", str(key), str(folder / signing.SUMS)]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    assert not verify(folder, key)


def test_key_that_cannot_sign_is_an_error_that_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    signing.write_checksums(folder)
    (tmp_path / "text").write_text("no key")
    with pytest.raises(
        ReleaseError, match=r"the key \S+missing is missing: set SIGN_KEY to the path of an SSH private"
    ):
        signing.sign(folder, tmp_path / "missing")
    with pytest.raises(ReleaseError, match=r"the key \S+ is missing: set SIGN_KEY"):
        signing.sign(folder, tmp_path)
    with pytest.raises(ReleaseError, match=r"the key \S+text cannot sign \(.+\): use an SSH private key"):
        signing.sign(folder, tmp_path / "text")
    assert not (folder / signing.SIGNATURE).exists()


def test_key_in_the_folder_of_the_release_is_rejected(folder: Path, make_key: Callable[..., Path]) -> None:
    key = make_key().rename(folder / "key")
    with pytest.raises(ReleaseError, match="is in the folder of the release, which is deleted first: move the key"):
        signing.check_key(key, folder)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that runs a step of a release and returns its exit code."""

    def run(folder: Path, *arguments: str, epoch: str = str(EPOCH_S)) -> int:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        monkeypatch.setattr(sys, "argv", ["release", str(folder), *arguments])
        return steps.main()

    return run


def test_steps_of_make_release_seal_all_files(
    folder: Path, make_key: Callable[..., Path], run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    key = make_key()
    assert run(folder, "check", "--sign-key", str(key)) == 0
    assert run(folder, "files") == 0
    assert run(folder, "seal", "--sign-key", "") == 0
    sentence = "Not signed: set SIGN_KEY to the path of an SSH private key to sign SHA256SUMS.\n"
    assert capsys.readouterr().out.endswith(sentence)
    assert run(folder, "seal", "--sign-key", str(key)) == 0
    assert capsys.readouterr().out.endswith(f"Signed: {folder / signing.SIGNATURE}\n")
    assert len(list(folder.iterdir())) == 2 * len(WHEELS) + 1 + 2
    assert verify(folder, key)


@pytest.mark.parametrize(
    ("arguments", "epoch", "message"),
    [
        (("check", "--sign-key", "/nowhere"), "1", "the key /nowhere is missing: set SIGN_KEY"),
        (("check", "--base-image", "", "--build-image", ""), "1", "images of a release need BASE_IMAGE=NAME@sha256:"),
        (
            ("check", "--base-image", PINNED, "--build-image", "python:3.11"),
            "1",
            "images of a release need BUILD_IMAGE=",
        ),
        (
            ("check", "--base-image", PINNED, "--build-image", PINNED, "--flags", "'"),
            "1",
            'DOCKER_FLAGS="\'" cannot',
        ),
        (("files",), "", "SOURCE_DATE_EPOCH='' is not a time in seconds since 1970"),
        (("files",), "-1", "SOURCE_DATE_EPOCH='-1' is not a time"),
        (("files",), "8589934592", "SOURCE_DATE_EPOCH='8589934592' is not a time"),
        (("seal",), "1", "the release cannot be written: "),
    ],
)
def test_error_is_one_line(
    arguments: tuple[str, ...],
    epoch: str,
    message: str,
    tmp_path: Path,
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(tmp_path / "missing", *arguments, epoch=epoch) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {message}")
    assert printed.count("\n") == 1
