"""Accounts on the console: their usage, their quotas, and what exceeded them."""

import re

import pytest
from console.conftest import NewCluster, OpenPage
from console.content import run
from delaymq.client import Client, ClientOptions, Credentials, Message, Producer
from harness.brokers import OurCluster
from playwright.sync_api import expect

OPERATORS = ("operators", "operators-secret")
RULES = """
accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true}
- accessKey: web-shop
  secretKey: web-shop-secret
  defaultTopicPerm: PUB
  quotas: {sendRequestsPerSecond: 10, createdTopics: 5}
"""


@pytest.fixture(scope="module")
def limited(new_cluster: NewCluster) -> OurCluster:
    """Provide a broker with an account that has exceeded a quota."""
    cluster = new_cluster(rules=RULES, autoCreateTopicEnable="true")

    async def fill(client: Client) -> None:
        async with Producer(client, "shop") as producer:
            for _ in range(15):
                await producer.send(Message(topic="Carts", body=b"x"))

    run(cluster.namesrv_address, fill, ClientOptions(credentials=Credentials("web-shop", "web-shop-secret")))
    return cluster


def test_accounts_are_shown_with_their_quotas(limited: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(limited, "#/accounts", OPERATORS)
    usage = seen.page.get_by_role("group", name="Usage of accounts")
    expect(usage.get_by_role("row", name=re.compile("web-shop"))).to_contain_text("web-shop")
    expect(usage.get_by_role("row", name=re.compile("operators"))).to_contain_text("administrator")
    quotas = seen.page.get_by_role("group", name="Quotas of accounts")
    rate = quotas.get_by_role("row", name=re.compile("sendRequestsPerSecond"))
    expect(rate).to_contain_text("10")
    expect(rate.get_by_role("img")).to_have_attribute("aria-label", "0 % of sendRequestsPerSecond")
    topics = quotas.get_by_role("row", name=re.compile("createdTopics"))
    expect(topics.get_by_role("img")).to_have_attribute("aria-label", "20 % of createdTopics")


def test_accounts_are_searched(limited: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(limited, "#/accounts?contains=oper", OPERATORS)
    usage = seen.page.get_by_role("group", name="Usage of accounts")
    expect(usage.get_by_role("row", name=re.compile("operators"))).to_be_visible()
    expect(usage.get_by_role("row", name=re.compile("web-shop"))).to_have_count(0)
    expect(seen.page.get_by_text("No quota limits these accounts.")).to_be_visible()


def test_broker_without_access_control_says_how_to_enable_it(new_cluster: NewCluster, open_page: OpenPage) -> None:
    seen = open_page(new_cluster(), "#/accounts")
    expect(seen.page.get_by_text("This broker has no accounts, because access control is off.")).to_be_visible()
