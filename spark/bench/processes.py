"""Processor time and memory of a process and all its descendants, from /proc (Linux)."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_EVERY_S: Final = 0.1
_COMPILERS: Final = ("C1 CompilerThre", "C2 CompilerThre")
"""Threads of the JVM whose work is part of its warm-up, not of the query."""


@dataclass(slots=True)
class Usage:
    """Processor seconds so far."""

    jvm_s: float = 0.0
    compiler_s: float = 0.0
    """The part used by the JVM's compilers, which finish eventually."""
    python_s: float = 0.0

    def since(self, earlier: Usage) -> Usage:
        """Return the usage since `earlier`."""
        return Usage(self.jvm_s - earlier.jvm_s, self.compiler_s - earlier.compiler_s, self.python_s - earlier.python_s)


@dataclass
class Watch:
    """Follows the descendants of this process; the largest resident sizes are the kernel's own high-water marks."""

    peak_mib: dict[int, int] = field(default_factory=dict)
    is_jvm: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._last: dict[int, tuple[float, float]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def usage(self) -> Usage:
        """Return the usage of all descendants, including ended ones (except for their last tenth of a second)."""
        self._look()
        total = Usage()
        for process, (seconds, compiler_s) in list(self._last.items()):
            if self.is_jvm.get(process):
                total.jvm_s += seconds
                total.compiler_s += compiler_s
            else:
                total.python_s += seconds
        return total

    def peaks(self) -> tuple[int, int]:
        """Return the peak memory, in MiB, of the JVM and of the largest Python process that Spark started."""
        jvm = max((mib for process, mib in self.peak_mib.items() if self.is_jvm.get(process)), default=0)
        python = max((mib for process, mib in self.peak_mib.items() if not self.is_jvm.get(process)), default=0)
        return jvm, python

    def stop(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._look()

    def _look(self) -> None:
        for process in _descendants(os.getpid()):
            folder = Path(f"/proc/{process}")
            try:
                status = (folder / "status").read_text()
                peak = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
                self.is_jvm[process] = (folder / "comm").read_text().strip() == "java"
                if peak is not None:
                    self.peak_mib[process] = int(peak.split()[1]) // 1024
                self._last[process] = _seconds_of(folder, self.is_jvm[process])
            except OSError:
                continue


def _seconds_of(folder: Path, is_jvm: bool) -> tuple[float, float]:
    whole = _stat(folder / "stat")[1]
    compilers = 0.0
    if is_jvm:
        for task in (folder / "task").iterdir():
            try:
                name, seconds = _stat(task / "stat")
            except OSError:
                continue
            compilers += seconds if name in _COMPILERS else 0.0
    return whole, compilers


def _stat(file: Path) -> tuple[str, float]:
    text = file.read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return text[text.index("(") + 1 : text.rindex(")")], (int(fields[11]) + int(fields[12])) / _TICKS


def _descendants(process: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            for child in Path(f"/proc/{process}/task/{task}/children").read_text().split():
                found += [int(child), *_descendants(int(child))]
    except OSError:
        pass
    return found
