"""A single member with events and effects written by hand."""

from __future__ import annotations

from typing import TypeVar

from delaymq.replication import (
    LogState,
    Member,
    Note,
    NoteKind,
    Record,
    Settings,
)
from delaymq.replication.effects import (
    BecomeMaster,
    Effect,
    PersistEpochs,
    ReadRegister,
    Send,
    WriteRegister,
)
from delaymq.replication.events import (
    Event,
    Persisted,
    Received,
    RegisterRead,
    RegisterWritten,
    Tick,
)
from delaymq.replication.history import EpochStart, History
from delaymq.replication.local import incarnation_of
from delaymq.replication.messages import Accept, Ack, Ask, Follow, Position

STORE = "store"
SYNC = Settings()
LOST = Note(NoteKind.LOST_TAIL, 0, 0)
"""Note with which a process starts after a power loss."""
AnyEffect = TypeVar("AnyEffect")


class Driver:
    """A member with a clock; `take` returns the effects of the last events."""

    def __init__(
        self,
        name: str = "a",
        settings: Settings = SYNC,
        *,
        end: int = 100,
        confirmed: int = 0,
        history: History = (),
        note: Note | None = None,
        store_id: str = STORE,
        was_killed: bool = False,
    ) -> None:
        log = LogState(store_id, history, end, end, confirmed, note, was_killed=was_killed)
        self.member = Member(name, 7, settings, log)
        self.now_ms = 0
        self.effects: list[Effect] = self.member.start(0)

    def give(self, *events: Event) -> None:
        for event in events:
            self.effects += self.member.handle(event, self.now_ms)

    def wait(self, time_ms: int) -> None:
        for _ in range(0, time_ms, 100):
            self.now_ms += 100
            self.give(Tick())

    def take(self, kind: type[AnyEffect]) -> AnyEffect:
        """Return the newest effect of a kind, and forget all."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        assert found, self.effects
        self.effects.clear()
        return found[-1]

    def has(self, kind: type[Effect]) -> bool:
        return any(isinstance(effect, kind) for effect in self.effects)

    def sent(self, kind: type[AnyEffect]) -> list[AnyEffect]:
        return [
            effect.message for effect in self.effects if isinstance(effect, Send) and isinstance(effect.message, kind)
        ]

    def read(self, version: str, record: Record) -> None:
        """Wait until the member reads the register, and respond."""
        for _ in range(50):
            if self.has(ReadRegister):
                break
            self.wait(100)
        self.give(RegisterRead(self.take(ReadRegister).request, version, record))

    def write(self, version: str) -> Record:
        """Let the write in progress take place."""
        write = self.take(WriteRegister)
        self.give(RegisterWritten(write.request, version))
        return write.record

    def persist(self) -> None:
        self.give(Persisted(self.take(PersistEpochs).number))


def record(epoch: int, master: str, *in_sync: str, incarnation: int = 1) -> Record:
    return Record(epoch, master, incarnation, frozenset(in_sync))


def master(*in_sync: str, settings: Settings = SYNC) -> Driver:
    """Return the master `a` of epoch 2 with a log of 100 bytes, and a set in which others are not connected yet."""
    driver = Driver(settings=settings)
    driver.read("1", record(1, "a", "a", *in_sync))
    driver.write("2")
    driver.persist()
    driver.take(BecomeMaster)
    return driver


def connect(driver: Driver, name: str, acknowledged: int, session: int = 1, note: int = 0) -> None:
    """Begin a session of a replica, which has `acknowledged` bytes."""
    driver.give(
        Received(name, Follow(2, session, max(incarnation_of(session), 1), STORE, note)),
        Received(name, Ack(2, session, acknowledged, acknowledged, 0)),
    )


def follower(*, end: int = 100, confirmed: int = 0, history: History = (), note: Note | None = None) -> Driver:
    """Return the member `b`, which has asked the master `a` of epoch 2 to follow it."""
    driver = Driver("b", end=end, confirmed=confirmed, history=history, note=note)
    driver.read("1", record(2, "a", "a", "b"))
    return driver


def live(driver: Driver, *, end: int = 100, start: int = 100) -> int:
    """Let a follower begin its session with a log of the same content. Returns the session."""
    session = driver.sent(Follow)[-1].session
    driver.give(Received("a", Accept(2, session, STORE, (EpochStart(2, start),), 0, end)))
    driver.persist()
    return session


def abandoned(driver: Driver, content: Record, time_ms: int, position: Position | None = None) -> bool:
    """Let a member find the register unchanged for a time. Returns whether it takes over."""
    for _ in range(0, time_ms, 100):
        driver.wait(100)
        if driver.has(WriteRegister):
            return True
        asked = driver.sent(Ask)
        for effect in list(driver.effects):
            if isinstance(effect, ReadRegister):
                driver.give(RegisterRead(effect.request, "1", content))
        if driver.has(WriteRegister):
            return True
        driver.effects.clear()
        if position is not None and asked:
            driver.give(Received("c", position._replace(round=asked[-1].round)))
    return False
