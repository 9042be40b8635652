"""Pinned requirements of the images: those of the distributions, in the tested versions."""

from __future__ import annotations

import re

import pytest
from delaymq_helm_testing.helm_chart import ROOT, pins_of, project_of, wanted_of

IMAGES = ["broker", "operator", "spark-image", "build"]


def names(requirements: list[str]) -> set[str]:
    """Return the names in requirements (`aiohttp` for `aiohttp>=3.11`), without those of this project."""
    found = {re.split(r"[\[<>=~! ]", requirement)[0] for requirement in requirements}
    return found - {"delaymq"}


def is_in(path: str, folder: str) -> bool:
    """Return whether `path` is that file, or in that folder."""
    return path == folder or path.startswith(f"{folder}/")


def test_broker_image_has_its_extras() -> None:
    extras = project_of("broker_image")["optional-dependencies"]
    assert wanted_of("broker") == names([*extras["server"], *extras["client"], *extras["compression"], *extras["cli"]])


def test_operator_image_has_its_dependencies() -> None:
    client = project_of("broker_image")["optional-dependencies"]["client"]
    assert wanted_of("operator") == names(project_of("operator")["dependencies"] + client)


def test_spark_image_has_its_dependencies() -> None:
    extras = project_of("spark")["optional-dependencies"]
    assert wanted_of("spark-image") == names(project_of("spark")["dependencies"] + extras["spark"] + extras["report"])


@pytest.mark.parametrize("image", IMAGES)
def test_images_have_the_tested_versions(image: str) -> None:
    tested = pins_of("spark") if image == "spark-image" else pins_of("spark") | pins_of("dev")
    pinned = pins_of(image)
    assert wanted_of(image) <= set(pinned)
    assert {name: tested.get(name) for name in pinned} == pinned, "run: make pins"


@pytest.mark.parametrize("image", IMAGES)
def test_every_pin_has_a_hash_and_no_url(image: str) -> None:
    text = (ROOT / f"requirements/{image}.txt").read_text()
    entries = re.split(r"\n(?=\w)", text.strip())
    assert len(entries) == sum(len(versions) for versions in pins_of(image).values())
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text


def test_build_context_equals_what_the_dockerfile_copies() -> None:
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    copied = [path for line in lines for path in line.split()]
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert [path for path in copied if not any(is_in(path, folder) for folder in let_in)] == []
    assert [folder for folder in let_in if not any(is_in(path, folder) for path in copied)] == []
    assert all((ROOT / path).exists() for path in copied)
