"""Measure the speed and memory of reading a store with Spark; print a table and write JSON.

    python spark/bench/run.py [--dir FOLDER] [--sizes 1g,5g] [--json FILE] [--only WORDS] [--keep]

Creates missing stores (make_store.py), reads each once to load it into the page cache, and measures each row of the
table in a separate process. The process, including the JVM and Spark's Python processes, is pinned to one or two
processors. *Core* rows per second are based on processor time (user and system, of all processes), so other work on the
machine affects them little; *wall* rows per second are based on elapsed time. The stores are removed at the end, unless
they existed before or `--keep` is given.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from make_store import CACHE, make_store, parse_bytes

TOTALS: Final = "topic,size"
PROPERTIES: Final = "topic,size,properties"
BODY: Final = "topic,size,body"
_TIMEOUT_S: Final = 1800
"""A measurement that takes longer is considered to hang."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    name: str
    kind: str
    cores: int = 1


ROWS: Final = (
    Row("cat to /dev/null", "cat"),
    Row("plain Python reader, totals", "plain"),
    Row("scan alone, totals", f"scan:{TOTALS}"),
    Row("scan alone, properties", f"scan:{PROPERTIES}"),
    Row("scan alone, body", f"scan:{BODY}"),
    Row("Spark, one core, totals", f"spark:{TOTALS}"),
    Row("Spark, one core, properties", f"spark:{PROPERTIES}"),
    Row("Spark, one core, body", f"spark:{BODY}"),
    Row("Spark, two cores, totals", f"spark:{TOTALS}", 2),
    Row("Spark, two cores, properties", f"spark:{PROPERTIES}", 2),
    Row("Spark, two cores, body", f"spark:{BODY}", 2),
    Row("report, two cores", "report", 2),
)


def measure(row: Row, store: Path) -> dict[str, Any]:
    """Measure one row on one store. RuntimeError with the output of a failed measurement."""
    available = sorted(os.sched_getaffinity(0))
    if len(available) < row.cores:
        raise RuntimeError(f"{row.name} requires {row.cores} processors, but only {len(available)} are available")
    # The last processors: interrupts are usually handled by the first.
    pinned = set(available[-row.cores :])
    command = [sys.executable, str(Path(__file__).with_name("measure.py")), row.kind, str(store), str(row.cores)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, pinned),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{row.name} failed: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**asdict(row), **result, "load": round(os.getloadavg()[0], 1)}


def line(found: dict[str, Any]) -> str:
    """Return a row as text."""
    core_s, wall_s = found["processor_s"], found["wall_s"]
    rows = f"{found['rows'] / core_s:>13,.0f} {found['rows'] / wall_s:>13,.0f}" if found["rows"] else f"{'':>27}"
    speed = f"{found['log_bytes'] / core_s / 1e6:>9,.0f} {found['log_bytes'] / wall_s / 1e6:>9,.0f}"
    split = f"{found['python_s']:>7.1f} {found['jvm_s']:>7.1f} {found['compiler_s']:>8.1f}"
    memory = f"{found['peak_jvm_mib'] or '':>8} {found['peak_python_mib']:>10}"
    return f"{found['name']:<30} {found['store']:>6} {rows} {speed} {split} {memory} {found['load']:>5}"


HEADER: Final = (
    f"{'':<30} {'store':>6} {'rows/s core':>13} {'rows/s wall':>13} {'MB/s core':>9} {'MB/s wall':>9}"
    f" {'python s':>7} {'JVM s':>6} {'compile s':>8} {'JVM MiB':>8} {'python MiB':>10} {'load':>5}"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=CACHE, help=f"folder of the stores (default: {CACHE})")
    parser.add_argument("--sizes", default="1g,5g", help="sizes of the stores (default: 1g,5g)")
    parser.add_argument("--json", type=Path, help="file to which all figures are written as well")
    parser.add_argument("--only", default="", help="measure only rows whose name contains this text")
    parser.add_argument("--keep", action="store_true", help="keep the stores that this run creates")
    arguments = parser.parse_args(argv)
    rows = [row for row in ROWS if arguments.only in row.name]
    if not rows:
        parser.error(f"no row contains {arguments.only!r}: use part of one of: {'; '.join(row.name for row in ROWS)}")
    found, made = [], []
    try:
        print(HEADER, flush=True)
        for size in arguments.sizes.split(","):
            store = arguments.dir / size
            if not store.exists():
                made.append(store)
                make_store(store, parse_bytes(size))
            measure(ROWS[0], store)
            for row in rows:
                found.append({"store": size, **measure(row, store)})
                print(line(found[-1]), flush=True)
    except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
        for store in made:
            if not arguments.keep:
                shutil.rmtree(store, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
