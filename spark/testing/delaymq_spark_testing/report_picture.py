"""Generates docs/images/analytics-report.png: the report on a generated store with two days of a shop's messages.

make picture-report
"""

from __future__ import annotations

import heapq
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from delaymq_spark import cli

from delaymq_spark_testing.workload import HOUR_MS, Workload, Written

PICTURE = Path(__file__).resolve().parents[3] / "docs" / "images" / "analytics-report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WINDOW = "1240,1185"
TIMEOUT_S = 120
HOURS = 60
STEPS = 5_000
"""Rounds of messages; each sends five or six."""

ORDER_QUEUES = 4
REMINDER_LEVELS = (1, 2, 5, 9, 15, 17)
MEMORY = "1g"


class Shop:
    """Writes the store: orders that a group consumes, reminders, payments in transactions, and a keyed topic."""

    def __init__(self, path: Path) -> None:
        self.work = Workload(path, segment_bytes=1 << 20)
        self._chance = random.Random(1)
        self._due: list[tuple[int, int, Written]] = []
        self._orders = [0] * ORDER_QUEUES

    def write(self) -> Workload:
        for step in range(STEPS):
            self._send(step)
            self._pass_time(HOURS * HOUR_MS // STEPS)
        self._pass_time(HOUR_MS + 1_000)
        for _ in range(20):
            self.work.delay(18, "Reminders", 0)
        for queue_id, end in enumerate(self._orders):
            self.work.consume("shop", "Orders", queue_id, end * 9 // 10)
        self.work.set_delay_offsets()
        self.work.close()
        return self.work

    def _send(self, step: int) -> None:
        for _ in range(2):
            queue_id = self._chance.randrange(ORDER_QUEUES)
            self.work.send("Orders", queue_id, "unread", self._body(600))
            self._orders[queue_id] += 1
        self.work.send("Invoices", 0, "retained", self._body(300))
        delayed = self.work.delay(self._chance.choice(REMINDER_LEVELS), "Reminders", 0, self._body(500))
        heapq.heappush(self._due, (delayed.due_ms + self._lateness_ms(), step, delayed))
        if step % 4 == 0:
            self.work.send("Stock", 0, "retained", self._body(300), keys=f"item-{self._chance.randrange(50)}")
        if step % 10 == 0:
            self.work.end(self.work.half("Payments", 0), commit=step % 100 != 0)
        if step % 50 == 0:
            self.work.append("%RETRY%shop", 0, "unread", body=self._body(300), reconsume_times=1)

    def _pass_time(self, duration_ms: int) -> None:
        until_ms = self.work.now_ms + duration_ms
        while self._due and self._due[0][0] <= until_ms:
            self.work.now_ms, _, entry = heapq.heappop(self._due)
            self.work.deliver(entry)
        self.work.now_ms = until_ms

    def _lateness_ms(self) -> int:
        return self._chance.randrange(100, 400) if self._chance.random() < 0.001 else self._chance.randrange(4)

    def _body(self, most_bytes: int) -> bytes:
        return bytes(self._chance.randrange(most_bytes // 2, most_bytes))


def browser() -> str:
    """Return the path of Chromium; without one, the program exits."""
    found = os.environ.get("DELAYMQ_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sys.exit("Chromium was not found: install it, or set DELAYMQ_CHROMIUM to its path")
    return found


def make() -> None:
    program = browser()
    with tempfile.TemporaryDirectory() as folder:
        store, out = Path(folder, "store"), Path(folder, "report")
        work = Shop(store).write()
        code = cli.main(
            ["report", "--store", str(store), "--out", str(out), "--as-of", str(work.now_ms), "--keyed-topics", "Stock",
             "--memory", MEMORY]
        )  # fmt: skip
        if code != cli.EXIT_OK:
            sys.exit(code)
        page = next(out.rglob("report.html"))
        page.write_text(page.read_text().replace(str(store), "/var/lib/delaymq/store"))
        options = ["--headless", "--hide-scrollbars", "--disable-dev-shm-usage", f"--window-size={WINDOW}"]
        options += ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [program, *options, f"--user-data-dir={folder}/browser", f"--screenshot={PICTURE}", page.as_uri()]
        subprocess.run(command, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    make()
