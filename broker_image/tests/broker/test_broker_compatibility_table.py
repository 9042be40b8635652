"""docs/compatibility.md agrees with both processor tables on each request code."""

import re
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import pytest
from delaymq.broker.processors.table import NOT_SERVED, refusal
from delaymq.broker.processors.table import PROCESSORS as BROKER_PROCESSORS
from delaymq.client.core import inbound_requests
from delaymq.namesrv.table import PROCESSORS as NAMESRV_PROCESSORS
from delaymq.protocol.codes import RequestCode, ResponseCode

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "compatibility.md"
PROOFS = ROOT / "e2e" / "compat"
ROW = re.compile(r"\| (\d+) \| (\w+) \| (\w+) \| ([^|]+) \| (\w+) \| (.+) \| (.+) \|\Z")
MODULES = re.compile(r"`(test_compat_\w+)`(?:, `(test_compat_\w+)`)*\Z")
NOTHING = "—"

NOT_PROVEN_YET: set[int] = set()
"""Served in full, but not proved by a test with RocketMQ's own programs; this list may only shrink."""


class Row(NamedTuple):
    name: str
    server: str
    module: str
    status: str
    what: str
    proof: str


def rows() -> dict[int, Row]:
    found = {}
    for line in DOCUMENT.read_text().splitlines():
        match = ROW.match(line)
        if match:
            assert int(match[1]) not in found, f"code {match[1]} stands twice"
            found[int(match[1])] = Row(*match.groups()[1:])
    return found


def test_page_lists_every_request_code_by_name() -> None:
    assert {code: row.name for code, row in rows().items()} == {code.value: code.name for code in RequestCode}


def test_each_status_and_server_is_explained() -> None:
    for code, (_, server, _, status, what, _) in rows().items():
        assert server in ("broker", "NameServer", "client", "none"), code
        assert status in ("full", "partial", "refused"), code
        assert what.endswith("."), code


def test_each_fully_supported_code_names_a_test_with_rocketmqs_programs() -> None:
    unproven = {code for code, row in rows().items() if row.status == "full" and row.proof == NOTHING}
    assert unproven == NOT_PROVEN_YET


def test_named_tests_exist() -> None:
    there = {path.stem for path in PROOFS.glob("test_*.py")}
    for code, row in rows().items():
        if row.proof != NOTHING:
            assert MODULES.match(row.proof), f"{code}: {row.proof!r} names no modules"
            assert set(re.findall(r"`(\w+)`", row.proof)) <= there, code


@pytest.mark.parametrize(("server", "table"), [("broker", BROKER_PROCESSORS), ("NameServer", NAMESRV_PROCESSORS)])
def test_supported_codes_of_page_and_table_agree(server: str, table: dict[int, object]) -> None:
    found = rows()
    documented = {code for code, row in found.items() if row.server == server and row.status != "refused"}
    # What both servers have is listed for the broker.
    of_both = BROKER_PROCESSORS.keys() & NAMESRV_PROCESSORS.keys()
    assert documented == {int(code) for code in table} - (of_both if server == "NameServer" else set())
    assert all("NameServer" in found[code].what for code in of_both)


@pytest.mark.parametrize(
    ("server", "table"),
    [("broker", BROKER_PROCESSORS), ("NameServer", NAMESRV_PROCESSORS), ("client", inbound_requests._SERVED)],
)
def test_each_code_links_to_its_module(server: str, table: dict[int, FunctionType]) -> None:
    for code, row in rows().items():
        if row.server == server and row.status != "refused":
            name = table[code].__module__.replace(".", "/")
            shown = name.removeprefix("delaymq/")
            assert row.module == f"[`{shown}`](../broker_image/src/{name}.py)", code


def test_no_unsupported_code_links_to_a_module() -> None:
    assert {row.module for row in rows().values() if row.status == "refused"} == {NOTHING}


def test_response_to_unsupported_code_states_an_alternative() -> None:
    refused = {code for code, row in rows().items() if row.server == "broker" and row.status == "refused"}
    assert refused == {int(code) for code in NOT_SERVED}
    for code in refused:
        answer = refusal(code)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark is not None
        assert answer.remark.startswith(f" request type {code} not supported: ")


def test_unknown_code_is_rejected() -> None:
    assert refusal(9_999).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert refusal(9_999).remark == " request type 9999 not supported"
