"""Licence check of what users install, part of `make check`: the images' distributions, and the crates of the kernels.

The licences are recorded in `requirements/licences.toml`, so that a release can name them without network access. This
check compares the record with the pins, with the list of allowed licences, and with the metadata of the dependencies.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from importlib.metadata import Distribution
from pathlib import Path
from typing import cast

from release import spdx
from release.errors import ReleaseError
from release.pins import IMAGES, KERNELS, LOCK, ROOT, crates, pins_of

TABLE = "requirements/licences.toml"
CARGO_TIMEOUT_S = 60
NOT_FETCHED = "build/kernels/not-fetched"
"""Marker of broker_image/kernels/install.sh: the crates cannot be downloaded on this machine."""

Version = tuple[str, str]
"""Name and version of a dependency."""

_BSD = frozenset({"0BSD", "BSD-2-Clause", "BSD-3-Clause"})
LEGACY: Mapping[str, frozenset[str]] = {
    "Apache 2.0": frozenset({"Apache-2.0"}),
    "Apache Software License": frozenset({"Apache-2.0"}),
    "BSD License": _BSD,
    "ISC License": frozenset({"ISC"}),
    "ISC License (ISCL)": frozenset({"ISC"}),
    "MIT License": frozenset({"MIT"}),
    "Mozilla Public License 2.0 (MPL 2.0)": frozenset({"MPL-2.0"}),
    "Python Software Foundation License": frozenset({"PSF-2.0"}),
}
"""Values of the field `License`, and classifiers without their prefix: the licences that they may stand for."""


@dataclass(frozen=True)
class Table:
    """Contents of `requirements/licences.toml`."""

    allowed: frozenset[str]
    exceptions: Mapping[str, tuple[str, str]]
    """For a name: the licence that is accepted for it only, and the reason."""
    python: Mapping[str, str]
    crates: Mapping[str, str]


@dataclass(frozen=True)
class Declared:
    """The licence that the metadata of a dependency declare."""

    licences: frozenset[str]
    """Possible licences: exactly one expression, unless the metadata predate SPDX expressions."""
    unknown: Sequence[str] = ()
    """Values that are not in LEGACY."""


def read_table(root: Path = ROOT) -> Table:
    """Read the record of licences. Raises ReleaseError with the line to correct."""
    try:
        content = tomllib.loads((root / TABLE).read_text())
        exceptions = {entry["name"]: (entry["licence"], entry["reason"].strip()) for entry in content["exceptions"]}
        table = Table(frozenset(content["allowed"]), exceptions, content["python"], content["crates"])
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ReleaseError(f"{TABLE} cannot be read: {error!r}: restore its tables, or correct the line") from error
    for name, (_, reason) in exceptions.items():
        if not reason:
            raise ReleaseError(f"{TABLE}: the exception for {name} has no reason: add it")
    return table


def problems(
    table: Table,
    wanted: Collection[Version],
    recorded: Mapping[str, str],
    declared: Mapping[Version, Declared],
    section: str,
) -> Iterator[str]:
    """Yield a sentence for each dependency whose licence is not recorded, not allowed, or not what it declares.

    `recorded` is the `section` of the table for these dependencies. Those that are not in `declared` are not compared
    with their metadata.
    """
    for name, version in sorted(wanted):
        licence = recorded.get(name)
        found = declared.get((name, version))
        if licence is None:
            states = " or ".join(sorted(found.licences)) if found and found.licences else "no known licence"
            yield (
                f"{name} {version} has no recorded licence (its metadata state {states}): read the licence, and add"
                f' {name} = "SPDX EXPRESSION" to [{section}] in {TABLE}'
            )
            continue
        try:
            yield from _disallowed(table, name, version, licence)
            if found is not None:
                yield from _contradiction(name, version, licence, found)
        except ReleaseError as error:
            yield f"{name} {version}: {error}: correct {TABLE}"
    for name in sorted(set(recorded) - {name for name, _ in wanted}):
        yield f"{name} is not installed any more: remove it from [{section}] in {TABLE}"


def _disallowed(table: Table, name: str, version: str, licence: str) -> Iterator[str]:
    excepted = table.exceptions.get(name, ("", ""))[0]
    if not spdx.permits(licence, lambda one: one in table.allowed or one == excepted):
        yield (
            f"{name} {version} has the licence {licence}, which is not allowed: replace the dependency. If DelayMQ may"
            f" be distributed with it under the Apache License 2.0, add an exception with its reason to {TABLE}"
        )


def _contradiction(name: str, version: str, licence: str, found: Declared) -> Iterator[str]:
    """Compare the recorded licence with the declared one."""
    if found.unknown:
        yield (
            f"{name} {version} declares {', '.join(found.unknown)}, which this check does not know: read its licence,"
            " and add the value to LEGACY in .ci/release/licences.py"
        )
    elif spdx.canonical(licence) not in found.licences and not set(spdx.ids_of(licence)) <= found.licences:
        states = " or ".join(sorted(found.licences)) or "no licence"
        yield (
            f"{name} {version} declares {states}, but {TABLE} records {licence}: read its licence, and correct the"
            " record"
        )


def unused_exceptions(table: Table) -> Iterator[str]:
    """Yield a sentence for each exception that no dependency needs."""
    for name, (licence, _) in sorted(table.exceptions.items()):
        recorded = table.python.get(name) or table.crates.get(name)
        if recorded is None or licence in table.allowed or licence not in spdx.ids_of(recorded):
            yield f"the exception for {name} is not needed: remove it from {TABLE}"


def declared_by(metadata: Message) -> Declared:
    """Return the licence that the metadata of a distribution (PEP 639, or older) declare."""
    if expression := metadata.get("License-Expression"):
        return Declared(frozenset({spdx.canonical(expression)}))
    classifiers = metadata.get_all("Classifier", [])
    values = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License ::")]
    unknown = tuple(value for value in values if value not in LEGACY and value != "OSI Approved")
    # The field contains an SPDX expression, a name, or the whole text of a licence.
    field = metadata.get("License") or ""
    if field not in LEGACY and "\n" not in field:
        with suppress(ReleaseError):
            return Declared(frozenset({spdx.canonical(field)}), unknown)
    possible = [LEGACY[value] for value in (*values, field) if value in LEGACY]
    return Declared(frozenset().union(*possible), unknown)


def installed(wanted: Iterable[Version], folders: Iterable[Path]) -> dict[Version, Declared]:
    """Return the declared licences of the distributions that are installed in their pinned version."""
    found: dict[Version, Declared] = {}
    paths = [str(folder) for folder in folders]
    for name, version in wanted:
        for distribution in Distribution.discover(name=name, path=paths):
            if distribution.version == version:
                found[name, version] = declared_by(cast(Message, distribution.metadata))
    return found


def declared_crates(root: Path = ROOT) -> dict[Version, Declared] | str:
    """Return the licences that the crates declare, or the reason why they are unknown on this machine.

    Raises ReleaseError if cargo fails although the crates have been downloaded.
    """
    if shutil.which("cargo") is None:
        return "cargo is missing"
    if (root / NOT_FETCHED).exists():
        return "their archives cannot be downloaded"
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    try:
        done = subprocess.run(
            command, cwd=(root / LOCK).parent, capture_output=True, text=True, timeout=CARGO_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(f"{' '.join(command)} did not end within {CARGO_TIMEOUT_S} s: run it manually") from error
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    # Cargo also accepts `MIT/Apache-2.0`, with the meaning of OR.
    return {
        (package["name"], package["version"]): Declared(frozenset({spdx.canonical(licence.replace("/", " OR "))}))
        if (licence := package["license"])
        else Declared(frozenset())
        for package in json.loads(done.stdout)["packages"]
    }


def main() -> int:
    """Print all problems, and return the exit code of the check."""
    parser = argparse.ArgumentParser(prog="python -m release.licences", description="Check the recorded licences.")
    parser.add_argument("--complete", action="store_true", help="fail if a distribution is not installed")
    try:
        found, remarks = check(ROOT, complete=parser.parse_args().complete)
    except ReleaseError as error:
        found, remarks = [str(error)], []
    for remark in remarks:
        print(remark)
    for sentence in found:
        print(f"FAILED: {sentence}")
    return 1 if found else 0


def check(root: Path, *, complete: bool = False) -> tuple[list[str], list[str]]:
    """Return the problems, and the parts that could not be checked on this machine.

    With `complete`, a distribution that is not installed is a problem.
    """
    table = read_table(root)
    remarks = []
    pins = {(pin.name, pin.version) for image in IMAGES for pin in pins_of(image, root)}
    folders = [
        folder for venv in (".venv", ".venv-spark") for folder in root.glob(f"{venv}/lib/python3.*/site-packages")
    ]
    declared = installed(pins, folders)
    if missing := sorted(name for name, _ in pins - set(declared)):
        remarks.append(
            f"Not compared with their metadata: the licences of {', '.join(missing)}, because the pinned versions are"
            " not installed in .venv or .venv-spark."
        )
    found = remarks.copy() if complete else []
    found += problems(table, pins, table.python, declared, "python")
    of_lock = {(crate.name, crate.version) for crate in crates(root) if crate.name != KERNELS}
    of_crates = declared_crates(root)
    if isinstance(of_crates, str):
        remarks.append(f"Not compared with their metadata: the licences of the crates, because {of_crates}.")
        of_crates = {}
    found += problems(table, of_lock, table.crates, of_crates, "crates")
    found += unused_exceptions(table)
    return found, remarks


if __name__ == "__main__":
    sys.exit(main())
