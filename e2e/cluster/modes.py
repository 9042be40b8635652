"""Selection of the node image and programs of a cluster on this machine, and whether one can be created at all.

Where Docker answers and kind's own node image is there or can be pulled, that one is used; else the one built here.
DELAYMQ_E2E_NODE_IMAGE decides otherwise: ``built`` for the one built here, or the name of any node image.
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
"""kind's own, of the minor version that the built one has."""
KIND_NODE_IMAGES = "kindest/node:v1.34.*"
"""Any of these that is there already is taken instead of pulling."""


@dataclass(frozen=True)
class Mode:
    """How clusters are made here."""

    node_image: str
    built: bool
    """The node image, and so the programs too, are built here: there is no registry."""


def choose(daemon: Daemon, log: Log = print) -> Mode:
    """The mode of this machine, with its node image in the daemon: pulled, or built and loaded, where needed.

    Raises ClusterError when none can be had.
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
    """The node image to be tried first; None for the one built here."""
    configured = os.environ.get(NODE_IMAGE_VARIABLE)
    if configured:
        return None if configured == BUILT else configured
    if daemon.own:
        return None
    listed = daemon.docker("images", "--format", "{{.Repository}}:{{.Tag}}", KIND_NODE_IMAGES).stdout.split()
    return max(listed, default=KIND_NODE_IMAGE)


def program_folders(mode: Mode, log: Log = print) -> list[Path]:
    """Folders with kind, kubectl and helm, to be put before the PATH; empty where the machine has them all.

    With the built node image the programs are the built ones, of the same version.
    """
    artifacts = {"kind": programs.KIND, "kubectl": programs.KUBE, "helm": programs.HELM}
    missing = [name for name in artifacts if mode.built or shutil.which(name) is None]
    return [artifacts[name].obtain(log) for name in missing]


def why_not() -> str | None:
    """A sentence that says why this machine cannot run clusters, and what to do; None when it can.

    It looks only: whether an image can be pulled is seen when a cluster is made.
    """
    if reason := dockerd.why_not():
        return reason
    ready = node_image.NODE_IMAGE.made and all(item.made for item in (programs.KIND, programs.KUBE, programs.HELM))
    if ready and shutil.which("zstd"):
        return None
    if ordinary() is not None and os.environ.get(NODE_IMAGE_VARIABLE) != BUILT:
        missing = [name for name in ("kind", "kubectl", "helm") if shutil.which(name) is None]
        if missing and (reason := programs.why_no_go()):
            return f"{', '.join(missing)} cannot be found: install them, or to build them: {reason}"
        return None
    return requirements.why_no_build()
