"""Text of a record, events for the member, and the register that settings name."""

import asyncio
import string
from pathlib import Path

import pytest
from delaymq.config.register_keys import RegisterKeys
from delaymq.replication import Record
from delaymq.replication.effects import ReadRegister, WriteRegister
from delaymq.replication.events import RegisterConflict, RegisterFailed, RegisterRead, RegisterWritten
from delaymq.server.registers import RegisterError, open_register, perform
from delaymq.server.registers.record_text import MAX_NUMBER, RecordError, decode, encode
from delaymq_testing.registers.backends import FakeEtcd
from delaymq_testing.registers.faulty_http import Fault
from delaymq_testing.registers.worlds import KINDS, TIMEOUT_S, World, record, write_account
from hypothesis import given
from hypothesis import strategies as st

NAMES = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=253)
NUMBERS = st.integers(0, MAX_NUMBER)
TEXT = '{"version":1,"epoch":7,"master":"broker-a-0","incarnation":1,"inSync":["broker-a-0","broker-a-1"]}'


def with_member(name: str, value: str) -> str:
    """The text with another value of a member."""
    before, _, rest = TEXT.partition(f'"{name}":')
    end = rest.index("]") + 1 if rest.startswith("[") else min(map(rest.index, ",}"[: 1 + ("," not in rest)]))
    return f'{before}"{name}":{value}{rest[end:]}'


@given(st.integers(1, MAX_NUMBER), NAMES, NUMBERS, st.frozensets(NAMES, max_size=15))
def test_text_of_a_record_is_read_back(epoch: int, master: str, incarnation: int, others: frozenset[str]) -> None:
    record = Record(epoch, master, incarnation, others | {master})
    assert decode(encode(record)) == record
    assert decode(encode(record).encode()) == record


def test_text_of_a_record_is_canonical() -> None:
    assert encode(record(7)) == TEXT
    assert encode(Record(0, "", 0, frozenset("ba"))) == (
        '{"version":1,"epoch":0,"master":"","incarnation":0,"inSync":["a","b"]}'
    )
    assert decode(encode(Record(8, "", 0, frozenset("a")))) == Record(8, "", 0, frozenset("a"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        TEXT[:-1],
        TEXT + "}",
        "[" * 10_000,
        TEXT.replace("}", ',"more":1}'),
        with_member("version", "2"),
        with_member("version", '"1"'),
        with_member("epoch", "-1"),
        with_member("epoch", "1.5"),
        with_member("epoch", "true"),
        with_member("epoch", "2147483648"),
        with_member("epoch", "1e400"),
        with_member("epoch", "0"),
        with_member("master", "null"),
        with_member("master", '"broker-a-2"'),
        with_member("master", '"broker a"'),
        with_member("incarnation", "-1"),
        with_member("inSync", "[]"),
        with_member("inSync", '["broker-a-0","broker-a-0"]'),
        with_member("inSync", '["broker-a-0",""]'),
        with_member("inSync", '["broker-a-0","broker\\n"]'),
        with_member("inSync", '["broker-a-0",' + ",".join(f'"{n}"' for n in range(16)) + "]"),
        with_member("inSync", '["broker-a-0","' + "x" * 254 + '"]'),
        with_member("master", '"\\ud800"'),
    ],
)
def test_invalid_text_is_no_record(text: str) -> None:
    with pytest.raises(RecordError, match=r"\w"):
        decode(text)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_rejected_with_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(RecordError, match=r"\w"):
        decode(data)


@pytest.mark.parametrize("kind", KINDS)
def test_member_receives_the_events_of_its_effects(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World(kind, tmp_path).running() as world:
            register, other = world.open(), world.open()
            empty = world.backend.version
            assert await perform(register, ReadRegister(1), TIMEOUT_S) == (RegisterRead(1, empty, None), "")
            await other.read(TIMEOUT_S)
            event, problem = await perform(register, WriteRegister(2, empty, record()), TIMEOUT_S)
            assert (event, problem) == (RegisterWritten(2, world.backend.version), "")
            assert await perform(register, ReadRegister(3), TIMEOUT_S) == (
                RegisterRead(3, world.backend.version, record()), ""
            )  # fmt: skip
            assert await perform(other, WriteRegister(4, empty, record(2)), TIMEOUT_S) == (RegisterConflict(4), "")
            world.server.faults = [Fault.ERROR_AFTER, Fault.ERROR_BEFORE]
            event, problem = await perform(register, WriteRegister(5, world.backend.version, record(2)), TIMEOUT_S)
            assert event == RegisterFailed(5)
            assert "status 500" in problem
            event, problem = await perform(register, ReadRegister(6), TIMEOUT_S)
            assert event == RegisterFailed(6)
            assert "status 500" in problem

    asyncio.run(scenario())


def keys(**values: object) -> RegisterKeys:
    made = RegisterKeys()
    for name, value in values.items():
        assert hasattr(made, name)
        object.__setattr__(made, name, value)
    return made


def test_settings_name_the_register(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World("etcd", tmp_path).running() as world:
            password = tmp_path / "password"
            password.write_text("secret\nmore\n")
            account = {"replica_register_user": "broker", "replica_register_password_file": str(password)}
            named = keys(replica_register=f"etcd:{world.server.url}", **account)
            register = await open_register(named, "DefaultCluster", "broker-a", lease_s=10)
            assert isinstance(world.backend, FakeEtcd)
            world.backend.password = "secret"
            assert (await register.read(TIMEOUT_S)).record is None
            await register.close()
            password.unlink()
            register = await open_register(named, "DefaultCluster", "broker-a", lease_s=10)
            with pytest.raises(RegisterError, match="cannot read replicaRegisterPasswordFile"):
                await register.read(TIMEOUT_S)
            await register.close()
        write_account(tmp_path)
        of_lease = keys(replica_register="kubernetes:orders/orders-0", replica_register_account_path=str(tmp_path))
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
        register = await open_register(of_lease, "c", "g", lease_s=10, environment=environment)
        with pytest.raises(RegisterError, match="cannot read the Lease orders/orders-0: Cannot connect"):
            await register.read(TIMEOUT_S)
        await register.close()
        with pytest.raises(RegisterError, match="replicaRegister is empty"):
            await open_register(keys(), "c", "g", lease_s=10)

    asyncio.run(scenario())
