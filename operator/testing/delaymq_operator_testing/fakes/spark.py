"""Simulation of the Spark operator and its drivers on the in-memory API server.

An application spends some seconds in each state, and its driver writes a result; tests can select other outcomes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from delaymq_operator.reconcile.ports import Manifest

from delaymq_operator_testing.fakes.kube import FakeKube
from delaymq_operator_testing.trees import copied

RESULT: dict[str, Any] = {
    "formatVersion": 1,
    "storeId": "s",
    "brokerName": "demo-0",
    "asOfMs": 1,
    "completedAtMs": 2,
    "durationMs": 1,
    "complete": True,
    "skippedCount": 0,
    "skippedBytes": 0,
    "messages": 100,
    "totalBytes": 5000,
    "liveBytes": 3000,
    "deadBytes": 2000,
    "reclaimableBytes": 1500,
    "pending": 7,
    "delivered": 40,
    "lost": 0,
    "lossesCertain": True,
    "duplicates": 1,
    "early": 0,
    "worstLatenessMs": 12,
    "p99LatenessMs": 9,
    "reportOmitted": None,
    "error": None,
}
STATES_S = {"SUBMITTED": 1, "RUNNING": 2, "COMPLETED": 4}
"""Age of an application at which it enters each state, in seconds."""


@dataclass
class FakeSpark:
    """A Spark operator whose applications end in the state `last`: COMPLETED, or a state in which they stay."""

    kube: FakeKube
    last: str = "COMPLETED"
    error: str = ""
    result: dict[str, Any] | str | None = field(default_factory=lambda: dict(RESULT))
    """Result that drivers write; None: no result."""
    report: bool = True
    is_silent: bool = False
    driver_waits: str = ""
    """Reason for which the driver's pod cannot be scheduled; empty: it is scheduled."""
    ran: list[str] = field(default_factory=list)
    """Drivers in the order in which they were started."""
    most_at_once: int = 0

    def tick(self) -> None:
        """Advance every application according to its age."""
        if self.is_silent:
            return
        for application in list(self.kube.select("SparkApplication", None, {})):
            self._run(application)
        running = [pod for pod in self._drivers() if pod["status"]["phase"] in ("Pending", "Running")]
        self.most_at_once = max(self.most_at_once, len(running))

    def _drivers(self) -> list[Manifest]:
        return list(self.kube.select("Pod", None, {"app.kubernetes.io/component": "analytics"}))

    def _run(self, application: Manifest) -> None:
        name = application["metadata"]["name"]
        made_s = datetime.fromisoformat(application["metadata"]["creationTimestamp"]).timestamp()
        age_s = self.kube.clock() / 1000 - made_s
        before = state_of(application)
        if before in ("COMPLETED", "FAILED", "SUBMISSION_FAILED"):
            return
        state = before
        for each, from_s in STATES_S.items():
            if age_s >= from_s:
                state = self.last if each == "COMPLETED" else each
            if state == self.last:
                break
        if self.driver_waits and state != "":
            state = "SUBMITTED"
        if state == before:
            return
        if before == "" and state != "SUBMISSION_FAILED":
            self._start_driver(application)
        if state in ("COMPLETED", "FAILED"):
            self._leave_result(application)
        if not self.driver_waits:
            phase = {"RUNNING": "Running", "COMPLETED": "Succeeded", "FAILED": "Failed"}.get(state, "Pending")
            self._driver_is(name, {"phase": phase})
        told = {"state": state} | ({"errorMessage": self.error} if self.error else {})
        self.kube.put(copied(application) | {"status": {"applicationState": told, "driverInfo": {}}})

    def _start_driver(self, application: Manifest) -> None:
        name, driver = application["metadata"]["name"], application["spec"]["driver"]
        self.ran.append(name)
        status: dict[str, Any] = {"phase": "Pending"}
        if self.driver_waits:
            waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": self.driver_waits}
            status["conditions"] = [waits]
        body = {
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-driver",
                "namespace": application["metadata"]["namespace"],
                "labels": application["metadata"]["labels"] | driver["labels"],
                "ownerReferences": [{"kind": "SparkApplication", "uid": application["metadata"]["uid"]}],
            },
            "spec": {"containers": [{"name": "spark-kubernetes-driver", "image": application["spec"]["image"]}]},
            "status": status,
        }
        self.kube.put(body)

    def _driver_is(self, name: str, status: dict[str, Any]) -> None:
        for pod in self._drivers():
            if pod["metadata"]["name"] == f"{name}-driver":
                self.kube.put(copied(pod) | {"status": status})

    def _leave_result(self, application: Manifest) -> None:
        metadata = application["metadata"]
        live = self.kube.objects.get(("AnalyticsResult", metadata["namespace"], metadata["name"]))
        if live is None or self.result is None:
            return
        text = self.result if isinstance(self.result, str) else json.dumps(self.result)
        data = {"data": {"status.json": text}}
        binary = {"binaryData": {"summary.json.gz": "eA==", **({"report.html.gz": "eA=="} if self.report else {})}}
        self.kube.put(copied(live) | data | binary)


def state_of(application: Manifest) -> str:
    """Return the state that the Spark operator reported, or an empty text before its first report."""
    told = (application.get("status") or {}).get("applicationState") or {}
    return str(told.get("state", ""))
