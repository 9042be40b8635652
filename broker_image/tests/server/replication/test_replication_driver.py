"""The driver performs effects once, in order, and never leaves a member that assumes what did not take place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from delaymq.message.errors import NewerFormError
from delaymq.replication import LogState, Member, Settings
from delaymq.replication import effects as does
from delaymq.replication.effects import Effect
from delaymq.replication.events import Appended, AppendFailed, Event, SwitchOver, Tick
from delaymq.server.replication.driver import REPORT_S, Driver
from delaymq.server.replication.member_files import MemberFiles
from delaymq.server.replication.table_messages import TableReceived
from delaymq.store.errors import StoreFailedError
from delaymq.store.message_store import MessageStore
from delaymq_testing.replicated_group import MemoryRegister
from delaymq_testing.running_server import run, until


class StatedMember:
    """A member that responds to each event of a kind with stated effects."""

    def __init__(self) -> None:
        self.settings = Settings(window_bytes=100)
        self.log = LogState("store", (), 0, 0, 0)
        self.effects: list[Effect] = []
        self.events: list[Event] = []
        self.members: frozenset[str] = frozenset()
        self.is_able = True

    def start(self, now_ms: int) -> list[Effect]:
        return []

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.events.append(event)
        if isinstance(event, Appended):
            self.log.end = event.end
        taken, self.effects = self.effects, []
        return taken

    def in_sync(self) -> frozenset[str]:
        return self.members

    def may_store(self) -> bool:
        return True


class StatedStore:
    min_offset = end_offset = flushed_offset = 0
    failure: Exception | None = None
    error: Exception | None = None

    def forget_received(self) -> None:
        pass

    def disk_state(self) -> SimpleNamespace:
        return SimpleNamespace(writes_refused=False)

    def append_raw(self, start: int, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.end_offset += len(data)


class StatedHost:
    """Records calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        def called(*values: object, **_: object) -> None:
            self.calls.append((name, *values))
            if name == "lead" and self.error is not None:
                raise self.error

        return called


class BlockedFiles:
    """Files that are never written."""

    is_blocked = True

    def write_replica(self, *_: object) -> None:
        if self.is_blocked:
            raise OSError("no space")


class StatedTables:
    """Tables that hold back nothing."""

    def received(self, event: TableReceived) -> None:
        pass

    def before(self, event: Event) -> bool:
        return True

    def after(self, event: Event) -> None:
        pass


class Rig:
    def __init__(self) -> None:
        self.member, self.store, self.host, self.files = StatedMember(), StatedStore(), StatedHost(), BlockedFiles()
        self.driver = Driver(
            cast(Member, self.member),
            cast(MessageStore, self.store),
            cast(Any, None),
            MemoryRegister("a"),
            cast(MemberFiles, self.files),
            self.host,
            tables=StatedTables(),
            flush_soon=lambda: None,
            register_timeout_s=1.0,
        )
        self.driver.start()

    def give(self, *effects: Effect) -> None:
        self.member.effects = list(effects)
        self.driver.handle(Tick())

    def names(self) -> list[str]:
        return [str(call[0]) for call in self.host.calls]


def driven(check: Callable[[Rig], object]) -> None:
    async def scenario() -> None:
        rig = Rig()
        try:
            result = check(rig)
            if asyncio.iscoroutine(result):
                await result
        finally:
            await rig.driver.stop()

    run(scenario)


def test_members_in_sync_are_known_before_responses_that_depend_on_them() -> None:
    def check(rig: Rig) -> None:
        rig.member.members = frozenset({"a", "b"})
        rig.give()
        rig.member.members = frozenset({"a"})
        rig.give(does.SetConfirmed(10))
        assert rig.host.calls[-2:] == [("set_in_sync", frozenset({"a"})), ("confirm", 10)]

    driven(check)


def test_member_that_cannot_lead_restarts_instead_of_keeping_its_lease() -> None:
    def check(rig: Rig) -> None:
        rig.host.error = StoreFailedError("the disk failed")
        rig.give(does.BecomeMaster(1, 0), does.HoldAppends(True))
        assert rig.names() == ["lead", "restart"]
        rig.give(does.HoldAppends(True))
        assert rig.names() == ["lead", "restart"]

    driven(check)


