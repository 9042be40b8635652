"""A group member that implements the protocol itself, for behaviour that no client has: silence and malformed
responses.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from delaymq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, decode_command, encode_command, request_command

from harness.errors import HarnessError

TIMEOUT_S = 30.0
V4_9_7 = 407

Answer = Callable[[Command], Command | None]


class RawMember:
    """One connection; `answer` maps each request of the broker to a response, or to None for no response."""

    def __init__(
        self, broker_address: str, *, group: str, topic: str, client_id: str, answer: Answer, version: int = V4_9_7
    ) -> None:
        host, _, port = broker_address.rpartition(":")
        self.client_id = client_id
        self.asked: list[Command] = []
        """Requests of the broker that are waiting for a response."""
        self._answer = answer
        self._joined = threading.Event()
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._socket.settimeout(None)
        self._stream = self._socket.makefile("rb")
        self._reader = threading.Thread(target=self._read, name=f"member {client_id}", daemon=True)
        self._reader.start()
        data = HeartbeatData(
            client_id,
            consumer_data_set=[
                ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", [_everything(topic)])
            ],
        )
        beat = request_command(RequestCode.HEART_BEAT, body=data.encode())
        beat.language, beat.version = "JAVA", version
        self._socket.sendall(encode_command(beat))
        if not self._joined.wait(TIMEOUT_S):
            raise HarnessError(f"the broker did not respond to the heartbeat of {client_id} within {TIMEOUT_S:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(TIMEOUT_S)
        self._stream.close()
        self._socket.close()

    def wait_asked(self, count: int = 1) -> None:
        """Wait until the broker has sent this number of requests."""
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.asked) < count:
            if time.monotonic() > deadline:
                raise HarnessError(f"the broker sent only {len(self.asked)} requests to {self.client_id}")
            time.sleep(0.02)

    def _read(self) -> None:
        try:
            while len(length := self._stream.read(4)) == 4:
                command = decode_command(self._stream.read(int.from_bytes(length, "big")))
                if command.is_response:
                    self._joined.set()
                elif not command.is_oneway:
                    self.asked.append(command)
                    response = self._answer(command)
                    if response is not None:
                        response.opaque, response.flag = command.opaque, 1
                        self._socket.sendall(encode_command(response))
        except (OSError, ValueError):
            return  # disconnected


def _everything(topic: str) -> SubscriptionData:
    return SubscriptionData(topic, "*", sub_version=1)
