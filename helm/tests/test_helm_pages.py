"""Commands of README.md and of the quick start for Kubernetes: accepted by Helm, with the images that they build."""

import re
import shlex
from pathlib import Path

import pytest
from delaymq_helm_testing.helm_chart import KUBERNETES_VERSION, ROOT, Helm

PAGES = [ROOT / "README.md", ROOT / "docs/quickstart-kubernetes.md"]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
IMAGE = re.compile(r"[\w./-]*delaymq/(?:broker|operator):[\w.]+")
OF_INSTALL = {"--create-namespace"}
"""Options that only `helm install` has."""


def commands(page: Path, program: str) -> list[list[str]]:
    """Return the page's commands of one program, as a shell splits them."""
    lines = "".join(BLOCK.findall(page.read_text())).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))[:1] == [program]]


def built(page: Path) -> set[str]:
    """Return the images that the page builds."""
    return {words[words.index("-t") + 1] for words in commands(page, "docker") if words[1] == "build"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_builds_images_of_the_dockerfile_and_loads_them_into_the_cluster(page: Path) -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    builds = [words for words in commands(page, "docker") if words[1] == "build"]
    assert {words[words.index("--target") + 1] for words in builds} == {"broker", "operator"} <= targets
    pushed = {words[2] for words in commands(page, "docker") if words[1] == "push"}
    loaded = {image for words in commands(page, "kind") for image in words[3:]}
    assert pushed | loaded == built(page)
    in_text = re.search(r"`kind\s+load\s+docker-image\s([^`]*)`", page.read_text())
    assert (in_text is None) == (page.name != "quickstart-kubernetes.md")
    assert in_text is None or set(in_text[1].split()) == built(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_helm_accepts_the_command_of_a_page_and_renders_the_images_that_it_builds(page: Path, helm: Helm) -> None:
    [install] = [words for words in commands(page, "helm") if words[1] == "install"]
    release, chart, *options = (word for word in install[2:] if word not in OF_INSTALL)
    rendered = helm.run("template", release, str(ROOT / chart), *options, "--kube-version", KUBERNETES_VERSION)
    assert set(IMAGE.findall(rendered)) == built(page)
