"""Selection of the node image and programs of a cluster on this machine, and whether one can be created at all.

If Docker runs and kind's own node image is available or can be pulled, it is used; otherwise one is built here.
DELAYMQ_E2E_NODE_IMAGE overrides this: ``built`` for the one built here, or the name of any node image.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from cluster import dockerd, node_image, programs, requirements
from cluster.commands import Log
from cluster.daemon import Daemon, ordinary
from cluster.errors import ClusterError

NODE_IMAGE_VARIABLE = "DELAYMQ_E2E_NODE_IMAGE"
BUILT = "built"
KIND_NODE_IMAGE = "kindest/node:v1.34.3"
"""kind's own image, of the same minor version as the built one."""
KIND_NODE_IMAGES = "kindest/node:v1.34.*"
"""Any of these that is already available is used instead of pulling."""


@dataclass(frozen=True)
class Mode:
    """Way in which clusters are created on this machine."""

    node_image: str
    built: bool
    """Whether the node image, and therefore the programs too, are built here because there is no registry."""


def choose(daemon: Daemon, log: Log = print) -> Mode:
    """Return the mode of this machine and ensure its node image in the daemon: pulled, or built and loaded.

    Raises ClusterError if no image is available.
    """
    image = wanted_image(daemon)
    if image is not None:
        if daemon.pull(image):
            return Mode(image, built=False)
        if os.environ.get(NODE_IMAGE_VARIABLE):
            raise ClusterError(f"{NODE_IMAGE_VARIABLE}: Docker has no image {image} and cannot pull it")
        log(f"{image} cannot be pulled: the node image is built here")
    if not node_image.NODE_IMAGE.made and (reason := requirements.why_no_build()):
        raise ClusterError(f"{KIND_NODE_IMAGE} cannot be pulled, and {reason}")
    requirements.install(requirements.BUILD_PROGRAMS if not node_image.NODE_IMAGE.made else {"zstd": "zstd"}, log)
    daemon.load(node_image.NODE_IMAGE, node_image.TAG, log)
    return Mode(node_image.TAG, built=True)


def wanted_image(daemon: Daemon) -> str | None:
    """Return the preferred node image; None for the one built here."""
    configured = os.environ.get(NODE_IMAGE_VARIABLE)
    if configured:
        return None if configured == BUILT else configured
    if daemon.own:
        return None
    listed = daemon.docker("images", "--format", "{{.Repository}}:{{.Tag}}", KIND_NODE_IMAGES).stdout.split()
    return max(listed, default=KIND_NODE_IMAGE)


def program_folders(mode: Mode, log: Log = print) -> list[Path]:
    """Return folders with kind, kubectl and helm to prepend to the PATH; empty if the machine has them all.

    With the built node image the programs are the built ones, of the same version.
    """
    artifacts = {"kind": programs.KIND, "kubectl": programs.KUBE, "helm": programs.HELM}
    missing = [name for name in artifacts if mode.built or shutil.which(name) is None]
    return [artifacts[name].obtain(log) for name in missing]


def why_not() -> str | None:
    """Return why this machine cannot run clusters and what to do; None if it can.

    Nothing is changed or downloaded: whether an image can be pulled is determined when a cluster is created.
    """
    if reason := dockerd.why_not():
        return reason
    ready = node_image.NODE_IMAGE.made and all(item.made for item in (programs.KIND, programs.KUBE, programs.HELM))
    if ready and shutil.which("zstd"):
        return None
    if ordinary() is not None and os.environ.get(NODE_IMAGE_VARIABLE) != BUILT:
        missing = [name for name in ("kind", "kubectl", "helm") if shutil.which(name) is None]
        if missing and (reason := programs.why_no_go()):
            return f"{', '.join(missing)} cannot be found: install them; they cannot be built, since {reason}"
        return None
    return requirements.why_no_build()
