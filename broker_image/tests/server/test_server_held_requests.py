"""Requests that wait while another member takes over are bounded."""

from __future__ import annotations

from typing import Any, cast

from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.server.requests.held_requests import HeldRequests


class Refusals:
    def __init__(self) -> None:
        self.refused: list[tuple[int, int]] = []

    def __call__(self, session: object, command: Command, response: Response) -> None:
        self.refused.append((command.opaque, response.code))


def request(number: int, body: bytes = b"", code: int = RequestCode.SEND_MESSAGE_V2) -> Command:
    return Command(code=code, opaque=number, body=body)


def test_held_requests_are_taken_in_their_order() -> None:
    held = HeldRequests(Refusals())
    connection, session = cast(Any, object()), cast(Any, object())
    assert held.hold(connection, session, [request(1), request(2)]) == []
    assert held.hold(connection, session, [request(3)]) == []
    assert [command.opaque for _, commands in held.taken() for command in commands] == [1, 2, 3]
    assert not held.taken()


def test_requests_beyond_the_limits_are_refused_unstored() -> None:
    refusals = Refusals()
    held = HeldRequests(refusals, max_held=3, max_bytes=10)
    held.hold(cast(Any, None), cast(Any, None), [request(1, b"12345678"), request(2, b"123"), request(3, b"12")])
    held.hold(cast(Any, None), cast(Any, None), [request(4), request(5)])
    assert [command.opaque for _, commands in held.taken() for command in commands] == [1, 3, 4]
    assert refusals.refused == [(2, ResponseCode.SERVICE_NOT_AVAILABLE), (5, ResponseCode.SERVICE_NOT_AVAILABLE)]


def test_members_connect_while_requests_are_held() -> None:
    held = HeldRequests(Refusals())
    link = request(2, code=RequestCode.LINK_REPLICA)
    assert held.hold(cast(Any, None), cast(Any, None), [request(1), link]) == [link]
