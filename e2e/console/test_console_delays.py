"""The live picture of what waits, and how late what came was."""

import re
import time

import pytest
from console.conftest import OpenPage
from console.content import run, send
from console.watched import Watched
from delaymq.client import Message
from harness.brokers import OurCluster
from playwright.sync_api import expect

TOPIC, OTHER_TOPIC = "LiveReminders", "LiveReports"
# A message must be seen waiting, then gone: on a machine that is too slow for one delay the next is tried.
DELAYS_S = {"3s": 3, "10s": 10, "1m": 60}
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture(scope="module")
def waiting(cluster: OurCluster) -> OurCluster:
    """Two messages that wait for an hour, one for two."""

    async def fill(client: object) -> None:
        await send(client, *(Message(topic=TOPIC, body=b"x", keys=(f"hour-{at}",)) for at in range(2)), delay="1h")  # type: ignore[arg-type]
        await send(client, Message(topic=OTHER_TOPIC, body=b"x", keys=("two-hours",)), delay="2h")  # type: ignore[arg-type]

    run(cluster.namesrv_address, fill)  # type: ignore[arg-type]
    return cluster


def test_a_message_is_in_the_picture_until_it_comes_due(waiting: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(waiting, f"#/delays?topic={TOPIC}&window=1%20min")
    picture = seen.page.get_by_role("img", name=re.compile("due within 1 min"))
    expect(seen.tile("Waiting")).to_have_text("2")
    expect(picture).to_have_accessible_name("0 messages due within 1 min, 2 later")
    for delay, delay_s in DELAYS_S.items():
        due = time.monotonic() + delay_s
        run(
            waiting.namesrv_address,
            lambda client, delay=delay: send(client, Message(topic=TOPIC, body=b"x"), delay=delay),
        )
        if is_seen_waiting(seen, due):
            break
    else:
        pytest.fail("no message was seen waiting in the picture")
    expect(picture).to_have_accessible_name("0 messages due within 1 min, 2 later")
    expect(seen.page.locator(".due-bar")).to_have_count(0)
    expect(seen.tile("Waiting")).to_have_text("2")


def is_seen_waiting(seen: Watched, due: float) -> bool:
    try:
        left_ms = max(1.0, (due - time.monotonic()) * 1000)
        expect(seen.page.locator(".due-bar[data-pending='1']")).to_have_count(1, timeout=left_ms)
    except AssertionError:
        return False
    return True


def test_the_bars_move_towards_now(waiting: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(waiting, f"#/delays?topic={TOPIC}&window=1%20h", reduced_motion="no-preference")
    bar = seen.page.locator(".due-bar").first
    expect(bar).to_be_visible()
    begun = float(bar.get_attribute("x") or "nan")
    seen.page.wait_for_function("x => Number(document.querySelector('.due-bar').getAttribute('x')) < x", arg=begun)


def test_what_waits_is_told_by_level_topic_and_next_message(waiting: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(waiting, "#/delays")
    level = seen.section("By level").get_by_role("row").filter(has=seen.page.get_by_role("link", name="only level 5"))
    expect(level.get_by_role("cell").nth(1)).to_have_text("1h")
    expect(level.get_by_role("cell").nth(2)).to_have_text("2")
    expect(level.get_by_role("cell").nth(4)).to_have_text(re.compile("^in (59 min|1 h)"))
    topic = seen.section("By topic").get_by_role("row").filter(has_text=OTHER_TOPIC)
    expect(topic.get_by_role("cell").nth(1)).to_have_text("1")
    message = seen.section("Next").get_by_role("row").filter(has_text="hour-0")
    message.get_by_role("link").last.click()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Message")
    expect(seen.page.locator("[data-event=pending]")).to_contain_text("Waits")


def test_a_level_can_be_looked_at_alone(waiting: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(waiting, "#/delays")
    seen.page.get_by_role("link", name="only level 5").click()
    expect(seen.page.get_by_text("Only level 5.")).to_be_visible()
    expect(seen.tile("Waiting")).to_have_text("2")
    expect(seen.section("Next")).not_to_contain_text("two-hours")
    seen.page.get_by_role("link", name="Show all").click()
    expect(seen.section("Next")).to_contain_text("two-hours")


def test_how_late_a_level_was_is_told_once_it_delivered(waiting: OurCluster, open_page: OpenPage) -> None:
    run(waiting.namesrv_address, lambda client: send(client, Message(topic="LiveLate", body=b"x"), delay="1s"))
    seen = open_page(waiting, "#/delays")
    level = seen.section("By level").get_by_role("row").filter(has=seen.page.get_by_role("link", name="only level 1"))
    expect(level.get_by_role("img", name=re.compile("level 1: half at most .* late"))).to_be_visible()
    for column in (5, 6, 7):
        expect(level.get_by_role("cell").nth(column)).to_have_text(re.compile(r"^\d[\d.]* (ms|s|min)"))


def test_a_hidden_tab_asks_for_nothing_and_goes_on_when_it_is_shown(waiting: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(waiting, "#/delays")
    expect(seen.tile("Waiting")).to_be_visible()
    seen.page.clock.install()
    seen.page.evaluate(HIDE, True)
    seen.page.wait_for_load_state("networkidle")
    asked = len(seen.asked)
    seen.page.clock.run_for(120_000)
    assert len(seen.asked) == asked
    with seen.page.expect_response("**/api/v1/delay/pending?*"):
        seen.page.evaluate(HIDE, False)
