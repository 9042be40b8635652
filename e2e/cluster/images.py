"""The product's images, built from the repository's Dockerfile, and images of programs that tests run in a cluster.

Tags are derived from the content of the sources, so unchanged images are not rebuilt. The build stages reach the
registries of packages and crates with this machine's settings of pip and cargo and its certificates, which are part of
their base image. The tested image has a different base image and does not contain them.
"""

import ast
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from harness import java, locks

from cluster import debian, dockerd, programs
from cluster.artifacts import Artifact, locked
from cluster.commands import Log, output_of
from cluster.daemon import Daemon
from cluster.dockerfiles import digest_of, sources_of
from cluster.errors import ClusterError
from cluster.paths import FILES_PATH, REPOSITORY_PATH, run_path

TARGETS = ("broker", "operator", "spark")
CLIENT_PATH = REPOSITORY_PATH / "e2e" / "kind_client"
JAVA_SOURCES_PATH = REPOSITORY_PATH / "bench" / "java"
TAG_PREFIX = "e2e-"

# Images that the Dockerfile pulls implicitly if a registry is reachable:
PYTHON_IMAGE = "python:3.11-slim-bookworm"
JAVA_IMAGE = "eclipse-temurin:17-jre"

BUILD_TIMEOUT_S = 900
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries")
"""Pip settings that locate packages; others (caches, folders) have no meaning in an image."""
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")

_held: list[IO[str]] = []


def build_images(daemon: Daemon | None = None, *, log: Log = print) -> dict[str, str]:
    """Build missing images in Docker (by default that of `up`) and return name → tag of all images that tests need.

    ``broker``, ``operator``, ``spark``: the product. ``e2e-client``: the Python programs of e2e/kind_client.
    ``java-client``: RocketMQ's own client with the load program of bench/java. ``spark-operator``: Kubeflow's operator,
    as its chart expects it. No other run removes them before this process exits. Raises ClusterError with the last
    output of a failed build.
    """
    daemon = daemon or dockerd.up(log)
    with locked(run_path() / ".images.lock", log, what="another run that builds images"):
        tags = _build_all(daemon, log)
        for tag in tags.values():
            hold(tag)
            _remove_former(daemon, tag)
    return tags


def _build_all(daemon: Daemon, log: Log) -> dict[str, str]:
    bases = _Bases(daemon, log)
    text = (REPOSITORY_PATH / "Dockerfile").read_text()
    tags = {}
    for target in TARGETS:
        paths = ["Dockerfile", ".dockerignore", *sources_of(text, target)]
        key, base = (bases.spark_key, bases.spark) if target == "spark" else (bases.runtime_key, bases.runtime)
        tag = f"delaymq/{target}:{TAG_PREFIX}{digest_of(REPOSITORY_PATH, paths, key, bases.build_key, kernels())}"
        if not daemon.has_image(tag):
            arguments = {"BASE_IMAGE": base(), "BUILD_IMAGE": bases.build(), "KERNELS": kernels()}
            build(daemon, tag, REPOSITORY_PATH, target=target, arguments=arguments, log=log)
        tags[target] = tag
    tags["e2e-client"] = _client(daemon, tags["broker"], log)
    tags["java-client"] = _java_client(daemon, bases, log)
    tags["spark-operator"] = _spark_operator(daemon, tags["spark"], log)
    return tags


def kernels() -> str:
    """Return the build argument KERNELS: 0 on a machine that could not download the crates for its own kernels."""
    return "0" if (REPOSITORY_PATH / "build" / "kernels" / "not-fetched").exists() else "1"


def build(
    daemon: Daemon,
    tag: str,
    folder: Path,
    *,
    target: str | None = None,
    arguments: Mapping[str, str] | None = None,
    log: Log = print,
) -> None:
    """Run `docker build` for the Dockerfile in ``folder``; our own daemon reaches only the machine's network."""
    words: list[str | Path] = ["build", "-q", "-t", tag, *(["--network", "host"] if daemon.own else [])]
    if target is not None:
        words += ["--target", target]
    proxies = {name: os.environ[name] for name in PROXY_VARIABLES if os.environ.get(name)}
    for name, value in (proxies | dict(arguments or {})).items():
        words += ["--build-arg", f"{name}={value}"]
    log(f"building {tag}")
    try:
        daemon.docker(*words, folder, timeout_s=BUILD_TIMEOUT_S)
    except ClusterError as e:
        raise ClusterError(f"the image {tag} cannot be built: {e}") from e


