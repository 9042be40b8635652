"""Wheels of the distributions: contents, licence, metadata and README, built without network access."""

import re
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"delaymq": "broker_image", "delaymq_operator": "operator", "delaymq_spark": "spark"}
LICENCE_FILES = ["LICENSE", "NOTICE"]


class Wheel:
    """The wheel of one distribution, built from the tree."""

    def __init__(self, package: str, folder: Path) -> None:
        self.package = package
        (path,) = WheelBuilder(str(ROOT / FOLDERS[package])).build(directory=str(folder), versions=["standard"])
        with ZipFile(path) as archive:
            self.names = archive.namelist()
            (self.dist_info,) = {name.split("/")[0] for name in self.names if ".dist-info/" in name}
            self.metadata: Message = Parser().parsestr(archive.read(f"{self.dist_info}/METADATA").decode())
            licences = {name: archive.read(name) for name in self.names if f"{self.dist_info}/licenses/" in name}
        self.licences = {name.rpartition("/")[2]: text for name, text in licences.items()}

    @property
    def readme(self) -> str:
        return str(self.metadata.get_payload())


@pytest.fixture(scope="module", params=FOLDERS)
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    return Wheel(request.param, tmp_path_factory.mktemp(request.param))


def test_wheel_contains_its_package_and_the_declared_typing_marker(wheel: Wheel) -> None:
    assert f"{wheel.package}/__init__.py" in wheel.names
    is_typed = "Typing :: Typed" in wheel.metadata.get_all("Classifier", [])
    assert is_typed == (f"{wheel.package}/py.typed" in wheel.names)
    assert not [name for name in wheel.names if "tests" in name or name.endswith(".pyc")]


def test_wheel_contains_the_licence_files_that_it_names(wheel: Wheel) -> None:
    assert wheel.metadata["License-Expression"] == "Apache-2.0"
    assert wheel.metadata.get_all("License-File") == LICENCE_FILES
    assert wheel.licences == {name: (ROOT / name).read_bytes() for name in LICENCE_FILES}
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_metadata_describe_the_distribution(wheel: Wheel) -> None:
    assert wheel.metadata["Name"] == wheel.package.replace("_", "-")
    assert wheel.metadata["Summary"]
    assert wheel.metadata["Author"]
    assert wheel.metadata["Keywords"]
    classifiers = wheel.metadata.get_all("Classifier", [])
    assert "Operating System :: POSIX :: Linux" in classifiers
    lowest = wheel.metadata["Requires-Python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {lowest}" in classifiers


def test_no_project_url_is_stated_before_the_project_has_an_address(wheel: Wheel) -> None:
    assert wheel.metadata.get_all("Project-URL") is None
    assert wheel.metadata["Home-page"] is None


def test_readme_is_readable_without_the_repository(wheel: Wheel) -> None:
    """A package index displays it, and relative links are broken there."""
    assert wheel.metadata["Description-Content-Type"] == "text/markdown"
    assert wheel.readme.startswith(f"# {wheel.metadata['Name']}\n")
    links = re.findall(r"\]\(([^)\s]+)\)", wheel.readme)
    assert [link for link in links if "://" not in link and not link.startswith("#")] == []


def test_paths_named_in_a_readme_exist(wheel: Wheel) -> None:
    named = re.findall(r"`((?:docs|helm|examples)/[\w./-]*)`", wheel.readme)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
