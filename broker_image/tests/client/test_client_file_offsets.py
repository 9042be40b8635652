"""The offsets file of a broadcasting member: location, RocketMQ's format, and damage."""

import asyncio
import time
from pathlib import Path

import pytest
from delaymq.client import (
    Client,
    ClientError,
    ClientOptions,
    ConsumeFrom,
    MessageModel,
    OffsetsInUseError,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.client.consumer.offset_store import file_offsets
from delaymq.client.consumer.offset_store.file_offsets import FileOffsets, default_path
from delaymq.protocol.bodies import MessageQueue
from delaymq_testing.client.consuming import subscribed
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until

QUEUES = {MessageQueue("broker-a", 0, "T"): 41, MessageQueue("broker-a", 1, "T"): 7}
JAVA = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"T"
\t\t}:41,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":1,
\t\t\t"topic":"T"
\t\t}:7
\t}
}"""
"""The file as RocketMQ 4.9's LocalFileOffsetStore writes it."""
OURS = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:41,'
    b'{"brokerName":"broker-a","queueId":1,"topic":"T"}:7}}'
)


def loaded(path: Path) -> list[int | None]:
    """The offsets of QUEUES in the file."""

    async def load() -> list[int | None]:
        offsets = FileOffsets()
        await offsets.open(path)
        try:
            return [await offsets.load(queue) for queue in QUEUES]
        finally:
            offsets.close()

    return asyncio.run(load())


@pytest.mark.parametrize("text", [JAVA, OURS])
def test_files_of_either_client_are_read(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "offsets.json").write_bytes(text)
    assert loaded(tmp_path / "offsets.json") == [41, 7]


def test_offsets_are_written_in_rocketmqs_format_with_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "offsets.json"

    async def save() -> None:
        offsets = FileOffsets()
        await offsets.open(path)
        await offsets.save({MessageQueue("broker-a", 0, "T"): 1})
        await offsets.save(QUEUES)
        offsets.close()

    asyncio.run(save())
    assert path.read_bytes() == OURS
    former = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:1}}'
    assert path.with_name("offsets.json.bak").read_bytes() == former
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "offsets.json", "offsets.json.bak", "offsets.json.lock",
    ]  # fmt: skip


@pytest.mark.parametrize("text", [None, b"", b"{", b'{"offsetTable":[]}', b'{"offsetTable":{"T":1}}', b"\xff" * 100])
def test_backup_replaces_an_unreadable_file(text: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    if text is not None:
        path.write_bytes(text)
    assert loaded(path) == [None, None]
    path.with_name("offsets.json.bak").write_bytes(JAVA)
    assert loaded(path) == [41, 7]


def test_cancelled_start_releases_the_file(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"

    async def scenario() -> None:
        opening = asyncio.create_task(FileOffsets().open(path))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        while True:
            offsets = FileOffsets()
            try:
                await offsets.open(path)
            except OffsetsInUseError:  # the thread of the first one has not ended yet
                continue
            offsets.close()
            break
        # On a loaded machine the thread of the first one may end last.
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    run(scenario)


def test_overlapping_saves_are_written_sequentially(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    first, second = QUEUES
    write = file_offsets._write
    at_work: list[dict[MessageQueue, int]] = []
    overlaps: list[dict[MessageQueue, int]] = []

    def slow_write(path: Path, offsets: dict[MessageQueue, int]) -> None:
        overlaps.extend(at_work)
        at_work.append(offsets)
        time.sleep(0.05)
        write(path, offsets)
        at_work.clear()

    monkeypatch.setattr(file_offsets, "_write", slow_write)

    async def scenario() -> None:
        offsets = FileOffsets()
        await offsets.open(path)
        await asyncio.gather(offsets.save({first: 41}), offsets.save({second: 7}))
        offsets.close()

    run(scenario)
    assert overlaps == []
    assert loaded(path) == [41, 7]


def test_default_path_equals_rocketmqs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".rocketmq_offsets"
    assert default_path("10.1.2.3@77#1234", "", "G") == folder / "10.1.2.3@DEFAULT" / "G" / "offsets.json"
    assert default_path("10.1.2.3@a/../b", "a/../b", "G") == folder / "10.1.2.3@a_.._b" / "G" / "offsets.json"


def test_missing_home_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(ClientError, match="set HOME, or offsets_path"):
        default_path("10.1.2.3@77", "", "G")


def broadcasting(client: Client, got: list[bytes]) -> PushConsumer:
    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    options = PushConsumerOptions(model=MessageModel.BROADCASTING, consume_from=ConsumeFrom.FIRST)
    return subscribed(client, handle, options)


def test_next_process_continues_where_the_last_one_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    broker = FakeBroker()
    got: list[bytes] = []

    async def one_life() -> None:
        broker.add("T", b"%d" % len(broker.records))
        number = len(got)
        async with running(broker) as (client, _), broadcasting(client, got):
            await until(lambda: len(got) > number)

    for _ in range(3):
        broker.port = 0
        run(one_life)
    assert got == [b"0", b"1", b"2"]


def test_two_members_cannot_share_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    async def scenario() -> None:
        async with running(FakeBroker()) as (client, name_server), broadcasting(client, []):
            async with Client(name_server.address) as second:
                with pytest.raises(OffsetsInUseError, match="give each Client an instance_name"):
                    await broadcasting(second, []).start()
            async with (
                Client(name_server.address, ClientOptions(instance_name="second")) as named,
                broadcasting(named, []),
            ):
                pass

    run(scenario)


def test_unwritable_folder_is_logged_once_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / "file" / "offsets.json"

    async def save() -> list[int | None]:
        offsets = FileOffsets()
        await offsets.open(path)
        for offset in range(3):
            await offsets.save(dict.fromkeys(QUEUES, offset))
        return [await offsets.load(queue) for queue in QUEUES]

    assert asyncio.run(save()) == [2, 2]
    assert caplog.text.count("messages will be repeated after a restart") == 1


def test_next_save_writes_offsets_of_a_failed_one_even_if_unchanged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "offsets.json"
    write = file_offsets._write

    def is_full(path: Path, offsets: dict[MessageQueue, int]) -> None:
        raise OSError(28, "No space left on device")

    async def scenario() -> None:
        offsets = FileOffsets()
        await offsets.open(path)
        monkeypatch.setattr(file_offsets, "_write", is_full)
        await offsets.save(QUEUES)
        monkeypatch.setattr(file_offsets, "_write", write)
        await offsets.save(QUEUES)
        offsets.close()

    asyncio.run(scenario())
    assert loaded(path) == [41, 7]
