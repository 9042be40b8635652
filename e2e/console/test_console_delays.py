"""Live display of pending messages and of delivery lateness."""

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from console.conftest import OpenPage
from console.content import run, send
from delaymq.client import Client, Message, Producer
from harness.brokers import OurCluster
from playwright.sync_api import Route, expect

TOPIC, OTHER_TOPIC = "LiveReminders", "LiveReports"
TIMEOUT_S = 60
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture(scope="module")
def waiting(cluster: OurCluster) -> OurCluster:
    """Add two messages due in an hour, and one due in two hours."""

    async def fill(client: Client) -> None:
        await send(client, *(Message(topic=TOPIC, body=b"x", keys=(f"hour-{at}",)) for at in range(2)), delay="1h")
        await send(client, Message(topic=OTHER_TOPIC, body=b"x", keys=("two-hours",)), delay="2h")

    run(cluster.namesrv_address, fill)
    return cluster


def test_message_is_displayed_until_it_is_delivered(waiting: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(waiting, f"#/delays?topic={TOPIC}&window=1%20min")
    picture = seen.page.get_by_role("group", name=re.compile("due within 1 min"))
    expect(picture).to_have_accessible_name("0 messages due within 1 min, 2 later")
    with paused(waiting):
        expect(seen.page.get_by_role("note")).to_contain_text("Deliveries have been paused since")
        run(waiting.namesrv_address, lambda client: send(client, Message(topic=TOPIC, body=b"x"), delay="1s"))
        expect(picture).to_have_accessible_name("0 messages due within 1 min, 1 overdue, 2 later")
        expect(seen.page.locator(".due-overdue")).to_be_visible()
        expect(seen.tile("Pending")).to_have_text("3")
        expect(seen.tile("Next due")).to_contain_text("overdue")
    expect(picture).to_have_accessible_name("0 messages due within 1 min, 2 later")
    expect(seen.page.locator(".due-overdue")).to_have_count(0)
    expect(seen.tile("Pending")).to_have_text("2")
    expect(seen.page.get_by_role("note")).to_have_count(0)


def test_message_due_soon_has_its_own_bar(waiting: OurCluster, open_page: OpenPage) -> None:
    topic = "LiveSoon"
    # 50 s allow for slow machines, on which a shorter delay would be over before the page shows the message.
    run(waiting.namesrv_address, lambda client: send(client, Message(topic=topic, body=b"x"), delay="50s"))
    seen = open_page(waiting, f"#/delays?topic={topic}&window=1%20min")
    bar = seen.page.locator(".due-bar")
    expect(bar).to_have_attribute("data-pending", "1")
    expect(seen.page.get_by_role("group", name="1 message due within 1 min")).to_be_visible()


def test_focused_bar_keeps_focus_when_another_disappears(waiting: OurCluster, open_page: OpenPage) -> None:
    topic = "LiveFocus"

    async def fill(client: Client) -> None:
        async with Producer(client, "shop-front") as producer:
            for delay in ("8s", "50s"):
                await producer.send(Message(topic=topic, body=b"x"), delay=delay)

    seen = open_page(waiting, f"#/delays?topic={topic}&window=1%20min")
    run(waiting.namesrv_address, fill)
    bars = seen.page.locator("svg.due .moving a")
    expect(bars).to_have_count(2)
    bars.last.focus()
    expect(bars).to_have_count(1)
    expect(bars).to_be_focused()


@contextmanager
def paused(cluster: OurCluster) -> Iterator[None]:
    """Pause deliveries, so that messages stay visible."""
    try:
        order(cluster, "pause", {})
        yield
    finally:
        order(cluster, "resume", {"overdue": "deliver"})


def order(cluster: OurCluster, word: str, body: dict[str, str]) -> None:
    request = urllib.request.Request(
        f"http://{cluster.http_address}/api/v1/delay/{word}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        assert answer.status == 202


def test_bars_move_towards_the_present(waiting: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(waiting, f"#/delays?topic={TOPIC}&window=1%20h", reduced_motion="no-preference")
    bar = seen.page.locator(".due-bar").first
    expect(bar).to_be_visible()
    begun = float(bar.get_attribute("x") or "nan")
    seen.page.wait_for_function("x => Number(document.querySelector('.due-bar').getAttribute('x')) < x", arg=begun)


def test_pending_messages_are_shown_by_level_topic_and_next_message(waiting: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(waiting, "#/delays")
    level = seen.section("By level").get_by_role("row").filter(has=seen.page.get_by_role("link", name="only level 5"))
    expect(level.get_by_role("cell").nth(1)).to_have_text("1h")
    expect(level.get_by_role("cell").nth(2)).to_have_text("2")
    expect(level.get_by_role("cell").nth(4)).to_have_text(re.compile(r"^in (5\d min|1 h)"))
    topic = seen.section("By topic").get_by_role("row").filter(has_text=OTHER_TOPIC)
    expect(topic.get_by_role("cell").nth(1)).to_have_text("1")
    message = seen.section("Next").get_by_role("row").filter(has_text="hour-0")
    message.get_by_role("link").last.click()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Message")
    expect(seen.page.locator("[data-event=pending]")).to_contain_text("Pending")


def test_every_card_applies_the_filter(waiting: OurCluster, open_page: OpenPage) -> None:
    run(waiting.namesrv_address, lambda client: send(client, Message(topic="LiveSooner", body=b"x"), delay="50s"))
    seen = open_page(waiting, f"#/delays?topic={OTHER_TOPIC}")
    expect(seen.tile("Pending")).to_have_text("1")
    expect(seen.tile("Next due")).to_have_text(re.compile(r"^in (1 h 5\d min|2 h)$"))
    rows = seen.section("By level").get_by_role("row")
    expect(rows).to_have_count(2)
    expect(rows.nth(1).get_by_role("cell")).to_have_text(
        ["6", "2h", "1", "1 message pending in level 6", re.compile(r"^in (1 h 5\d min|2 h)$")]
    )
    expect(seen.section("By level")).to_contain_text("Lateness is measured by level, not by topic.")
    expect(seen.page.get_by_text("Lateness, maximum")).to_have_count(0)
    expect(seen.section("Next").get_by_role("row")).to_have_count(2)
    expect(seen.section("Next")).to_contain_text("two-hours")
    seen.go("#/delays?level=6")
    expect(seen.section("By level").get_by_role("row")).to_have_count(2)
    expect(seen.tile("Next due")).to_have_text(re.compile(r"^in (1 h 5\d min|2 h)$"))
    expect(seen.tile("Lateness, maximum")).to_have_text("–")
    expect(seen.section("By topic")).to_contain_text(OTHER_TOPIC)
    expect(seen.section("By topic")).not_to_contain_text(TOPIC)


def test_list_of_messages_due_next_shows_their_total(waiting: OurCluster, open_page: OpenPage) -> None:
    topic = "LiveMany"
    some = [Message(topic=topic, body=b"x") for _ in range(10)]
    run(waiting.namesrv_address, lambda client: send(client, *some, delay="2h"))
    seen = open_page(waiting, f"#/delays?topic={topic}")
    expect(seen.section("Next").get_by_role("row")).to_have_count(9)
    expect(seen.section("Next")).to_contain_text("8 of 10 pending messages.")


def busy_day(route: Route) -> None:
    """Fulfil the request with the broker's response, but with the longest figures, as after a day of downtime."""
    answer = route.fetch()
    delay = answer.json()
    day_ms = 86_340_000
    delay["timed"] |= {"delivered": 1}
    for level in (*delay["levels"], delay["timed"]):
        level |= {"pending": 12_345_678, "offset": 1, "maxOffset": 12_345_679, "nextDueMs": delay["asOfMs"] - day_ms}
        level["lateness"] = {"p50Ms": day_ms, "p99Ms": day_ms, "maxMs": day_ms}
    route.fulfill(response=answer, json=delay)


def test_level_table_is_not_clipped_at_desktop_widths(waiting: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(waiting, "#/topics")
    seen.page.route("**/api/v1/delay", busy_day)
    seen.go("#/delays")
    expect(seen.section("By level").get_by_role("cell", name="23 h 59 min").first).to_be_visible()
    table = seen.section("By level").locator(".scroll")
    cut_off_px = {}
    for width in (1_024, 1_400, 1_749, 1_750, 1_920):
        seen.page.set_viewport_size({"width": width, "height": 900})
        cut_off_px[width] = table.evaluate("table => table.scrollWidth - table.clientWidth")
    assert set(cut_off_px.values()) == {0}, cut_off_px


def test_view_can_be_limited_to_one_level(waiting: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(waiting, "#/delays")
    seen.page.get_by_role("link", name="only level 5").click()
    expect(seen.page.get_by_text("Only level 5.")).to_be_visible()
    expect(seen.tile("Pending")).to_have_text("2")
    expect(seen.section("Next")).not_to_contain_text("two-hours")
    seen.page.get_by_role("link", name="Show all").click()
    expect(seen.section("Next")).to_contain_text("two-hours")


def test_timed_messages_are_shown_next_to_the_levels(waiting: OurCluster, open_page: OpenPage) -> None:
    topic = "LiveTimed"

    async def fill(client: Client) -> None:
        async with Producer(client, "shop-front") as producer:
            await producer.send(Message(topic=topic, body=b"x", keys=("late-1",)), delay="1500ms")
            await producer.send(Message(topic=topic, body=b"x", keys=("timed-1",)), delay="5.5h")

    run(waiting.namesrv_address, fill)
    seen = open_page(waiting, "#/delays")
    only_timed = seen.page.get_by_role("link", name="only timed messages")
    row = seen.section("By level").get_by_role("row").filter(has=only_timed)
    expect(row.get_by_role("cell").nth(3).get_by_role("img")).to_have_accessible_name(
        re.compile("pending timed message")
    )
    expect(row.get_by_role("img", name=re.compile("timed messages: 50 % at most .* late"))).to_be_visible()
    only_timed.click()
    expect(seen.page.get_by_text("Only timed messages.")).to_be_visible()
    expect(seen.section("By level").get_by_role("row")).to_have_count(2)
    expect(seen.section("By topic")).to_contain_text(topic)
    expect(seen.section("By topic")).not_to_contain_text(OTHER_TOPIC)
    expect(seen.tile("Lateness, maximum")).to_have_text(re.compile(r"^\d[\d.]* (ms|s)"))
    seen.go(f"#/delays?topic={topic}")
    expect(seen.tile("Pending")).to_have_text("1")
    expect(seen.tile("Next due")).to_have_text(re.compile(r"^in 5 h (2\d|30) min$"))
    expect(seen.section("By level").get_by_role("row")).to_have_count(2)
    expect(seen.section("By level").get_by_role("cell").nth(0)).to_have_text("timed")
    message = seen.section("Next").get_by_role("row").filter(has_text="timed-1")
    expect(message.get_by_role("cell").nth(3)).to_have_text("timed")
    message.get_by_role("link").last.click()
    expect(seen.page.locator("[data-event=pending]")).to_contain_text("Pending")


def test_lateness_of_a_level_is_shown_after_a_delivery(waiting: OurCluster, open_page: OpenPage) -> None:
    run(waiting.namesrv_address, lambda client: send(client, Message(topic="LiveLate", body=b"x"), delay="1s"))
    seen = open_page(waiting, "#/delays")
    level = seen.section("By level").get_by_role("row").filter(has=seen.page.get_by_role("link", name="only level 1"))
    expect(level.get_by_role("img", name=re.compile("level 1: 50 % at most .* late"))).to_be_visible()
    for column in (5, 6, 7):
        expect(level.get_by_role("cell").nth(column)).to_have_text(re.compile(r"^\d[\d.]* (ms|s|min)"))


def test_hidden_tab_sends_no_requests_and_resumes_when_shown(waiting: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(waiting, "#/delays")
    expect(seen.tile("Pending")).to_be_visible()
    seen.page.clock.install()
    seen.page.evaluate(HIDE, True)
    seen.page.wait_for_load_state("networkidle")
    asked = len(seen.asked)
    seen.page.clock.run_for(120_000)
    assert len(seen.asked) == asked
    with seen.page.expect_response("**/api/v1/delay/pending?*"):
        seen.page.evaluate(HIDE, False)
