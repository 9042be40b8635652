"""Dead letters that a user resends to their group."""

from console.conftest import OpenPage
from console.content import consume, kill_letters, run, send
from delaymq.client import Client, Message
from harness.brokers import OurCluster
from playwright.sync_api import expect

TOPIC, GROUP = "DeadOrders", "dead-mailer"


def test_dead_letter_is_resent_and_its_group_receives_it_again(cluster: OurCluster, open_page: OpenPage) -> None:
    async def die(client: Client) -> None:
        await send(client, *(Message(topic=TOPIC, body=b"{}", keys=(f"letter-{at}",)) for at in range(3)))
        await kill_letters(client, GROUP, TOPIC, {"letter-1", "letter-2"})

    run(cluster.namesrv_address, die)
    seen = open_page(cluster, "#/deadletters")
    expect(seen.row(GROUP).get_by_role("cell").nth(1)).to_have_text("2")
    seen.page.get_by_role("link", name=GROUP).click()
    expect(seen.page.get_by_role("button", name="Resend …")).to_be_disabled()
    expect(seen.row("letter-2")).to_contain_text(TOPIC)

    seen.page.get_by_role("checkbox", name="select letter-2").check()
    seen.page.get_by_role("button", name="Resend 1 …").click()
    dialog = seen.page.get_by_role("dialog", name=f"Resend 1 message to {GROUP}?")
    assert seen.nameless() == []
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    expect(seen.section("Resent now")).to_have_count(0)

    seen.page.get_by_role("button", name="Resend 1 …").click()
    dialog.get_by_role("button", name="Resend", exact=True).click()
    expect(seen.page.get_by_role("status", name="Resent now")).to_contain_text(
        "1 of 1 message sent to the group's retry topic"
    )
    expect(seen.row("letter-2").get_by_role("cell").last).to_contain_text("resent")
    expect(seen.row("letter-1").get_by_role("cell").last).to_have_text("no")

    got = run(cluster.namesrv_address, lambda client: consume(client, GROUP, TOPIC, 1))
    assert [message.keys for message in got] == [("letter-2",)]

    seen.page.reload()
    expect(seen.row("letter-2").get_by_role("cell").last).to_contain_text("resent")
    seen.page.get_by_role("checkbox", name="select all").check()
    seen.page.get_by_role("button", name="Resend 2 …").click()
    expect(seen.page.get_by_role("dialog")).to_contain_text("1 message of these was resent before")
    seen.page.get_by_role("button", name="Resend again").click()
    expect(seen.page.get_by_role("status", name="Resent now")).to_contain_text("2 of 2 messages")
    got = run(cluster.namesrv_address, lambda client: consume(client, GROUP, TOPIC, 2))
    assert sorted(message.keys for message in got) == [("letter-1",), ("letter-2",)]
