"""Requests that waited too long are rejected before processing; others never are."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from delaymq.config import BrokerConfig
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, Command, Response
from delaymq.server.requests.flow_control import OVERLOADED, REJECTED, TICK_MS, FlowControl

SEND = RequestCode.SEND_MESSAGE_V2
ENOUGH_S = 1_000.0


class World:
    """Flow control over a clock, a kernel and a disk that the test moves."""

    def __init__(self, *, sync: bool = False, **settings: Any) -> None:
        self.now_s = ENOUGH_S
        self.age_s = 0.0
        self.connection = SimpleNamespace(deferred_since=0.0)
        self.session: Any = SimpleNamespace(connection=self.connection, remote_address="10.0.0.2:5")
        self.flushing = cast(Any, SimpleNamespace(waiting=0, busy_at=float("inf"), busy_after_s=0.0, capacity=0))
        self.broker = cast(
            Any,
            SimpleNamespace(config=BrokerConfig(**settings), stats=SimpleNamespace(refused={}), answers_wait=sync),
        )
        self.answers: dict[int, Response] = {}
        self.flow = FlowControl(
            self.broker, self.flushing, self._reply, clock=lambda: self.now_s, age_s=lambda connection: self.age_s
        )
        self.flow.begin()

    def _reply(self, session: object, request: Command, response: Response) -> None:
        assert response.code == ResponseCode.SYSTEM_BUSY
        self.answers[request.opaque] = response

    def note_stall(self, seconds: float, age_s: float) -> None:
        """The loop stood still; the bytes that are read now have lain there for `age_s`."""
        self.now_s += seconds
        self.age_s = age_s

    def remark(self, code: int = SEND) -> str | None:
        """What one request is refused with now; None: it is handled."""
        self.answers.clear()
        command = Command(code, 7)
        kept = [command] if not self.suspects else self.flow.reject_stale(self.session, [command], self.now_s)
        assert bool(kept) is not bool(self.answers)
        return None if kept else self.answers[7].remark

    @property
    def suspects(self) -> bool:
        return bool(
            self.now_s >= self.flow.suspicious_at
            or self.now_s >= self.flushing.busy_at
            or self.flushing.waiting + 1 > self.flushing.capacity
            or (self.connection.deferred_since and self.now_s >= self.connection.deferred_since + self.flow.patience_s)
        )


def test_send_waiting_in_the_kernel_beyond_its_limit_is_rejected_with_the_wait() -> None:
    world = World()
    world.note_stall(1.5, age_s=1.45)
    expected = "broker busy, start flow control for a while, period in queue: 1450ms, size of queue: 0"
    assert world.remark() == f"[TIMEOUT_CLEAN_QUEUE]{expected}"
    assert world.flow.refused == {"timeout_clean_queue": 1}
    assert world.broker.stats.refused == {ResponseCode.SYSTEM_BUSY: 1}


def test_nothing_is_rejected_while_the_broker_starts() -> None:
    world = World()
    flow = FlowControl(world.broker, world.flushing, world._reply, clock=lambda: world.now_s, age_s=lambda _: 9.0)
    flow.tick()
    world.now_s += 9
    flow.tick()
    assert world.now_s < flow.suspicious_at
    flow.begin()
    assert world.now_s < flow.suspicious_at < world.now_s + 2


def test_stall_below_a_second_rejects_nothing() -> None:
    world = World()
    world.note_stall(0.99, age_s=0.98)
    assert world.remark() is None
    world = World(os_page_cache_busy_time_out_mills=300)
    world.note_stall(0.5, age_s=0.4)
    assert world.remark() is not None


def test_requests_at_the_end_of_a_stall_are_processed() -> None:
    world = World()
    world.note_stall(5, age_s=0.999)
    assert world.remark() is None


def test_requests_read_after_a_stall_are_checked_until_the_next_heartbeat_of_the_loop() -> None:
    world = World()
    world.note_stall(1.5, age_s=1.4)
    world.flow.tick()
    assert world.remark() is not None
    world.now_s += TICK_MS / 1000
    world.flow.tick()
    assert not world.suspects


def test_unblocked_loop_makes_no_kernel_queries() -> None:
    world = World()
    for _ in range(100):
        world.now_s += TICK_MS / 1000
        assert world.now_s - 0.001 < world.flow.suspicious_at
        world.flow.tick()
        assert not world.suspects


@pytest.mark.parametrize(
    ("code", "limit_s"),
    [
        (RequestCode.SEND_MESSAGE, 1),
        (RequestCode.SEND_BATCH_MESSAGE, 1),
        (RequestCode.CONSUMER_SEND_MSG_BACK, 1),
        (RequestCode.PULL_MESSAGE, 5),
        (RequestCode.HEART_BEAT, 31),
        (RequestCode.END_TRANSACTION, 3),
    ],
)
def test_each_kind_of_request_has_its_own_limit(code: int, limit_s: float) -> None:
    world = World()
    world.note_stall(60, age_s=limit_s - 0.001)
    assert world.remark(code) is None
    world.age_s = limit_s
    assert str(world.remark(code)).startswith("[TIMEOUT_CLEAN_QUEUE]")


def test_administrative_requests_are_never_rejected() -> None:
    world = World()
    world.note_stall(600, age_s=600)
    assert world.remark(RequestCode.GET_BROKER_RUNTIME_INFO) is None


def test_limits_follow_run_time_configuration() -> None:
    world = World()
    world.flow.apply(BrokerConfig(wait_time_mills_in_send_queue=2_000))
    world.note_stall(3, age_s=1.9)
    assert world.remark() is None
    world.flow.apply(BrokerConfig(broker_fast_failure_enable=False))
    world.age_s = 100
    assert world.remark() is None
    assert not world.suspects


def test_rejection_names_a_loop_blocked_by_the_store() -> None:
    world = World()
    world.now_s += 1.2
    world.flow.note_stall([SEND])
    world.age_s = 1.1
    expected = "broker busy, start flow control for a while, period in queue: 1100ms, size of queue: 0"
    assert world.remark() == f"[PCBUSY_CLEAN_QUEUE]{expected}"
    world.age_s = 6
    assert str(world.remark(RequestCode.PULL_MESSAGE)).startswith("[TIMEOUT_CLEAN_QUEUE]")


def test_long_request_does_not_count_as_a_busy_store() -> None:
    world = World()
    world.now_s += 1.2
    world.flow.note_stall([RequestCode.GET_ALL_TOPIC_CONFIG])
    world.age_s = 1.1
    assert str(world.remark()).startswith("[TIMEOUT_CLEAN_QUEUE]")


def test_deferred_requests_count_from_their_deferral() -> None:
    world = World()
    world.connection.deferred_since = world.now_s
    assert world.remark() is None
    world.now_s += 0.3
    assert "period in queue: 300ms" in str(world.remark())


def test_only_sends_are_rejected_while_the_disk_does_not_respond() -> None:
    world = World(sync=True)
    world.flushing.busy_at = world.now_s
    assert world.remark() == REJECTED
    assert world.remark(RequestCode.PULL_MESSAGE) is None
    world.flushing.busy_at = float("inf")
    assert world.remark() is None


def test_sends_waiting_for_flush_are_limited() -> None:
    world = World(sync=True, send_thread_pool_queue_capacity=5)
    world.flushing.waiting = 3
    commands = [Command(SEND, opaque) for opaque in range(1, 5)]
    commands.insert(3, Command(RequestCode.PULL_MESSAGE, 9))
    kept = world.flow.reject_stale(world.session, commands, world.now_s)
    assert [command.opaque for command in kept] == [1, 2, 9]
    assert {opaque: answer.remark for opaque, answer in world.answers.items()} == {3: OVERLOADED, 4: OVERLOADED}
    assert world.flow.refused == {"overload": 2}


def test_queue_size_counts_requests_behind_and_waiting_for_the_disk() -> None:
    world = World(sync=True)
    world.flushing.waiting = 10
    world.note_stall(2, age_s=1.7)
    commands = [Command(SEND, 1), Command(SEND, 2), Command(SEND, 3, FLAG_ONEWAY)]
    assert world.flow.reject_stale(world.session, commands, world.now_s) == []
    sizes = [cast(str, world.answers[opaque].remark).rpartition(" ")[2] for opaque in (1, 2, 3)]
    assert sizes == ["12", "11", "10"]
