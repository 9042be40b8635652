"""Overview, topics and groups as users see them; every screen narrow, wide, light and dark."""

import json
from typing import Any
from urllib.parse import quote

import pytest
from console.conftest import NewCluster, OpenPage
from console.content import Member, consume, run, send
from delaymq.client import Client, Message
from harness.brokers import BROKER_NAME, OurCluster
from playwright.sync_api import expect

TOPIC, GROUP = "ScreenOrders", "screen-shop"
MANY_TOPICS = 10_000


@pytest.fixture(scope="module")
def filled(cluster: OurCluster) -> OurCluster:
    """Add one topic with 12 messages, of which the group has consumed 5, and one message due in two hours."""

    async def fill(client: Client) -> None:
        await send(client, *(Message(topic=TOPIC, body=b"{}", keys=(f"order-{at}",)) for at in range(5)))
        await consume(client, GROUP, TOPIC, 5)
        await send(client, *(Message(topic=TOPIC, body=b"{}") for _ in range(7)))
        await send(client, Message(topic=TOPIC, body=b"{}", keys=("much-later",)), delay="2h")

    run(cluster.namesrv_address, fill)
    return cluster


def test_overview_shows_running_components_and_problems(filled: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(filled)
    expect(seen.section("Brokers").get_by_role("row").filter(has_text=BROKER_NAME)).to_contain_text(
        filled.broker_address
    )
    expect(seen.section("NameServers").get_by_role("row").filter(has_text=filled.namesrv_address)).to_contain_text(
        "registered"
    )
    expect(seen.page.get_by_role("list", name="Needs attention")).to_contain_text("no member connected")
    expect(seen.section("Groups with lag").get_by_role("row").filter(has_text=GROUP)).to_contain_text("7")
    expect(seen.tile("Stored / s")).to_have_text("0")
    expect(seen.tile("Disk")).to_contain_text("%")
    expect(seen.page.locator("#whoami")).to_contain_text(f"{BROKER_NAME}ready")


def test_topic_is_found_by_part_of_its_name_and_shows_its_queues(filled: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(filled, "#/topics")
    seen.page.get_by_role("searchbox", name="Search topics").fill("screenord")
    expect(seen.page.locator(".pages-shown")).to_have_text("1–1 of 1")
    expect(seen.row(TOPIC).get_by_role("cell").nth(1)).to_have_text("12")
    expect(seen.page).to_have_url(f"http://{filled.http_address}/#/topics?contains=screenord")
    seen.page.get_by_role("link", name=TOPIC).click()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text(TOPIC)
    expect(seen.section("Groups").get_by_role("link")).to_have_text([GROUP])
    rows = seen.section("Queues").get_by_role("row")
    expect(rows).not_to_have_count(1)
    assert sum(int(row.get_by_role("cell").nth(1).inner_text()) for row in rows.all()[1:]) == 12
    expect(seen.page.locator(".facts")).to_contain_text("Delayed, pending1")


def test_group_shows_its_lag_and_its_progress_in_each_queue(filled: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(filled, "#/groups")
    expect(seen.row(GROUP).get_by_role("cell").nth(1)).to_have_text("7")
    seen.page.get_by_role("link", name=GROUP, exact=True).click()
    expect(seen.section("Members")).to_contain_text("No member is connected, and the lag is 7 messages")
    rows = seen.section("Progress").get_by_role("row").filter(has_text=TOPIC)
    expect(rows).not_to_have_count(0)
    lags = [int(row.get_by_role("cell").nth(2).inner_text()) for row in rows.all()]
    assert sum(lags) == 7


def test_group_that_consumed_everything_has_no_lag(filled: OurCluster, open_page: OpenPage) -> None:
    group = "screen-ahead"
    run(filled.namesrv_address, lambda client: consume(client, group, TOPIC, 12))
    seen = open_page(filled, f"#/groups/{group}")
    expect(seen.section("Progress").get_by_role("row").filter(has_text=TOPIC)).not_to_have_count(0)
    expect(seen.page.locator(".facts")).to_contain_text("Lag0")


def test_member_is_shown_while_it_is_connected(filled: OurCluster, open_page: OpenPage) -> None:
    group = "screen-members"
    with Member(filled.namesrv_address, group, TOPIC) as member:
        seen = open_page(filled, f"#/groups/{group}")
        expect(seen.section("Members").get_by_role("row").filter(has_text=member.client_id)).to_be_visible()
        expect(seen.section("Subscriptions").get_by_role("row").filter(has_text=TOPIC)).to_contain_text("*")
    expect(seen.section("Members")).to_contain_text("No member is connected")


def test_ten_thousand_topics_are_paged_through(new_cluster: NewCluster, open_page: OpenPage) -> None:
    cluster = with_topics(new_cluster(), MANY_TOPICS)
    seen = open_page(cluster, "#/topics")
    shown = seen.page.locator(".pages-shown")
    expect(shown).to_have_text("1–100 of 10,000")
    expect(seen.page.get_by_role("row")).to_have_count(101)
    expect(seen.page.get_by_role("button", name="Previous")).to_be_disabled()
    seen.page.get_by_role("button", name="Next").click()
    expect(shown).to_have_text("101–200 of 10,000")
    expect(seen.row("Many00100")).to_be_visible()
    seen.page.get_by_role("button", name="Previous").click()
    expect(shown).to_have_text("1–100 of 10,000")
    seen.page.get_by_role("searchbox", name="Search topics").fill("MANY0999")
    expect(shown).to_have_text("1–10 of 10")


PLACES = [
    "#/",
    "#/topics",
    f"#/topics/{TOPIC}",
    "#/groups",
    f"#/groups/{GROUP}",
    "#/delays",
    "#/delays/forecast",
    "#/messages",
    f"#/messages?topic={TOPIC}",
    "#/deadletters",
    f"#/deadletters/{quote(GROUP)}",
    "#/accounts",
    "#/audit",
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_every_screen_fits_its_width_and_names_its_controls(
    filled: OurCluster, open_page: OpenPage, width: int, scheme: str
) -> None:
    seen = open_page(filled, viewport={"width": width, "height": 800}, color_scheme=scheme)
    for place in PLACES:
        seen.go(place)
        expect(seen.page.get_by_role("heading", level=1)).to_be_visible()
        expect(seen.page.get_by_text("Loading …")).to_have_count(0)
        assert not seen.is_too_wide(), f"{place} is wider than {width} px"
        assert seen.nameless() == [], place
    dark = seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 22, 21)"
    assert dark == (scheme == "dark")


def test_all_screens_are_reachable_by_keyboard(filled: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(filled, "#/groups")
    expect(seen.row(GROUP)).to_be_visible()
    seen.page.keyboard.press("Tab")
    expect(seen.page.get_by_role("link", name="Skip to content")).to_be_focused()
    for _ in range(3):
        seen.page.keyboard.press("Tab")
    expect(seen.page.get_by_role("link", name="Topics", exact=True)).to_be_focused()
    seen.page.keyboard.press("Enter")
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Topics")
    expect(seen.page.locator("#content")).to_be_focused()
    seen.page.keyboard.press("Tab")
    expect(seen.page.get_by_role("searchbox", name="Search topics")).to_be_focused()


def test_search_keeps_focus_while_the_list_is_refreshed(filled: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(filled, "#/topics")
    field = seen.page.get_by_role("searchbox", name="Search topics")
    field.fill(TOPIC)
    expect(seen.page.locator(".pages-shown")).to_have_text("1–1 of 1")
    field.press("End")
    # Not the response, which could belong to an earlier request.
    with seen.page.expect_request("**/api/v1/topics?*") as renewal:
        pass
    assert renewal.value.response() is not None
    expect(field).to_be_focused()
    expect(field).to_have_value(TOPIC)


def test_unknown_page_or_topic_is_reported(filled: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(filled, "#/topics/NoSuchTopic")
    expect(seen.page.get_by_role("alert")).to_contain_text("NoSuchTopic")
    seen.go("#/nowhere")
    expect(seen.page.locator("main")).to_contain_text("This page does not exist")


def with_topics(cluster: OurCluster, count: int) -> OurCluster:
    """Return the same broker with `count` more topics, written to its file while it is stopped."""
    cluster.stop()
    path = cluster.store_path / "config" / "topics.json"
    table: dict[str, Any] = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": {}}
    for at in range(count):
        name = f"Many{at:05d}"
        table["topicConfigTable"][name] = {
            "topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": False,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
        }  # fmt: skip
    path.write_text(json.dumps(table))
    cluster.start()
    return cluster
