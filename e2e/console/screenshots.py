"""Generates the pictures in docs/images/console-*.png, from a broker with a small shop's messages.

    make screenshots

It takes about two minutes, mostly to give rates and pending messages some history.
"""

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from console import chromium
from console.content import Member, consume, kill_letters, run, send
from console.watched import Watched
from delaymq.client import (
    Admin,
    Client,
    ClientError,
    ClientOptions,
    Credentials,
    GroupConfig,
    Message,
    Producer,
    SendResult,
)
from harness.brokers import OurCluster
from msgspec.structs import replace
from playwright.sync_api import Browser, ViewportSize, sync_playwright

IMAGES_PATH = Path(__file__).resolve().parents[2] / "docs" / "images"
MAX_IMAGE_BYTES = 150_000
HISTORY_S = 90
SLOW_S = 2.0
"""Processing time of a handler that makes its group fall behind."""
SETTLE_MS = 4_000
WIDE: ViewportSize = {"width": 1280, "height": 860}
NARROW: ViewportSize = {"width": 390, "height": 844}
LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's table."""
DELAYS = (*("1m", "2m", "3m", "5m") * 3, "5s", "30s", "4m", "6m", "7m", "8m", "9m", "10m", "20m", "30m", "1h", "2h")
"""Delays of the reminders, most of which are due within ten minutes."""
PLANNED = {"Renewals": 15_000, "Reminders": 8_000, "Surveys": 2_000}
"""Messages for the forecast, by topic."""
ADMINISTRATOR = "dana.berg"
RULES = """
accounts:
- {accessKey: dana.berg, secretKey: dana.berg-secret, admin: true}
- accessKey: web-shop
  secretKey: web-shop-secret
  topicPerms: [Carts=PUB]
  quotas: {sendRequestsPerSecond: 20, sendBytesPerSecond: 100000, connections: 10}
- accessKey: warehouse
  secretKey: warehouse-secret
  role: read
  topicPerms: [Parcels=PUB|SUB]
  quotas: {connections: 5}
- accessKey: billing
  secretKey: billing-secret
  role: operate
  topicPerms: [Invoices=PUB|SUB]
  quotas: {sendRequestsPerSecond: 50, createdGroups: 10}
"""
TOPIC_OF = {"web-shop": "Carts", "warehouse": "Parcels", "billing": "Invoices"}
RATES = {"web-shop": 30, "warehouse": 8, "billing": 12}
"""Messages per second of the accounts; the first one exceeds its quota."""
TENANTS_S = 15
AT_ONCE = 100
MEAN_DELAY_DAYS = 6


@dataclass
class Picture:
    """One of the pictures."""

    name: str
    place: str
    scheme: str = "light"
    viewport: ViewportSize = field(default_factory=lambda: WIDE)


def main() -> None:
    path = chromium.prepare()
    cluster = OurCluster(config={"messageDelayLevel": LEVELS, "brokerName": "broker-a"})
    with cluster, traffic(cluster) as order, sync_playwright() as playwright:
        address = cluster.namesrv_address
        run(address, fill)
        browser = playwright.chromium.launch(executable_path=path, args=chromium.options())
        overview = browser.new_page(viewport=WIDE)
        overview.goto(f"http://{cluster.http_address}/")
        with Member(address, "shipping", "Orders", pause_s=SLOW_S), Member(address, "payments", "UnpaidOrders"):
            overview.wait_for_timeout(HISTORY_S * 1000)
            overview.screenshot(path=IMAGES_PATH / "console-overview.png")
            for picture in pictures(order):
                take(browser, cluster, picture)
            run(address, plan)
            take(browser, cluster, Picture("forecast", "#/delays/forecast"))
        take_guarded(browser)
        browser.close()


def take_guarded(browser: Browser) -> None:
    """Take the pictures of a broker with access control."""
    cluster = OurCluster(config={"brokerName": "broker-a", "autoCreateTopicEnable": "true"}, rules=RULES)
    with cluster:
        address = cluster.namesrv_address
        run(address, administer, account(ADMINISTRATOR))
        run(address, attempt, account("web-shop"))
        with ThreadPoolExecutor(len(RATES)) as tenants:
            sending = [tenants.submit(run, address, partial(sell, name), account(name)) for name in RATES]
            for picture in (Picture("accounts", "#/accounts"), Picture("audit", "#/audit")):
                take(browser, cluster, picture, ADMINISTRATOR)
            for each in sending:
                each.result()


def account(name: str) -> ClientOptions:
    return ClientOptions(credentials=Credentials(name, secret_of(name)))


def secret_of(name: str) -> str:
    return f"{name}-secret"


async def administer(client: Client) -> None:
    """Change topics, a group, a setting and the rules as an administrator."""
    admin = Admin(client)
    for topic in ("Carts", "Parcels", "Invoices", "Drafts"):
        await admin.create_topic(topic)
    [address] = (await admin.masters()).values()
    await admin.put_group(GroupConfig(group="shipping"))
    await admin.update_broker_config(address, {"fileReservedTime": "96"})
    await admin.put_account(address, "warehouse", admin=None, quotas={"sendRequestsPerSecond": "40"})
    await admin.delete_topic("Drafts")
    async with Producer(client, "operations") as producer:
        await producer.pause("Invoices")


async def attempt(client: Client) -> None:
    """Attempt changes for which the account has no permission."""
    for change in (Admin(client).delete_topic("Invoices"), Admin(client).create_topic("Promotions")):
        with suppress(ClientError):
            await change