def test_nothing_is_performed_after_a_restart_was_requested() -> None:
    for effect, name in (
        (does.StopBeingMaster(1, "x"), "stop_leading"),
        (does.CutTo(5), "cut"),
        (does.DiscardLog("x"), "discard"),
    ):

        def check(rig: Rig, effect: Effect = effect, name: str = name) -> None:
            rig.give(effect, does.AppendRaw(0, b"foreign"), does.SetConfirmed(7))
            rig.give(does.AppendRaw(0, b"foreign"))
            assert rig.names() == [name]
            assert rig.store.end_offset == 0

        driven(check)


def test_no_append_follows_a_file_that_was_written_during_the_stop() -> None:
    async def scenario() -> None:
        rig = Rig()
        rig.give(does.PersistNote(1, None), does.AppendRaw(0, b"x"), does.CutTo(0))
        rig.files.is_blocked = False
        await rig.driver.stop()
        assert rig.store.end_offset == 0
        assert not rig.names()

    run(scenario)


def test_store_that_failed_ends_the_role_of_its_member() -> None:
    async def check(rig: Rig) -> None:
        rig.store.failure = StoreFailedError("the disk failed")
        await until(lambda: bool(rig.host.calls))
        assert rig.host.calls == [("store_failed", "the disk failed")]

    driven(check)


def test_bytes_of_a_newer_form_are_not_appended_and_end_the_session() -> None:
    def check(rig: Rig) -> None:
        rig.store.error = NewerFormError("a newer form")
        rig.give(does.AppendRaw(0, b"x"))
        assert isinstance(rig.member.events[-1], AppendFailed)

    driven(check)


def test_bytes_behind_a_file_that_cannot_be_written_are_bounded() -> None:
    async def check(rig: Rig) -> None:
        rig.give(does.PersistNote(1, None))
        for start in range(0, 1_000, 50):
            rig.give(does.AppendRaw(start, bytes(50)))
        failures = [event for event in rig.member.events if isinstance(event, AppendFailed)]
        assert len(failures) == 16, "four parts wait: twice the window"
        rig.files.is_blocked = False
        await until(lambda: rig.store.end_offset == 200)
        rig.give(does.AppendRaw(200, bytes(50)))
        assert rig.store.end_offset == 250

    driven(check)


def test_growth_is_reported_once_per_pause_if_no_response_waits_for_replicas() -> None:
    async def check(rig: Rig) -> None:
        rig.member.settings = Settings(waits_for_replicas=False)
        began = time.monotonic()
        while time.monotonic() < began + 20 * REPORT_S:
            rig.store.end_offset += 10
            rig.driver.grown()
            await asyncio.sleep(0)
        end = rig.store.end_offset
        await until(lambda: rig.member.log.end == end)
        reports = [event for event in rig.member.events if isinstance(event, Appended)]
        pauses = (time.monotonic() - began) / REPORT_S
        assert 1 < len(reports) <= pauses + 2, "the first report, and the last one by the timer, are additional"

    driven(check)


def test_growth_is_reported_together_with_what_arrives_in_the_next_iteration() -> None:
    async def check(rig: Rig) -> None:
        loop = asyncio.get_running_loop()

        def append() -> None:
            rig.store.end_offset += 10
            rig.driver.grown()

        loop.call_soon(append)
        await asyncio.sleep(0)
        loop.call_soon(append)
        end = rig.store.end_offset + 10
        await until(lambda: rig.member.log.end == end)
        assert [event.end for event in rig.member.events if isinstance(event, Appended)] == [end]

    driven(check)


def test_order_follows_a_report_of_everything_that_was_appended() -> None:
    async def check(rig: Rig) -> None:
        rig.store.end_offset = 10
        rig.driver.grown()
        rig.driver.order(SwitchOver("b", 1))
        assert rig.member.events == [Appended(10), SwitchOver("b", 1)]

    driven(check)
