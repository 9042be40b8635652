"""Creation of a group's application, when permitted and possible."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from delaymq_operator.api.analytics import AnalyticsGroupStatus, AnalyticsSpec
from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.resource import timestamp_of_ms
from delaymq_operator.manifests import (
    AnalyticsRun,
    analytics_application,
    analytics_result,
    analytics_role_binding,
    analytics_service_account,
)
from delaymq_operator.reconcile.broker.analytics.application_state import one_line
from delaymq_operator.reconcile.broker.analytics.cleanup import MISSING_RETRY_S
from delaymq_operator.reconcile.broker.analytics.finish import failed, is_overdue
from delaymq_operator.reconcile.broker.apply.analytics_policy import ensure_policy
from delaymq_operator.reconcile.broker.apply.compare import covers
from delaymq_operator.reconcile.broker.apply.ensure import NotOursError, check_ours, ensure
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

_ONE_POD: Final = "ReadWriteOncePod"


async def begin(p: BrokerPass, spec: AnalyticsSpec, group: Group, entry: AnalyticsGroupStatus) -> AnalyticsGroupStatus:
    """Return the status of a group whose turn it is, and create its application if it does not exist yet."""
    waits = _waits_for(p, group)
    if not p.may_change:
        # A pause does not count towards the deadline, whose time starts again after the pause.
        return structs.replace(entry, started_at=None, message=one_line(waits))
    if entry.started_at is None:
        entry = structs.replace(entry, started_at=timestamp_of_ms(p.now_ms))
    if waits is None and not is_overdue(p, spec, entry):
        try:
            return await _make(p, spec, group, entry)
        except NotOursError as conflict:
            if not conflict.leftover:
                return failed(p, entry, Reason.RUN_FAILED, str(conflict))
            waits = str(conflict)
        except KubeError as error:
            if error.invalid:
                said = f"the API server rejects the settings in spec.analytics: {error.message}. Correct spec.analytics"
                return failed(p, entry, Reason.RUN_FAILED, said)
            raise
    if not is_overdue(p, spec, entry):
        return structs.replace(entry, message=one_line(waits))
    live = await _left_behind(p, entry.application or "")
    if live is not None:
        return _begun(entry, live)
    said = f"it did not start within {spec.deadline_seconds} s: {waits or entry.message or 'no operator was running'}"
    return failed(p, entry, Reason.DEADLINE_EXCEEDED, said)


async def _left_behind(p: BrokerPass, name: str) -> Manifest | None:
    """Return an application created by an operator that was killed before it recorded it."""
    try:
        return await p.ctx.kube.get("SparkApplication", p.namespace, name)
    except KubeError as error:
        if not error.forbidden:
            raise
        return None


def _begun(entry: AnalyticsGroupStatus, application: Manifest) -> AnalyticsGroupStatus:
    started_at = application["metadata"].get("creationTimestamp") or entry.started_at
    return structs.replace(entry, state="Submitted", started_at=started_at, message=None)


def _waits_for(p: BrokerPass, group: Group) -> str | None:
    """Return why no application is created at present; None if one may be."""
    memory = p.memory.analytics
    if not p.may_change:
        return "no run starts while spec.paused is true or the spec is invalid"
    if not group.ready:
        return f"{group.name} is not ready"
    if memory.missing:
        rest_ms = memory.missing_ms + int(MISSING_RETRY_S * 1000) - p.now_ms
        if rest_ms > 0:
            p.requeue(rest_ms / 1000)
            return "the Spark operator is not installed"
    return None


async def _make(p: BrokerPass, spec: AnalyticsSpec, group: Group, entry: AnalyticsGroupStatus) -> AnalyticsGroupStatus:
    await ensure_policy(p)
    if spec.service_account_name is None:
        await ensure(p, analytics_service_account(p.broker))
        await _ensure_binding(p)
    desired = analytics_application(p.broker, spec, _run(p, spec, group))
    application = await _ensure_application(p, desired)
    if application is None:
        return structs.replace(entry, message="the Spark operator is not installed")
    await _ensure_result(p, application)
    return _begun(entry, application)


def _run(p: BrokerPass, spec: AnalyticsSpec, group: Group) -> AnalyticsRun:
    settings = p.ctx.settings
    return AnalyticsRun(
        group=group.index,
        token=p.analytics.known.run or "",
        image=spec.image or settings.analytics_image,
        read="HTTP" if for_one_pod(group) or group.replicated else spec.read,
        cluster_domain=settings.cluster_domain,
        https=group.endpoint is not None and group.endpoint.https,
        settings=group.info.settings if group.info is not None else {"messageDelayLevel": p.delay.levels},
    )


def for_one_pod(group: Group) -> bool:
    """Return whether no other pod may mount the group's volume."""
    return _ONE_POD in (((group.claim or {}).get("spec") or {}).get("accessModes") or [])


async def _ensure_application(p: BrokerPass, desired: Manifest) -> Manifest | None:
    """Return the application, creating it if necessary; None if the API server does not have the kind.

    It is never applied: with a changed spec, the Spark operator would run it again.
    """
    memory, name = p.memory.analytics, desired["metadata"]["name"]
    try:
        made = await p.ctx.kube.create(desired)
    except KubeError as error:
        if error.absent:
            memory.missing, memory.missing_ms = True, p.now_ms
            p.requeue(MISSING_RETRY_S)
            return None
        memory.missing = False
        if not error.conflict:
            raise
        live = await p.ctx.kube.get("SparkApplication", p.namespace, name)
        if live is None:
            raise
        _check_application(p, live)
        return live
    memory.missing = False
    return made


def _check_application(p: BrokerPass, live: Manifest) -> None:
    check_ours(p, live)
    if live["metadata"].get("deletionTimestamp"):
        name = live["metadata"]["name"]
        raise NotOursError(f"SparkApplication {name} of a previous run is still being deleted", leftover=True)


async def _ensure_binding(p: BrokerPass) -> None:
    settings = p.ctx.settings
    desired = analytics_role_binding(p.broker, settings.analytics_role, settings.analytics_role_kind)
    name = desired["metadata"]["name"]
    live = await p.ctx.kube.get("RoleBinding", p.namespace, name)
    if live is not None:
        check_ours(p, live)
        if not covers(live.get("roleRef"), desired["roleRef"]):
            raise NotOursError(
                f"RoleBinding {name} does not refer to the role in the operator's setting analytics_role, and the role "
                "of a binding cannot be changed: delete the RoleBinding, and the operator creates it again"
            )
        if covers(live, desired):
            return
    await p.ctx.kube.apply(desired)


async def _ensure_result(p: BrokerPass, application: Manifest) -> None:
    """Ensure that the ConfigMap of the result exists; the driver waits a minute for it."""
    desired = analytics_result(p.broker, application)
    name = desired["metadata"]["name"]
    try:
        await p.ctx.kube.create(desired)
    except KubeError as error:
        if not error.conflict:
            raise
        live = await p.ctx.kube.get("AnalyticsResult", p.namespace, name)
        owners = ((live or {}).get("metadata") or {}).get("ownerReferences") or []
        if not any(owner.get("uid") == application["metadata"]["uid"] for owner in owners):
            leftover = any(owner.get("kind") == "SparkApplication" for owner in owners) or live is None
            what = f"ConfigMap {name} already exists but does not belong to this run: delete it"
            raise NotOursError(what, leftover=leftover) from error
