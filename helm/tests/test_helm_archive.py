"""Archive of the chart in a release, read by Helm."""

from __future__ import annotations

from pathlib import Path

import yaml
from delaymq_helm_testing.helm_chart import CHART, KUBERNETES_VERSION, Helm, chart_metadata
from release import chart


def test_archive_of_a_release_renders_and_shows_what_the_folder_does(helm: Helm, tmp_path: Path) -> None:
    archive = chart.pack(tmp_path, 1_790_000_000)
    rendered = [
        helm.run("template", "delaymq", str(source), "--include-crds", "--kube-version", KUBERNETES_VERSION)
        for source in (archive, CHART)
    ]
    assert rendered[0] == rendered[1]
    assert yaml.safe_load(helm.run("show", "chart", str(archive))) == chart_metadata()


def test_archive_of_a_release_has_the_files_of_helm_package(helm: Helm, tmp_path: Path) -> None:
    archive = chart.pack(tmp_path, 1_790_000_000)
    (tmp_path / "helm").mkdir()
    helm.run("package", str(CHART), "--destination", str(tmp_path / "helm"))
    shown = [helm.run("show", "all", str(path)) for path in (archive, tmp_path / "helm" / archive.name)]
    assert shown[0] == shown[1]
