"""Removal of runs beyond the limits, of unreferenced objects, and of everything once analytics are disabled."""

from __future__ import annotations

import logging
from typing import Final

from msgspec import structs

from delaymq_operator.api import names
from delaymq_operator.api.analytics import AnalyticsSpec
from delaymq_operator.api.analytics_names import analytics_objects, driver_pod
from delaymq_operator.manifests import component_labels
from delaymq_operator.reconcile.broker.analytics.retention import to_remove
from delaymq_operator.reconcile.broker.model.analysis import GOING_ON
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

MISSING_RETRY_S: Final = 60.0
"""Interval between checks whether the API server now has SparkApplications."""

_logger = logging.getLogger(__name__)


async def clean_up(p: BrokerPass, spec: AnalyticsSpec) -> None:
    """Delete runs beyond the history limits.

    It lists applications after the operator's start, after each run, and when limits change. The list also reveals
    whether there are SparkApplications at all.
    """
    status, memory = p.analytics.known, p.memory.analytics
    state = (status.run, status.state, spec.successful_runs_history_limit, spec.failed_runs_history_limit, p.may_change)
    written = p.broker.status.analytics
    is_written = written is not None and (written.run, written.state) == (status.run, status.state)
    # Once the missing Spark operator is installed, the status must show that nothing else is required.
    is_to_ask = memory.missing and p.now_ms - memory.missing_ms >= int(MISSING_RETRY_S * 1000)
    if status.state in GOING_ON or not is_written or (memory.cleaned_up == state and not is_to_ask):
        # The results of a run must be in the status before its objects are deleted.
        return
    found = await list_applications(p)
    if found is not None and p.may_change:
        await _clean_up(p, spec, found)
    # Only after the deletions, so that rejected ones are retried.
    memory.cleaned_up = state


async def _clean_up(p: BrokerPass, spec: AnalyticsSpec, found: list[Manifest]) -> None:
    status = p.analytics.known
    removed = {each["metadata"]["name"] for each in to_remove(found, status, spec)}
    for application in found:
        if application["metadata"]["name"] in removed:
            await remove_application(p, application["metadata"]["name"], application["metadata"]["uid"])
    kept = {each["metadata"]["name"] for each in found} - removed
    await _remove_drivers(p, kept)
    for entry in status.groups:
        if entry.report is not None and entry.report not in kept:
            p.analytics.put(structs.replace(entry, report=None))


async def remove_all(p: BrokerPass) -> None:
    """Remove everything after spec.analytics was removed, except an account without permissions."""
    try:
        for application in await list_applications(p) or []:
            await remove_application(p, application["metadata"]["name"], application["metadata"]["uid"])
        await _remove_drivers(p, set())
        await _remove_binding(p)
    except KubeError as error:
        if not error.forbidden:
            raise
        # Objects that the operator may not see are deleted with the Broker by their owner references.
        _logger.warning("leftover analytics objects of %s could not be deleted: %s", p.key, error.message)


async def _remove_binding(p: BrokerPass) -> None:
    live = await p.ctx.kube.get("RoleBinding", p.namespace, analytics_objects(p.broker.name))
    if live is not None and _is_ours(p, live):
        await p.ctx.kube.delete("RoleBinding", p.namespace, live["metadata"]["name"], uid=live["metadata"]["uid"])


async def list_applications(p: BrokerPass) -> list[Manifest] | None:
    """Return the Broker's applications; None if the API server does not have the kind, which is remembered.
    KubeError.
    """
    memory = p.memory.analytics
    try:
        found = await p.ctx.kube.list("SparkApplication", p.namespace, labels=component_labels(p.broker, "analytics"))
    except KubeError as error:
        if not error.absent:
            raise
        memory.missing, memory.missing_ms = True, p.now_ms
        return None
    memory.missing = False
    return [each for each in found if _is_ours(p, each)]


def _is_ours(p: BrokerPass, found: Manifest) -> bool:
    owners = found["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == p.broker.uid for owner in owners)


async def remove_application(p: BrokerPass, name: str, uid: str | None = None) -> None:
    """Delete an application and its driver, and with it the executors; an absent object is not an error."""
    try:
        await p.ctx.kube.delete("SparkApplication", p.namespace, name, uid=uid)
    except KubeError as error:
        # An object with this name but another uid is not deleted.
        if not (error.conflict or error.absent):
            raise
    driver = p.cached("Pod", driver_pod(name))
    if driver is not None:
        await _remove_driver(p, driver)


async def _remove_drivers(p: BrokerPass, kept: set[str]) -> None:
    """Delete drivers whose application was deleted: before 2.3, the Spark operator set their owner only with its
    webhook.
    """
    drivers = {driver_pod(name) for name in kept}
    for pod in p.ctx.cache.labelled("Pod", p.namespace, component_labels(p.broker, "analytics")):
        if pod["metadata"]["name"] not in drivers:
            await _remove_driver(p, pod)


async def _remove_driver(p: BrokerPass, pod: Manifest) -> None:
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    is_ours = component_labels(p.broker, "analytics").items() <= labels.items()
    if not is_ours or names.MANAGED_BY_LABEL not in labels or metadata.get("deletionTimestamp"):
        return
    try:
        await p.ctx.kube.delete("Pod", p.namespace, metadata["name"], uid=metadata["uid"])
    except KubeError as error:
        if not error.conflict:
            raise
