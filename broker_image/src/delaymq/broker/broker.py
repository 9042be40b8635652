"""The broker: its tables, its store, its delivery, and the dispatch of requests to processors."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Container, Mapping
from types import GeneratorType
from typing import TYPE_CHECKING, Protocol, TypeVar

from delaymq.broker.admin.drain import DrainMode, DrainState
from delaymq.broker.filters import CompileWork
from delaymq.broker.groups.activity import GroupActivity
from delaymq.broker.groups.offset_commits import OffsetCommits
from delaymq.broker.groups.queue_locks import QueueLocks
from delaymq.broker.groups.slow_readers import SlowReaders
from delaymq.broker.pull.arrival_notifier import OnArrival
from delaymq.broker.pull.group_readers import GroupReaders
from delaymq.broker.pull.queue_reader import PropertyWork
from delaymq.broker.requests.results import Deferred, RelayedRequests, ReplicaWait, Result, TimeSliced
from delaymq.broker.requests.session import Session
from delaymq.broker.sending.auto_creation import AutoCreation
from delaymq.broker.state.config_tables import PersistTask, Tables
from delaymq.broker.state.store_settings import store_options
from delaymq.broker.statistics.metric_labels import OTHER, LabelLimiter
from delaymq.config import BrokerConfig
from delaymq.config.running import RunningSettings
from delaymq.protocol.bodies import TopicConfig
from delaymq.protocol.codes import SEND_CODES, ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.broker.access.access import Access
    from delaymq.broker.delivery import Delivery
    from delaymq.broker.delivery.changes.requests import ChangeRequest
    from delaymq.broker.following.following import Following
    from delaymq.broker.pull.stored_records import StoredRecords
    from delaymq.broker.state.parts import Parts
    from delaymq.broker.transactions import Transactions
    from delaymq.store.message_store import MessageStore

_logger = logging.getLogger(__name__)
T = TypeVar("T")

"""Default time that responses wait for replicas, as RocketMQ's slaveTimeout."""
_SHOWN_CHARACTERS = 256
"""Maximum length of an unexpected error's text in a response."""
_DONE_ALSO_ONE_WAY = (RelayedRequests, GeneratorType, TimeSliced)
"""Results that require further work even if no response is sent."""

Processor = Callable[["Broker", Session, Command], Result]
"""Function that serves the requests of one code."""

OnMessageChange = Callable[[Session, Command, "ChangeRequest", int, str | None], None]
"""Function that receives a requested change, and the code and remark of its response."""


class RequestTable(Protocol):
    """Requests that brokers serve (processors.table). Passed in, because processors import the broker."""

    def processors_for(
        self, *, read_only: bool, without_offsets: bool, guarded: bool, follows: bool
    ) -> Mapping[int, Processor]:
        """Return the processors of a broker. The arguments state its restrictions and whether it has access control."""

    def refusal(self, code: int) -> Response:
        """Return the response to a request code that is not served."""


