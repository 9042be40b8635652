"""Docker daemon used by this package: the machine's, or one started by `dockerd`."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster import debian
from cluster.artifacts import Artifact, locked
from cluster.commands import Log, output_of, run
from cluster.errors import ClusterError
from cluster.paths import DAEMON_RUN_PATH, run_path

OWN_HOST = f"unix://{DAEMON_RUN_PATH}/docker.sock"
"""DOCKER_HOST in the environment of a cluster run by the private daemon."""
LOAD_TIMEOUT_S = 300
PULL_TIMEOUT_S = 300


@dataclass(frozen=True)
class Daemon:
    """A Docker daemon; ``environment`` is the environment in which programs reach it."""

    environment: Mapping[str, str]
    own: bool
    """Whether this package started it, with its own data and without other users' containers."""

    def docker(
        self, *arguments: str | Path, timeout_s: float = 60, check: bool = True, stdin_text: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return run(
            ["docker", *arguments],
            timeout_s=timeout_s,
            environment=self.environment,
            check=check,
            stdin_text=stdin_text,
        )

    def has_image(self, tag: str) -> bool:
        return self.docker("image", "inspect", "--format", "{{.Id}}", tag, check=False).returncode == 0

    def image_key(self, tag: str) -> str | None:
        """Return the key of the artifact from which an image was loaded; None if missing or of other origin."""
        asked = self.docker(
            "image", "inspect", "-f", f'{{{{index .Config.Labels "{debian.LABEL}"}}}}', tag, check=False
        )
        return asked.stdout.strip() or None if asked.returncode == 0 else None

    def load(self, artifact: Artifact, tag: str, log: Log) -> None:
        """Ensure an artifact's image with its tag, building and loading it if necessary."""
        if self.image_key(tag) == artifact.key:
            return
        archive = artifact.obtain(log) / "image.tar.zst"
        lock = run_path() / f".{artifact.name}.loading.lock"
        with locked(lock, log, what=f"another run that loads {tag} into Docker"):
            if self.image_key(tag) != artifact.key:
                self._load(archive, tag, log)
                if self.image_key(tag) != artifact.key:
                    raise ClusterError(f"{tag} cannot be loaded from {archive}: the archive contains another image")

    def _load(self, archive: Path, tag: str, log: Log) -> None:
        log(f"loading {tag} into Docker")
        unpack = subprocess.Popen(["zstd", "-dcq", archive], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert unpack.stdout is not None
        try:
            loaded = subprocess.run(
                ["docker", "load", "-q"],
                stdin=unpack.stdout,
                capture_output=True,
                text=True,
                env=dict(self.environment),
                timeout=LOAD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as e:
            raise ClusterError(f"loading {tag} took longer than {LOAD_TIMEOUT_S} s") from e
        finally:
            unpack.stdout.close()
            unpack.kill()
            unpack.wait()
        if loaded.returncode != 0:
            raise ClusterError(f"{tag} cannot be loaded from {archive}: {loaded.stderr.strip()}")

    def pull(self, tag: str) -> bool:
        """Ensure that an image is available, pulling it if necessary; return whether it is."""
        if self.has_image(tag):
            return True
        try:
            return self.docker("pull", "-q", tag, timeout_s=PULL_TIMEOUT_S, check=False).returncode == 0
        except ClusterError:
            return False


def ordinary() -> Daemon | None:
    """Return the daemon used by plain ``docker``, if one responds that is not the private one."""
    if os.environ.get("DOCKER_HOST") == OWN_HOST:
        return None
    if output_of(["docker", "info", "--format", "{{.ServerVersion}}"]):
        return Daemon(dict(os.environ), own=False)
    return None
