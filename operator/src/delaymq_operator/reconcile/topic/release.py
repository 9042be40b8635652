"""Deletion of a Topic: the topic on brokers and NameServers, and the obstacles to its deletion."""

from __future__ import annotations

import asyncio

from delaymq_operator.api import Broker, Reason, SpecError, Topic, parse_broker, parse_topic
from delaymq_operator.api.names import BROKER_KIND, TOPIC_KIND
from delaymq_operator.api.resource import timestamp_of_ms
from delaymq_operator.reconcile.context import Key, ReconcileContext, Waiting
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.name_servers import name_server_trust, name_servers_of
from delaymq_operator.reconcile.secrets import name_server_account
from delaymq_operator.reconcile.topic.conflicts import conflicting_topics
from delaymq_operator.reconcile.topic.delays import DelaysInGroups, ObservedDelays
from delaymq_operator.reconcile.topic.groups import TopicInGroups
from delaymq_operator.reconcile.topic.order import ensure_order
from delaymq_operator.reconcile.topic.shared_reads import SharedBrokerReads
from delaymq_operator.reconcile.topic.status import Reporter
from delaymq_operator.reconcile.topic.targets import groups_of

_WAY_OUT = "To keep the topic and delete only this resource, set spec.deletionPolicy to Retain."
_PENDING_WAY_OUT = "To delete it in spite of pending messages, set it to Delete."


async def release_topic(key: Key, ctx: ReconcileContext) -> Waiting | None:
    """Delete what a Topic that is being deleted owns; return None if its finalizer may be removed. KubeError if the
    API server does not respond.

    Nothing is deleted for a Topic that never owned the name, that retains it (Retain), that another Topic inherits,
    or whose Broker was deleted. Data that decides about messages is read from the API server, not from the cache.
    """
    body = await ctx.kube.get(*key)
    if body is None:
        return None
    report = Reporter(body, ctx)
    try:
        topic = parse_topic(body)
    except SpecError:
        return None
    if not report.owned or topic.spec.deletion_policy == "Retain":
        return None
    others = conflicting_topics(topic, await ctx.kube.list(TOPIC_KIND, topic.namespace))
    if any(not other.deleting for other in others):
        return None
    problem = await _delete_from_broker(topic, report, ctx)
    if problem is None:
        return None
    message = f"Topic {topic.topic_name} cannot be deleted yet: {problem}. {_WAY_OUT}"
    if topic.spec.deletion_policy == "RefuseWhilePending":
        message = f"{message} {_PENDING_WAY_OUT}"
    await report.set_ready("False", Reason.DELETING, message)
    return Waiting(message, ctx.settings.poll_interval_s)


async def _delete_from_broker(topic: Topic, report: Reporter, ctx: ReconcileContext) -> str | None:
    name = topic.spec.broker_ref.name
    body = await ctx.kube.get(BROKER_KIND, topic.namespace, name)
    if body is None or body["metadata"].get("deletionTimestamp"):
        return None
    try:
        broker = parse_broker(body)
    except SpecError as error:
        return f"the spec of Broker {name} is invalid: {error}"
    if broker.spec.paused:
        return f"Broker {name} is paused; set its spec.paused to false"
    answers = ctx.memory.of(Key(BROKER_KIND, topic.namespace, name), SharedBrokerReads)
    # A group that is not ready and in which it was never seen has nothing to delete.
    groups = [
        group
        for group in await groups_of(broker, ctx)
        if group.endpoint is not None or report.group(group.name) is not None
    ]
    if topic.spec.deletion_policy == "RefuseWhilePending":
        pending = await DelaysInGroups(topic, broker, answers, ctx).pending(groups)
        if obstacles := [f"{one.group.name}: {text}" for one in pending if (text := _obstacle(one)) is not None]:
            return "; ".join(obstacles)
    on_brokers = TopicInGroups(topic, answers, ctx)
    outcomes = await asyncio.gather(*(on_brokers.delete(group) for group in groups))
    problems = [f"{group.name}: {problem}" for group, problem in zip(groups, outcomes, strict=True) if problem]
    if not problems:
        problems = await _delete_from_name_servers(topic, broker, answers, ctx)
    return "; ".join(problems) or None


def _obstacle(found: ObservedDelays) -> str | None:
    """Return why the topic must not be deleted in a group yet; None if nothing is pending there."""
    if found.problem is not None:
        return found.problem
    if found.found is None or not found.found.pending:
        return None
    messages, latest_ms = found.found.pending, found.found.latest_due_ms
    until = f" until {timestamp_of_ms(latest_ms)}" if latest_ms is not None else ""
    return f"{messages} delayed {'message is' if messages == 1 else 'messages are'} pending{until}"


async def _delete_from_name_servers(
    topic: Topic, broker: Broker, answers: SharedBrokerReads, ctx: ReconcileContext
) -> list[str]:
    """Delete the topic from the NameServers after the brokers: a broker that still had it would restore its route."""
    problems = await ensure_order(topic, broker, answers, ctx, None)
    account = await name_server_account(broker, ctx)
    for address in name_servers_of(broker, ctx):
        try:
            trust = await name_server_trust(address, broker, ctx)
            name = topic.topic_name
            await ctx.admin.delete_route((address,), name, cluster=broker.name, account=account, tls=trust)
        except (BrokerUnreachable, BrokerRefused) as error:
            problems.append(f"NameServer {error}")
    # The operator's NameServers lose everything when they restart, which is imminent for one that does not respond.
    return problems if broker.spec.name_servers.addresses else []