class Broker:
    """A broker over an open store. Attributes without a comment are for the processors."""

    def __init__(
        self,
        parts: Parts,
        store: MessageStore,
        delivery: Delivery,
        transactions: Transactions,
        records: StoredRecords,
        tables: Tables,
        requests: RequestTable,
        access: Access | None = None,
        settings: RunningSettings[BrokerConfig] | None = None,
    ) -> None:
        """Assemble the broker. Use `opening.open_broker` to create one."""
        self.config = config = parts.config
        self.now_ms = now_ms = parts.now_ms
        self.store = store
        self.records = records
        self.stats = parts.stats
        self.topics = parts.topics
        self.groups = parts.groups
        self.offsets = parts.offsets
        self.clients = parts.clients
        self.delay_settings = parts.delay_settings
        self.delivery = delivery
        self.transactions = transactions
        self.topic_series = parts.topic_series
        self.group_series = LabelLimiter(config.metrics_max_topics)
        self.access = access
        """Access control; None without aclEnable."""
        self.settings = settings or RunningSettings(BrokerConfig)
        """Origin of the configuration."""
        self.on_settings: Callable[[BrokerConfig], None] | None = None
        """Called with each changed configuration."""
        self.on_message_change: OnMessageChange | None = None
        """Called with each change of pending messages that a message requests, before its response."""
        self.address, self.ha_port = parts.address, config.ha_listen_port
        """Address that clients use, and port for plain slaves, as registered."""
        self.store_host = parts.store_host
        self.message_id_prefix = parts.store_host.hex().upper()
        self.activity = GroupActivity(parts.stats.boot_ms)
        self.committing = OffsetCommits(self.offsets, self.topics, self.groups, self.activity, now_ms)
        self.creations = AutoCreation(config, self.groups, has_accounts=access is not None)
        self.locks = QueueLocks()
        self.slow_readers = SlowReaders()
        self.property_work = PropertyWork()
        self.compile_work = CompileWork(now_ms)
        self.writable = True
        """False while the broker is taken out of service: sends are rejected, pulls are served."""
        self.drain = DrainState(parts.stats.boot_ms)
        """Drain state, in which a running broker keeps producers away."""
        self.following: Following | None = None
        """Role of a replica; None: the broker acts on its own."""
        self.master_name: Callable[[], str] = lambda: "the group's master"
        """Returns the name of the broker that a replica follows, with its address."""
        self.readers = GroupReaders()
        self.waits_for_flush = config.flush_disk_type == "SYNC_FLUSH"
        self.waits_for_replicas = False
        """Whether responses wait until replicas have the message (SYNC_MASTER)."""
        self.table_changes: Callable[[bool], int] | None = None
        """Returns the number of the newest change of a table; True: count changed offsets as one. None: no replicas."""
        self.answers_wait = self.waits_for_flush
        """Whether responses wait for the disk, for replicas, or for both."""
        self._arrivals = parts.arrivals
        self._watched: Container[tuple[str, int]] | None = None
        self._tables = tables
        self._closed = False
        self._throttled = ThrottledLogger(_logger, now_ms)
        self._requests = requests
        self._processors = self._served()
        self._derive()

    # Role and confirmation

    def follow(self, following: Following | None) -> None:
        """Act as a replica until `lead`. None: act as a broker without replicas."""
        self.following = following
        self.groups.is_followed = following is not None
        self._processors = self._served()

    def lead(self) -> None:
        """Take over from the broker whose log this one followed. Errors as in `Following.lead`."""
        if self.following is not None:
            self.following.lead()
            self.follow(None)

    @property
    def replica_refusal(self) -> str:
        """Reason why a replica refuses requests that change what it receives."""
        return f"this broker is a replica: send the request to {self.master_name()}"

    def replicate(self, *, waits: bool) -> None:
        """Set whether responses wait for replicas. The store's replicated offset is set separately."""
        self.waits_for_replicas = waits
        self.answers_wait = self.waits_for_flush or waits

    def deferred(self, response: Response, until: int, late: Callable[[ResponseCode], Response]) -> Deferred:
        """Return a response that waits until disk or replicas have the log up to `until`, as configured.

        `late` returns the response for FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE.
        """
        replicas = None
        if self.waits_for_replicas:
            replicas = ReplicaWait(
                self.config.slave_timeout,
                late(ResponseCode.FLUSH_SLAVE_TIMEOUT),
                late(ResponseCode.SLAVE_NOT_AVAILABLE),
            )
        timeout_ms, on_disk = self.config.sync_flush_timeout, late(ResponseCode.FLUSH_DISK_TIMEOUT)
        return Deferred(response, until, timeout_ms, on_disk, replicas, self.waits_for_flush)

    def deferred_success(self) -> Deferred:
        """Return a successful response that waits as `deferred` for the end of the log."""
        return self.deferred(Response(), self.store.end_offset, Response)

    def when_replicas_know(
        self, response: Response, late: Response | None = None, *, offsets: bool = False
    ) -> Response | Deferred:
        """Return a response that waits until all required replicas have the tables as they are now.

        `late` is sent if they do not have them in time; `offsets`: changed consumer offsets are sent immediately.
        """
        if self.table_changes is None:
            return response
        late = late or Response(
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            "the change is in effect, but not all replicas in sync have confirmed it in time: repeat the request",
        )
        return Deferred(response, self.table_changes(offsets), self.config.slave_timeout, late, of_tables=True)

    # Requests

    def handle(self, session: Session, command: Command) -> Result:
        """Serve `command` and return the result, None for one-way requests whose result nobody keeps.

        Never raises. Steps of a result may raise: run them with `guarded`.
        """
        processor = self._processors.get(command.code)
        result: Result
        try:
            if self.access is not None:
                self.access.check(session, command)
            result = self._requests.refusal(command.code) if processor is None else processor(self, session, command)
        except RequestError as error:
            result = self._refused(command, error)
        except Exception as error:
            result = self._failed(command.code, error, session, command)
        if self._arrivals.waiting:
            self._arrivals.announce(self.store.confirmed_offset)
        if command.flag & FLAG_ONEWAY and not command.keeps_result and type(result) not in _DONE_ALSO_ONE_WAY:
            return None
        return result

    def next_step(self, session: Session, command: Command, work: TimeSliced) -> Result:
        """Run the next step of work that `handle` started.

        Returns `work` while it is incomplete, then what `handle` would return.
        """
        result: Result = work
        try:
            next(work.steps)
        except StopIteration as end:
            result = end.value
        except RequestError as error:
            result = self._refused(command, error)
        except Exception as error:
            result = self._failed(command.code, error, session, command)
        if self._arrivals.waiting:
            self._arrivals.announce(self.store.confirmed_offset)
        is_unwanted = command.flag & FLAG_ONEWAY and not command.keeps_result
        return None if result is not work and is_unwanted else result

    def guarded(self, code: int, run: Callable[[], T]) -> T | Response:
        """Run `run` for a request of this code, and convert any exception into the response."""
        try:
            return run()
        except RequestError as error:
            return Response(error.code, error.remark)
        except Exception as error:
            return self._failed(code, error)

    def _failed(
        self, code: int, error: Exception, session: Session | None = None, command: Command | None = None
    ) -> Response:
        about: dict[str, object] = {"code": code}
        if session is not None and command is not None:
            stated = command.fields
            about |= {"peer": session.remote_address, "topic": stated.get("topic", stated.get("b"))}
            about |= {"group": stated.get("consumerGroup", stated.get("group"))}
        # Throttled, because a peer may be able to cause this at will.
        self._throttled.warning("request with code %d failed unexpectedly", code, error=error, **about)
        return Response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {str(error)[:_SHOWN_CHARACTERS]}")

    def _refused(self, command: Command, error: RequestError) -> Response:
        fields = {}
        if command.code in SEND_CODES:
            self.stats.refused[error.code] = self.stats.refused.get(error.code, 0) + 1
            # Java clients read these fields of every response to a send.
            fields = {"MSG_REGION": self.region, "TRACE_ON": self.trace_on}
        return Response(error.code, error.remark, fields)

    # Timers and events of the server

    @property
    def on_arrival(self) -> OnArrival | None:
        """Called with topic, queue id, queue offset, tags code and properties of each message that becomes visible.

        It is called between requests, and may resume held pulls.
        """
        return self._arrivals.on_arrival

    @on_arrival.setter
    def on_arrival(self, function: OnArrival | None) -> None:
        self._arrivals.on_arrival = function

    def watch_arrivals(
        self, function: OnArrival, queues: Container[tuple[str, int]], by_property: Collection[tuple[str, int]] = ()
    ) -> None:
        """Set `on_arrival` for records of `queues`, with properties for those of `by_property`.

        If records are confirmed later than stored, all queues are reported, so that no arrival is missed.
        """
        self._watched = queues
        self._arrivals.on_arrival = function
        self._arrivals.held = queues
        self._arrivals.property_interest = by_property
        self._watch_queues()

    def _watch_queues(self) -> None:
        confirms_later = self.waits_for_flush or self.store.is_replicated
        self._arrivals.interest = None if confirms_later else self._watched

    def set_replicated(self, offset: int | None) -> None:
        """Set the offset up to which all required replicas have the log (None: there are none)."""
        changes = (offset is None) == self.store.is_replicated
        self.store.set_replicated(offset)
        if changes:
            self._watch_queues()

    def announce_arrivals(self) -> None:
        """Announce arrivals. Call it when the store confirmed more (after a flush) and after a delivery."""
        if self._arrivals.waiting:
            self._arrivals.announce(self.store.confirmed_offset)

    def hand_over(self, now_ms: int, budget: int) -> int:
        """Deliver due messages (`Delivery.hand_over`) and announce them to held pulls. Returns their number."""
        count = self.delivery.hand_over(now_ms, budget)
        self.announce_arrivals()
        return count

    def session_closed(self, session: Session) -> None:
        """Release the state of a closed connection."""
        self.clients.session_closed(session)
        self.creations.session_closed(session)
        if self.access is not None:
            self.access.session_closed(session)

    def expire_clients(self, now_ms: int) -> list[Session]:
        """Remove silent clients and expired locks. Returns the clients' connections, which may be closed."""
        self.locks.expire(now_ms)
        return self.clients.expire(now_ms)

    def persist_task(self, now_ms: int) -> PersistTask | None:
        """Write changed topics, groups and delay settings now, and return a task that writes offsets and clients.

        Returns None if offsets and clients are unchanged. Call the task's `run` in a thread and `finish` on the
        broker's thread. Only one task may run at a time.
        """
        self._tables.write_definitions()
        self.transactions.state_progress()
        writes = self._tables.changed(now_ms)
        return PersistTask(self._tables, writes) if writes else None

    def persist_definitions(self) -> OSError | None:
        """Write topics, groups and delay settings if they changed. Returns the error if they are not durable."""
        return self._tables.write_definitions()

    def forget_offsets(self) -> None:
        """Discard unreadable consumer offsets: groups then start as new ones. On OSError, nothing has changed."""
        self._tables.forget_offsets()
        self._processors = self._served()

    def adopt_offsets(self) -> None:
        """Note that another broker provides the consumer offsets that could not be read."""
        self.offsets.unreadable = ()
        self._processors = self._served()

    def _served(self) -> Mapping[int, Processor]:
        return self._requests.processors_for(
            read_only=self.config.read_only,
            without_offsets=bool(self.offsets.unreadable),
            guarded=self.access is not None,
            follows=self.following is not None,
        )

    def forget_counts(self, topic: str) -> None:
        """Remove the statistics of a deleted topic.

        Its counts in a shared series stay, because sums must not decrease.
        """
        heir = OTHER if self.topic_series.forget(topic) else None
        self.stats.forget_topic(topic, heir)
        self.delivery.forget_topic(topic, heir)

    def set_drain(self, mode: DrainMode, lease_ms: int = 0) -> bool:
        """Start, renew or end a drain. Returns whether the topics were registered again, with other permissions."""
        withdrawn = self.drain.withdrawn
        self.drain.take(mode, lease_ms, self.now_ms())
        if self.drain.withdrawn is withdrawn:
            return False
        self.topics.announce()
        return True

    def freeze(self) -> None:
        """Prepare the shutdown: store nothing more, and do not treat closing connections as leaving clients."""
        self.writable = False
        self.clients.frozen = True

    def close(self) -> None:
        """Write everything and close the store (clean shutdown)."""
        if self._closed:
            return
        self._closed = True
        self.clients.dirty = True
        flush = self.store.flush_task()
        if flush is not None:
            # Afterwards, the recorded transaction progress covers everything that is settled.
            flush.run()
            flush.finish()
        task = self.persist_task(self.now_ms())
        if task is not None:
            task.run()
            task.finish()
        try:
            self.delivery.close()
        finally:
            self.store.close()

    # Configuration

    def apply(self, config: BrokerConfig) -> None:
        """Apply a changed configuration. Keys that need a restart must have their old values in it."""
        if config.levels != self.config.levels:
            self.delivery.set_levels(config.levels)
        self.config = config
        self.delivery.set_settings(config)
        self.transactions.apply(config)
        self.store.set_options(store_options(config))
        self.topics.apply(config)
        self.groups.apply(config)
        self.creations.limits = config
        self.topic_series.set_limit(config.metrics_max_topics)
        self.group_series.set_limit(config.metrics_max_topics)
        self._derive()
        if self.on_settings is not None:
            self.on_settings(config)

    def _derive(self) -> None:
        # Values that the hot paths need, as plain attributes.
        config = self.config
        self.cluster_name = config.broker_cluster_name
        self.region = config.region_id
        self.trace_on = "true" if config.trace_on else "false"
        self.max_message_size = config.max_message_size
        self.max_pull_count = config.max_transfer_count_on_message_in_memory
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.in_memory_bytes = memory_bytes * config.access_message_in_memory_max_ratio // 100
        """Distance from the end of the log within which messages are assumed to be in the page cache."""

    def register_body(self, topics: dict[str, TopicConfig] | None = None) -> bytes:
        """Return the registration for NameServers: all topics, or the given ones, with their current permissions."""
        return self.topics.register_body(
            self.topics.table if topics is None else topics, withdrawn=self.drain.withdrawn
        )
