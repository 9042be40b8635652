"""Connection of the page to its broker: a token, an unavailable broker, closed screens, an empty store."""

import gzip
import urllib.error
import urllib.request
from http.client import HTTPResponse

import pytest
from console.conftest import NewCluster, OpenPage
from delaymq.server.console.pages import STATIC_PATH
from harness.brokers import BROKER_NAME, OurCluster
from playwright.sync_api import Route, expect

TOKEN = "s3cret token"
MAX_PAGE_BYTES = 152 * 1024
TIMEOUT_S = 60


def test_token_is_sent_while_the_tab_is_open(new_cluster: NewCluster, open_page: OpenPage) -> None:
    seen = open_page(new_cluster(httpToken=TOKEN), "#/topics")
    field = seen.page.get_by_label("Token")
    expect(field).to_be_focused()
    expect(seen.page.locator("#notices")).to_contain_text("This broker requires its token")
    field.fill("wrong")
    field.press("Enter")
    expect(seen.page.locator("#notices")).to_contain_text("rejected this token")
    seen.page.get_by_label("Token").fill(TOKEN)
    seen.page.get_by_role("button", name="Use token").click()
    expect(seen.page.locator("main")).to_contain_text("There are no topics")
    expect(seen.page.locator("#whoami")).to_contain_text(BROKER_NAME)
    expect(seen.page.locator("#notices")).to_be_empty()
    assert seen.page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    seen.page.reload()
    expect(seen.page.locator("main")).to_contain_text("There are no topics")
    seen.page.get_by_role("button", name="Forget token").click()
    expect(seen.page.get_by_label("Token")).to_be_visible()


def test_killed_broker_is_reported_as_unavailable_and_its_restart_is_reported(
    new_cluster: NewCluster, open_page: OpenPage
) -> None:
    cluster = new_cluster()
    seen = open_page(cluster)
    expect(seen.section("Brokers")).to_contain_text(BROKER_NAME)
    cluster.kill()
    expect(seen.page.get_by_role("status")).to_contain_text("The broker has not responded since")
    expect(seen.section("Brokers")).to_contain_text(BROKER_NAME)
    cluster.start()
    expect(seen.page.get_by_role("status")).to_contain_text("The broker was restarted and has been responding")
    seen.page.get_by_role("link", name="Topics", exact=True).click()
    expect(seen.page.locator("main")).to_contain_text("There are no topics")
    seen.page.get_by_role("button", name="Dismiss").click()
    expect(seen.page.get_by_role("status")).to_be_empty()


def test_each_screen_of_an_empty_broker_explains_how_to_start(new_cluster: NewCluster, open_page: OpenPage) -> None:
    seen = open_page(new_cluster(), "#/nowhere")
    seen.page.route("**/api/v1/totals", lambda route: quiet_machine(route))
    seen.go("#/")
    expect(seen.page.locator(".state")).to_have_text("No problems found.")
    for place, sentence in {
        "#/topics": 'delaymq send Orders "hello later" --delay 5s',
        "#/groups": "delaymq receive Orders",
        "#/delays": "There are no pending messages",
        "#/messages": "Enter a topic",
        "#/deadletters": "There are no dead letters",
    }.items():
        seen.go(place)
        expect(seen.page.locator("main")).to_contain_text(sentence)
        assert seen.nameless() == [], place


def test_leaving_a_screen_cancels_its_requests(cluster: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(cluster)
    expect(seen.section("Brokers")).to_contain_text(BROKER_NAME)
    held: list[Route] = []
    seen.page.route("**/api/v1/topics?*", lambda route: held.append(route))
    failed: list[str] = []
    seen.page.on("requestfailed", lambda request: failed.append(request.url))
    with seen.page.expect_request("**/api/v1/topics?*"):
        seen.page.get_by_role("link", name="Topics", exact=True).click()
    with seen.page.expect_event("requestfailed"):
        seen.page.get_by_role("link", name="Groups", exact=True).click()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Groups")
    assert any("/api/v1/topics" in url for url in failed)


def test_page_is_small_served_without_token_and_cached_by_etag(new_cluster: NewCluster) -> None:
    cluster = new_cluster(httpToken=TOKEN)
    total = 0
    for path in ["/", *(f"/console/{each.name}" for each in STATIC_PATH.iterdir() if each.suffix != ".html")]:
        answer = fetch(cluster, path)
        body = answer.read()
        total += len(body)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        with pytest.raises(urllib.error.HTTPError) as kept:
            fetch(cluster, path, {"If-None-Match": answer.headers["ETag"]})
        assert kept.value.code == 304
    assert total < MAX_PAGE_BYTES
    packed = fetch(cluster, "/console/main.js", {"Accept-Encoding": "gzip"})
    assert gzip.decompress(packed.read()) == (STATIC_PATH / "main.js").read_bytes()


@pytest.mark.parametrize(
    "path", ["/console/pages.py", "/console/..%2fpages.py", "/console/", "/console/%2e%2e/pages.py"]
)
def test_only_files_of_the_page_are_served(cluster: OurCluster, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(cluster, path)
    assert refused.value.code == 404


def test_disk_nearly_full_is_reported_before_sends_are_rejected(cluster: OurCluster, open_page: OpenPage) -> None:
    seen = open_page(cluster, "#/nowhere")
    seen.page.route("**/api/v1/totals", lambda route: quiet_machine(route, disk_used=0.93))
    seen.go("#/")
    expect(seen.page.get_by_role("list", name="Needs attention")).to_contain_text("The disk is 93 % full")


def quiet_machine(route: Route, disk_used: float = 0.5) -> None:
    """Fulfil the request with the broker's response, but with constant figures of the machine."""
    answer = route.fetch()
    totals = answer.json()
    totals["disk"]["usedRatio"] = disk_used
    route.fulfill(response=answer, json={**totals, "eventLoopLagMs": 0})


def fetch(cluster: OurCluster, path: str, headers: dict[str, str] | None = None) -> HTTPResponse:
    request = urllib.request.Request(f"http://{cluster.http_address}{path}", headers=headers or {})
    answer = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    assert isinstance(answer, HTTPResponse)
    return answer
