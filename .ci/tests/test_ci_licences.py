"""Licence check of the dependencies: what passes, and the sentence for each kind of problem."""

from __future__ import annotations

import shutil
from email.message import Message
from pathlib import Path

import pytest
from release import licences, spdx
from release.errors import ReleaseError
from release.licences import Declared, Table, declared_by
from release.pins import IMAGES, LOCK, ROOT, crates, pins_of

TABLE = Table(
    allowed=frozenset({"MIT", "ISC", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"}),
    exceptions={"certs": ("MPL-2.0", "a list of certificates")},
    python={},
    crates={},
)
PIN = ("bottle", "1.0")


def problems(licence: str, declared: Declared | None = None, name: str = "bottle") -> list[str]:
    """Return the problems of one dependency with this recorded licence."""
    pin = (name, "1.0")
    return list(licences.problems(TABLE, [pin], {name: licence}, {pin: declared} if declared else {}, "python"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the files that the check reads, without virtual environments."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / LOCK).parent.mkdir(parents=True)
    shutil.copy2(ROOT / LOCK, tmp_path / LOCK)
    (tmp_path / licences.NOT_FETCHED).parent.mkdir(parents=True)
    (tmp_path / licences.NOT_FETCHED).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("expression", "is_allowed"),
    [
        ("MIT", True),
        ("mit", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND ISC", True),
        ("MIT OR GPL-3.0-only AND ISC", True),
        ("(GPL-2.0-only OR GPL-3.0-only) AND MIT", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("MIT WITH LLVM-exception", False),
    ],
)
def test_alternatives_need_one_allowed_licence_and_combinations_all(expression: str, is_allowed: bool) -> None:
    assert (problems(expression) == []) == is_allowed


@pytest.mark.parametrize("expression", ["", "Free", "MIT OR", "(MIT", "MIT ISC", "MIT/ISC", "MIT WITH", "() OR MIT"])
def test_expression_that_is_not_spdx_is_rejected(expression: str) -> None:
    with pytest.raises(ReleaseError, match="is not an SPDX licence expression"):
        spdx.ids_of(expression)


def test_licence_that_is_not_allowed_is_reported_with_what_to_do() -> None:
    (sentence,) = problems("AGPL-3.0-only")
    assert sentence.startswith("bottle 1.0 has the licence AGPL-3.0-only, which is not allowed: replace the dependency")


def test_exception_holds_for_its_dependency_and_licence_only() -> None:
    assert problems("MPL-2.0", name="certs") == []
    assert len(problems("MPL-2.0")) == 1
    assert len(problems("EPL-2.0", name="certs")) == 1


def test_exception_that_nothing_needs_is_reported() -> None:
    table = Table(TABLE.allowed, TABLE.exceptions, {"certs": "MPL-2.0"}, {})
    assert list(licences.unused_exceptions(table)) == []
    for python in ({}, {"certs": "MIT"}):
        (sentence,) = licences.unused_exceptions(Table(TABLE.allowed, TABLE.exceptions, python, {}))
        assert "the exception for certs is not needed" in sentence


def test_dependency_without_a_recorded_licence_is_reported() -> None:
    (sentence,) = licences.problems(TABLE, [PIN], {}, {}, "python")
    assert sentence.startswith("bottle 1.0 has no recorded licence (its metadata state no known licence): read the")
    (sentence,) = licences.problems(TABLE, [PIN], {}, {PIN: Declared(frozenset({"MIT"}))}, "python")
    assert "(its metadata state MIT)" in sentence
    assert 'add bottle = "SPDX EXPRESSION" to [python]' in sentence


def test_record_of_a_removed_dependency_is_reported() -> None:
    (sentence,) = licences.problems(TABLE, [], {"bottle": "MIT"}, {}, "crates")
    assert sentence == "bottle is not installed any more: remove it from [crates] in requirements/licences.toml"


def test_changed_licence_of_a_new_version_is_reported() -> None:
    (sentence,) = problems("MIT", Declared(frozenset({"AGPL-3.0-only"})))
    assert "bottle 1.0 declares AGPL-3.0-only, but requirements/licences.toml records MIT" in sentence
    assert len(problems("MIT", Declared(frozenset()))) == 1
    (sentence,) = problems("MIT", Declared(frozenset({"MIT"}), ("GNU General Public License v3 (GPLv3)",)))
    assert "declares GNU General Public License v3 (GPLv3), which this check does not know" in sentence


@pytest.mark.parametrize(
    ("fields", "licence", "agrees"),
    [
        ({"License-Expression": "mit"}, "MIT", True),
        ({"License-Expression": "MIT AND ISC"}, "MIT", False),
        ({"License-Expression": "MIT AND ISC"}, "MIT AND ISC", True),
        ({"License": "ISC"}, "ISC", True),
        ({"License": "GPL-3.0-only", "Classifier": "License :: OSI Approved :: MIT License"}, "MIT", False),
        ({"License": "Copyright 2020\n\nGPL", "Classifier": "License :: OSI Approved :: MIT License"}, "MIT", True),
        ({"Classifier": "License :: OSI Approved :: MIT License"}, "ISC", False),
        ({"Classifier": "License :: OSI Approved"}, "MIT", False),
        ({"Classifier": "License :: Other/Proprietary License"}, "MIT", False),
        ({"Classifier": "Topic :: Internet"}, "MIT", False),
        ({}, "MIT", False),
    ],
)
def test_metadata_agree_with_the_record(fields: dict[str, str], licence: str, agrees: bool) -> None:
    metadata = Message()
    for name, value in fields.items():
        metadata[name] = value
    assert (problems(licence, declared_by(metadata)) == []) == agrees


def test_licences_of_this_project_are_recorded_and_allowed(tree: Path) -> None:
    found, remarks = licences.check(tree)
    assert found == []
    assert [remark.partition(":")[0] for remark in remarks] == ["Not compared with their metadata"] * 2


def test_distributions_that_are_not_installed_fail_a_complete_check(tree: Path) -> None:
    found, remarks = licences.check(tree, complete=True)
    assert found == remarks[:1]
    assert "msgspec" in found[0]


def test_installed_version_is_compared(tree: Path) -> None:
    (version,) = {pin.version for pin in pins_of("broker") if pin.name == "msgspec"}
    folder = tree / f".venv/lib/python3.11/site-packages/msgspec-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Name: msgspec\nVersion: {version}\nLicense-Expression: LGPL-3.0-only\n")
    (sentence,) = licences.check(tree)[0]
    assert sentence.startswith(f"msgspec {version} declares LGPL-3.0-only, but requirements/licences.toml records")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("[python]", "[pythons]", "cannot be read"),
        ("[python]", "[python", "cannot be read"),
        ('reason = """', 'reason = ""\nunused = """', "the exception for certifi has no reason: add it"),
    ],
)
def test_invalid_record_is_reported(tree: Path, before: str, after: str, message: str) -> None:
    path = tree / licences.TABLE
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(ReleaseError, match=message):
        licences.check(tree)


def test_pins_are_those_of_linux_with_a_version_and_hashes() -> None:
    lines = (ROOT / "requirements/broker.txt").read_text()
    assert "colorama==" in lines
    assert "colorama" not in {pin.name for pin in pins_of("broker")}
    for image in IMAGES:
        pins = pins_of(image)
        assert pins == sorted(pins, key=lambda pin: pin.name)
        assert len({pin.name for pin in pins}) == len(pins) > 10


@pytest.mark.parametrize("line", ["bottle>=1.0 --hash=sha256:" + "0" * 64, "bottle==1.0", "bottle @", "-r other.txt"])
def test_line_that_is_not_a_pin_is_rejected(tree: Path, line: str) -> None:
    (tree / "requirements/broker.txt").write_text(line + "\n")
    with pytest.raises(ReleaseError, match="run make pins"):
        pins_of("broker", tree)


def test_crate_without_a_checksum_is_rejected(tree: Path) -> None:
    assert {crate.name for crate in crates(tree)} > {"delaymq-kernels", "pyo3", "memchr"}
    text = (tree / LOCK).read_text()
    (tree / LOCK).write_text(text.replace('checksum = "', 'digest = "', 1))
    with pytest.raises(ReleaseError, match="has no checksum: use a version from the registry of crates"):
        crates(tree)
