"""The list of pending messages with its filters, and changes of one message with confirmation."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from console.conftest import OpenPage
from console.content import run, send
from delaymq.client import Client, Message, Producer, SendResult
from harness.brokers import OurCluster
from playwright.sync_api import expect

TOPIC = "ListedReminders"


@pytest.fixture(scope="module")
def pending(cluster: OurCluster) -> OurCluster:
    """Add 120 timed messages, one per minute from in a day on, every 40th with a rare tag; and one with a level."""
    start = datetime.now(UTC) + timedelta(days=1)

    async def fill(client: Client) -> None:
        async with Producer(client, "lister") as producer:
            for number in range(120):
                tag = "rare" if number % 40 == 7 else "usual"
                message = Message(topic=TOPIC, body=b"x", keys=(f"customer-{number % 2}",), tags=tag)
                await producer.schedule(message, at=start + timedelta(minutes=number), key=f"reminder-{number}")
        await send(client, Message(topic=TOPIC, body=b"x", keys=("of-a-level",)), delay="2h")

    run(cluster.namesrv_address, fill)
    return cluster


def test_list_is_paged_and_filtered(pending: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(pending, f"#/delays?topic={TOPIC}")
    seen.section("Next").get_by_role("link", name="Show all").click()
    pages = seen.page.locator(".pages-shown")
    expect(pages).to_have_text("1–100 of 121")
    seen.page.get_by_role("button", name="Next").click()
    expect(pages).to_have_text("101–121 of 121")
    expect(seen.row("reminder-119")).to_be_visible()
    seen.page.get_by_role("button", name="Previous").click()
    expect(seen.row("of-a-level")).to_contain_text("6")
    seen.page.get_by_label("Tag").fill("rare")
    seen.page.get_by_role("button", name="Filter").click()
    expect(pages).to_have_text("1–3")
    expect(seen.page.locator("tbody tr")).to_have_count(3)
    seen.page.get_by_label("Key", exact=True).fill("customer-0")
    seen.page.get_by_role("button", name="Filter").click()
    expect(seen.page.get_by_text("No pending message matches.")).to_be_visible()
    seen.page.get_by_label("Tag").fill("")
    seen.page.get_by_role("button", name="Filter").click()
    expect(pages).to_have_text("1–60 of 60")
    seen.page.get_by_label("Topic", exact=True).fill("")
    seen.page.get_by_role("button", name="Filter").click()
    expect(seen.page.get_by_text("To search for a key, enter the topic, too.")).to_be_visible()
    seen.go(f"#/delays/list?topic={TOPIC}&kind=level")
    expect(pages).to_have_text("1–1 of 1")
    expect(seen.page.get_by_text("Only messages with a level.")).to_be_visible()
    seen.page.get_by_role("link", name="Show all").click()
    expect(pages).to_have_text("1–100 of 121")
    assert seen.nameless() == []
    assert not seen.is_too_wide()


def test_bar_of_the_chart_leads_to_its_messages(pending: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(pending, f"#/delays?topic={TOPIC}&window=30%20days")
    bars = seen.page.locator("svg.due a")
    expect(bars).not_to_have_count(0)
    with_most = max(bars.all(), key=lambda bar: int(bar.locator("rect").get_attribute("data-pending") or 0))
    messages = with_most.locator("rect").get_attribute("data-pending")
    expect(with_most).to_have_accessible_name(re.compile(f"^{messages} messages due from .* to "))
    with_most.click()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Pending messages")
    expect(seen.page.locator(".pages-shown")).to_have_text(re.compile(f" of {messages}$"))
    expect(seen.page.get_by_label("Due from")).not_to_have_value("")
    seen.page.get_by_role("link", name="Chart").click()
    expect(seen.tile("Pending")).to_have_text("121")


def test_schedule_of_a_repeating_message_is_shown(pending: OurCluster, open_page: OpenPage) -> None:
    async def schedule(client: Client) -> SendResult:
        async with Producer(client, "repeater") as producer:
            message = Message(topic="RepeatedReports", body=b"x")
            await producer.schedule(message, every="15m", runs=3, missed="all", key="often")
            return (await producer.schedule(message, cron="0 9 * * 1-5", zone="Europe/Berlin", key="daily")).result

    sent = run(pending.namesrv_address, schedule)
    seen = open_page(pending, "#/delays/list?topic=RepeatedReports")
    expect(seen.row("daily")).to_contain_text("0 9 * * 1-5 Europe/Berlin")
    expect(seen.row("often")).to_contain_text("every 15m")
    assert not seen.is_too_wide()
    seen.go(f"#/messages/{sent.message_id}?topic=RepeatedReports")
    details = seen.section("Details")
    for text in ("Next run", "0 9 * * 1-5 Europe/Berlin", "Runs so far0", "when it is cancelled", "only the latest"):
        expect(details).to_contain_text(text)
    seen.section("Change").get_by_role("button", name="Deliver now").click()
    dialog = seen.page.get_by_role("dialog")
    expect(dialog).to_contain_text("its schedule continues from then")
    dialog.get_by_role("button", name="Deliver now").click()
    expect(details).to_contain_text("Runs so far1, the last at")
    expect(seen.page.locator("[data-event=delivered]")).to_contain_text("run 1 delivered")
    seen.section("Change").get_by_role("button", name="Cancel").click()
    expect(dialog).to_contain_text("its schedule ends")
    dialog.get_by_role("button", name="Cancel").click()
    expect(seen.page.locator("[data-event=cancelled]")).to_be_visible()


def test_message_is_moved_touched_and_cancelled_after_confirmation(pending: OurCluster, open_page: OpenPage) -> None:
    async def schedule(client: Client) -> SendResult:
        async with Producer(client, "changer") as producer:
            message = Message(topic="ChangedReminders", body=b"x")
            return (await producer.schedule(message, after="5h", key="order-1")).result

    sent = run(pending.namesrv_address, schedule)
    seen = open_page(pending, f"#/messages/{sent.message_id}?topic=ChangedReminders")
    dialog, outcome = seen.page.get_by_role("dialog"), seen.section("Change").get_by_role("status")

    def start(action: str) -> None:
        seen.section("Change").get_by_role("button", name=action).click()
        expect(dialog).to_contain_text(sent.message_id)

    start("Cancel")
    expect(dialog).to_contain_text("This cannot be undone.")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    start("Move")
    later = (datetime.now() + timedelta(days=900)).replace(microsecond=0)
    dialog.get_by_label("New due time").fill(later.isoformat())
    dialog.get_by_role("button", name="Move").click()
    expect(outcome).to_contain_text("1 message moved, due at")
    expect(seen.page.locator("[data-event=moved]")).to_contain_text("Moved to another time")
    expect(seen.section("Details")).to_contain_text(f"{later:%Y-%m-%d}")
    start("Restart delay")
    dialog.get_by_role("button", name="Restart delay").click()
    expect(outcome).to_contain_text("1 message touched, due at")
    expect(seen.section("Details")).not_to_contain_text(f"{later:%Y-%m-%d}")
    start("Cancel")
    dialog.get_by_role("button", name="Cancel").click()
    expect(outcome).to_have_text("1 message cancelled.")
    expect(seen.page.locator("[data-event=cancelled]")).to_contain_text("by 127.0.0.1")
    expect(seen.section("Change").get_by_role("button")).to_have_count(0)
    assert seen.nameless() == []


def test_message_is_delivered_now_and_a_late_change_is_explained(pending: OurCluster, open_page: OpenPage) -> None:
    async def schedule(client: Client) -> SendResult:
        async with Producer(client, "changer") as producer:
            return (await producer.schedule(Message(topic="FiredReminders", body=b"x"), after="5h")).result

    sent = run(pending.namesrv_address, schedule)
    place = f"#/messages/{sent.message_id}?topic=FiredReminders"
    seen, other = open_page(pending, place), open_page(pending, place)
    for each, button in ((seen, "Deliver now"), (other, "Cancel")):
        each.section("Change").get_by_role("button", name=button).click()
    seen.page.get_by_role("dialog").get_by_role("button", name="Deliver now").click()
    expect(seen.section("Change").get_by_role("status")).to_contain_text("1 message made due now")
    expect(seen.page.locator("[data-event=fired]")).to_contain_text("Delivered early on request")
    expect(seen.page.locator("[data-event=delivered]")).to_be_visible()
    other.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(other.section("Change").get_by_role("alert")).to_contain_text("the message was delivered")
