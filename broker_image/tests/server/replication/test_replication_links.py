"""Links between real brokers: order, ends, reconnects, and loss by dropping only."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.replication.events import ConnectionLost, Received
from delaymq.replication.messages import Frame
from delaymq.server.replication.links import Links
from delaymq.transport import ConnectError, RemotingConnection, connect
from delaymq_testing.linked_members import MemberServer, ack, group, linked
from delaymq_testing.running_server import HOST, BrokerPeer, run, until


def links_of(member: MemberServer) -> Links:
    assert member.links is not None
    return member.links


def test_three_members_exchange_messages_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b", "c") as members:
            for sender in members:
                for number in range(200):
                    for receiver in members:
                        if receiver is not sender:
                            assert links_of(sender).send(receiver.name, ack(number))
            expected = [ack(number) for number in range(200)]
            for receiver in members:
                for sender in members:
                    if receiver is not sender:
                        await until(lambda r=receiver, s=sender: len(r.received(s.name)) == 200)
                        assert receiver.received(sender.name) == expected
            counts = links_of(members[0]).counts("b")
            assert (counts.connected, counts.accepted, counts.sent_messages, counts.received_messages) == (
                1, 1, 200, 200,
            )  # fmt: skip
            assert counts.sent_bytes > counts.received_bytes > 0
            assert links_of(members[0]).version("b") == 1

    run(scenario)


def test_stopped_member_is_reported_and_reconnects(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b") as (a, b):
            port = b.server.port
            addresses = {member.name: member.address for member in (a, b)}
            await b.stop()
            await until(lambda: a.lost("b") == 2)  # both connections, in either order
            assert not links_of(a).send("b", ack(1))
            assert links_of(a).counts("b").unconnected == 1
            assert not links_of(a).receives_from("b")
            (tmp_path / "again").mkdir()
            again = MemberServer(tmp_path / "again", "b", listen_port=port)
            await again.start(addresses)
            await until(lambda: linked(a, again))
            assert links_of(again).send("a", ack(7))
            await until(lambda: a.received("b") == [ack(7)])
            assert a.events[-1] == Received("b", ack(7))
            await again.stop()

    run(scenario)


def test_each_end_of_a_connection_is_reported_immediately(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b") as (a, b):
            outgoing = links_of(a)._links["b"]._connection
            assert outgoing is not None
            outgoing.abort()
            await until(lambda: a.lost("b") == 1 and b.lost("a") == 1)
            await until(lambda: linked(a, b))
            assert links_of(a).counts("b").connected == 2
            assert links_of(a).counts("b").accepted == 1

    run(scenario)


def test_disconnect_states_the_reason_and_connects_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b") as (a, b):
            before = links_of(b).counts("a").connected
            links_of(a).disconnect("b", "impossible position")
            assert a.events == [ConnectionLost("b"), ConnectionLost("b")]
            assert not links_of(a).send("b", ack(1))
            links_of(a).disconnect("b", "again")
            links_of(a).disconnect("nobody", "no such member")
            assert len(a.events) == 2
            await until(lambda: "impossible position" in str(links_of(b).problem("a")))
            await until(lambda: linked(a, b))
            assert links_of(b).counts("a").connected == before + 1

    run(scenario)


def test_events_do_not_interrupt_the_callback(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b") as (a, b):
            order: list[Any] = []

            def on_event(event: Any) -> None:
                order.append(("begin", event))
                if isinstance(event, Received):
                    links_of(a).disconnect("b", "done")
                order.append(("end", event))

            links_of(a)._on_event = on_event
            links_of(b).send("a", ack(1))
            links_of(b).send("a", ack(2))
            await until(lambda: len(order) >= 6)
            first, lost = Received("b", ack(1)), ConnectionLost("b")
            assert order[:6] == [(when, event) for event in (first, lost, lost) for when in ("begin", "end")]
            assert ("begin", Received("b", ack(2))) not in order

    run(scenario)


def test_messages_beyond_the_buffer_are_dropped_and_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b") as (a, b):
            # b does not read: what is sent fills the buffers of both kernels, then that of the link.
            for session in b.server.sessions._sessions.values():
                session.connection._transport.pause_reading()
            link = links_of(a)._links["b"]
            sent = 0
            frame = Frame(1, 1, 0, bytes(1 << 18), 0, False)
            while links_of(a).send("b", frame):
                sent += 1
                await asyncio.sleep(0)
                assert link._connection is not None
                assert link._connection.unwritten_bytes() <= 8 << 20
            assert sent >= 31
            assert not links_of(a).send("b", frame)
            counts = links_of(a).counts("b")
            assert counts.dropped_messages == 2
            assert counts.dropped_bytes > 2 << 18
            assert links_of(a).send("b", ack(1))  # still fits
            for session in b.server.sessions._sessions.values():
                session.connection._transport.resume_reading()
            await until(lambda: len(b.received("a")) == sent + 1)
            assert b.received("a")[-1] == ack(1)
            assert b.lost("a") == 0

    run(scenario)


def test_members_can_be_replaced_while_running(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b") as (a, b):
            c = MemberServer(tmp_path, "c")
            everyone = {member.name: member.address for member in (a, b, c)}
            await c.start(everyone)
            await until(lambda: "is not in the haMembers" in str(links_of(c).problem("a")))
            links_of(a).set_members(everyone)
            await until(lambda: linked(a, c))
            links_of(a).set_members({"a": a.address, "c": c.address})
            assert a.lost("b") == 2
            assert not links_of(a).send("b", ack(1))
            await until(lambda: "is not in the haMembers" in str(links_of(b).problem("a")))
            assert linked(a, c)
            await c.stop()

    run(scenario)


def test_each_attempt_resolves_the_name_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        a, b = MemberServer(tmp_path, "a"), MemberServer(tmp_path, "b")
        attempts: list[str] = []

        async def connecting(host: str, port: int, *args: Any, **options: Any) -> RemotingConnection:
            attempts.append(host)
            if host != HOST and attempts.count(host) < 3:
                raise ConnectError(f"{host}:{port}", "cannot connect: Name or service not known")
            return await connect(HOST, port, *args, **options)

        await b.start({"b": b.address, "a": a.address})
        monkeypatch.setattr("delaymq.server.replication.link.connect", connecting)
        await a.start({"a": a.address, "b": ("member-b", b.server.port)})
        await until(lambda: links_of(a).problem("b") is None)
        assert attempts.count("member-b") == 3
        await a.stop()
        await b.stop()

    run(scenario)


def test_defect_in_an_attempt_does_not_end_the_attempts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        a, b = MemberServer(tmp_path, "a"), MemberServer(tmp_path, "b")
        attempts = 0

        async def tls(address: str) -> None:
            nonlocal attempts
            attempts += 1
            if attempts < 4:
                raise RuntimeError("defect")

        addresses = {"a": a.address, "b": b.address}
        await b.start(addresses)
        links = await a.start(addresses, tls=tls)
        await until(lambda: links.problem("b") is None)
        await a.stop()
        await b.stop()

    run(scenario)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "the link to member b failed unexpectedly"
    ]


def test_nothing_is_reported_after_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b") as (a, b):
            links_of(b).send("a", ack(1))
            await links_of(a).stop()
            await until(lambda: b.lost("a") == 2)
            await until(lambda: "no handshake is possible now" in str(links_of(b).problem("a")))
            assert a.events == []
            assert not links_of(a).send("b", ack(1))

    run(scenario)


def test_unresolvable_and_malformed_hosts_are_retried(tmp_path: Path) -> None:
    async def scenario() -> None:
        a = MemberServer(tmp_path, "a")
        await a.start({"a": a.address, "b": ("x" * 100 + ".example", 1), "c": (HOST, a.server.port)})
        await until(lambda: links_of(a).problem("b") != "not tried yet")
        await until(lambda: "both members have the name a" in str(links_of(a).problem("c")))
        assert not links_of(a)._tasks["b"].done()
        await a.stop()

    run(scenario)


def test_broker_without_replication_rejects_links(tmp_path: Path) -> None:
    async def scenario() -> None:
        a, b = MemberServer(tmp_path, "a"), MemberServer(tmp_path, "b")
        await b.server.start()
        await a.start({"a": a.address, "b": b.address})
        await until(lambda: "runs without replication, or an older program" in str(links_of(a).problem("b")))
        peer = await BrokerPeer.connect(b.server.port)
        answer = await peer.connection.request(request_command(RequestCode.LINK_REPLICA))
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        answer = await peer.connection.request(request_command(RequestCode.REPLICATE))
        assert answer.code == ResponseCode.NO_PERMISSION
        await a.stop()
        await b.stop()

    run(scenario)


def test_idle_links_stay_open_and_idle_clients_do_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b", channel_idle_ms=1_000) as (a, b):
            client = await BrokerPeer.connect(a.server.port)
            await until(lambda: client.connection.closing)
            assert (a.lost("b"), b.lost("a")) == (0, 0)
            assert linked(a, b)

    run(scenario)
