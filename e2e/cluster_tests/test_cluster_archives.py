import hashlib
import json
import tarfile
from pathlib import Path

import pytest
from cluster import images
from cluster.archives import Image, layer_digests, write_archive
from cluster.debian import LABEL
from cluster.errors import ClusterError
from cluster.programs import find_program


def write(target: Path, folder: Path) -> Path:
    for name in ("kube", "extra"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / name).write_text(name)
    shared = {name: folder / name for name in ("kube", "extra")}
    pictures = [
        Image(name="registry.k8s.io/kube-apiserver:v1", layers=("kube",), command=("kube-apiserver",)),
        Image(
            name="registry.k8s.io/kube-proxy:v1",
            layers=("kube", "extra"),
            labels={LABEL: "key"},
            user="1:1",
            stop_signal="SIGRTMIN+3",
        ),
    ]
    write_archive(target, shared, pictures)
    return target


def test_images_of_one_archive_share_their_layers(tmp_path: Path) -> None:
    archive = write(tmp_path / "images.tar", tmp_path / "layers")
    with tarfile.open(archive) as content:
        manifest = json.load(content.extractfile("manifest.json"))  # type: ignore[arg-type]
        assert [entry["RepoTags"] for entry in manifest] == [
            ["registry.k8s.io/kube-apiserver:v1"],
            ["registry.k8s.io/kube-proxy:v1"],
        ]
        assert manifest[0]["Layers"] == manifest[1]["Layers"][:1]
        for entry in manifest:
            settings = json.load(content.extractfile(entry["Config"]))  # type: ignore[arg-type]
            for path, digest in zip(entry["Layers"], settings["rootfs"]["diff_ids"], strict=True):
                layer = content.extractfile(path)
                assert layer is not None
                assert f"sha256:{hashlib.sha256(layer.read()).hexdigest()}" == digest
        assert settings["config"]["Labels"] == {LABEL: "key"}
        assert settings["config"]["User"] == "1:1"
        assert settings["config"]["StopSignal"] == "SIGRTMIN+3"
    assert len(layer_digests(archive)) == 2


def test_same_files_give_same_images_regardless_of_their_times(tmp_path: Path) -> None:
    first = write(tmp_path / "1.tar", tmp_path / "a")
    second = write(tmp_path / "2.tar", tmp_path / "b")
    with tarfile.open(first) as one, tarfile.open(second) as two:
        assert one.getnames() == two.getnames()


def test_pip_settings_for_package_sources_are_passed_to_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = tmp_path / "certificates.pem"
    certificates.write_text("---")
    monkeypatch.setenv("PIP_INDEX_URL", "https://packages.example/simple")
    monkeypatch.setenv("PIP_CERT", str(certificates))
    monkeypatch.setenv("PIP_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_DEFAULT_TIMEOUT", raising=False)
    settings, found = images.pip_settings()
    assert settings.splitlines() == [
        "[global]",
        "cert = /etc/ssl/certs/ca-certificates.crt",
        "index-url = https://packages.example/simple",
    ]
    assert found == certificates


def test_machine_without_pip_settings_passes_none_to_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_CERT", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert images.pip_settings() == ("", None)


def test_program_not_built_yet_is_none_and_unknown_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYMQ_CACHE", str(tmp_path))
    assert find_program("kube-apiserver") is None
    with pytest.raises(ClusterError, match="no program 'kube-apisrver'"):
        find_program("kube-apisrver")


@pytest.mark.parametrize("name", ["config.toml", "config"])
def test_settings_of_cargo_are_passed_to_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("CARGO_HOME", str(tmp_path))
    assert images.cargo_settings() is None
    (tmp_path / name).touch()
    assert images.cargo_settings() == tmp_path / name
