"""docs/compatibility.md says of each request code what the two tables of processors do."""

import re
from pathlib import Path

import pytest
from delaymq.broker.processors.table import NOT_SERVED, refusal
from delaymq.broker.processors.table import PROCESSORS as BROKER_PROCESSORS
from delaymq.namesrv.table import PROCESSORS as NAMESRV_PROCESSORS
from delaymq.protocol.codes import RequestCode, ResponseCode

DOCUMENT = Path(__file__).parents[3] / "docs" / "compatibility.md"
ROW = re.compile(r"\| (\d+) \| (\w+) \| (\w+) \| (\w+) \| (.+) \|\Z")


def rows() -> dict[int, tuple[str, str, str, str]]:
    found = {}
    for line in DOCUMENT.read_text().splitlines():
        match = ROW.match(line)
        if match:
            assert int(match[1]) not in found, f"code {match[1]} stands twice"
            found[int(match[1])] = (match[2], match[3], match[4], match[5])
    return found


def test_the_document_has_every_request_code_by_its_name() -> None:
    assert {code: row[0] for code, row in rows().items()} == {code.value: code.name for code in RequestCode}


def test_each_status_and_server_is_one_of_those_explained() -> None:
    for code, (_, server, status, what) in rows().items():
        assert server in ("broker", "NameServer", "client", "nobody"), code
        assert status in ("full", "partial", "refused"), code
        assert what.endswith("."), code


@pytest.mark.parametrize(("server", "table"), [("broker", BROKER_PROCESSORS), ("NameServer", NAMESRV_PROCESSORS)])
def test_what_the_document_calls_served_is_what_the_table_serves(server: str, table: dict[int, object]) -> None:
    documented = {code for code, row in rows().items() if row[1] == server and row[2] != "refused"}
    assert documented == {int(code) for code in table}


def test_the_broker_says_what_to_do_about_each_code_of_a_real_broker_that_it_refuses() -> None:
    refused = {code for code, row in rows().items() if row[1] == "broker" and row[2] == "refused"}
    assert refused == {int(code) for code in NOT_SERVED}
    for code in refused:
        answer = refusal(code)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark is not None
        assert answer.remark.startswith(f" request type {code} not supported: ")


def test_a_code_that_nobody_knows_is_refused_too() -> None:
    assert refusal(9_999).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert refusal(9_999).remark == " request type 9999 not supported"
