"""Store backup, restore, clone and export as a user runs them."""

from __future__ import annotations

import json
import logging
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delaymq import clock
from delaymq.broker import opening
from delaymq.broker.broker import Broker
from delaymq.broker.delivery import control
from delaymq.cli import overdue_policy
from delaymq.cli.commands.store.reopening import pause_deliveries, reopen
from delaymq.cli.overdue_policy import OverduePolicy
from delaymq.config import BrokerConfig
from delaymq.store.backup.restore import Restore
from delaymq.store.errors import StoreFullError
from delaymq.store.message_store import MessageStore
from delaymq.store.model import Dispatched, NewRecord
from delaymq_testing.broker.transactions import Transacting
from delaymq_testing.cli_running import COMMAND_TIMEOUT_S, Standalone, called
from delaymq_testing.store.timed_records import TimedStore

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
SMALL: dict[str, Any] = {"mapped_file_size_commit_log": 65_536, "max_hash_slot_num": 100, "max_index_num": 400}
PENDING, OVERDUE, PLAIN = 7, 5, 40


def open_broker(path: Path, now_ms: int | None = None) -> Broker:
    config = BrokerConfig(store_path_root_dir=str(path), message_delay_level="1s 60m", **SMALL)
    return opening.open_broker(config, clock.now_ms if now_ms is None else lambda: now_ms)


