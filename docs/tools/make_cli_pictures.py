"""Makes docs/images/cli-*.svg: what commands print about a broker that really runs. `make pictures-cli` runs it.

Nothing is drawn by hand: a broker is started on free ports with a store of its own, messages are sent, and each
command's output is what rich exports.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from delaymq.cli.main import main
from delaymq.cli.terminal import output

PICTURES = Path(__file__).parents[1] / "images"
WIDTH = 150
START_TIMEOUT_S = 60.0
LEVELS = "1s 5s 30s 1m 10m 1h 2h 1d"


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[dict[str, str]]:
    """A standalone broker; gives the environment by which commands find it."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        namesrv, listen, http = (str(probe.getsockname()[1]) for probe in probes)
    config = folder / "broker.conf"
    config.write_text(f"messageDelayLevel={LEVELS}\n")
    words = ["standalone", "-c", str(config), "--store-path", str(folder / "store")]
    words += ["--namesrv-port", namesrv, "--listen-port", listen, "--http-port", http]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "delaymq", *words], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready(http):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit((folder / "log").read_text())
            time.sleep(0.1)
        yield {"DELAYMQ_NAMESRV": f"127.0.0.1:{namesrv}", "DELAYMQ_HTTP": f"http://127.0.0.1:{http}"}
    finally:
        process.terminate()
        process.wait()


def is_ready(http: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{http}/readyz", timeout=2) as answer:
        return bool(answer.status == 200)
    return False


def run(line: str) -> str:
    """A command's output; its failure ends this program."""
    words = shlex.split(line)
    done = subprocess.run([sys.executable, "-m", "delaymq", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{line}: {done.stderr}")
    return done.stdout


def picture(name: str, lines: list[str]) -> None:
    """A picture of commands and their output, in sequence."""
    with open(os.devnull, "w") as nowhere:
        shown = output.PlainConsole(record=True, width=WIDTH, file=nowhere, color_system="truecolor")
        for line in lines:
            shown.print(f"[bold green]$[/] [bold]delaymq {line}[/]", markup=True)
            with mock.patch.object(output, "PlainConsole", return_value=shown), contextlib.suppress(SystemExit):
                main(shlex.split(line))
            shown.print()
    svg = shown.export_svg(title="delaymq", unique_id=f"cli-{name}")
    # A picture in a document should load nothing from elsewhere: what is there has a font of one width too.
    (PICTURES / f"cli-{name}.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL) + "\n")


def fill() -> str:
    """Sends what the pictures show; the unique id of a message that was delivered after a delay and consumed."""
    sent = json.loads(run('send Orders "order 4711: pay reminder" --delay 5s --key 4711 --tags Reminder --json'))
    for topic, delay, count in (
        ("Orders", "30s", 3),
        ("Invoices", "1h", 12),
        ("Trials", "1d", 5),
        ("Orders", "10m", 7),
    ):
        run(f"send {topic} text --delay {delay} --count {count} -q")
    run("send Orders text --count 20 -q")
    run("send Signups text --count 4 -q")
    run("receive Orders --group billing --count 21 --timeout 60")
    return str(sent["messageId"])


def make() -> None:
    """All pictures."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environment = stack.enter_context(broker(folder))
        own = {"DELAYMQ_CONFIG": str(folder / "contexts.toml"), "TZ": "UTC"}
        stack.enter_context(mock.patch.dict(os.environ, environment | own))
        time.tzset()
        message_id = fill()
        picture("overview", ["topic list", "group list", "delay status", "delay pending --by topic"])
        picture("message-life", ["message find Orders --key 4711", f"message life {message_id} --topic Orders"])


if __name__ == "__main__":
    make()
