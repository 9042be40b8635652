"""Latency of one well-behaved sender while other clients misbehave.

``PYTHONPATH=broker_image/testing python bench/attacks.py [--seconds 5] [--only NAME]`` starts a broker on free ports.
Each attack runs in a separate process, so that it does not slow down the sender's; on a machine with few processors,
they still compete. This program only measures: the tests of the server and the transport verify the limits.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import encode_command, request_command
from delaymq.transport import connect
from delaymq_testing.running_server import send_command

HOST = "127.0.0.1"
TOPIC = "Polite"
PAUSE_S = 0.002
START_LIMIT_S = 30
CONNECTIONS = 200
Attack = Callable[[int], None]


def dial(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=5)


def announce(port: int, count: int = 1_000) -> None:
    """Many connections announce a large frame each and fall silent."""
    keep = []
    for _ in range(count):
        keep.append(dial(port))
        keep[-1].sendall(struct.pack(">I", 250_000) + b"x" * 8)
    signal.pause()


def half_frames(port: int) -> None:
    """Connections send all but the last byte of frames of 4 MiB."""
    keep = []
    while True:
        with contextlib.suppress(OSError):
            keep.append(dial(port))
            keep[-1].sendall(struct.pack(">I", 4 << 20) + bytes(4 << 20)[:-1])
        if len(keep) >= CONNECTIONS:
            keep.pop(0).close()


def pulls_unread(port: int) -> None:
    """Connections repeatedly request messages and never read the responses."""
    fields = {"consumerGroup": "G", "topic": "Big", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"}
    fields |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}
    fields |= {"subVersion": "0", "expressionType": "TAG"}
    pull = encode_command(request_command(RequestCode.PULL_MESSAGE, fields))
    with dial(port) as sender:
        for _ in range(8):
            sender.sendall(encode_command(send_command("Big", b"b" * 200_000)))
            sender.recv(65_536)
    keep: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            keep.append(dial(port))
            keep[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            keep[-1].sendall(pull * 20)
        time.sleep(0.005)
        if len(keep) > CONNECTIONS:
            keep.pop(0).close()


def reads_a_byte(port: int) -> None:
    """Connections read their responses slowly, byte by byte."""
    route = encode_command(request_command(RequestCode.GET_ALL_TOPIC_CONFIG))
    keep = [dial(port) for _ in range(CONNECTIONS)]
    for each in keep:
        each.sendall(route * 100)
    while True:
        for each in keep:
            with contextlib.suppress(OSError):
                each.recv(1)
        time.sleep(1)


def writes_a_byte(port: int) -> None:
    """Connections write a request slowly, byte by byte."""
    frame = encode_command(send_command("Slow", b"s" * 1000))
    keep = [dial(port) for _ in range(CONNECTIONS)]
    for at in range(len(frame)):
        for each in keep:
            with contextlib.suppress(OSError):
                each.send(frame[at : at + 1])
        time.sleep(1)


def tiny_requests(port: int) -> None:
    """Connections flood the broker with the smallest requests, and read the responses."""
    flood = encode_command(request_command(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})) * 500
    keep = [dial(port) for _ in range(20)]
    for each in keep:
        each.setblocking(False)
    while True:
        for each in keep:
            with contextlib.suppress(OSError):
                each.send(flood)
            with contextlib.suppress(OSError):
                each.recv(1 << 20)


def sends(port: int) -> None:
    """Connections flood the broker with messages, and read the responses."""
    flood = encode_command(send_command("Flood", b"f" * 100)) * 200
    keep = [dial(port) for _ in range(20)]
    for each in keep:
        each.setblocking(False)
    while True:
        for each in keep:
            with contextlib.suppress(OSError):
                each.send(flood)
            with contextlib.suppress(OSError):
                each.recv(1 << 20)


def huge_headers(port: int) -> None:
    """Requests whose header is nearly as large as a frame may be."""
    fields = {"topic": "T" * 10_000_000, "queueId": "0"}
    frame = encode_command(request_command(RequestCode.GET_MAX_OFFSET, fields))
    while True:
        with contextlib.suppress(OSError), dial(port) as peer:
            peer.sendall(frame)
            peer.recv(100)


def opens_and_closes(port: int) -> None:
    """Connections come and go as fast as they can."""
    while True:
        with contextlib.suppress(OSError):
            dial(port).close()


def nothing(port: int) -> None:
    """Baseline without an attack."""
    signal.pause()


ATTACKS: tuple[Attack, ...] = (
    nothing, announce, half_frames, pulls_unread, reads_a_byte, writes_a_byte, tiny_requests, sends, huge_headers,
    opens_and_closes,
)  # fmt: skip


async def polite(port: int, seconds: float, begin: Callable[[], None]) -> tuple[list[float], int]:
    """Send messages one at a time; return the latencies in ms, and the number of failed sends.

    The sender has connected and sent a message before `begin` starts the attack.
    """
    connection = await connect(HOST, port)
    await connection.request(send_command(TOPIC, b"p" * 100), 10_000)
    begin()
    await asyncio.sleep(1)
    latencies, failed = [], 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        try:
            answer = await connection.request(send_command(TOPIC, b"p" * 100), 10_000)
            failed += answer.code != 0
        except Exception:
            failed += 1
            connection = await connect(HOST, port, timeout_ms=10_000)
        latencies.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(PAUSE_S)
    connection.close()
    return sorted(latencies), failed


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[tuple[int, int, int]]:
    """Run a broker; yield its port, HTTP port and process id."""
    ports = []
    for _ in range(3):
        with socket.create_server((HOST, 0)) as free:
            ports.append(free.getsockname()[1])
    port, http_port, namesrv_port = ports
    arguments = ["standalone", "--host", HOST, "--namesrv-port", str(namesrv_port), "--listen-port", str(port)]
    arguments += ["--http-port", str(http_port), "--store-path", str(folder / "store")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "delaymq", *arguments], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://{HOST}:{http_port}/readyz", timeout=1).close()
                break
            if time.monotonic() > deadline:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(0.05)
        yield port, http_port, process.pid
    finally:
        process.terminate()
        process.wait(30)


def anonymous_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


def measure(attack: Attack, seconds: float) -> str:
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder)) as (port, _, pid):
        attacker = multiprocessing.get_context("fork").Process(target=attack, args=(port,), daemon=True)
        peak = anonymous_mib(pid)
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.05):
                peak = max(peak, anonymous_mib(pid))

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            latencies, failed = asyncio.run(polite(port, seconds, attacker.start))
        finally:
            done.set()
            watching.join()
            attacker.kill()
            attacker.join()
        count = len(latencies)
        p50, p99 = latencies[count // 2], latencies[min(count * 99 // 100, count - 1)]
        return (
            f"{attack.__name__:<17} {count:>6} {p50:>8.2f} {p99:>8.2f} {latencies[-1]:>8.1f} {failed:>7} {peak:>9.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--only", choices=[attack.__name__ for attack in ATTACKS])
    options = parser.parse_args()
    print("attack             sends   p50 ms   p99 ms   max ms  failed  peak MiB", flush=True)
    for attack in ATTACKS:
        if options.only in (None, attack.__name__):
            print(measure(attack, options.seconds), flush=True)


if __name__ == "__main__":
    main()
