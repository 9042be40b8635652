"""The forecast of messages that will be due: its counts, its charts, and the lists to which they lead."""

import re
from datetime import datetime, timedelta
from urllib.parse import parse_qs

import pytest
from console.conftest import NewCluster, OpenPage
from console.content import run, send
from console.watched import Watched
from delaymq.client import Client, Message, Producer
from harness.brokers import OurCluster
from playwright.sync_api import Locator, Route, expect

TOPIC, OTHER_TOPIC = "Reminders", "Reports"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MAX_TOPICS = 50
"""Topics in the table of the page."""
POLL_MS = 10_000
READ_SELECTED = """bar => {
  const details = bar.closest("figure").querySelector("figcaption");
  return [details.textContent, bar.getAttribute("aria-label"), bar.getAttribute("href")];
}"""
"""Script that reads a selected bar between two refreshes: the details shown, its label, and its link."""


@pytest.fixture(scope="module")
def planned(new_cluster: NewCluster) -> OurCluster:
    """Provide a broker with 13 messages, due far from the ends of the ranges: 9 timed ones, and 4 with a level."""
    due = {
        TOPIC: {"soon": timedelta(minutes=8), "evening": 5.5 * HOUR, "weekend": 3.5 * DAY, "far": 40 * DAY},
        OTHER_TOPIC: {"report": 5.5 * HOUR},
    }
    copies = {"soon": 2, "evening": 3, "weekend": 2}

    async def fill(client: Client) -> None:
        async with Producer(client, "planner") as producer:
            for topic, delays in due.items():
                for key, after in delays.items():
                    for number in range(copies.get(key, 1)):
                        await producer.schedule(Message(topic=topic, body=b"x", keys=(f"{key}-{number}",)), after=after)
        await send(client, *(Message(topic=OTHER_TOPIC, body=b"x") for _ in range(4)), delay="2h")

    cluster = new_cluster()
    run(cluster.namesrv_address, fill)
    return cluster


def bars(seen: Watched, period: str) -> dict[int, int]:
    """Return the numbers of messages shown by the bars of a chart, by hour or day."""
    return dict(
        seen.section(f"Next {period}")
        .locator(".due-bar")
        .evaluate_all(
            "bars => bars.map(bar => [bar.closest('[data-range]').dataset.range, bar.dataset.pending].map(Number))"
        )
    )


def bar(seen: Watched, period: str, number: int) -> Locator:
    return seen.section(f"Next {period}").locator(f"[data-range='{number}']")


def expect_list(seen: Watched, messages: int, *keys: str) -> None:
    """Expect the list of pending messages, with this number of rows, and with these keys among them."""
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Pending messages")
    expect(seen.page.locator(".pages-shown")).to_have_text(f"1–{messages} of {messages}")
    for key in keys:
        expect(seen.row(key)).to_have_count(1)


