"""Roles of a broker: it follows the log of another one, until it takes over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from delaymq.broker.following.schedule import FollowedSchedule
from delaymq.store.layout import TIMED_VERSION

if TYPE_CHECKING:
    from delaymq.broker.delivery import Delivery
    from delaymq.broker.state.parts import Parts
    from delaymq.broker.transactions import Transactions
    from delaymq.store.message_store import MessageStore

_logger = logging.getLogger(__name__)


class Following:
    """A broker that follows, from its creation until `lead`.

    No message is delivered or carried forward, no transaction is checked, and the store accepts only bytes of the other
    broker's log. Snapshots, merges and the deletion of old segments continue: what the log states about carried
    messages decides which segments are needed. The caller keeps the store's replicated offset at what the other broker
    has confirmed; otherwise, a snapshot could state more than a cut leaves.
    """

    def __init__(self, parts: Parts, store: MessageStore, delivery: Delivery, transactions: Transactions) -> None:
        self._parts = parts
        self._store = store
        self._delivery = delivery
        self._transactions = transactions
        store.follow(follows=True)
        self._schedule = FollowedSchedule(store, delivery, parts.replay, transactions.decide)
        transactions.follow()
        store.hand_on((self._schedule, parts.ledger, parts.arrivals))

    def decide(self) -> None:
        """Bring the state up to date with the end of the log; only inspections need it. StoreOpenError."""
        self._schedule.decide()

    def lead(self) -> None:
        """Take over: deliver what is due, and check transactions, from the state at the end of the log.

        Nothing is replayed. StoreFailedError, StoreOpenError, OSError: the store has failed, or the index of pending
        messages cannot be read, and the broker still follows.
        """
        store, delivery, parts = self._store, self._delivery, self._parts
        if store.failure is not None:
            raise store.failure
        self._schedule.end()
        self._transactions.lead()
        store.hand_on((delivery, parts.ledger, parts.arrivals))
        if store.format_version >= TIMED_VERSION:
            parts.topics.register_timer_topic()
        store.follow(follows=False)
        if places := parts.replay.timed.foreign.places():
            _logger.error(
                "the log contains %d pending timers of RocketMQ 5, which are not delivered: restart the broker with"
                " --adopt-timers",
                len(places),
            )
        delivery.control.load()
        delivery.control.begin_treatments(store.last_store_timestamp_ms)
        delivery.wake()
        _logger.info("the broker continues the log of another one from offset %d", store.end_offset)
