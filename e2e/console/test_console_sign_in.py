"""Sign-in on the console: the form, the account in the header, ended sessions, and controls by role."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest
from console.conftest import NewCluster, OpenPage
from console.watched import Watched
from delaymq_testing.accounts.http_accounts import RULES, SECRETS
from harness.brokers import BROKER_NAME, OurCluster
from playwright.sync_api import expect

TOKEN = "t0ken"
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def guarded(new_cluster: NewCluster) -> OurCluster:
    """Provide a broker with accounts, and a pending message for each tenant."""
    cluster = new_cluster(rules=RULES, httpToken=TOKEN, autoCreateTopicEnable="true")
    for topic in ("TopicA", "TopicB"):
        body = {"body": "x", "keys": ["order-1"], "delayMs": 3_600_000}
        request(cluster, f"topics/{topic}/messages", body)
    return cluster


def request(cluster: OurCluster, path: str, body: object) -> None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    url = f"http://{cluster.http_address}/api/v1/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=TIMEOUT_S):
        pass


def enter(seen: Watched, account: str, secret_key: str) -> None:
    seen.page.get_by_label("Access key").fill(account)
    seen.page.get_by_label("Secret key").fill(secret_key)
    seen.page.get_by_role("button", name="Sign in").click()


def test_account_signs_in_and_out(guarded: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(guarded, "#/topics")
    expect(seen.page.get_by_label("Access key")).to_be_focused()
    assert seen.nameless() == []
    enter(seen, "operator", "wrong-secret")
    expect(seen.page.get_by_role("alert")).to_contain_text("the access key or the secret key is wrong")
    expect(seen.page.get_by_label("Secret key")).to_have_value("")
    enter(seen, "operator", SECRETS["operator"])
    expect(seen.page.locator("#whoami")).to_contain_text("operator (operate)")
    expect(seen.page.locator("#whoami")).to_contain_text(BROKER_NAME)
    expect(seen.page.locator("main")).to_contain_text("TopicB")
    expect(seen.page.locator("#notices")).to_be_empty()
    # Scripts cannot read the session.
    assert seen.page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert seen.nameless() == []
    seen.page.reload()
    expect(seen.page.locator("#whoami")).to_contain_text("operator (operate)")
    seen.page.get_by_role("button", name="Sign out").click()
    expect(seen.page.locator("#notices")).to_contain_text("You have signed out")
    expect(seen.page.locator("main")).to_have_text("Sign in")
    seen.page.reload()
    expect(seen.page.get_by_label("Access key")).to_be_visible()


def test_token_can_be_used_instead(guarded: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(guarded, "#/topics")
    seen.page.get_by_role("button", name="Use the token instead").click()
    seen.page.get_by_label("Token").fill(TOKEN)
    seen.page.get_by_role("button", name="Use token").click()
    expect(seen.page.locator("main")).to_contain_text("TopicB")
    seen.page.get_by_role("button", name="Forget token").click()
    expect(seen.page.get_by_label("Access key")).to_be_visible()


def test_ended_session_leads_back_to_the_form_and_hides_what_was_shown(
    guarded: OurCluster, open_page: OpenPage
) -> None:
    seen = open_page(guarded, "#/topics", ("operator", SECRETS["operator"]))
    expect(seen.page.locator("main")).to_contain_text("TopicB")
    origin = {"Origin": seen.origin}
    assert seen.page.context.request.delete(f"{seen.origin}/api/v1/session", headers=origin).ok
    seen.page.get_by_role("link", name="Groups", exact=True).click()
    expect(seen.page.get_by_label("Access key")).to_be_visible()
    expect(seen.page.locator("main")).not_to_contain_text("TopicB")
    enter(seen, "reader-1", SECRETS["reader-1"])
    expect(seen.page.locator("#whoami")).to_contain_text("reader-1 (read)")


def test_controls_depend_on_the_role(guarded: OurCluster, open_page: OpenPage) -> None:
    for account, screens, has_buttons in (
        ("reader-1", ["Overview", "Topics", "Groups", "Delays", "Messages", "Dead letters"], False),
        ("operator", ["Overview", "Topics", "Groups", "Delays", "Messages", "Dead letters"], True),
        ("manager", ["Overview", "Topics", "Groups", "Delays", "Messages", "Dead letters", "Accounts", "Audit"], True),
    ):
        seen = open_page(guarded, "#/delays?topic=TopicA", (account, SECRETS[account]))
        expect(seen.page.locator("#whoami")).to_contain_text(account)
        expect(seen.page.locator("#screens a:visible")).to_have_text(screens)
        expect(seen.section("Groups")).to_be_visible()
        pause = seen.page.get_by_role("button", name=re.compile("Pause topic TopicA"))
        expect(pause).to_have_count(1 if has_buttons else 0)


def test_tenant_sees_only_its_topics_and_may_change_its_messages(guarded: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(guarded, "", ("tenant-a", SECRETS["tenant-a"]))
    expect(seen.page.locator("#whoami")).to_contain_text("tenant-a")
    expect(seen.page.locator("#screens a:visible")).to_have_text(["Topics", "Groups", "Messages", "Dead letters"])
    expect(seen.page.locator("main")).to_contain_text("TopicA")
    expect(seen.page.locator("main")).not_to_contain_text("TopicB")
    seen.go("#/messages?topic=TopicA&q=order-1")
    seen.page.locator("main table a").first.click()
    expect(seen.page.get_by_role("button", name="Cancel …")).to_be_visible()
    seen.go("#/messages?topic=TopicB&q=order-1")
    expect(seen.page.get_by_role("alert")).to_contain_text("has neither SUB of topic TopicB")