def test_messages_are_counted_by_hour_day_time_and_topic(planned: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(planned, "#/delays")
    seen.page.get_by_role("link", name="Forecast", exact=True).click()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Forecast")
    for period, label in (
        ("24 hours", "10 messages due within 24 hours, 3 messages later"),
        ("30 days", "12 messages due within 30 days, 1 message later"),
    ):
        expect(seen.section(f"Next {period}").get_by_role("group", name=label, exact=True)).to_be_visible()
    assert bars(seen, "24 hours") == {0: 2, 1: 4, 5: 4}
    assert bars(seen, "30 days") == {0: 10, 3: 2}
    tiles = {"Pending": 13, "Within 1 min": 0, "1 to 10 min": 2, "10 to 60 min": 0, "1 to 24 h": 8, "After 24 h": 3}
    for name, messages in tiles.items():
        expect(seen.tile(name)).to_have_text(str(messages))
    expect(seen.page.get_by_text(re.compile(r"^as of .*\d\d:\d\d:\d\d$"))).to_be_visible()
    rows = seen.section("By topic").get_by_role("row")
    for number, (topic, counts) in enumerate(((TOPIC, (0, 2, 0, 3, 3)), (OTHER_TOPIC, (0, 0, 0, 5, 0))), 1):
        texts = [str(count) for count in counts]
        bar_text = f"{sum(counts)} messages pending for {topic}"
        expect(rows.nth(number).get_by_role("cell")).to_have_text(
            [topic, str(sum(counts)), bar_text, *texts, "Forecast · Delays"]
        )
    expect(rows).to_have_count(3)
    expect(seen.page.get_by_text("topics with the most pending messages")).to_have_count(0)
    assert seen.nameless() == []


def test_selected_range_shows_its_time_and_count(planned: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(planned, "#/delays/forecast")
    details = seen.section("Next 24 hours").get_by_role("figure").locator("figcaption")
    expect(details).to_have_text("10 messages due within 24 hours")
    chosen = bar(seen, "24 hours", 5)
    chosen.hover()
    expect(details).to_have_text(re.compile("^4 messages due from "))
    text, label, href = chosen.evaluate(READ_SELECTED)
    limits = parse_qs(href.partition("?")[2])
    from_ms, until_ms = int(limits["from"][0]), int(limits["until"][0])
    assert until_ms - from_ms == HOUR / timedelta(milliseconds=1)
    shown = [str(datetime.fromtimestamp(ms // 1000)) for ms in (from_ms, until_ms)]
    assert text == label == f"4 messages due from {shown[0]} to {shown[1]}"
    bar(seen, "24 hours", 10).hover()
    expect(details).to_have_text(re.compile("^0 messages due from "))
    seen.page.get_by_role("heading", level=1).hover()
    expect(details).to_have_text("10 messages due within 24 hours")
    bar(seen, "24 hours", 0).focus()
    expect(details).to_have_text(re.compile(r"^2 messages due by \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"))
    seen.page.keyboard.press("Tab")
    expect(details).to_have_text(re.compile("^4 messages due from "))
    seen.page.keyboard.press("Tab")
    seen.page.keyboard.press("Enter")
    expect_list(seen, 4, "evening-0", "evening-1", "evening-2", "report-0")


def test_every_count_leads_to_its_messages(planned: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(planned)
    for place in (bar(seen, "24 hours", 0), seen.tile("1 to 10 min").get_by_role("link")):
        seen.go("#/delays/forecast")
        place.click()
        expect_list(seen, 2, "soon-0", "soon-1")
    seen.go("#/delays/forecast")
    seen.tile("1 to 24 h").get_by_role("link").click()
    expect_list(seen, 8, "evening-0", "evening-1", "evening-2", "report-0")
    seen.go("#/delays/forecast")
    bar(seen, "30 days", 3).click()
    expect_list(seen, 2, "weekend-0", "weekend-1")
    for place in (
        seen.section("Next 24 hours").get_by_role("link", name="3 messages later"),
        seen.tile("After 24 h").get_by_role("link"),
    ):
        seen.go("#/delays/forecast")
        place.click()
        expect_list(seen, 3, "weekend-0", "weekend-1", "far-0")
    seen.go("#/delays/forecast")
    seen.section("Next 30 days").get_by_role("link", name="1 message later").click()
    expect_list(seen, 1, "far-0")
    seen.go("#/delays/forecast")
    seen.tile("Pending").get_by_role("link").click()
    expect_list(seen, 13)


def test_forecast_can_be_limited_to_a_topic_and_a_kind(planned: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(planned, "#/delays/forecast")
    seen.page.get_by_role("link", name=f"forecast of {OTHER_TOPIC}").click()
    expect(seen.page.get_by_text(f"Only topic {OTHER_TOPIC}.")).to_be_visible()
    expect(seen.tile("Pending")).to_have_text("5")
    assert bars(seen, "24 hours") == {1: 4, 5: 1}
    expect(seen.section("By topic")).to_have_count(0)
    expect(seen.section("Next 24 hours")).to_contain_text("0 messages later")
    seen.page.get_by_role("button", name="Timed", exact=True).click()
    expect(seen.tile("Pending")).to_have_text("1")
    assert bars(seen, "30 days") == {0: 1}
    expect(seen.page).to_have_url(re.compile(rf"#/delays/forecast\?topic={OTHER_TOPIC}&kind=timed$"))
    bar(seen, "24 hours", 5).click()
    expect_list(seen, 1, "report-0")
    expect(seen.page.get_by_text("Only timed messages.")).to_be_visible()
    expect(seen.page.get_by_label("Topic", exact=True)).to_have_value(OTHER_TOPIC)
    seen.page.go_back()
    seen.page.get_by_role("link", name="Delays", exact=True).last.click()
    expect(seen.page.get_by_text(f"Only timed messages, topic {OTHER_TOPIC}.")).to_be_visible()
    seen.page.get_by_role("link", name="Forecast", exact=True).click()
    seen.page.get_by_role("link", name="Show all").click()
    expect(seen.tile("Pending")).to_have_text("9")
    seen.page.get_by_role("button", name="With a level").click()
    expect(seen.tile("Pending")).to_have_text("4")
    assert bars(seen, "24 hours") == {1: 4}
    seen.go("#/delays?level=6")
    expect(seen.tile("Pending")).to_have_text("4")
    expect(seen.page.get_by_role("link", name="Forecast", exact=True)).to_have_count(0)


def test_empty_forecast_is_refreshed_and_limits_the_table_of_topics(
    new_cluster: NewCluster, open_page: OpenPage
) -> None:
    cluster = new_cluster()
    seen = open_page(cluster, "#/nowhere")
    seen.page.clock.install()
    seen.go("#/delays/forecast")
    expect(seen.page.get_by_text("There are no pending messages.")).to_contain_text("delaymq send Orders")
    expect(seen.tile("Pending")).to_have_text("0")
    expect(seen.page.locator("svg.due")).to_have_count(0)
    topics = [f"Planned{number:02d}" for number in range(MAX_TOPICS + 1)]

    async def fill(client: Client) -> None:
        async with Producer(client, "planner") as producer:
            for topic in topics:
                await producer.schedule(Message(topic=topic, body=b"x"), after=5.5 * HOUR)

    run(cluster.namesrv_address, fill)
    seen.page.clock.run_for(POLL_MS)
    expect(seen.tile("Pending")).to_have_text(str(MAX_TOPICS + 1))
    expect(seen.page.get_by_text("There are no pending messages.")).to_have_count(0)
    expect(seen.section("By topic").get_by_role("row")).to_have_count(1 + MAX_TOPICS)
    expect(seen.section("By topic")).to_contain_text(f"The {MAX_TOPICS} topics with the most pending messages.")
    bar(seen, "24 hours", 5).focus()
    run(cluster.namesrv_address, fill)
    seen.page.clock.run_for(POLL_MS)
    expect(bar(seen, "24 hours", 5).locator(".due-bar")).to_have_attribute("data-pending", str(2 * len(topics)))
    expect(bar(seen, "24 hours", 5)).to_be_focused()


def test_error_is_reported_and_replaced_by_the_next_forecast(planned: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(planned, "#/nowhere")
    seen.page.clock.install()
    error = {"error": {"code": "timeline_unreadable", "message": "the index cannot be read: restart the broker"}}
    seen.page.route("**/api/v1/delay/forecast?*", lambda route: route.fulfill(status=503, json=error))
    seen.go("#/delays/forecast")
    alert = seen.page.get_by_role("alert")
    expect(alert).to_have_text("the index cannot be read: restart the broker")
    seen.page.unroute_all()
    seen.page.route("**/api/v1/delay/forecast?*", incomplete)
    seen.page.clock.run_for(POLL_MS)
    expect(seen.page.get_by_text("this page is incomplete")).to_be_visible()
    expect(seen.tile("Pending")).to_have_text("13")
    expect(alert).to_have_count(0)


def incomplete(route: Route) -> None:
    """Fulfil the request with the broker's response, but as one without the topics of some messages."""
    answer = route.fetch()
    route.fulfill(response=answer, json={**answer.json(), "complete": False})


def test_long_values_of_the_axis_are_rounded(planned: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(planned, "#/nowhere")
    seen.page.route("**/api/v1/delay/forecast?*", busy_hour)
    seen.go("#/delays/forecast")
    values = seen.section("Next 24 hours").locator("svg .grid + .tick")
    expect(values).to_have_text(["0", "400K", "800K", "1.2M", "1.6M", "2M"])
    expect(seen.section("Next 30 days").locator("svg .grid + .tick").last).to_have_text("10")


def busy_hour(route: Route) -> None:
    """Fulfil the request with the broker's response, but with very many messages in one hour."""
    answer = route.fetch()
    forecast = answer.json()
    forecast["hours"][5]["pending"] = 1_234_567
    route.fulfill(response=answer, json=forecast)
