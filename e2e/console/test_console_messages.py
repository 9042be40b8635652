"""Message search, message history, and messages that contain code."""

import json
import re

import pytest
import zstandard
from console.conftest import OpenPage
from console.content import consume, run, send
from delaymq.client import Client, Message, SendResult
from delaymq.message import flags
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from harness.brokers import OurCluster
from playwright.sync_api import expect

TOPIC, GROUP = "FoundOrders", "found-shop"
BODY = {"order": 42, "paid": False}
HACK = "window.hacked=1"


@pytest.fixture(scope="module")
def delayed(cluster: OurCluster) -> SendResult:
    """Add a delayed message that was delivered and consumed."""

    async def live(client: Client) -> SendResult:
        message = Message(topic=TOPIC, body=json.dumps(BODY).encode(), keys=("order-42",), tags="unpaid")
        [result] = await send(client, message, delay="1s")
        await consume(client, GROUP, TOPIC, 1)
        return result

    return run(cluster.namesrv_address, live)


def test_message_is_found_by_its_key_and_shows_its_history(
    cluster: OurCluster, delayed: SendResult, open_page: OpenPage
) -> None:
    seen = open_page(cluster, "#/messages")
    seen.page.get_by_label("Topic", exact=True).fill(TOPIC)
    seen.page.get_by_label("Key or id").fill("order-42")
    seen.page.get_by_role("button", name="Search").click()
    row = seen.row("order-42")
    expect(row).to_contain_text("delivered")
    row.get_by_role("link", name=delayed.message_id).click()
    events = seen.page.locator("ol.life li")
    expect(events).to_have_count(4)
    assert [event.get_attribute("data-event") for event in events.all()] == ["stored", "due", "delivered", "consumed"]
    expect(events.nth(3)).to_contain_text(f"Consumed by {GROUP}")
    expect(events.nth(0).locator("time")).to_have_attribute(
        "title", re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+[+-]\d\d:\d\d$")
    )
    body = seen.page.get_by_label("Body", exact=True).last
    expect(body).to_have_text(json.dumps(BODY, indent=2))
    seen.page.get_by_role("button", name="Format JSON").click()
    expect(body).to_have_text(json.dumps(BODY))
    expect(seen.row("TAGS")).to_contain_text("unpaid")


@pytest.mark.parametrize("which", ["message_id", "offset_message_id"])
def test_message_is_found_by_either_of_its_ids(
    cluster: OurCluster, delayed: SendResult, open_page: OpenPage, which: str
) -> None:
    needed = f"topic={TOPIC}&" if which == "message_id" else ""
    seen = open_page(cluster, f"#/messages?{needed}q={getattr(delayed, which)}")
    expect(seen.row(delayed.message_id)).to_contain_text("order-42")


def test_search_without_key_mentions_pending_delayed_messages(cluster: OurCluster, open_page: OpenPage) -> None:
    topic = "FoundLater"
    later = [Message(topic=topic, body=b"x", keys=f"later-{number}") for number in range(3)]
    run(cluster.namesrv_address, lambda client: send(client, *later, delay="1h"))
    seen = open_page(cluster, f"#/messages?topic={topic}")
    expect(seen.page.get_by_text(f"No message of {topic} was stored in this time range.")).to_be_visible()
    expect(seen.page.get_by_text(f"3 delayed messages for {topic} are still pending.")).to_be_visible()
    seen.page.get_by_role("link", name="Show messages due next").click()
    expect(seen.section("Next")).to_contain_text("later-0")
    seen.go(f"#/messages?topic={topic}&q=later-1")
    expect(seen.row("later-1")).to_contain_text("pending")


