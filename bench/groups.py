"""Sends to one broker group and to several, from a client that costs little: rates, and processor time per message.

    PYTHONPATH=e2e:broker_image/testing .venv/bin/python bench/groups.py --groups 1 2 --pairs 3

Each group has a processor, and a client of its own on the same processor. One group is also measured with the client
on another processor. The client sends frames that are built once, and only counts the responses.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import selectors
import socket
import statistics
import struct
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import proc
from delaymq.cli.servers.groups import PORT_DISTANCE
from delaymq_testing.hostile.frames import framed, json_header
from harness.brokers import HOST, OurCluster

TOPIC: Final = "Load"
BODY: Final = bytes(1024)
CONNECTIONS: Final = 4
WINDOW: Final = 64
"""Unanswered sends of a connection."""
WARM_UP_S: Final = 2.0
SEND: Final = 310
SETTINGS: Final = {"mappedFileSizeCommitLog": str(1 << 30), "fileReservedTime": "1"}
LENGTH: Final = struct.Struct(">i")


def send_frame(queue_id: int) -> bytes:
    """Return a send request."""
    pairs = {"a": "P", "b": TOPIC, "c": "TBW102", "d": "8", "e": str(queue_id), "f": "0", "g": "0", "h": "0", "i": ""}
    return framed(json_header(SEND, [*pairs.items()], 1, 0, language="JAVA", version=407), BODY)


def responses(data: bytearray) -> int:
    """Remove the complete frames from `data` and return their number."""
    position = count = 0
    while position + LENGTH.size <= len(data):
        end = position + LENGTH.size + LENGTH.unpack_from(data, position)[0]
        if end > len(data):
            break
        position, count = end, count + 1
    del data[:position]
    return count


def generate(port: int, processor: int, seconds: float, result: Connection) -> None:
    """Send for a while, and report the number of responses, the time, and this process's own processor time."""
    os.sched_setaffinity(0, {processor})
    selector = selectors.DefaultSelector()
    for number in range(CONNECTIONS):
        peer = socket.create_connection((HOST, port))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frame = send_frame(number % 8)
        selector.register(peer, selectors.EVENT_READ, (bytearray(), frame))
        peer.sendall(frame)
        if b'"code":0' not in peer.recv(1 << 16):
            raise ConnectionError("the broker rejected a send")
        peer.sendall(frame * WINDOW)
    count = 0
    result.send("ready")
    while not result.poll():
        count += exchange(selector)
    result.recv()
    count = 0
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        count += exchange(selector)
    result.send((count, time.monotonic() - began, time.process_time() - used))


def exchange(selector: selectors.BaseSelector) -> int:
    """Replace each response that has arrived by another send."""
    total = 0
    for key, _ in selector.select(1):
        peer = key.fileobj
        assert isinstance(peer, socket.socket)
        data, frame = key.data
        part = peer.recv(1 << 18)
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
        count = responses(data)
        if count:
            peer.sendall(frame * count)
        total += count
    return total


def broker_processes(supervisor: int, groups: int) -> list[int]:
    """Return the process ids of the brokers, in the order of their groups."""
    if groups == 1:
        return [supervisor]
    found = {}
    for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        found[int(words[words.index("--group") + 1])] = int(pid)
    return [found[number] for number in range(groups)]


def measure(groups: int, apart: int, seconds: float) -> tuple[float, float, float]:
    """Measure groups whose clients are `apart` processors away.

    Returns messages per second, and the processor time per message of the brokers and of the client in µs.
    """
    processors = sorted(os.sched_getaffinity(0))
    with OurCluster(config=SETTINGS, arguments=("--groups", str(groups)) if groups > 1 else ()) as cluster:
        pids = broker_processes(cluster.broker.pid, groups)
        for number, pid in enumerate(pids):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {processors[number % len(processors)]})
        clients = []
        for number in range(groups):
            ours, theirs = multiprocessing.Pipe()
            processor = processors[(number + apart) % len(processors)]
            port = cluster.listen_port + number * PORT_DISTANCE
            process = multiprocessing.Process(target=generate, args=(port, processor, seconds, theirs))
            process.start()
            clients.append((process, ours))
        for _, pipe in clients:
            pipe.recv()
        time.sleep(WARM_UP_S)
        before = [proc.processor_s(pid) for pid in pids]
        for _, pipe in clients:
            pipe.send("measure")
        results = [pipe.recv() for _, pipe in clients]
        used = sum(proc.processor_s(pid) - earlier for pid, earlier in zip(pids, before, strict=True))
        for process, _ in clients:
            process.join()
    count = sum(each[0] for each in results)
    rate = sum(each[0] / each[1] for each in results)
    return rate, used / count * 1e6, sum(each[2] for each in results) / count * 1e6


def main() -> None:
    """Measure alternately, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 2], help="numbers of groups (default 1 2)")
    parser.add_argument("--pairs", type=int, default=3, help="measurements of each (default 3)")
    parser.add_argument("--seconds", type=float, default=8.0, help="duration of a measurement (default 8)")
    options = parser.parse_args()
    cases = [case for groups in options.groups for case in ([(1, 1), (1, 0)] if groups == 1 else [(groups, 0)])]
    found: dict[tuple[int, int], list[tuple[float, float, float]]] = {case: [] for case in cases}
    for _ in range(options.pairs):
        for groups, apart in cases:
            row = measure(groups, apart, options.seconds)
            found[groups, apart].append(row)
            print(groups, apart, *(f"{value:.1f}" for value in row), flush=True)
    print("| groups | client | messages/s | brokers, µs/message | client, µs/message |\n|---|---|---|---|---|")
    for (groups, apart), rows in found.items():
        rate, broker, client = (statistics.median(column) for column in zip(*rows, strict=True))
        place = "another processor" if apart else "the same processor"
        print(f"| {groups} | {place} | {rate:,.0f} | {broker:.1f} | {client:.1f} |")


if __name__ == "__main__":
    main()
