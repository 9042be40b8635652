"""The state of a replicated group on the Overview of its members."""

from collections.abc import Iterator

import pytest
from console.conftest import LIMIT_MS
from console.watched import Watched
from harness.pairs import OurPair
from playwright.sync_api import Browser, expect


@pytest.fixture(scope="module")
def pair() -> Iterator[OurPair]:
    pair = OurPair(config={"brokerRole": "SYNC_MASTER"})
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


def opened(browser: Browser, address: str) -> Watched:
    seen = Watched(browser, f"http://{address}")
    seen.page.set_default_timeout(LIMIT_MS)
    seen.go("")
    return seen


def test_members_show_their_group(pair: OurPair, browser: Browser) -> None:
    master, replica = opened(browser, pair.http_address), opened(browser, pair.replica_http_address)
    try:
        section = master.section("Replication")
        expect(section).to_contain_text("Members in sync2 of 2")
        expect(section.get_by_role("row").filter(has_text="in sync")).to_contain_text("b")
        expect(replica.section("Replication")).to_contain_text("This memberb")
        expect(replica.section("Replication").get_by_role("row").filter(has_text="master")).to_contain_text("a")
        pair.replica.kill()
        expect(section).to_contain_text("Members in sync1 of 2")
        expect(section.get_by_role("row").filter(has_text="not connected")).to_contain_text("b")
        assert master.complaints == []
    finally:
        master.close()
        replica.close()
