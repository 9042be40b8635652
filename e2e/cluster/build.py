"""Builds of everything that clusters require on this machine, and cleanup of the cache."""

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

from cluster import artifacts, debian, node_image, programs, requirements
from cluster.artifacts import Artifact
from cluster.commands import Log, beside
from cluster.daemon import ordinary
from cluster.errors import ClusterError
from cluster.modes import KIND_NODE_IMAGES, wanted_image
from cluster.paths import artifacts_path, cache_path, go_path

API_SERVER = (programs.KUBE, programs.ETCD)
"""Programs for tests that need only an API server; available on every machine."""
ORDINARY = (
    *API_SERVER,
    programs.KIND,
    programs.PAUSE,
    programs.LOCAL_PATH_PROVISIONER,
    programs.COREDNS,
    programs.HELM,
    programs.SPARK_OPERATOR,
    node_image.NODE_IMAGE,
)
"""The slowest first: errors appear early, and Go's cache is filled for the rest."""
DEBIAN_ROOTS = (
    debian.NODE_ROOT,
    debian.PYTHON_RUNTIME,
    debian.PYTHON_BUILD,
    debian.JAVA_RUNTIME,
    debian.SPARK_RUNTIME,
)
"""Made concurrently with the others, since debootstrap uses one processor."""
ALL = {artifact.name: artifact for artifact in (*ORDINARY, *DEBIAN_ROOTS)}

SCRATCH_UNUSED_AFTER_S = 24 * 3600
"""Earlier versions created scratch folders outside of drafts, without a lock; no build takes this long."""
ANOTHER_BUILDS = "another run is building: wait until it ends"


def build(names: Sequence[str] = (), *, log: Log = print, keep_go_cache: bool = False) -> None:
    """Build the named artifacts, or all that this machine's clusters need; existing ones are not rebuilt.

    If another run is building an artifact, wait for it. Afterwards, remove Go's caches (7 GB that only builds need)
    unless ``keep_go_cache``, and artifacts that were unused for two weeks; a failed build keeps them for the next one.
    Raises ClusterError.
    """
    unknown = [name for name in names if name not in ALL]
    if unknown:
        raise ClusterError(f"unknown artifacts: {', '.join(unknown)}; available: {', '.join(ALL)}")
    started = time.monotonic()
    wanted = [ALL[name] for name in names] if names else needed(log)
    missing = [artifact for artifact in wanted if not artifact.made]
    with artifacts.building(log) if missing else nullcontext():
        if missing:
            artifacts.remove_all_drafts()
        if any(artifact not in API_SERVER for artifact in missing):
            requirements.install(requirements.BUILD_PROGRAMS, log)
        roots = [artifact for artifact in wanted if artifact in DEBIAN_ROOTS]
        others = [artifact for artifact in wanted if artifact not in DEBIAN_ROOTS]
        beside(*(partial(_obtain, parts, log) for parts in (others, roots) if parts))
    state = f"built in {time.monotonic() - started:.0f} s" if missing else "nothing was missing"
    log(f"all {len(wanted)} parts are available, {state}: {artifacts_path()}")
    # The cache of another user is left to that user.
    if os.access(cache_path(), os.W_OK) and not tidy(log, keep_go_cache=keep_go_cache):
        log("another run is building: Go's caches are kept until it ends")


def _obtain(parts: Sequence[Artifact], log: Log) -> None:
    for part in parts:
        part.obtain(log)


def needed(log: Log = print) -> Sequence[Artifact]:
    """Return the required artifacts; with a registry only the programs, since kind's node image and public base
    images are available.
    """
    daemon = ordinary()
    image = wanted_image(daemon) if daemon else None
    if daemon and image and daemon.pull(image):
        log(f"Docker has {image}: no node image is built")
        return (*API_SERVER, programs.SPARK_OPERATOR)
    if reason := requirements.why_no_build():
        raise ClusterError(f"none of {KIND_NODE_IMAGES} can be pulled, and {reason}")
    return tuple(ALL.values())


def tidy(log: Log = print, *, keep_go_cache: bool = False, unused_after_s: float = artifacts.UNUSED_AFTER_S) -> bool:
    """Remove what no checkout needs any more and no running cluster uses.

    Return False if another run is building: everything is kept then, and that run removes it.
    """
    with artifacts.nobody_builds() as alone:
        if not alone:
            return False
        artifacts.remove_all_drafts()
        artifacts.remove_remains(artifacts_path())
        artifacts.remove_remains(cache_path())
        wanted = {artifact.path.name for artifact in ALL.values()}
        if removed := artifacts.remove_unused(wanted, unused_after_s=unused_after_s):
            log(f"removed long unused artifacts: {', '.join(removed)}")
        for scratch in artifacts_path().glob(".scratch-*"):
            if time.time() - scratch.stat().st_mtime > SCRATCH_UNUSED_AFTER_S:
                artifacts.remove_draft(scratch)
        if not keep_go_cache and go_path().exists():
            artifacts.remove_at_once(go_path())
            log("removed Go's modules and compiled packages, which only builds need")
    return True


def clean_all(log: Log = print) -> None:
    """Remove the whole cache; Docker must be down. Raises ClusterError if another run is building."""
    with artifacts.nobody_builds() as alone:
        if not alone:
            raise ClusterError(ANOTHER_BUILDS)
        artifacts.remove_remains(cache_path().parent)
        artifacts.remove_at_once(cache_path())
    log(f"removed {cache_path()}")
