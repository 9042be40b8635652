"""Groups of pending messages and pauses: filters, changes with confirmation, display of what is paused."""

import urllib.request
from datetime import datetime, timedelta

import pytest
from console.conftest import NewCluster, OpenPage
from console.content import run
from console.watched import Watched
from delaymq.client import Client, Message, Producer
from harness.brokers import OurCluster
from playwright.sync_api import expect


def schedule(cluster: OurCluster, topic: str, **groups: int) -> None:
    async def fill(client: Client) -> None:
        async with Producer(client, "groups") as producer:
            for group, count in groups.items():
                for number in range(count):
                    message = Message(topic=topic, body=b"x", keys=(f"{group}-{number}",))
                    await producer.schedule(message, after="5h", group=group)
            await producer.schedule(Message(topic=topic, body=b"x", keys=("alone",)), after="5h")

    run(cluster.namesrv_address, fill)


def act(seen: Watched, section: str, button: str, *expected: str, to: str | None = None) -> None:
    """Press a button of a section, check the confirmation, and confirm."""
    seen.section(section).get_by_role("button", name=button, exact=True).click()
    dialog = seen.page.get_by_role("dialog")
    for text in expected:
        expect(dialog).to_contain_text(text)
    if to is not None:
        dialog.get_by_label("New due time").fill(to)
    dialog.locator("button[type=submit]").click()
    expect(dialog).to_have_count(0)


def test_list_is_filtered_by_group(cluster: OurCluster, open_page: OpenPage) -> None:
    schedule(cluster, "FilteredCampaign", spring=3, summer=2)
    seen = open_page(cluster, "#/delays/list?topic=FilteredCampaign")
    pages = seen.page.locator(".pages-shown")
    expect(pages).to_have_text("1–6 of 6")
    seen.page.get_by_label("Group", exact=True).fill("summer")
    seen.page.get_by_role("button", name="Filter").click()
    expect(pages).to_have_text("1–2 of 2")
    expect(seen.row("summer-1")).to_be_visible()
    seen.page.get_by_label("Group", exact=True).fill("")
    seen.page.get_by_role("button", name="Filter").click()
    seen.row("spring-0").get_by_role("link", name="spring", exact=True).click()
    expect(pages).to_have_text("1–3 of 3")
    seen.page.get_by_label("Topic", exact=True).fill("")
    seen.page.get_by_role("button", name="Filter").click()
    expect(seen.page.get_by_text("To search for a group, enter the topic, too.")).to_be_visible()
    assert seen.nameless() == []
    assert not seen.is_too_wide()


def test_group_is_moved_fired_and_cancelled_after_confirmation(cluster: OurCluster, open_page: OpenPage) -> None:
    schedule(cluster, "ChangedCampaign", spring=3, summer=2)
    seen = open_page(cluster, "#/delays?topic=ChangedCampaign")
    outcome = seen.page.locator(".outcome")
    groups = seen.section("Groups").locator("tbody tr")
    expect(groups).to_have_count(2)
    expect(groups.first).to_contain_text("spring")
    later = (datetime.now() + timedelta(days=900)).replace(microsecond=0)
    act(seen, "Groups", "Move group spring", "Move group spring?", "3 pending messages.", to=later.isoformat())
    expect(outcome).to_contain_text(f"group spring: 3 messages moved, due at {later:%Y-%m-%d}")
    act(seen, "Groups", "Cancel group spring", "3 pending messages.", "cannot be undone")
    expect(outcome).to_have_text("group spring: 3 messages cancelled.")
    expect(groups).to_have_count(1)
    act(seen, "Groups", "Deliver now group summer", "2 pending messages.")
    expect(outcome).to_contain_text("group summer: 2 messages made due now")
    expect(seen.section("Groups")).to_contain_text("No pending message of the topic has a group")
    expect(seen.tile("Pending")).to_have_text("1")
    assert seen.nameless() == []


@pytest.mark.parametrize("what", ["group spring", "topic PausedCampaign-t"])
def test_pause_is_shown_and_ended(cluster: OurCluster, open_page: OpenPage, what: str) -> None:
    is_topic = what.startswith("topic")
    topic = "PausedCampaign-t" if is_topic else "PausedCampaign-g"
    schedule(cluster, topic, spring=3)
    seen = open_page(cluster, f"#/delays?topic={topic}")
    act(seen, "Groups", f"Pause {what}", "4 pending messages." if is_topic else "3 pending messages.")
    expect(seen.page.locator(".outcome")).to_contain_text("messages paused")
    expect(seen.section("Pauses").locator("tbody tr")).to_have_count(1)
    act(seen, "Groups", "Deliver now group spring", "3 pending messages.")
    seen.section("Pauses").get_by_role("link", name="Held messages").click()
    expect(seen.page.locator(".pages-shown")).to_have_text("1–3 of 3")
    expect(seen.page.get_by_label("Held by a pause")).to_be_checked()
    seen.page.get_by_label("Held by a pause").uncheck()
    seen.page.get_by_role("button", name="Filter").click()
    expect(seen.page.locator(".pages-shown")).to_have_text("1–4 of 4")
    seen.go(f"#/topics/{topic}")
    expect(seen.page.get_by_role("note")).to_contain_text("paused")
    assert seen.nameless() == []
    seen.page.get_by_role("note").get_by_role("link", name="Delays").click()
    act(seen, "Pauses", f"Resume {what}", "overdue are delivered immediately")
    expect(seen.section("Pauses")).to_have_count(0)
    expect(seen.tile("Pending")).to_have_text("1")


def test_pause_of_all_deliveries_is_ended(new_cluster: NewCluster, open_page: OpenPage) -> None:
    cluster = new_cluster()
    seen = open_page(cluster, "#/delays")
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{cluster.http_address}/api/v1/delay/pause", b"{}", headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 202
    expect(seen.page.get_by_role("note")).to_contain_text("Deliveries have been paused since")
    act(seen, "Pauses", "Resume all deliveries")
    expect(seen.page.locator(".outcome")).to_have_text("All deliveries are resumed.")
    expect(seen.page.get_by_role("note")).to_have_count(0)
