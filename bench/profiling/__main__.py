"""Profile DelayMQ while a row group of the benchmark is measured: flame graphs and the functions that take most time.

    python -m profiling [options] GROUP

py-spy samples the broker, or the asyncio client in the group `client`. Each measurement of the group has its own
profile in build/profiles. bench/README.md describes the rows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import rows
from crash.load import LoadProgram
from harness import isolation, java
from harness.errors import HarnessError
from options import Options
from rows import Sample
from runner import add_pending, add_sizes, options_of
from scenarios import ASYNCIO_LOAD_PATH, SCENARIOS
from subjects import Contender, contenders

from profiling import flame_graph, sampler
from profiling.sampler import Choices, Watch

PROFILES_PATH = Path(__file__).resolve().parents[2] / "build" / "profiles"
NO_LOAD = frozenset({"start", "idle", "memory"})
"""Groups whose measurements contain no load, or end before py-spy can read the process."""
GROUPS = tuple(group for group in rows.GROUPS if group not in NO_LOAD)
MAX_RATE = 1000


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="profiling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", metavar="GROUP", help=f"row group: {', '.join(GROUPS)}")
    add_sizes(parser)
    add_pending(parser)
    parser.add_argument("--python", metavar="PATH", default=sys.executable, help="interpreter that runs DelayMQ")
    parser.add_argument("--rate", type=int, default=Choices.rate, help=f"samples per second ({Choices.rate})")
    parser.add_argument("--python-only", action="store_true", help="omit frames of C code")
    parsed = parser.parse_args(words)
    if parsed.rows not in GROUPS:
        parser.error(f"{parsed.rows!r} is not a row group with a profile: use one of {', '.join(GROUPS)}")
    if not 1 <= parsed.rate <= MAX_RATE:
        parser.error(f"--rate is {parsed.rate}: use 1 to {MAX_RATE} samples per second")
    parsed.options = options_of(parser, parsed)
    return parsed


def is_profiled(group: str, words: Sequence[str]) -> bool:
    """Return whether a process with this command line is profiled: the asyncio client, or a broker."""
    if group == "client":
        return str(ASYNCIO_LOAD_PATH) in words
    return ("-m", "delaymq") in itertools.pairwise(words)


def name_of(samples: Sequence[Sample]) -> str:
    """Return the name of the files of a measurement, such as ``sync8_1024``."""
    return samples[0].row.name.removesuffix("_rate").removesuffix("_p50")


def profile(group: str, options: Options, contender: Contender, choices: Choices) -> list[Path]:
    """Run the row group once, and write its profiles; return the paths of the summaries. HarnessError if it fails."""
    scenario = next(scenario for scenario, groups in SCENARIOS.values() if group in groups)
    written: list[Path] = []
    with (
        tempfile.TemporaryDirectory(prefix="delaymq-profile-") as name,
        LoadProgram(Path(name)) as load,
        contextlib.closing(scenario(options, contender, load)) as steps,  # type: ignore[type-var]
    ):
        for number in itertools.count():
            with Watch(lambda words: is_profiled(group, words), Path(name) / str(number), choices) as watch:
                samples = next(steps, None)
            if samples is None:
                break
            # The other steps start and warm up the broker.
            measured = [sample for sample in samples if sample.row.group == group]
            if measured:
                found = watch.profiles()
                written += [_write(path, measured, index) for index, path in enumerate(found, start=1)]
                print(f"profiles of {name_of(measured)}: {len(found)}", flush=True)
    return written


def _write(found: Path, samples: Sequence[Sample], index: int) -> Path:
    """Write the flame graph and the summary of one process; return the path of the latter."""
    PROFILES_PATH.mkdir(parents=True, exist_ok=True)
    path = PROFILES_PATH / (name_of(samples) + (f"-{index}" if index > 1 else "") + ".svg")
    shutil.copyfile(found, path)
    lines = [f"{sample.row.title}: {sample.value:,.2f} {sample.row.unit} (with the profiler)" for sample in samples]
    lines += ["", *flame_graph.summary(flame_graph.functions(flame_graph.read(path)))]
    summary = path.with_suffix(".txt")
    summary.write_text("\n".join(lines) + "\n")
    return summary


def main(words: list[str]) -> int:
    """Return 0 if profiles were written, 2 if the row group cannot be profiled."""
    arguments = _arguments(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = replace(arguments.options, groups=frozenset({arguments.rows}))
    try:
        sampler.program()
        (contender,) = contenders([arguments.python], "ours")
        java.prepare()
        isolation.enter()
        choices = Choices(rate=arguments.rate, native=not arguments.python_only)
        summaries = profile(arguments.rows, options, contender, choices)
    except HarnessError as e:
        print(f"cannot profile: {e}", file=sys.stderr)
        return 2
    if not summaries:
        print("cannot profile: the measurement is too short for a sample: use larger sizes", file=sys.stderr)
        return 2
    for path in summaries:
        print(f"\n{path.read_text()}\nwritten: {path} and .svg")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