class _Bases:
    """Base images: from a registry if available, otherwise the small Debian images built here."""

    def __init__(self, daemon: Daemon, log: Log) -> None:
        self._daemon = daemon
        self._log = log
        self.from_registry = not daemon.own and daemon.pull(PYTHON_IMAGE)
        self._settings, self._certificates = pip_settings()
        self.runtime_key = PYTHON_IMAGE if self.from_registry else debian.PYTHON_RUNTIME.key
        self.spark_key = PYTHON_IMAGE if self.from_registry else debian.SPARK_RUNTIME.key
        self.build_key = PYTHON_IMAGE if self.from_registry else debian.PYTHON_BUILD.key

    def runtime(self) -> str:
        return self._image(debian.PYTHON_RUNTIME, PYTHON_IMAGE)

    def spark(self) -> str:
        """Return the Spark base image, with Java if it is built here; otherwise the Dockerfile installs it."""
        return self._image(debian.SPARK_RUNTIME, PYTHON_IMAGE)

    def java(self) -> str:
        return self._image(debian.JAVA_RUNTIME, JAVA_IMAGE)

    def build(self) -> str:
        """Return the base image of the build stages, with this machine's access to the registries, if configured."""
        base = self._image(debian.PYTHON_BUILD, PYTHON_IMAGE)
        cargo = cargo_settings()
        if not self._settings and self._certificates is None and cargo is None:
            return base
        with tempfile.TemporaryDirectory(prefix="delaymq-base-") as name:
            folder = Path(name)
            lines = [f"FROM {base}", "COPY pip.conf /etc/pip.conf"]
            (folder / "pip.conf").write_text(self._settings)
            if self._certificates is not None:
                shutil.copy2(self._certificates, folder / "certificates.pem")
                lines.append("COPY certificates.pem /etc/ssl/certs/ca-certificates.crt")
            if cargo is not None:
                shutil.copy2(cargo, folder / "config.toml")
                lines.append("COPY config.toml /root/.cargo/config.toml")
            (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
            tag = f"delaymq/python-build:{TAG_PREFIX}{digest_of(folder, ['*'], self.build_key)}"
            if not self._daemon.has_image(tag):
                build(self._daemon, tag, folder, log=self._log)
                _remove_former(self._daemon, tag)
        return tag

    def _image(self, artifact: Artifact, from_registry: str) -> str:
        if self.from_registry:
            if not self._daemon.pull(from_registry):
                raise ClusterError(f"Docker cannot pull {from_registry}")
            return from_registry
        tag = f"delaymq/{artifact.name}:{debian.SUITE}"
        self._daemon.load(artifact, tag, self._log)
        return tag


def pip_settings() -> tuple[str, Path | None]:
    """Return the part of this machine's pip.conf that locates packages, and the configured CA certificates, if any."""
    listed = output_of([sys.executable, "-m", "pip", "config", "list"]) or ""
    values: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        if value:
            # Settings from the environment come first and take precedence.
            values.setdefault(name.rpartition(".")[2], str(ast.literal_eval(value)))
    lines = ["[global]"]
    certificates = values.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    if certificates and Path(certificates).is_file():
        lines.append("cert = /etc/ssl/certs/ca-certificates.crt")
    lines += [f"{name} = {' '.join(values[name].split())}" for name in PIP_SETTINGS if name in values]
    if len(lines) == 1:
        return "", None
    return "\n".join(lines) + "\n", Path(certificates) if certificates and Path(certificates).is_file() else None


def cargo_settings() -> Path | None:
    """Return this machine's configuration of cargo, which may name another registry of crates, if there is one."""
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    return next((path for name in ("config.toml", "config") if (path := home / name).is_file()), None)


def _client(daemon: Daemon, broker: str, log: Log) -> str:
    """Build the client image, based on the broker's, which has Python and the package."""
    tag = f"delaymq/e2e-client:{TAG_PREFIX}{digest_of(CLIENT_PATH, ['Dockerfile', '*.py'], broker)}"
    if not daemon.has_image(tag):
        build(daemon, tag, CLIENT_PATH, arguments={"BROKER_IMAGE": broker}, log=log)
    return tag


def _java_client(daemon: Daemon, bases: _Bases, log: Log) -> str:
    libraries = java.libraries("client")
    classes = java.compiled(java.class_path("client"), sources_path=JAVA_SOURCES_PATH)
    base_key = JAVA_IMAGE if bases.from_registry else debian.JAVA_RUNTIME.key
    digest = digest_of(CLIENT_PATH / "java", ["Dockerfile"], libraries.parent.name, classes.name, base_key)
    tag = f"delaymq/java-client:{TAG_PREFIX}{digest}"
    if not daemon.has_image(tag):
        with tempfile.TemporaryDirectory(prefix="delaymq-java-client-") as name:
            folder = Path(name)
            shutil.copytree(libraries, folder / "lib")
            shutil.copytree(classes, folder / "classes")
            shutil.copy2(CLIENT_PATH / "java" / "Dockerfile", folder)
            build(daemon, tag, folder, arguments={"JAVA_RUNTIME": bases.java()}, log=log)
    return tag


def _spark_operator(daemon: Daemon, spark: str, log: Log) -> str:
    """Build the Spark operator's image on the Spark image, whose `spark-submit` it runs; only one layer differs."""
    folder = FILES_PATH / "spark-operator"
    tag = f"delaymq/spark-operator:{TAG_PREFIX}{digest_of(folder, ['Dockerfile'], programs.SPARK_OPERATOR.key, spark)}"
    if not daemon.has_image(tag):
        program = programs.SPARK_OPERATOR.obtain(log) / "spark-operator"
        with tempfile.TemporaryDirectory(prefix="delaymq-spark-operator-") as name:
            shutil.copy2(program, name)
            shutil.copy2(folder / "Dockerfile", name)
            build(daemon, tag, Path(name), arguments={"SPARK_IMAGE": spark}, log=log)
    return tag


def _remove_former(daemon: Daemon, tag: str) -> None:
    """Remove images of earlier sources, except those in use by a container or another run."""
    repository = tag.rpartition(":")[0]
    listed = daemon.docker("images", "--format", "{{.Repository}}:{{.Tag}}", f"{repository}:{TAG_PREFIX}*").stdout
    former = [name for name in listed.split() if name != tag and not is_held(name)]
    if former:
        daemon.docker("rmi", *former, check=False, timeout_s=120)


def hold(tag: str) -> None:
    """Protect an image until this process ends from runs of other checkouts, which remove images of earlier sources."""
    if (lock := locks.take(_lock_path(tag), shared=True)) is not None:
        _held.append(lock)


def is_held(tag: str) -> bool:
    """Return whether a run protects an image."""
    path = _lock_path(tag)
    if not path.exists():
        return False
    if (lock := locks.take(path)) is None:
        return True
    with lock:
        path.unlink()
    return False


def _lock_path(tag: str) -> Path:
    return run_path() / f".{tag.replace('/', '_').replace(':', '_')}.image.lock"
