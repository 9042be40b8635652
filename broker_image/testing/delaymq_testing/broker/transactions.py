"""A broker with producers of transactions, for tests: prepares, ends and looks at half messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from delaymq.broker.groups.consumer_group import Client
from delaymq.broker.opening import open_broker
from delaymq.broker.requests.results import Deferred
from delaymq.message import names
from delaymq.message.record import Record, decode_record
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, Response
from delaymq.store.consume_queue import ENTRY

from delaymq_testing.broker.harness import FakeSession, Harness, broker_config

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "payers"
TOPIC = "Orders"


class Half:
    """What a producer knows of its half message."""

    def __init__(self, key: str, queue_offset: int, physical_offset: int) -> None:
        self.key = key
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset

    @classmethod
    def of_check(cls, command: Command) -> Half:
        """The half message of a check."""
        fields = command.fields
        return cls(fields["msgId"], int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"]))


class Transacting(Harness):
    """One broker and producers of the group `payers`."""

    def __init__(self, path: Path, **changes: Any) -> None:
        super().__init__(path, **changes)
        self.numbers = 0

    def kill(self) -> None:
        """What a kill -9 and a start leave."""
        self.broker.store.abandon()
        self.broker = open_broker(self.config, self.clock)

    def reopen(self, **changes: Any) -> None:
        """A clean stop, and a start with other settings."""
        self.broker.close()
        self.config = broker_config(Path(self.config.store_path_root_dir).parent, **changes)
        self.broker = open_broker(self.config, self.clock)

    def connect(self, group: str = GROUP, session: FakeSession | None = None) -> FakeSession:
        """A producer of a group."""
        session = session or FakeSession()
        client = Client(session, f"client{session.id}", "JAVA", 409, self.clock())
        self.broker.clients.register_producer(client, group)
        return session

    def prepare(self, topic: str = TOPIC, group: str = GROUP, **properties: str) -> Half:
        """A half message, acknowledged."""
        self.numbers += 1
        key = f"U{self.numbers}"
        sent = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": group, **properties}
        result = self.send(topic, f"body of {key}".encode(), sent, f=4, g=self.clock())
        answer = result.response if isinstance(result, Deferred) else result
        assert answer.code == 0, answer
        return Half(key, int(answer.fields["queueOffset"]), int(answer.fields["msgId"][16:], 16))

    def end(self, half: Half, outcome: int, group: str = GROUP, **fields: Any) -> Any:
        """What the end of a transaction is answered with."""
        header = {
            "producerGroup": group,
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.physical_offset,
            "commitOrRollback": outcome,
            "fromTransactionCheck": False,
            "msgId": half.key,
            "transactionId": half.key,
        }
        return self.ask(RequestCode.END_TRANSACTION, header | fields)

    def commit(self, half: Half, **fields: Any) -> Response:
        """A commit whose response must come immediately."""
        answer = self.end(half, COMMIT, **fields)
        assert isinstance(answer, Response), answer
        return answer

    def roll_back(self, half: Half, **fields: Any) -> Response:
        """A rollback whose response must come immediately."""
        answer = self.end(half, ROLLBACK, **fields)
        assert isinstance(answer, Response), answer
        return answer

    def check(self) -> int:
        """Runs the check-back until it has nothing more to do now."""
        total = 0
        for _ in range(1_000):
            done = self.broker.transactions.check(self.clock(), 64)
            total += done
            if done == 0:
                return total
        raise AssertionError("the check-back does not come to an end")

    def next_round(self) -> int:
        """Goes to the next round of the check-back, and runs it."""
        self.clock.advance(self.config.transaction_check_interval + 1_000)
        return self.check()

    @property
    def pending(self) -> int:
        """Unsettled half messages."""
        return self.broker.transactions.totals().pending

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        """All records of a queue."""
        store = self.broker.store
        first, end = store.queue_bounds(topic, queue_id)
        found = []
        while first < end:
            for physical_offset, size, _ in ENTRY.iter_unpack(store.read_entries(topic, queue_id, first, end - first)):
                found.append(decode_record(store.read_bytes(physical_offset, size)))
                first += 1
        return found

    def committed_keys(self, topic: str = TOPIC) -> list[str]:
        """The unique keys of what consumers of a topic find."""
        return [record.properties["UNIQ_KEY"] for record in self.records(topic)]

    def marks(self) -> list[int]:
        """The queue offsets of half messages that op marks name."""
        return [int(record.body) for record in self.records(names.OP_HALF_TOPIC)]
