"""The reconcile of a Broker, as a list of named steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import structs

from delaymq_operator.api.broker_status import BrokerStatus
from delaymq_operator.api.resource import status_of
from delaymq_operator.reconcile.broker.addresses import have_addresses, have_name_server_address
from delaymq_operator.reconcile.broker.analytics.state import Analysis
from delaymq_operator.reconcile.broker.analytics.step import run_analytics
from delaymq_operator.reconcile.broker.applying import NotOursError
from delaymq_operator.reconcile.broker.checks import (
    check_name_servers,
    check_spec,
    find_levels,
    find_secrets,
    read_broker,
)
from delaymq_operator.reconcile.broker.defaults import choose_defaults
from delaymq_operator.reconcile.broker.late import find_late_pods
from delaymq_operator.reconcile.broker.look import ask_brokers, look_at_cluster
from delaymq_operator.reconcile.broker.memory import BrokerMemory
from delaymq_operator.reconcile.broker.objects import have_supporting_objects, have_token
from delaymq_operator.reconcile.broker.registration import have_registrations
from delaymq_operator.reconcile.broker.restarts import restart_outdated_pods
from delaymq_operator.reconcile.broker.scale_in import remove_surplus_groups
from delaymq_operator.reconcile.broker.scheduler import judge_schedulers
from delaymq_operator.reconcile.broker.sets import drop_name_servers, have_group_sets, have_name_servers
from delaymq_operator.reconcile.broker.settings import give_settings
from delaymq_operator.reconcile.broker.state import BrokerPass
from delaymq_operator.reconcile.broker.status import compose_status, publish_status
from delaymq_operator.reconcile.broker.telling import say_conflict, say_failures, say_refused, tell_news
from delaymq_operator.reconcile.broker.unbound import replace_unbound_volumes, say_unbound_volumes
from delaymq_operator.reconcile.broker.volumes import grow_volumes
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.world import Key, Outcome, World

Step = Callable[[BrokerPass], Awaitable[None]]

LOOK: tuple[Step, ...] = (
    check_spec,
    check_name_servers,
    find_levels,
    find_secrets,
    look_at_cluster,
    choose_defaults,
    ask_brokers,
    judge_schedulers,
    say_unbound_volumes,
    find_late_pods,
    say_failures,
)
CHANGE: tuple[Step, ...] = (
    have_token,
    have_registrations,
    have_supporting_objects,
    have_addresses,
    have_name_server_address,
    have_name_servers,
    replace_unbound_volumes,
    have_group_sets,
    grow_volumes,
    give_settings,
    restart_outdated_pods,
    remove_surplus_groups,
    drop_name_servers,
)
ANALYZE: tuple[Step, ...] = (run_analytics,)
TELL: tuple[Step, ...] = (
    compose_status,
    tell_news,
    publish_status,
)


async def reconcile_broker(key: Key, world: World) -> Outcome:
    """Brings the cluster one step closer to what the Broker says, and its status up to date.

    Whatever a Broker owns goes with it by ownerReferences, so for one that is gone nothing is left to do.
    """
    body = world.cache.get(key.kind, key.namespace, key.name)
    if body is None or body["metadata"].get("deletionTimestamp"):
        world.memory.forget(key)
        return Outcome()
    p = _begin(key, world, body)
    await _take(LOOK, p)
    failure = await _change(p) if p.may_change else None
    await _take(ANALYZE, p)
    await _take(TELL, p)
    if failure is not None:
        raise failure
    return Outcome(requeue_after_s=_look_again_after_s(p))


async def _take(steps: tuple[Step, ...], p: BrokerPass) -> None:
    for step in steps:
        await step(p)
        # A step of a large Broker computes for some ms: others get a turn before the next.
        await asyncio.sleep(0)


def _begin(key: Key, world: World, body: dict[str, object]) -> BrokerPass:
    broker, wrong = read_broker(body)
    memory = world.memory.of(key, BrokerMemory)
    if memory.uid != broker.uid:
        world.memory.forget(key)
        memory = world.memory.of(key, BrokerMemory)
        memory.uid = broker.uid
    now_ms = world.clock()
    is_first = memory.seen_ms == 0
    memory.look_at_clock(now_ms)
    if memory.status is not None:
        # Values written by others are not trusted, and the cache may lag.
        broker = structs.replace(broker, status=status_of({"status": memory.status}, BrokerStatus))
    p = BrokerPass(key=key, world=world, body=body, broker=broker, memory=memory, now_ms=now_ms, spec_problem=wrong)
    p.is_first = is_first
    p.analytics = Analysis(status=broker.status.analytics)
    if wrong is not None:
        p.problem(wrong.reason, wrong.message)
    return p


async def _change(p: BrokerPass) -> KubeError | None:
    """The steps that change something. What the API server will not take is told in the status before it is tried
    again; for what passes by itself, the steps are simply tried again."""
    try:
        await _take(CHANGE, p)
    except NotOursError as conflict:
        say_conflict(p, conflict)
    except KubeError as error:
        if not (error.invalid or error.forbidden):
            raise
        say_refused(p, error)
        return error
    return None


def _look_again_after_s(p: BrokerPass) -> float | None:
    """A Broker that was never made and cannot be waits for another spec, or for what it asked to look for again; all
    else is looked at now and then."""
    if p.spec_problem is not None and not any(group.made or group.pod for group in p.groups):
        return min(p.look_again_s, default=None)
    return min([*p.look_again_s, p.world.settings.poll_interval_s])