def store_one(broker: Broker, body: str, level: int = 0) -> None:
    topic, queue_id, properties = "Orders", 1, {"UNIQ_KEY": body, "KEYS": f"k-{body}", "TAGS": "paid"}
    if level:
        topic, queue_id, properties = broker.delivery.ingress.prepare(properties, topic, queue_id, level)
    born_ms = broker.now_ms()
    broker.store.append(NewRecord(topic, queue_id, body.encode(), properties, 0, 0, born_ms, HOST, HOST))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store at rest: plain messages, some that are overdue by now, some that are due in an hour."""
    path = tmp_path_factory.mktemp("origin") / "store"
    broker = open_broker(path, clock.now_ms() - 10_000)
    for number in range(PLAIN):
        store_one(broker, f"plain{number}" + "." * 2_000)
    for number in range(OVERDUE):
        store_one(broker, f"overdue{number}", 1)
    broker.offsets.commit("Orders", "readers", 1, 30)
    broker.close()
    broker = open_broker(path)
    for number in range(PENDING):
        store_one(broker, f"pending{number}", 2)
    broker.close()
    return path


@pytest.fixture
def backup(origin: Path, tmp_path: Path) -> Path:
    done = called("store", "backup", str(origin), str(tmp_path / "backup"))
    assert done.code == 0, done.err
    assert "contains the commit log from offset 0 to" in done.out
    return tmp_path / "backup"


def delivered(path: Path) -> tuple[list[str], dict[int, int]]:
    """Bodies of what a broker hands over when it is started on the store, and what pends then."""
    broker = open_broker(path)
    while broker.hand_over(broker.now_ms(), 100):
        continue
    first, end = broker.store.queue_bounds("Orders", 1)
    entries = broker.store.read_entries("Orders", 1, first, end - first)
    offsets = [int.from_bytes(entries[at : at + 8], "big") for at in range(0, len(entries), 20)]
    bodies = [record.body.decode() for offset in offsets if (record := broker.store.record_at(offset)) is not None]
    pending = broker.delivery.pending()
    broker.close()
    return [body for body in bodies if not body.startswith("plain")], pending


def restore(backup: Path, store: Path, *words: str) -> dict[str, object]:
    done = called("store", "restore", str(backup), str(store), *words, "--json")
    assert done.code == 0, done.err
    told: dict[str, object] = json.loads(done.out)
    return told


@pytest.mark.parametrize(
    ("choice", "count", "pending"),
    [
        ([], OVERDUE, {1: 0, 2: PENDING}),
        (["--overdue", "deliver"], OVERDUE, {1: 0, 2: PENDING}),
        (["--overdue", "drop", "--yes"], 0, {1: 0, 2: PENDING}),
        (["--overdue", "pause"], 0, {1: OVERDUE, 2: PENDING}),
        (["--overdue", "spread=1d"], 1, {1: OVERDUE - 1, 2: PENDING}),
    ],
)
def test_restore_treats_overdue_messages_as_chosen(
    backup: Path, tmp_path: Path, choice: list[str], count: int, pending: dict[int, int]
) -> None:
    told = restore(backup, tmp_path / "again", *choice)
    assert (told["overdue"], told["dropped"]) == (OVERDUE, OVERDUE if "drop" in choice else 0)
    bodies, left = delivered(tmp_path / "again")
    assert sorted(bodies) == [f"overdue{number}" for number in range(count)]
    assert left == pending
    assert called("store", "verify", str(tmp_path / "again")).code == 0


@pytest.mark.parametrize(
    ("choice", "count", "pending"),
    [("deliver", 4, 3), ("drop", 0, 3), ("pause", 0, 7), ("spread=1d", 1, 6)],
)
def test_restore_treats_overdue_timed_messages_as_chosen(tmp_path: Path, choice: str, count: int, pending: int) -> None:
    path, backup, again = tmp_path / "store", tmp_path / "backup", tmp_path / "again"
    broker = open_broker(path, clock.now_ms() - 10_000)
    for number in range(7):
        due_ms = broker.now_ms() + (1_000 if number < 4 else 3_600_000)
        TimedStore(broker.store).schedule(f"u{number}", due_ms, queue_id=1)
    broker.close()
    assert called("store", "backup", str(path), str(backup)).code == 0
    told = restore(backup, again, "--overdue", choice, "--yes")
    assert (told["overdue"], told["pending"]) == (4, 3 if choice == "drop" else 7)
    assert told["dropped"] == (4 if choice == "drop" else 0)
    state = json.loads((again / "delaymq/state.json").read_bytes())
    assert (state["formatVersion"], state["minimumReader"]) == (2, 2)
    broker = open_broker(again)
    while broker.hand_over(broker.now_ms(), 100):
        continue
    assert broker.delivery.pending_total() == pending
    assert broker.store.next_queue_offset("Orders", 1) == count
    broker.close()


def test_drop_needs_confirmation_and_else_the_store_stays_paused(backup: Path, tmp_path: Path) -> None:
    done = called("store", "restore", str(backup), str(tmp_path / "again"), "--overdue", "drop")
    assert done.code == 2
    assert f"Permanently drop {OVERDUE} overdue delayed messages?" in done.err
    assert "paused" in done.err
    assert delivered(tmp_path / "again") == ([], {1: OVERDUE, 2: PENDING})


def test_drops_that_a_full_store_rejects_are_done_by_the_broker(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Restore(str(backup), str(tmp_path / "again"))
    work.lay_out()
    pause_deliveries(tmp_path / "again")
    work.finish()
    append, left = MessageStore.append, [2]

    def until_full(self: MessageStore, record: NewRecord) -> Dispatched:
        left[0] -= 1
        if left[0] < 0:
            raise StoreFullError("full")
        return append(self, record)

    level = logging.getLogger("delaymq").level
    with monkeypatch.context() as patched:
        patched.setattr(MessageStore, "append", until_full)
        done = reopen(tmp_path / "again", work.manifest, work.options(), OverduePolicy(what="drop"), lambda count: None)
    logging.getLogger("delaymq").setLevel(level)
    assert (done.overdue, done.dropped) == (OVERDUE, 2)
    assert delivered(tmp_path / "again") == ([], {1: 0, 2: PENDING})


def test_restore_and_clone_report_open_transactions(tmp_path: Path) -> None:
    transacting = Transacting(tmp_path)
    ended, rolled_back, *_ = [transacting.prepare() for _ in range(5)]
    transacting.commit(ended)
    transacting.roll_back(rolled_back)
    transacting.broker.close()
    store = transacting.config.store_path_root_dir
    assert called("store", "backup", store, str(tmp_path / "b")).code == 0
    assert restore(tmp_path / "b", tmp_path / "again")["openTransactions"] == 3
    in_words = called("store", "restore", str(tmp_path / "b"), str(tmp_path / "other"))
    assert "3 transactions are open" in in_words.out
    # The transactions' consumer offsets are omitted with them.
    words = ("store", "clone", store, str(tmp_path / "clone"), "--offsets", "drop", "--json")
    assert json.loads(called(*words).out)["openTransactions"] == 3
    # The broker that is started there has the same number.
    config = replace(transacting.config, store_path_root_dir=str(tmp_path / "again"))
    broker = opening.open_broker(config, transacting.clock)
    assert broker.transactions.totals().pending == 3
    broker.close()


def test_nothing_is_reported_without_open_transactions(backup: Path, tmp_path: Path) -> None:
    assert restore(backup, tmp_path / "again")["openTransactions"] == 0
    assert "transactions" not in called("store", "restore", str(backup), str(tmp_path / "other")).out


def test_paused_store_is_restored_paused_by_default(origin: Path, tmp_path: Path) -> None:
    shutil.copytree(origin, tmp_path / "paused")
    broker = open_broker(tmp_path / "paused")
    broker.delivery.control.pause()
    broker.close()
    assert called("store", "backup", str(tmp_path / "paused"), str(tmp_path / "b")).code == 0
    assert restore(tmp_path / "b", tmp_path / "again")["overdueChoice"] == "pause"
    assert delivered(tmp_path / "again")[0] == []
    assert restore(tmp_path / "b", tmp_path / "other", "--overdue", "deliver")["overdueChoice"] == "deliver"
    assert len(delivered(tmp_path / "other")[0]) == OVERDUE


@pytest.mark.parametrize("from_backup", [True, False])
@pytest.mark.parametrize("offsets", ["keep", "drop"])
def test_clone_has_its_own_id_and_delivers_nothing(
    origin: Path, backup: Path, tmp_path: Path, from_backup: bool, offsets: str
) -> None:
    source = backup if from_backup else origin
    done = called("store", "clone", str(source), str(tmp_path / "new"), "--offsets", offsets, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["pending"] == OVERDUE + PENDING
    assert delivered(tmp_path / "new") == ([], {1: OVERDUE, 2: PENDING})
    ids = [json.loads((path / "delaymq/state.json").read_bytes())["storeId"] for path in (origin, tmp_path / "new")]
    assert ids[0] != ids[1]
    broker = open_broker(tmp_path / "new")
    assert broker.offsets.get("Orders", "readers", 1) == (30 if offsets == "keep" else None)
    broker.close()
    assert not (tmp_path / "new/.clone").exists()
    assert called("store", "verify", str(tmp_path / "new")).code == 0


def test_verify_names_the_damaged_file_of_a_backup(backup: Path) -> None:
    done = called("store", "verify", str(backup))
    assert (done.code, "sound: backup from offset 0 to" in done.out) == (0, True)
    segment = min((backup / "commitlog").iterdir())
    segment.write_bytes(segment.read_bytes()[:-1] + b"!")
    done = called("store", "verify", str(backup))
    assert done.code == 1
    assert f"commitlog/{segment.name}" in done.out
    done = called("store", "restore", str(backup), str(backup.parent / "again"))
    assert done.code == 1
    assert segment.name in done.err


def test_full_disk_is_reported_and_the_next_run_resumes(origin: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "delaymq", "store", "backup", str(origin), str(tmp_path / "b"), "--json"]

    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    done = subprocess.run(
        words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False, preexec_fn=small_files_only
    )
    assert done.returncode == 1
    assert "disk full" in done.stderr
    assert "run the backup again to continue" in done.stderr
    assert called("store", "verify", str(tmp_path / "b")).code == 2
    assert called(*words[3:]).code == 0
    assert called("store", "verify", str(tmp_path / "b")).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["backup", "NOWHERE", "b"], "is not a directory"),
        (["backup", "ftp://host", "b"], "not an HTTP address"),
        (["backup", "STORE", "STORE/inside"], "is inside the store"),
        (["backup", "STORE", "b", "--limit", "fast"], "is not a number of bytes"),
        (["backup", "EMPTY", "b"], "is not a store"),
        (["restore", "EMPTY", "b"], "contains no finished backup"),
        (["restore", "STORE", "b", "--overdue", "later"], "use deliver, spread=DURATION"),
        (["restore", "STORE", "b", "--overdue", "spread=soon"], "is not a duration"),
        (["restore", "STORE", "b", "--overdue", "spread=31d"], "at most 30d"),
        (["clone", "STORE", "STORE"], "is not empty"),
        (["clone", "STORE", "b", "--offsets", "some"], "use keep or drop"),
        (["export", "EMPTY"], "is not a store"),
        (["export", "STORE", "--format", "xml"], "use jsonl"),
    ],
)
def test_each_error_is_one_sentence(origin: Path, tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "empty").mkdir()
    names = {"STORE": str(origin), "EMPTY": str(tmp_path / "empty"), "NOWHERE": str(tmp_path / "nowhere")}
    for name, path in names.items():
        words = [word.replace(name, path) for word in words]
    done = called("store", *(str(tmp_path / word) if word == "b" else word for word in words))
    assert done.code in (1, 2)
    assert said in done.err
    assert not (tmp_path / "b").exists() or not any((tmp_path / "b").rglob("manifest.json"))


def test_export_has_one_line_per_message(origin: Path, backup: Path, tmp_path: Path) -> None:
    done = called("store", "export", str(origin), "--topic", "Orders")
    lines = [json.loads(line) for line in done.lines]
    assert [line["body"][:7] for line in lines] == [f"plain{number}."[:7] for number in range(PLAIN)]
    assert lines[3]["keys"] == [lines[3]["properties"]["KEYS"]]
    assert (lines[3]["queueId"], lines[3]["queueOffset"], lines[3]["tags"]) == (1, 3, "paid")
    assert done.err.strip() == f"{PLAIN} messages"
    assert called("store", "export", str(backup), "--topic", "Orders").out == done.out

    out = tmp_path / "lines"
    done = called("store", "export", str(origin), "--delayed", "--from", str(lines[-1]["storedMs"] + 1), "-o", str(out))
    assert (done.code, done.out) == (0, "")
    assert len(out.read_text().splitlines()) == PENDING
    assert "already exists" in called("store", "export", str(origin), "-o", str(out)).err


def test_limits_of_command_and_broker_are_equal() -> None:
    assert overdue_policy.MAX_SPREAD_MS == control.MAX_SPREAD_MS


def test_running_broker_is_backed_up_cloned_paused_and_resumed(tmp_path: Path) -> None:
    server = Standalone(tmp_path)
    with server.running():
        known = server.environment
        url = known["DELAYMQ_HTTP"]
        assert called("send", "Orders", "one", environment=known).code == 0
        assert "deliveries are paused; 0 messages overdue" in called("delay", "pause", environment=known).out
        assert called("send", "Orders", "two", "--delay", "1s", environment=known).code == 0
        told = json.loads(called("store", "backup", url, str(tmp_path / "b"), "--json").out)
        assert (told["startOffset"], told["segments"], told["copiedBytes"]) == (0, 1, told["endOffset"])
        assert called("store", "clone", url, str(tmp_path / "clone")).code == 0
        assert called("store", "verify", str(tmp_path / "clone")).code == 0
        assert restore(tmp_path / "b", tmp_path / "again")["overdueChoice"] == "pause"

        done = called("delay", "resume", "--overdue", "drop", environment=known)
        assert (done.code, "add --yes" in done.err) == (2, True)
        done = called("delay", "resume", "--overdue", "spread=1s", "--json", environment=known)
        assert json.loads(done.out)["held"]["mode"] == "spread"
        assert "deliveries are resumed" in called("delay", "resume", environment=known).out
        assert called("delay", "status", "--json", environment=known).code == 0
