"""Each transaction gets exactly its fate, whatever the order of events."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from delaymq.message import names
from delaymq.store.model import Dispatched, NewRecord
from delaymq_testing.broker.harness import FakeSession
from delaymq_testing.broker.transactions import COMMIT, ROLLBACK, TOPIC, Half, Transacting
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("prepare"), st.sampled_from(["commit", "rollback"]), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 30), st.booleans()),
        st.tuples(st.just("answer"), st.integers(0, 5), st.booleans()),
        st.tuples(st.sampled_from(["connect", "leave", "round", "round", "due", "plain"])),
        st.tuples(st.sampled_from(["kill", "stop", "snapshot", "flush", "persist", "forget snapshot", "resume"])),
        st.tuples(st.just("crash in a commit"), st.integers(0, 30)),
    ),
    max_size=60,
)


class CrashError(Exception):
    """The process dies here."""


class Model:
    """Decisions of producers about each half message, and a broker that receives them repeatedly."""

    def __init__(self, harness: Transacting) -> None:
        self.harness = harness
        self.halves: list[Half] = []
        self.fates: dict[str, str] = {}
        self.ended: set[str] = set()
        self.session: FakeSession | None = None
        self.given_up: set[str] = set()

    def run(self, step: tuple[object, ...]) -> None:
        name, *arguments = step
        getattr(self, str(name).replace(" ", "_"))(*arguments)

    def prepare(self, fate: str, delayed: bool) -> None:
        half = self.harness.prepare(**({"DELAY": "1"} if delayed else {}))
        self.halves.append(half)
        self.fates[half.key] = fate

    def plain(self) -> None:
        self.harness.send("Other", b"plain", {"UNIQ_KEY": "plain"})

    def end(self, number: int, from_check: bool) -> None:
        if self.halves:
            self._end(self.halves[number % len(self.halves)], from_check)

    def answer(self, number: int, from_check: bool) -> None:
        if self.session is not None and self.session.notified:
            self._end(Half.of_check(self.session.notified[number % len(self.session.notified)]), from_check)

    def _end(self, half: Half, from_check: bool) -> None:
        outcome = COMMIT if self.fates[half.key] == "commit" else ROLLBACK
        answer = self.harness.end(half, outcome, fromTransactionCheck=from_check)
        if answer.code == 0 and not (outcome == ROLLBACK and half.key in self.given_up):
            self.ended.add(half.key)

    def crash_in_a_commit(self, number: int) -> None:
        """The copy is in the log, and the process dies before the op mark."""
        if not self.halves:
            return
        half = self.halves[number % len(self.halves)]
        if self.fates[half.key] != "commit":
            return
        store = self.harness.broker.store
        append = store.append

        def append_once(message: NewRecord) -> Dispatched:
            if message.topic == names.OP_HALF_TOPIC:
                raise CrashError
            return append(message)

        store.append = append_once
        self.harness.end(half, COMMIT)
        self.kill()

    def connect(self) -> None:
        if self.session is None:
            self.session = self.harness.connect()

    def leave(self) -> None:
        if self.session is not None:
            self.harness.broker.clients.session_closed(self.session)
            self.session = None

    def round(self) -> None:
        self.harness.next_round()
        self.given_up |= {r.properties["UNIQ_KEY"] for r in self.harness.records(names.TRANS_CHECK_MAX_TOPIC)}

    def due(self) -> None:
        self.harness.clock.advance(2_000)
        self.harness.broker.hand_over(self.harness.clock(), 1_000)

    def kill(self) -> None:
        self.harness.kill()
        self.session = None

    def stop(self) -> None:
        self.harness.restart()
        self.session = None

    def snapshot(self) -> None:
        task = self.harness.broker.store.snapshot_task(force=True)
        if task is not None:
            task.run()
            assert task.finish() is None

    def forget_snapshot(self) -> None:
        path = Path(self.harness.config.store_path_root_dir) / "delaymq" / "snapshot.json"
        path.unlink(missing_ok=True)
        self.kill()

    def flush(self) -> None:
        self.harness.flush()

    def persist(self) -> None:
        task = self.harness.broker.persist_task(self.harness.clock())
        if task is not None:
            task.run()
            task.finish()

    def resume(self) -> None:
        for record in self.harness.records(names.TRANS_CHECK_MAX_TOPIC)[-1:]:
            self.harness.broker.transactions.resume(record)

    def check_now(self) -> None:
        """At any time: nothing twice, nothing that was rolled back, and nothing lost that was committed."""
        seen = Counter(self.harness.committed_keys(TOPIC))
        assert [key for key, count in seen.items() if count > 1] == []
        assert [key for key in seen if self.fates[key] == "rollback"] == []
        waiting = {r.properties["UNIQ_KEY"] for r in self.harness.records(names.SCHEDULE_TOPIC)}
        committed = {key for key in self.ended if self.fates[key] == "commit"}
        assert committed <= seen.keys() | waiting

    def settle_all(self) -> None:
        """A producer that answers every question: then each message has its fate."""
        self.connect()
        assert self.session is not None
        for _ in range(4):
            self.harness.next_round()
            self.given_up |= {r.properties["UNIQ_KEY"] for r in self.harness.records(names.TRANS_CHECK_MAX_TOPIC)}
            for command in self.session.notified:
                self._end(Half.of_check(command), True)
            self.session.notified.clear()
        self.due()
        assert self.harness.pending == 0
        seen = Counter(self.harness.committed_keys(TOPIC))
        for key, fate in self.fates.items():
            if fate == "rollback":
                assert seen[key] == 0
            elif key not in self.given_up:
                assert seen[key] == 1
            else:
                assert seen[key] <= 1


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, check_max=st.sampled_from([1, 2, 15]))
def test_each_transaction_gets_exactly_its_fate(steps: list[tuple[object, ...]], check_max: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        harness = Transacting(
            Path(folder),
            transaction_check_max=check_max,
            message_delay_level="1s 1h",
            mapped_file_size_commit_log=64 * 1024,
            mapped_file_size_consume_queue=2_000,
        )
        try:
            model = Model(harness)
            for step in steps:
                model.run(step)
                model.check_now()
            model.settle_all()
            marked = set(harness.marks())
            for half in model.halves:
                assert half.queue_offset in marked, "a settled half message without an op mark"
        finally:
            harness.broker.close()
