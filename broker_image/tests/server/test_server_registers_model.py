"""Random operations of two writers with random faults agree with one linear history."""

import asyncio
import random
from pathlib import Path

import pytest
from delaymq.replication import Record
from delaymq.server.registers import Conflict, Register, RegisterError, Written
from delaymq_testing.registers.faulty_http import Fault, Request
from delaymq_testing.registers.worlds import KINDS, World, record
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

WRITERS = 2
STEPS = FUZZ_INPUTS // 50
"""Operations of each writer."""
TIMEOUT_S = 0.03
"""Short enough for many silent requests. An operation that takes longer on a slow machine is one more fault."""


class Model:
    """Outcomes that the writers received, compared with the history of the backend."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.told: dict[str, int] = {}
        self.conflicts: list[Record] = []
        self.written: list[tuple[str, str, Record]] = []
        self.unknown: list[tuple[str, Record]] = []
        self.versions = [world.backend.version]

    def choose(self, request: Request) -> Fault:
        return self.rng.choice(list(Fault)) if self.rng.random() < 0.4 else Fault.NONE

    def position(self) -> int:
        """Number of writes that have taken place."""
        return len(self.world.backend.history)

    def count(self, outcome: object) -> None:
        name = type(outcome).__name__
        self.told[name] = self.told.get(name, 0) + 1

    async def write_often(self, writer: int) -> None:
        register = self.world.open()
        version = ""
        for step in range(STEPS):
            if not version or self.rng.random() < 0.3:
                version = await self.read(register) or version
                await asyncio.sleep(0)
            if version:
                version = await self.write(register, version, record(1 + step, 1 + writer)) or version

    async def read(self, register: Register) -> str:
        first = self.position()
        try:
            content = await register.read(TIMEOUT_S)
        except RegisterError as error:
            self.count(error)
            return ""
        self.count(content)
        entries = self.world.backend.history[: self.position()]
        possible = [(self.versions[0], None), *((entry.version, entry.record) for entry in entries)][first:]
        assert content in possible
        return content.version

    async def write(self, register: Register, version: str, new: Record) -> str:
        outcome = await register.write(new, version, TIMEOUT_S)
        self.count(outcome)
        match outcome:
            case Written(after):
                self.written.append((version, after, new))
                return after
            case Conflict():
                self.conflicts.append(new)
            case _:
                self.unknown.append((version, new))
        return ""

    def verify(self) -> None:
        """Compare at the end, when no write can take place any more. Each record was written by one operation only."""
        history = self.world.backend.history
        entries = {entry.record: entry for entry in history}
        assert len(entries) == len(history), "a write took place twice"
        assert [entry.before for entry in history[1:]] == [entry.version for entry in history[:-1]]
        for before, after, new in self.written:
            assert entries[new] == (before, after, new)
        assert not [new for new in self.conflicts if new in entries], "a conflict was reported for a write"
        for before, new in self.unknown:
            assert new not in entries or entries[new].before == before


@pytest.mark.parametrize("kind", KINDS)
def test_reported_outcomes_agree_with_one_history(kind: str, tmp_path: Path) -> None:
    async def scenario() -> Model:
        async with World(kind, tmp_path).running() as world:
            model = Model(world, random.Random(f"{SEED} {kind}"))
            world.server.choose = model.choose
            await asyncio.gather(*(model.write_often(writer) for writer in range(WRITERS)))
            world.server.apply_late()
            return model

    model = asyncio.run(scenario())
    model.verify()
    print(model.told, len(model.world.backend.history))
    assert model.told.keys() == {"Content", "RegisterError", "Written", "Conflict", "Unknown"}
    resolved = {entry.record for entry in model.world.backend.history}
    assert any(new in resolved for _, new in model.unknown)
    assert any(new not in resolved for _, new in model.unknown)
