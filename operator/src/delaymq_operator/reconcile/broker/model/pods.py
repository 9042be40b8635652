"""Interpretation of a pod's status: readiness, inputs, and what prevents it from running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delaymq_operator.api.names import INPUTS_ANNOTATION
from delaymq_operator.api.resource import ms_of_timestamp
from delaymq_operator.reconcile.endpoints import running_port

REVISION_LABEL = "controller-revision-hash"
_BAD_WAITS = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Waiting reasons of a container that do not resolve within a moment."""
_OVERDUE_MS = 60_000
"""Time after its deletion time after which an existing pod indicates a node that does not respond."""
MAX_MESSAGE_CHARS = 300
"""Maximum length of a message, since the kubelet's messages can contain whole logs."""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod according to its status."""

    name: str
    uid: str
    ready: bool
    revision: str
    """Revision of the StatefulSet from which the pod was created."""
    inputs: str = ""
    """Hash of the user's settings that require a restart; empty: not a pod of the operator."""
    terminating: bool
    running: bool
    ip: str | None
    node: str | None
    ready_since_ms: int | None = None
    """Time since which it has been ready; None: it is not ready, or the time is unknown."""
    image: str | None = None
    """Image of its container; None: it is not running."""
    port: int | None = None
    """Port of its broker; None for a NameServer."""
    unready_since_ms: int | None = None
    """Time since which it has not been ready; None: it is."""
    waits_for: str = ""
    """Waiting reason of its container, such as ContainerCreating."""
    problem: str | None = None
    """A sentence about what prevents it from running; also None while it is starting normally."""

    @classmethod
    def of(cls, body: dict[str, Any], now_ms: int) -> Pod:
        """Return a Pod from the API server's object."""
        metadata, status = body["metadata"], body.get("status") or {}
        deleted_at = metadata.get("deletionTimestamp")
        running = status.get("phase") == "Running"
        ready = _condition(status, "Ready")
        unready_since = ready.get("lastTransitionTime") or metadata.get("creationTimestamp")
        return cls(
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            ready=is_ready(body),
            revision=(metadata.get("labels") or {}).get(REVISION_LABEL, ""),
            inputs=(metadata.get("annotations") or {}).get(INPUTS_ANNOTATION, ""),
            terminating=deleted_at is not None,
            running=running,
            ip=status.get("podIP") or None,
            node=(body.get("spec") or {}).get("nodeName"),
            ready_since_ms=ms_of_timestamp(ready.get("lastTransitionTime")) if is_ready(body) else None,
            image=_image(body) if running else None,
            port=running_port(body),
            unready_since_ms=None if ready.get("status") == "True" else ms_of_timestamp(unready_since),
            waits_for=_waits_for(status),
            problem=_problem(metadata["name"], status, deleted_at, now_ms),
        )


def is_ready(body: dict[str, Any]) -> bool:
    """Return whether a pod is ready and not being deleted."""
    ready = _condition(body.get("status") or {}, "Ready").get("status") == "True"
    return ready and not body["metadata"].get("deletionTimestamp")


def _image(body: dict[str, Any]) -> str | None:
    """Return the image from the spec, since the kubelet may report another name of the same image."""
    containers = (body.get("spec") or {}).get("containers") or [{}]
    return containers[0].get("image") or None


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    found = (item for item in status.get("conditions") or [] if item.get("type") == kind)
    return next(found, {})


def _waits_for(status: dict[str, Any]) -> str:
    for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return f"container {each.get('name')}: {_said(waiting)}"
    return ""


def _problem(name: str, status: dict[str, Any], deleted_at: str | None, now_ms: int) -> str | None:
    if deleted_at is not None:
        # The deletion time includes the grace period of the pod.
        end_ms = ms_of_timestamp(deleted_at)
        if end_ms is None or now_ms - end_ms < _OVERDUE_MS:
            return None
        return (
            f"Pod {name} should have stopped at {deleted_at}: its node does not respond. If the node is permanently "
            f"lost, run `kubectl delete pod {name} --force`; never do so while the pod may still be running"
        )
    for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = each.get("state") or {}
        waiting = state.get("waiting") or {}
        if waiting.get("reason") in _BAD_WAITS:
            last = (each.get("lastState") or {}).get("terminated") or {}
            ended = f"; it last exited with code {last['exitCode']} ({last.get('reason', '')})" if last else ""
            return f"Pod {name}: container {each.get('name')}: {_said(waiting)}{ended}"
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return f"Pod {name} cannot be scheduled: {_said(scheduled)}"
    return None


def _said(state: dict[str, Any]) -> str:
    reason, message = state.get("reason", ""), (state.get("message") or "").strip()
    return f"{reason}: {message[:MAX_MESSAGE_CHARS]}" if message else str(reason)