async def sell(name: str, client: Client) -> None:
    """Send at a constant rate, unless a quota delays it."""
    async with Producer(client, f"{name}-producer") as producer:
        ends = time.monotonic() + TENANTS_S
        while time.monotonic() < ends:
            began = time.monotonic()
            await producer.send(Message(topic=TOPIC_OF[name], body=bytes(500)))
            await asyncio.sleep(max(1 / RATES[name] - (time.monotonic() - began), 0))


def pictures(order: list[SendResult]) -> list[Picture]:
    return [
        Picture("delays", "#/delays?window=10%20min"),
        Picture("delays-dark", "#/delays?window=10%20min", scheme="dark"),
        Picture("delays-narrow", "#/delays?window=10%20min", viewport=NARROW),
        Picture("topics", "#/topics", scheme="dark"),
        Picture("group", "#/groups/shipping"),
        Picture("message", f"#/messages/{order[0].offset_message_id}"),
        Picture("deadletters", "#/deadletters/mailer"),
        Picture("overview-narrow", "#/", scheme="dark", viewport=NARROW),
    ]


def take(browser: Browser, cluster: OurCluster, picture: Picture, signed_in: str = "") -> None:
    """Take a picture, with the session of an account if one is given."""
    seen = Watched(browser, f"http://{cluster.http_address}", viewport=picture.viewport, color_scheme=picture.scheme)
    if signed_in:
        seen.sign_in(signed_in, secret_of(signed_in))
    seen.go(picture.place)
    page = seen.page
    page.wait_for_timeout(SETTLE_MS)
    if picture.name == "deadletters":
        for box in page.get_by_role("checkbox").all()[1:4]:
            box.check()
        page.get_by_role("button", name="Resend").click()
        page.get_by_role("button", name="Resend", exact=True).click()
        page.wait_for_timeout(SETTLE_MS)
    path = IMAGES_PATH / f"console-{picture.name}.png"
    page.screenshot(path=path)
    seen.close()
    if path.stat().st_size > MAX_IMAGE_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes (limit: {MAX_IMAGE_BYTES}): show less in it")


async def fill(client: Client) -> None:
    """Create consumed orders, dead letters, and a group that falls behind."""
    await send(client, *(Message(topic="Orders", body=b"{}", keys=(f"order-{at}",)) for at in range(900, 960)))
    await consume(client, "shipping", "Orders", 40)
    await send(client, *(Message(topic="Invoices", body=invoice(at), keys=(f"invoice-{at}",)) for at in range(40)))
    await kill_letters(client, "mailer", "Invoices", {f"invoice-{at}" for at in range(0, 40, 4)})
    await consume(client, "bookkeeping", "Invoices", 40)
    await send(client, *(Message(topic="Invoices", body=invoice(at), keys=(f"invoice-{at}",)) for at in range(40, 75)))


async def plan(client: Client) -> None:
    """Add reminders for the next weeks, fewer for later days, and most in the middle of a day from now."""
    chance = random.Random(11)
    async with Producer(client, "planner") as producer:
        for topic, messages in PLANNED.items():
            for _ in range(messages // AT_ONCE):
                delays = [
                    timedelta(days=int(chance.expovariate(1 / MEAN_DELAY_DAYS)), hours=1 + chance.gauss(12, 5) % 23)
                    for _ in range(AT_ONCE)
                ]
                await asyncio.gather(
                    *(producer.schedule(Message(topic=topic, body=b"{}"), after=after) for after in delays)
                )


def invoice(number: int) -> bytes:
    return json.dumps({"invoice": number, "customer": f"C-{number * 37 % 1000}", "total": number * 12.5}).encode()


def level_of(delay: str) -> int:
    return LEVELS.split().index(delay) + 1


@contextmanager
def traffic(cluster: OurCluster) -> Iterator[list[SendResult]]:
    """Run a shop in its own thread: orders, and delayed reminders of unpaid ones; yield the first reminder."""
    first: list[SendResult] = []
    ending = threading.Event()

    async def trade() -> None:
        chance = random.Random(7)
        async with Client(cluster.namesrv_address) as client, Producer(client, "shop-front") as producer:
            body = json.dumps({"order": 1000, "paid": False, "items": [{"sku": "A-17", "count": 2}]}).encode()
            sent = Message(topic="UnpaidOrders", body=body, keys=("order-1000",), tags="unpaid")
            first.append(await producer.send(replace(sent, delay_level=level_of("5s"))))
            for number in range(1001, 1_000_000):
                if ending.is_set():
                    return
                key = f"order-{number}"
                await producer.send(Message(topic="Orders", body=body, keys=(key,), tags="created"))
                for topic in ("UnpaidOrders", "Reminders", "Carts")[: chance.randint(0, 3)]:
                    level = level_of(chance.choice(DELAYS))
                    await producer.send(Message(topic=topic, body=body, keys=(key,), delay_level=level))
                await asyncio.sleep(0.02 + 0.06 * (1 + (number // 150) % 3) * chance.random())

    thread = threading.Thread(target=lambda: asyncio.run(trade()))
    thread.start()
    began = time.monotonic()
    while not first and thread.is_alive() and time.monotonic() - began < 60:
        time.sleep(0.02)
    try:
        yield first
    finally:
        ending.set()
        thread.join()


if __name__ == "__main__":
    main()
