"""The audit log as users see it: lines, filters, pages, hostile texts, a broker without one."""

import re

import pytest
from console.conftest import NewCluster, OpenPage
from console.content import run
from delaymq.client import Admin, Client, ClientError
from harness.brokers import OurCluster
from playwright.sync_api import expect

TOPICS = 105
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def changed(new_cluster: NewCluster) -> OurCluster:
    """Provide a broker on which 105 topics were created, one deleted, and one change refused."""

    async def change(client: Client) -> None:
        admin = Admin(client)
        for number in range(TOPICS):
            await admin.create_topic(f"Audited{number:03}")
        await admin.delete_topic("Audited007")
        with pytest.raises(ClientError):
            await admin.create_topic("SCHEDULE_TOPIC_XXXX")

    cluster = new_cluster()
    run(cluster.namesrv_address, change)
    return cluster


def test_lines_state_action_target_peer_and_result(changed: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(changed)
    seen.page.get_by_role("link", name="Audit", exact=True).click()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Audit")
    row = seen.row("topic.delete").filter(has_text="Audited007").first
    expect(row.get_by_role("cell").nth(2)).to_have_text("topic Audited007")
    expect(row.get_by_role("cell").nth(4)).to_have_text(re.compile(r"^127\.0\.0\.1:\d+$"))
    expect(row.get_by_role("cell").nth(5)).to_have_text("done")
    assert seen.nameless() == []
    assert not seen.is_too_wide()


def test_pages_lead_to_older_lines_and_back(changed: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(changed, "#/audit?action=topic.put&result=done")
    expect(seen.page.locator(".pages-shown")).to_have_text("1–100")
    expect(seen.row("Audited104")).to_have_count(1)
    seen.page.get_by_role("button", name="Next").click()
    expect(seen.page.locator(".pages-shown")).to_have_text("101–105")
    expect(seen.row("Audited000")).to_have_count(1)
    seen.page.get_by_role("button", name="Previous").click()
    expect(seen.row("Audited104")).to_have_count(1)


def test_filters_select_lines_and_are_part_of_the_address(changed: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(changed, "#/audit")
    seen.page.get_by_label("Action", exact=True).fill("topic")
    seen.page.get_by_label("Target", exact=True).fill("audited007")
    seen.page.get_by_role("button", name="Filter").click()
    expect(seen.page.locator(".pages-shown")).to_have_text("1–2")
    expect(seen.page).to_have_url(re.compile(r"#/audit\?action=topic&target=audited007$"))
    seen.page.get_by_role("button", name="Refused", exact=True).click()
    expect(seen.page.get_by_text("The audit log has no such lines.")).to_be_visible()
    seen.go("#/audit")
    seen.page.get_by_role("button", name="Refused", exact=True).click()
    expect(seen.row("SCHEDULE_TOPIC_XXXX").first).to_contain_text(re.compile("refused 1"))
    expect(seen.page).to_have_url(re.compile(r"#/audit\?result=refused$"))


def test_texts_of_clients_are_only_text(changed: OurCluster, open_page: OpenPage) -> None:
    async def delete(client: Client) -> None:
        await Admin(client).delete_topic(HOSTILE)  # deleting a topic that does not exist succeeds

    run(changed.namesrv_address, delete)
    seen = open_page(changed, "#/audit?action=topic.delete")
    expect(seen.row("<img src=x").first).to_be_visible()
    expect(seen.page.locator("main img")).to_have_count(0)


def test_broker_without_an_audit_log_states_how_to_enable_it(new_cluster: NewCluster, open_page: OpenPage) -> None:
    seen = open_page(new_cluster(auditLogEnable="false"), "#/audit")
    expect(seen.page.get_by_text("This broker writes no audit log.")).to_contain_text("auditLogEnable=true")
