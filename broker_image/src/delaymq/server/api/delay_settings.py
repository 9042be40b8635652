"""/api/v1/delay/settings: limits, promises and other settings of delayed messages by topic and account.

The token permits all changes, as it permits everything else that HTTP provides: it belongs to administrators.
"""

import logging
from collections.abc import Callable
from heapq import nsmallest
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from delaymq.api_types.delay_settings import (
    AccountDelays,
    AccountDelaySettings,
    DelaySettings,
    TopicDelays,
    TopicDelaySettings,
)
from delaymq.message import names
from delaymq.protocol.errors import RequestError
from delaymq.server.api.routing import Api, ApiError, Limit, Name, Query
from delaymq.server.api.topics import no_topic

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

_logger = logging.getLogger(__name__)
_MAX_ACCOUNT_CHARACTERS: Final = 255


class DelaySettingsQuery(Query):
    """Parameters of the list of settings."""

    limit: Limit = 100
    after: Name = ""


class TopicQuery(Query):
    """Parameters of one topic."""

    topic: Name


class AccountQuery(Query):
    """Parameters of one account."""

    account: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_ACCOUNT_CHARACTERS)]


async def delay_settings(api: Api, query: DelaySettingsQuery) -> DelaySettings:
    """Return a page of topics with settings, and all accounts with settings."""
    broker, table = api.broker, api.broker.delay_settings
    names_after = (name for name in table.topics if name > query.after)
    page = nsmallest(query.limit + 1, names_after)
    following = page[query.limit - 1] if len(page) > query.limit else None
    accounts = [] if query.after else sorted(table.accounts)
    return DelaySettings(
        as_of_ms=broker.now_ms(),
        topics=[_of_topic(broker, name) for name in page[: query.limit]],
        total=len(table.topics),
        next=following,
        accounts=[_of_account(broker, name) for name in accounts],
    )


async def topic_settings(api: Api, query: TopicQuery) -> TopicDelays:
    """Return the settings of a topic."""
    _check_known(api.broker, query.topic)
    return _of_topic(api.broker, query.topic)


async def set_topic_settings(api: Api, query: TopicQuery, wanted: TopicDelaySettings) -> TopicDelays:
    """Replace the settings of a topic; without members, they are removed."""
    broker, topic = api.broker, query.topic
    _check_known(broker, topic)
    if topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)) or broker.topics.is_system(topic):
        raise ApiError(
            409,
            "no_limits",
            f"{topic[:127]!r} is a topic of a group or of the broker, whose delayed messages have no limits: name a"
            " topic that producers send to",
        )
    _change(broker, lambda: broker.delay_settings.put_topic(topic, wanted))
    _logger.info("delay settings of topic %s: %s", topic, _shown(wanted), extra={"topic": topic})
    return _of_topic(broker, topic)


async def account_settings(api: Api, query: AccountQuery) -> AccountDelays:
    """Return the settings of an account."""
    return _of_account(api.broker, query.account)


async def set_account_settings(api: Api, query: AccountQuery, wanted: AccountDelaySettings) -> AccountDelays:
    """Replace the settings of an account; without members, they are removed."""
    broker, account = api.broker, query.account
    if broker.access is None:
        raise ApiError(409, "no_accounts", "the broker has no accounts: enable access control first (aclEnable=true)")
    _change(broker, lambda: broker.delay_settings.put_account(account, wanted))
    _logger.info("delay settings of account %s: %s", account, _shown(wanted))
    return _of_account(broker, account)


def _check_known(broker: "Broker", topic: str) -> None:
    if topic not in broker.topics.table and topic not in broker.delay_settings.topics:
        raise no_topic(topic)


def _change(broker: "Broker", put: Callable[[], None]) -> None:
    """Change the table, and write it. ApiError."""
    if broker.config.read_only:
        raise ApiError(409, "read_only", "the broker was started read-only: change the settings of a writing broker")
    try:
        put()
    except RequestError as error:
        raise ApiError(409, "too_many", error.remark) from None
    failure = broker.persist_definitions()
    if failure is not None:
        raise ApiError(
            503,
            "not_kept",
            f"the change is in effect but could not be written ({failure}): repair the disk and repeat the request",
        )


def _shown(settings: TopicDelaySettings | AccountDelaySettings) -> str:
    return msgspec.json.encode(settings).decode()


def _of_topic(broker: "Broker", topic: str) -> TopicDelays:
    totals = broker.delivery.timeline.partitions.totals(topic)
    return TopicDelays(
        topic=topic,
        exists=topic in broker.topics.table,
        settings=broker.delay_settings.of_topic(topic),
        pending=totals.messages,
        pending_bytes=totals.bytes,
    )


def _of_account(broker: "Broker", account: str) -> AccountDelays:
    totals = broker.delivery.timeline.partitions.of_account(account)
    return AccountDelays(
        account=account,
        settings=broker.delay_settings.of_account(account),
        pending=totals.messages,
        pending_bytes=totals.bytes,
    )
