"""Signals to a server before it serves."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BOUND_S = 20.0


def wait_for_reader(path: Path) -> int:
    """A descriptor for writing, as soon as a reader waits."""
    give_up_at = time.monotonic() + BOUND_S
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert time.monotonic() < give_up_at, "the command does not read its configuration"
            time.sleep(0.01)


@pytest.mark.parametrize("command", ["broker", "namesrv", "standalone"])
def test_signal_during_loading_stops_the_server(tmp_path: Path, command: str) -> None:
    # Reading its configuration from a pipe it waits, with nothing open yet. As the first process of a container it
    # would not even notice a signal that it does not handle.
    pipe = tmp_path / "broker.conf"
    os.mkfifo(pipe)
    words = [sys.executable, "-m", "delaymq", command, "-c", str(pipe), "--store-path", str(tmp_path / "store")]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        descriptor = wait_for_reader(pipe)
        process.send_signal(signal.SIGTERM)
        # A signal just before the read is seen when the read ends.
        os.close(descriptor)
        _, said = process.communicate(timeout=BOUND_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, said) == (0, b"")
    assert not (tmp_path / "store").exists()
