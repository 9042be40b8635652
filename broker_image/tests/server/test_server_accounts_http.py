"""/api/v1/accounts, and the metrics of accounts."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from delaymq.protocol.command import Command
from delaymq.protocol.signatures import Signer
from delaymq_testing.asked_api import Asked, asked
from delaymq_testing.running_server import run, send_command

RULES = """
defaultQuotas: {sendBytesPerSecond: 1000, maxDelayMs: 100}
accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true}
- {accessKey: tenant-a, secretKey: tenant-a-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- accessKey: tenant-b
  secretKey: tenant-b-secret
  defaultTopicPerm: PUB|SUB
  quotas: {sendBytesPerSecond: unlimited, createdTopics: 5, heldPulls: 7}
"""


@asynccontextmanager
async def metered(path: Path, **changes: Any) -> AsyncIterator[Asked]:
    rules = path / "plain_acl.yml"
    rules.write_text(RULES)
    async with asked(path, acl_enable=True, acl_config_path=str(rules), **changes) as api:
        yield api


async def send(api: Asked, key: str, body: bytes = b"x") -> Command:
    command = send_command("Orders", body)
    Signer(f"{key}-secret").sign(command, key)
    return await api.peer.connection.request(command)


async def metric(api: Asked, name: str) -> dict[tuple[str, ...], float]:
    rows = re.findall(rf"^delaymq_account_{name}{{(.*?)}} (\S+)$", await api.metrics(), re.MULTILINE)
    return {tuple(re.findall(r'"(.*?)"', labels)): float(value) for labels, value in rows}


def test_usage_and_quotas_are_listed_by_account(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with metered(tmp_path) as api:
            assert (await send(api, "tenant-b", bytes(500))).code == 0
            assert (await send(api, "tenant-a", bytes(3_000))).code == 0
            assert (await send(api, "tenant-a")).code == 2
            answer = await api.get("accounts")
            assert (answer["total"], answer["next"], answer["accessControl"]) == (3, None, True)
            assert answer["bootId"] == api.server.boot_id
            operators, first, second = answer["accounts"]
            assert (operators["admin"], operators["quotas"], operators["requests"]) == (True, [], 0)
            assert (first["account"], first["sends"], first["sendBytes"], first["maxDelayMs"]) == (
                "tenant-a",
                1,
                3_000,
                100,
            )
            assert first["eventLoopSeconds"] > 0
            (quota,) = first["quotas"]
            delayed_s = quota.pop("delayedSeconds")
            assert 0.1 <= delayed_s <= 0.2
            assert quota == {"quota": "sendBytesPerSecond", "limit": 1000, "used": None, "delays": 1, "rejected": 1}
            assert (second["connections"], first["connections"], second["createdTopics"]) == (0, 1, 1)
            assert [(each["quota"], each["limit"], each["used"]) for each in second["quotas"]] == [
                ("heldPulls", 7, 0),
                ("createdTopics", 5, 1),
            ]

    run(scenario)


def test_accounts_are_searched_and_paged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with metered(tmp_path) as api:
            first = await api.get("accounts?contains=TENANT&limit=1")
            assert ([each["account"] for each in first["accounts"]], first["total"]) == (["tenant-a"], 2)
            rest = await api.get(f"accounts?contains=tenant&limit=1&after={first['next']}")
            assert ([each["account"] for each in rest["accounts"]], rest["next"]) == (["tenant-b"], None)

    run(scenario)


def test_broker_without_access_control_lists_no_accounts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            answer = await api.get("accounts")
            assert (answer["accounts"], answer["total"], answer["accessControl"]) == ([], 0, False)
            assert await metric(api, "requests_total") == {}

    run(scenario)


def test_metrics_state_usage_and_quotas(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with metered(tmp_path) as api:
            assert (await send(api, "tenant-a", bytes(3_000))).code == 0
            assert (await send(api, "tenant-a")).code == 2
            requests = {("tenant-a", "send"): 1, ("tenant-a", "pull"): 0, ("tenant-a", "other"): 0}
            assert await metric(api, "requests_total") == requests
            assert await metric(api, "transferred_bytes_total") == {
                ("tenant-a", "sent"): 3_000,
                ("tenant-a", "pulled"): 0,
            }
            assert (await metric(api, "used"))["tenant-a", "connections"] == 1
            assert await metric(api, "quota") == {("tenant-a", "sendBytesPerSecond"): 1_000}
            assert await metric(api, "delays_total") == {("tenant-a", "sendBytesPerSecond"): 1}
            assert await metric(api, "refused_total") == {("tenant-a", "sendBytesPerSecond"): 1}
            assert (await metric(api, "delay_seconds_total"))["tenant-a", "sendBytesPerSecond"] >= 0.1
            assert (await metric(api, "event_loop_seconds_total"))[("tenant-a",)] > 0

    run(scenario)


def test_metrics_have_series_for_the_first_accounts_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with metered(tmp_path, metrics_max_topics=1) as api:
            for key in ("tenant-b", "tenant-a"):
                assert (await send(api, key)).code == 0
            assert {account for account, _ in await metric(api, "requests_total")} == {"tenant-b"}
            assert {account for account, _ in await metric(api, "quota")} == {"tenant-b"}

    run(scenario)
