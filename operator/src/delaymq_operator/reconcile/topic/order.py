"""Order settings of topics, which each NameServer stores separately; brokers and clients read them there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from delaymq_operator.api import Broker, Topic
from delaymq_operator.reconcile.context import ReconcileContext
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.name_servers import name_server_trust, name_servers_of
from delaymq_operator.reconcile.secrets import name_server_account
from delaymq_operator.reconcile.topic.desired import order_text
from delaymq_operator.reconcile.topic.shared_reads import MAX_AGE_POLLS, SharedBrokerReads, problem_of


async def ensure_order(
    topic: Topic, broker: Broker, answers: SharedBrokerReads, ctx: ReconcileContext, queues: Mapping[str, int] | None
) -> list[str]:
    """Set the topic's order on every NameServer, with `queues` by broker name, or (None) remove it.

    Returns a sentence for each NameServer that failed. The operator's NameServers lose it when they restart, so they
    are queried at each poll.
    """
    own = queues or {}
    told = (_ensure(address, topic, broker, answers, ctx, own) for address in name_servers_of(broker, ctx))
    return [problem for problem in await asyncio.gather(*told) if problem is not None]


async def _ensure(
    address: str,
    topic: Topic,
    broker: Broker,
    answers: SharedBrokerReads,
    ctx: ReconcileContext,
    queues: Mapping[str, int],
) -> str | None:
    async def read_orders() -> dict[str, str]:
        return dict(await ctx.admin.orders(address, account=account, tls=trust))

    trust = await name_server_trust(address, broker, ctx)
    account = await name_server_account(broker, ctx)
    answer = answers.orders_of(address)
    max_age_ms = ctx.settings.poll_interval_s * MAX_AGE_POLLS * 1000
    try:
        orders = await answer.get(read_orders, ctx.clock, max_age_ms=max_age_ms)
    except (BrokerUnreachable, BrokerRefused) as error:
        return problem_of(f"NameServer {address}", error)
    present = orders.get(topic.topic_name)
    text = order_text(present, broker.name, queues)
    if text == present:
        return None
    async with answer.lock:
        try:
            await ctx.admin.put_order((address,), topic.topic_name, text, account=account, tls=trust)
        except (BrokerUnreachable, BrokerRefused) as error:
            answer.note_failure(error, ctx.clock())
            return problem_of(f"NameServer {address}", error)
        orders.pop(topic.topic_name, None)
        if text is not None:
            orders[topic.topic_name] = text
    return None
