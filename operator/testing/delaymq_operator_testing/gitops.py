"""Evaluation of a status by tools: `kubectl wait`, and kstatus, which Flux and Helm use."""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]


def wait_returns(body: Body, condition: str, status: str = "True") -> bool:
    """Return whether `kubectl wait --for=condition=…` (1.21 or newer) is satisfied.

    It ignores conditions of an older generation.
    """
    generation = body["metadata"]["generation"]
    for each in (body.get("status") or {}).get("conditions") or []:
        if each["type"] == condition:
            observed = each.get("observedGeneration", body["status"].get("observedGeneration", generation))
            return bool(observed >= generation and each["status"] == status)
    return False


def kstatus(body: Body) -> str:
    """Return InProgress, Failed or Current, as kstatus computes it for an unknown kind."""
    status = body.get("status") or {}
    if "observedGeneration" in status and status["observedGeneration"] != body["metadata"]["generation"]:
        return "InProgress"
    conditions = status.get("conditions") or []
    for each in conditions:
        if each["type"] == "Reconciling" and each["status"] == "True":
            return "InProgress"
        if each["type"] == "Stalled" and each["status"] == "True":
            return "Failed"
    ready = next((each["status"] for each in conditions if each["type"] == "Ready"), "True")
    return "Current" if ready == "True" else "InProgress"