def test_compressed_body_is_decompressed_or_the_reason_is_shown(cluster: OurCluster, open_page: OpenPage) -> None:
    async def send_packed(client: Client) -> None:
        for number, body in enumerate((zstandard.ZstdCompressor().compress(b"as it was"), b"no such stream")):
            fields = {"a": "P", "b": "PackedOrders", "c": "TBW102", "d": "4", "e": "0", "g": "1700000000000", "h": "0"}
            flag = flags.COMPRESSED | flags.COMPRESSION_ZSTD
            fields |= {"f": str(flag), "i": f"KEYS\x01packed-{number}\x02"}
            await client.request(cluster.broker_address, request_command(RequestCode.SEND_MESSAGE_V2, fields, body))

    run(cluster.namesrv_address, send_packed)
    for number, shown, why in ((0, "as it was", ""), (1, "no such stream", "The body is shown as stored: the body")):
        seen = open_page(cluster, f"#/messages?topic=PackedOrders&q=packed-{number}")
        seen.row(f"packed-{number}").get_by_role("link").first.click()
        expect(seen.page.get_by_label("Body", exact=True).last).to_have_text(shown)
        expect(seen.page.locator("main")).to_contain_text(why or "9 B")


def test_messages_are_found_by_store_time(cluster: OurCluster, delayed: SendResult, open_page: OpenPage) -> None:
    seen = open_page(cluster, f"#/messages?topic={TOPIC}")
    expect(seen.row("order-42")).to_be_visible()
    seen.page.get_by_label("Stored from").fill("2001-01-01T00:00:00")
    seen.page.get_by_label("to", exact=True).fill("2001-01-02T00:00:00")
    seen.page.get_by_role("button", name="Search").click()
    expect(seen.page.locator("main")).to_contain_text(f"No message of {TOPIC} was stored in this time range.")
    expect(seen.page.get_by_label("Stored from")).to_have_value("2001-01-01T00:00")


def test_failed_search_is_reported_with_advice(cluster: OurCluster, delayed: SendResult, open_page: OpenPage) -> None:
    seen = open_page(cluster, "#/messages?q=order-42")
    expect(seen.page.get_by_role("alert")).to_have_text("To search for a key, enter the topic, too.")
    seen.go(f"#/messages?q={'0' * 32}")
    expect(seen.page.get_by_role("alert")).to_contain_text("No message has this offset message id")
    seen.go(f"#/messages?topic={TOPIC}&q=no-such-key")
    expect(seen.page.locator("main")).to_contain_text("has the key or id “no-such-key”")


def test_markup_in_messages_is_neither_executed_nor_rendered(cluster: OurCluster, open_page: OpenPage) -> None:
    topic = "Hostile"
    key = f"<img/src=x/onerror={HACK}>"
    name, value = f'"><svg/onload={HACK}>', f"javascript:{HACK}"
    body = f"</pre><script>{HACK}</script>"
    message = Message(
        topic=topic, body=body.encode(), keys=(key,), tags=f"<b/onclick={HACK}>", properties={name: value}
    )
    run(cluster.namesrv_address, lambda client: send(client, message))
    run(cluster.namesrv_address, lambda client: send(client, message, delay="2h"))
    seen = open_page(cluster, f"#/messages?topic={topic}")
    expect(seen.row(key)).to_have_count(1)
    seen.row(key).get_by_role("link").first.click()
    expect(seen.page.get_by_label("Body", exact=True).last).to_have_text(body)
    expect(seen.row(name)).to_contain_text(value)
    seen.go(f"#/delays?topic={topic}")
    expect(seen.section("Next").get_by_role("row").filter(has_text=key)).to_be_visible()
    seen.go(f"#/topics/{HACK}%22%3E%3Cimg%20src=x%20onerror={HACK}%3E")
    expect(seen.page.get_by_role("alert")).to_be_visible()
    assert seen.page.evaluate("window.hacked") is None
    assert seen.page.locator("main img, main script, main b").count() == 0
    # Even a faulty script of the page could not: the browser's policy rejects markup from text.
    refused = "() => { try { document.body.innerHTML = '<b>x</b>'; return false } catch { return true } }"
    assert seen.page.evaluate(refused)
    seen.complaints[:] = [each for each in seen.complaints if "TrustedHTML" not in each]
