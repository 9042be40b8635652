"""Clients that run inside the cluster: programs of e2e/kind_client in a pod of the test's namespace, by `kubectl exec`.

Their lines (kind_client/lines.py) are read while they run; every program has an end, and every wait has a limit.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from crash.load import LoadProgram
from harness.java import ADD_OPENS
from kind.verdict import Sent
from kind.waiting import wait_until

if TYPE_CHECKING:
    from kind.space import Space

CLIENT_POD = "client"
JAVA_POD = "java-client"
PROGRAMS = "/opt/e2e_client"
END_GRACE_S = 20.0
"""Extra time for a program to exit after a stop request before its exit counts as missing."""
JAVA_OPTIONS = ("-Xms64m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Drocketmq.client.logLevel=WARN")


class Program:
    """One running program and its output."""

    def __init__(self, command: list[str], what: str, at_most_s: float) -> None:
        self.what = what
        self._at_most_s = at_most_s
        self._lines: list[list[Any]] = []
        self._errors: list[str] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._readers = [threading.Thread(target=self._read_output, daemon=True)]
        self._readers.append(threading.Thread(target=self._read_errors, daemon=True))
        for reader in self._readers:
            reader.start()

    def lines(self, kind: str) -> list[list[Any]]:
        """Return the lines so far whose first word is ``kind``, without that word."""
        return [line[1:] for line in list(self._lines) if line[0] == kind]

    def wait_lines(self, kind: str, count: int = 1, *, timeout_s: float = 30.0) -> list[list[Any]]:
        """Return the lines of a kind once there are ``count``; AssertionError with standard error if it ended."""

        def enough() -> list[list[Any]] | None:
            ended = self._process.poll() is not None
            found = self.lines(kind)
            if len(found) >= count:
                return found
            assert not ended, f"{self.what} ended with {len(found)} of {count} lines {kind}: {self.complaint()}"
            return None

        return wait_until(f"{count} lines {kind} of {self.what}", enough, timeout_s=timeout_s, every_s=0.05)

    def stop(self) -> Any:
        """Make it finish now; return the content of its last line."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.result()

    def result(self) -> Any:
        """Wait until the program ends; return the content of its last line."""
        try:
            code = self._process.wait(self._at_most_s + END_GRACE_S)
        except subprocess.TimeoutExpired:
            self.close()
            raise AssertionError(f"{self.what} did not end: {self.complaint()}") from None
        for reader in self._readers:
            reader.join(END_GRACE_S)
        ends = self.lines("end")
        assert code == 0, f"{self.what} failed with exit code {code}: {self.complaint()}"
        assert ends, f"{self.what} was interrupted: {self.complaint()}"
        return ends[-1][0]

    def sends(self) -> list[Sent]:
        """Return the outcomes of a producer's sends so far."""
        sent = [
            Sent(key=key, level=level, began_ms=began, ended_ms=ended, message_id=message_id, broker=broker)
            for key, level, began, ended, message_id, broker in self.lines("sent")
        ]
        failed = [
            Sent(key=key, level=level, began_ms=began, ended_ms=ended, failure=reason)
            for key, level, began, ended, reason in self.lines("failed")
        ]
        return sent + failed

    def complaint(self) -> str:
        return "".join(self._errors[-20:]).strip() or "nothing on standard error"

    def close(self) -> None:
        """Release it; only the local process is waited for."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._lines.append(json.loads(line))
            except ValueError:
                self._errors.append(line)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)


class ClientPod:
    """The pod in a namespace in which programs run; created by `Space`, ready before it is used."""

    def __init__(self, space: Space, name: str = CLIENT_POD) -> None:
        self._space = space
        self.name = name
        self._programs: list[Program] = []

    def start(self, program: str, *, name_servers: str, at_most_s: float = 120.0, **options: object) -> Program:
        """Start a program; ``run_id=1`` becomes ``--run-id 1``, a value ``None`` is omitted."""
        words = [f"{PROGRAMS}/{program}.py", "--until-stdin-closes"]
        words += ["--name-servers", name_servers, "--at-most-s", str(at_most_s)]
        words += _flags(options)
        return self._run(words, f"{program} in {self._space.name}", at_most_s)

    def ask(self, question: str, *arguments: str, name_servers: str, timeout_s: float = 20.0, **options: object) -> Any:
        """Return one result of ask.py."""
        words = [f"{PROGRAMS}/ask.py", "--name-servers", name_servers, "--at-most-s", str(timeout_s)]
        words += _flags(options)
        return self._run([*words, question, *arguments], f"ask {question}", timeout_s).result()

    def produce(self, *, topic: str, name_servers: str, run: str = "m", **options: Any) -> Program:
        """Start a producer and wait until it is connected: its first message may be in flight."""
        program = self.start("produce", topic=topic, run=run, name_servers=name_servers, **options)
        program.wait_lines("ready", timeout_s=60)
        return program

    def consume(self, *, topic: str, group: str, name_servers: str, **options: Any) -> Program:
        program = self.start("consume", topic=topic, group=group, name_servers=name_servers, **options)
        program.wait_lines("ready", timeout_s=60)
        return program

    def failed_sends(self) -> Counter[str]:
        """Return how often each reason was given for a failed send by the programs so far."""
        return Counter(str(line[-1]) for program in self._programs for line in program.lines("failed"))

    def close(self) -> None:
        for program in self._programs:
            program.close()

    def _run(self, words: list[str], what: str, at_most_s: float) -> Program:
        command = self._space.kubectl_command("exec", "-i", self.name, "--", "python3.11", "-u", *words)
        program = Program(command, what, at_most_s)
        self._programs.append(program)
        return program


def _flags(options: Mapping[str, object]) -> list[str]:
    pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items() if value is not None]
    return [word for pair in pairs for word in pair]


class JavaClient:
    """RocketMQ's own client in a pod, controlled through the benchmark's load program; a context manager."""

    def __init__(self, space: Space, folder: Path, *, name: str = JAVA_POD, options: tuple[str, ...] = ()) -> None:
        """`options`: further options of the JVM."""
        self._space = space
        self._name = name
        class_path = "/opt/load/classes:/opt/load/lib/*"
        java = ["java", *ADD_OPENS, *JAVA_OPTIONS, *options, "-Drocketmq.client.logRoot=/tmp/logs", "-Duser.home=/tmp"]
        command = space.kubectl_command("exec", "-i", name, "--", *java, "-cp", class_path, "delaymq.load.Main")
        self._program = LoadProgram(folder, command=command)
        self._acks: list[tuple[str, str]] = []
        """Topic and file of each send."""

    def send(self, *, topic: str, **options: object) -> Any:
        """Start a send (see bench/java Sending); its acknowledgements are stored in the pod."""
        path = f"/tmp/acks-{len(self._acks)}"
        self._acks.append((topic, path))
        return self._program.start("send", topic=topic, acks=path, **options)

    def watch(self, **options: object) -> Any:
        """Start a consumer that measures the time between messages (see bench/java Receiving)."""
        return self._program.start("watch", **options)

    def stop_sending(self) -> None:
        """End each ``send``, once pending sends have their responses, and each ``watch``."""
        self._program.call("stop")

    def first_send(self, **options: Any) -> Any:
        return self._program.call("first-send", **options)

    def drain(self, **options: Any) -> list[str]:
        """Return the unique keys that a new group reads from every queue."""
        self._program.call("drain", out="/tmp/read", **options)
        return [line.split(" ")[0] for line in self._file("/tmp/read").splitlines()]

    def attempts(self, topic: str) -> list[Sent]:
        """Return acknowledged and failed sends to a topic, by unique key."""
        sends = []
        for line in "".join(self._file(path) for own, path in self._acks if own == topic).splitlines():
            outcome, key, level, detail = [*line.split(" "), ""][:4]
            failure = "" if outcome == "A" else detail
            sends.append(Sent(key=key, level=int(level), began_ms=0, ended_ms=0, failure=failure))
        return sends

    def close(self) -> None:
        self._program.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _file(self, path: str) -> str:
        return str(self._space.kubectl("exec", self._name, "--", "cat", path).stdout)
