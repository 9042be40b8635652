"""Two tenants of a broker and a NameServer: no response to one of them depends on what belongs to the other.

Every request code of both servers is classified here, so a new one fails the first test.
"""

import re
from pathlib import Path

import pytest
from delaymq.broker.access.metadata import OWN_METADATA, WITH_OWN_METADATA
from delaymq.broker.access.requirements import ACCOUNT
from delaymq.broker.processors.table import NOT_SERVED, PROCESSORS, PROCESSORS_OF_ACCESS
from delaymq.namesrv.guard import GUARDED
from delaymq.namesrv.queries import QUERIES
from delaymq.namesrv.table import PROCESSORS as NAMESRV_PROCESSORS
from delaymq.protocol.codes import RequestCode
from delaymq_testing.accounts.two_tenants import ALPHA, BRAVO, Signed, check_codes, tenants
from delaymq_testing.running_server import run

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "access-control.md"
BROKER_CODES = {*PROCESSORS, *PROCESSORS_OF_ACCESS}
NAMESRV_CODES = {*NAMESRV_PROCESSORS}
WITHOUT_METADATA = {
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: "system topics, which depend only on settings",
}
"""Codes that any account may send, and whose responses are the same for all accounts, with the reason."""
CONTROL_BROKER = {
    *(10, 14, 21, 30, 32, 33, 36, 37, 43, 201, 202, 203, 204, 208, 300, 303, 308, 309, 310, 315, 317, 320, 321, 324),
    *(325, 328, 351),
}
"""Codes of brokers whose responses differ with `open`. This proves that the comparison finds differences."""
CONTROL_NAMESRV = {101, 105, 206, 219, 224}


def test_every_code_of_both_servers_is_classified() -> None:
    """A request that needs only an account is reduced, needs a proof, or is listed with a reason."""
    assert set(WITH_OWN_METADATA) == set(PROCESSORS) | set(NOT_SERVED)
    unrestricted = {code for code, each in WITH_OWN_METADATA.items() if each is ACCOUNT}
    assert unrestricted == set(WITHOUT_METADATA)
    assert set(OWN_METADATA) <= set(WITH_OWN_METADATA)
    assert set(QUERIES) | set(GUARDED) == set(NAMESRV_PROCESSORS)
    assert not set(QUERIES) & set(GUARDED)


def test_page_lists_every_code_that_differs() -> None:
    section = PAGE.read_text().partition("\n## Metadata\n")[2].partition("\n## ")[0]
    listed = [int(code) for row in re.findall(r"^\| (\d[^|]*) \|", section, re.MULTILINE) for code in _codes(row)]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(OWN_METADATA) - set(WITHOUT_METADATA)


def _codes(cell: str) -> list[str]:
    """The codes of a table's first cell, without the words in brackets."""
    return re.findall(r"\d+", re.sub(r"\([^)]*\)", "", cell))


@pytest.mark.parametrize("metadata", ["own", "open"])
def test_no_response_depends_on_what_another_tenant_has(tmp_path: Path, metadata: str) -> None:
    async def scenario() -> None:
        async with tenants(tmp_path, metadata=metadata) as (server, both):
            found: dict[str, dict[int, list[str]]] = {}
            requests = 0
            for name, port, codes in (
                ("broker", server.broker.port, BROKER_CODES),
                ("namesrv", server.namesrv.port, NAMESRV_CODES),
            ):
                asking = await Signed.connect(port, both[BRAVO].key)
                sent, found[name] = await check_codes(asking, both[ALPHA], both[BRAVO], codes)
                requests += sent
            assert requests > 1_000
            if metadata == "open":
                assert set(found["broker"]) >= CONTROL_BROKER
                assert set(found["namesrv"]) >= CONTROL_NAMESRV
            else:
                assert found == {"broker": {}, "namesrv": {}}

    run(scenario, bound_s=120)
