"""Reconciliation of a Broker, as a list of named steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import structs

from delaymq_operator.api.broker_status import BrokerStatus
from delaymq_operator.api.resource import status_of
from delaymq_operator.reconcile.broker.analytics.step import run_analytics
from delaymq_operator.reconcile.broker.apply.addresses import ensure_addresses, ensure_name_server_address
from delaymq_operator.reconcile.broker.apply.broker_settings import apply_settings
from delaymq_operator.reconcile.broker.apply.certificates import ensure_certificates, renew_certificates
from delaymq_operator.reconcile.broker.apply.ensure import NotOursError
from delaymq_operator.reconcile.broker.apply.registration import ensure_registrations
from delaymq_operator.reconcile.broker.apply.replication_objects import ensure_replication
from delaymq_operator.reconcile.broker.apply.stateful_sets import (
    drop_name_servers,
    ensure_group_sets,
    ensure_name_servers,
)
from delaymq_operator.reconcile.broker.apply.supporting_objects import ensure_supporting_objects, ensure_token
from delaymq_operator.reconcile.broker.apply.tls_steps import choose_tls_steps
from delaymq_operator.reconcile.broker.apply.unbound_claims import replace_unbound_volumes, report_unbound_volumes
from delaymq_operator.reconcile.broker.apply.user_rules import ensure_user_rules
from delaymq_operator.reconcile.broker.apply.volumes import grow_volumes
from delaymq_operator.reconcile.broker.model.analysis import Analysis
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass
from delaymq_operator.reconcile.broker.model.memory import BrokerMemory
from delaymq_operator.reconcile.broker.observe.cluster import observe_brokers, observe_cluster
from delaymq_operator.reconcile.broker.observe.defaults import choose_defaults
from delaymq_operator.reconcile.broker.observe.late_pods import find_late_pods
from delaymq_operator.reconcile.broker.observe.lost_volumes import find_lost_volumes
from delaymq_operator.reconcile.broker.observe.scheduler import judge_schedulers
from delaymq_operator.reconcile.broker.observe.validation import (
    check_name_servers,
    check_spec,
    find_levels,
    find_secrets,
    read_broker,
)
from delaymq_operator.reconcile.broker.report.problems import (
    emit_events,
    report_conflict,
    report_failures,
    report_refused,
)
from delaymq_operator.reconcile.broker.report.replicas import report_replicas
from delaymq_operator.reconcile.broker.report.status import compose_status, publish_status
from delaymq_operator.reconcile.broker.roll.handovers import promote_on_request
from delaymq_operator.reconcile.broker.roll.replacements import replace_lost_volumes
from delaymq_operator.reconcile.broker.roll.restarts import restart_outdated_pods
from delaymq_operator.reconcile.broker.roll.scale_in import remove_surplus_groups
from delaymq_operator.reconcile.broker.roll.shrinking import remove_surplus_members
from delaymq_operator.reconcile.context import Key, Outcome, ReconcileContext
from delaymq_operator.reconcile.errors import KubeError

Step = Callable[[BrokerPass], Awaitable[None]]

OBSERVE: tuple[Step, ...] = (
    check_spec,
    check_name_servers,
    find_levels,
    find_secrets,
    observe_cluster,
    choose_defaults,
    observe_brokers,
    judge_schedulers,
    find_lost_volumes,
    report_unbound_volumes,
    find_late_pods,
    report_failures,
    report_replicas,
)
CHANGE: tuple[Step, ...] = (
    ensure_token,
    ensure_registrations,
    ensure_user_rules,
    ensure_supporting_objects,
    ensure_replication,
    ensure_addresses,
    ensure_name_server_address,
    ensure_certificates,
    choose_tls_steps,
    ensure_name_servers,
    replace_unbound_volumes,
    ensure_group_sets,
    grow_volumes,
    apply_settings,
    promote_on_request,
    replace_lost_volumes,
    restart_outdated_pods,
    remove_surplus_members,
    remove_surplus_groups,
    drop_name_servers,
)
KEEP: tuple[Step, ...] = (renew_certificates,)
"""Steps of passes that change nothing else, because the Broker is paused or its spec is invalid."""
ANALYZE: tuple[Step, ...] = (run_analytics,)
REPORT: tuple[Step, ...] = (
    compose_status,
    emit_events,
    publish_status,
)


async def reconcile_broker(key: Key, ctx: ReconcileContext) -> Outcome:
    """Bring the cluster one step closer to the Broker's spec, and update its status.

    Everything that a Broker owns is deleted with it through ownerReferences, so a deleted Broker needs no work.
    """
    body = ctx.cache.get(key.kind, key.namespace, key.name)
    if body is None or body["metadata"].get("deletionTimestamp"):
        ctx.memory.forget(key)
        return Outcome()
    p = _start_pass(key, ctx, body)
    await _run_steps(OBSERVE, p)
    failure = await _change(p, CHANGE if p.may_change else KEEP)
    await _run_steps(ANALYZE, p)
    await _run_steps(REPORT, p)
    if failure is not None:
        raise failure
    return Outcome(requeue_after_s=_requeue_after_s(p))


async def _run_steps(steps: tuple[Step, ...], p: BrokerPass) -> None:
    for step in steps:
        await step(p)
        # A step of a large Broker computes for some ms: other tasks run before the next.
        await asyncio.sleep(0)


def _start_pass(key: Key, ctx: ReconcileContext, body: dict[str, object]) -> BrokerPass:
    broker, wrong = read_broker(body)
    memory = ctx.memory.of(key, BrokerMemory)
    if memory.uid != broker.uid:
        ctx.memory.forget(key)
        memory = ctx.memory.of(key, BrokerMemory)
        memory.uid = broker.uid
    now_ms = ctx.clock()
    is_first = memory.seen_ms == 0
    memory.observe_clock(now_ms)
    if memory.status is not None:
        # Values written by others are not trusted, and the cache may lag.
        broker = structs.replace(broker, status=status_of({"status": memory.status}, BrokerStatus))
    p = BrokerPass(key=key, ctx=ctx, body=body, broker=broker, memory=memory, now_ms=now_ms, spec_problem=wrong)
    p.is_first = is_first
    p.analytics = Analysis(status=broker.status.analytics)
    if wrong is not None:
        p.problem(wrong.reason, wrong.message)
    return p


async def _change(p: BrokerPass, steps: tuple[Step, ...]) -> KubeError | None:
    """Run the steps that make changes.

    Rejections by the API server are reported in the status before the next attempt; after transient errors, the steps
    are simply retried.
    """
    try:
        await _run_steps(steps, p)
    except NotOursError as conflict:
        report_conflict(p, conflict)
    except KubeError as error:
        if not (error.invalid or error.forbidden):
            raise
        report_refused(p, error)
        return error
    return None


def _requeue_after_s(p: BrokerPass) -> float | None:
    """Return the requeue time. A Broker that was never created and is invalid waits for another spec, or for a
    requested check.
    """
    if p.spec_problem is not None and not any(group.made or group.pod for group in p.groups):
        return min(p.requeue_delays_s, default=None)
    return min([*p.requeue_delays_s, p.ctx.settings.poll_interval_s])
