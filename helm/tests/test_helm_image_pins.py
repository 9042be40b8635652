"""The images hold what the distributions say that they need, in the versions that the tests ran with."""

from __future__ import annotations

import re

import pytest
from helm_chart import ROOT, pins_of, project_of, wanted_of


def names(requirements: list[str]) -> set[str]:
    """`aiohttp>=3.11` → `aiohttp`; our own distributions are left out."""
    found = {re.split(r"[\[<>=~! ]", requirement)[0] for requirement in requirements}
    return found - {"delaymq"}


def test_the_brokers_image_has_its_extras() -> None:
    extras = project_of("broker_image")["optional-dependencies"]
    assert wanted_of("broker") == names(extras["server"] + extras["client"] + extras["cli"])


def test_the_operators_image_has_its_dependencies() -> None:
    client = project_of("broker_image")["optional-dependencies"]["client"]
    assert wanted_of("operator") == names(project_of("operator")["dependencies"] + client)


@pytest.mark.parametrize("image", ["broker", "operator", "build"])
def test_images_have_the_versions_that_the_tests_ran_with(image: str) -> None:
    tested = pins_of("dev")
    pinned = pins_of(image)
    assert wanted_of(image) <= set(pinned)
    assert {name: tested.get(name) for name in pinned} == pinned, "run: make pins"


@pytest.mark.parametrize("image", ["broker", "operator", "build"])
def test_every_pin_has_a_hash_and_no_address(image: str) -> None:
    text = (ROOT / f"requirements/{image}.txt").read_text()
    entries = re.split(r"\n(?=\w)", text.strip())
    assert len(entries) == len(pins_of(image))
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text


def test_the_build_context_has_what_the_dockerfile_copies_and_no_more() -> None:
    copied = re.findall(r"^COPY (?!--from)(\S+) ", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(copied) == sorted(let_in)
    assert all((ROOT / path).exists() for path in copied)
