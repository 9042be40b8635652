"""Documentation agrees with the code: links, metrics, settings, limits, HTTP paths."""

import importlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from delaymq.audit.log import AuditLog
from delaymq.config import BrokerConfig, NamesrvConfig, keys_of
from delaymq.namesrv import open_name_server
from delaymq.server.api.routes import ROUTES
from delaymq.server.groups.merging import OWN_FAMILIES
from delaymq.server.metrics.exposition import Snapshot
from delaymq.server.metrics.gather import Gathered
from delaymq.server.metrics.namesrv import NamesrvFamilies
from delaymq.server.metrics.replication_facts import ReplicationFacts
from delaymq.server.requests.flushing import FlushTimes
from prometheus_client.core import Metric

ROOT = Path(__file__).parents[3]
OPERATIONS = ROOT / "docs/operations"
NOT_OURS = {".venv", ".git", "build", "node_modules", "results", ".pytest_cache", ".hypothesis"}
AUDIT_LOG = AuditLog(None, "b", max_bytes=1, max_files=1, now_ms=lambda: 0)
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}


def documents() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.md")) if not NOT_OURS & set(path.relative_to(ROOT).parts)]


def anchors_of(path: Path) -> set[str]:
    titles = re.findall(r"^#+ +(.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def metrics_of_the_code() -> set[str]:
    gathered = Gathered(Server(), replication=ReplicationFacts())  # type: ignore[arg-type]
    return names_of(Snapshot(gathered).collect())


def metrics_of_name_servers() -> set[str]:
    namesrv = open_name_server(NamesrvConfig(kv_config_path=""), lambda: 0)
    return names_of(NamesrvFamilies(namesrv, AUDIT_LOG).collect())


def names_of(families: Iterable[Metric]) -> set[str]:
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


class Server:
    """Answers whatever the metrics ask: the names do not depend on it."""

    def __init__(self) -> None:
        self.broker = MagicMock()
        self.broker.store.recovery.corrections = []
        self.broker.delivery.lateness = self.broker.delivery.counters.corrected = {}
        self.broker.delivery.pending.return_value = self.broker.stats.refused = {}
        self.background, self.sessions = MagicMock(lag_s=0), MagicMock(refused=0)
        self.held_pulls: list[object] = []
        self.flow, self.buffers, self.tls = MagicMock(refused={}), MagicMock(disconnected=0), MagicMock()
        self.flushing = MagicMock(times=FlushTimes())
        self.http_connections = 0
        self.auditing = MagicMock(log=AUDIT_LOG)

    def not_ready(self) -> list[str]:
        return []


def rows_of(path: Path, title: str) -> list[list[str]]:
    """The cells of the table below `## title`."""
    section = path.read_text().split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_documents_are_found() -> None:
    names = {str(path.relative_to(ROOT)) for path in documents()}
    assert {"README.md", "docs/architecture.md", "docs/operations/running.md", "bench/README.md"} <= names


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_has_a_target(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        place, _, anchor = target.partition("#")
        file = (document.parent / place).resolve() if place else document
        assert file.exists(), f"{document.name}: {target}"
        if anchor:
            assert anchor in anchors_of(file), f"{document.name}: {target}"


def test_every_document_below_docs_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    open_ones = [ROOT / "README.md"]
    while open_ones:
        document = open_ones.pop()
        if document in seen:
            continue
        seen.add(document)
        for target in re.findall(r"\]\(([^)\s#]+)", document.read_text()):
            file = (document.parent / target).resolve()
            if file.is_dir():
                open_ones += file.glob("*.md")
            elif file.suffix == ".md" and file.exists():
                open_ones.append(file)
    assert {path for path in documents() if "docs" in path.relative_to(ROOT).parts} <= seen


def test_documented_metrics_exist() -> None:
    known = metrics_of_the_code() | metrics_of_name_servers() | {name for name, *_ in OWN_FAMILIES}
    for document in documents():
        named = set(re.findall(r"(?<![\w/])delaymq_[a-z_]+", document.read_text()))
        # The tests of the chart compare the operator's metrics with its code; the other names are not metrics.
        others = ("delaymq_operator", "delaymq_spark", "delaymq_stderr")
        ours = {name for name in named if not name.startswith(others) and not name.endswith("_testing")}
        assert ours <= known, document.name


def test_metrics_table_is_complete() -> None:
    rows = rows_of(OPERATIONS / "http.md", "Metrics")
    assert {name for row in rows for name in re.findall(r"(?:delaymq|process)_\w+", row[0])} == metrics_of_the_code()


def test_nameserver_metrics_table_is_complete() -> None:
    rows = rows_of(OPERATIONS / "name-server-rules.md", "Metrics and error messages")
    assert {name for row in rows for name in re.findall(r"delaymq_\w+", row[0])} == metrics_of_name_servers()


def test_http_table_equals_the_routes() -> None:
    rows = rows_of(OPERATIONS / "http.md", "Requests")
    assert [row[0] for row in rows] == [f"{route.method} `{route.path}`" for route in ROUTES]
    for row, route in zip(rows, ROUTES, strict=True):
        name = route.handle.__module__.replace(".", "/")
        assert row[-1] == f"[`{name.removeprefix('delaymq/')}`](../../broker_image/src/{name}.py)"


@pytest.mark.parametrize(("title", "kind"), [("Broker", BrokerConfig), ("NameServer", NamesrvConfig)])
def test_settings_tables_equal_the_code(title: str, kind: type[Any]) -> None:
    rows = rows_of(OPERATIONS / "configuration.md", title)
    stated = [row[:4] for row in rows]
    expected = []
    for key, item in keys_of(kind).items():
        default = str(item.default).lower() if isinstance(item.default, bool) else str(item.default)
        meta = item.metadata
        limits = f"{meta['low']} to {meta['high']}" if "low" in meta else ", ".join(meta.get("choices", ()))
        hot = "yes" if meta.get("hot") else ""
        expected.append([f"`{key}`", f"`{default}`" if default else "", limits, hot])
    assert stated == expected
    assert all(row[4] for row in rows)


LIMITS = rows_of(OPERATIONS / "running.md", "Limits") + rows_of(OPERATIONS / "http.md", "Limits of HTTP")


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row[0])
def test_limits_equal_the_code(row: list[str]) -> None:
    number, _, unit = row[1].partition(" ")
    stated = int(number.replace(",", "")) * UNITS[unit]
    module, dot, constant = row[2].strip("`").rpartition(".")
    if dot:
        assert stated == getattr(importlib.import_module(f"delaymq.{module}"), constant)
    else:
        assert stated == keys_of(BrokerConfig)[constant].default
