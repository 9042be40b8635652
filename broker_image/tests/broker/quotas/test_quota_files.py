"""Quotas in rule files: parsing, errors, defaults, reloading and rewriting."""

from pathlib import Path

import pytest
from delaymq.access.errors import AccessError
from delaymq.access.plain_acl import parse, to_text
from delaymq.access.quotas import NAMES, UNLIMITED, Quotas
from delaymq.broker.access.rules import Rules
from delaymq.broker.quotas.usage import _CHARGED
from delaymq.namesrv.rules import parse as parse_for_namesrv

PAGE = Path(__file__).parents[4] / "docs" / "operations" / "quotas.md"
FILE = """
defaultQuotas:
  sendBytesPerSecond: 1000
  connections: 10
accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true}
- accessKey: application
  secretKey: application-secret
  quotas:
    connections: unlimited
    heldPulls: 0
    maxDelayMs: 500
- {accessKey: others-key, secretKey: others-secret}
- {accessKey: bounded-admin, secretKey: bounded-secret, admin: true, quotas: {requestsPerSecond: 5}}
"""


def rules_of(path: Path, text: str) -> Rules:
    path.write_text(text)
    return Rules(path, lambda: 0)


def reload(rules: Rules) -> None:
    task = rules.reload_task()
    task.run()
    task.finish()


def test_defaults_apply_to_accounts_without_admin(tmp_path: Path) -> None:
    rules = rules_of(tmp_path / "plain_acl.yml", FILE)
    assert {key: account.quotas for key, account in rules.accounts.items()} == {
        "operators": None,
        "application": Quotas(send_bytes_per_second=1000, connections=UNLIMITED, held_pulls=0, max_delay_ms=500),
        "others-key": Quotas(send_bytes_per_second=1000, connections=10),
        "bounded-admin": Quotas(requests_per_second=5),
    }
    quotas = rules.accounts["application"].quotas
    assert quotas is not None
    assert dict(quotas.limits()) == {"sendBytesPerSecond": 1000, "heldPulls": 0}
    assert not rules.problems


def test_defaults_apply_to_accounts_of_their_file_only(tmp_path: Path) -> None:
    (tmp_path / "acl").mkdir()
    (tmp_path / "acl" / "more.yml").write_text("accounts:\n- {accessKey: elsewhere, secretKey: elsewhere-secret}\n")
    rules = rules_of(tmp_path / "plain_acl.yml", FILE)
    assert rules.accounts["elsewhere"].quotas is None


def test_written_quotas_read_back_identically() -> None:
    file = parse(FILE, 0)
    again = parse(to_text(file), 0)
    assert [each.entry for each in again.accounts] == [each.entry for each in file.accounts]
    assert again.default_quotas == file.default_quotas


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ("sendBytes: 5", "unknown quota 'sendBytes': use sendBytesPerSecond, "),
        ("sendBytesPerSecond: 0", "sendBytesPerSecond is 0: use a whole number from 1 to "),
        ("sendBytesPerSecond: -1", "sendBytesPerSecond is -1: "),
        ("sendBytesPerSecond: 1.5", "sendBytesPerSecond is 1.5: "),
        ("sendBytesPerSecond: true", "sendBytesPerSecond is True: "),
        ("sendBytesPerSecond: '1000'", "sendBytesPerSecond is '1000': "),
        ("sendBytesPerSecond: 10M", "sendBytesPerSecond is '10M': "),
        ("sendBytesPerSecond: [1]", "sendBytesPerSecond is not a number: "),
        ("sendBytesPerSecond: 99999999999999999999", "sendBytesPerSecond is 9999"),
        ("eventLoopPercent: 101", "eventLoopPercent is 101: use a whole number from 1 to 100, or unlimited"),
        ("connections: 0", "connections is 0: use a whole number from 1 to "),
        ("maxDelayMs: unlimited", "maxDelayMs is 'unlimited': use a whole number from 10 to 10000"),
        ("maxDelayMs: 5", "maxDelayMs is 5: "),
    ],
)
def test_invalid_quotas_are_errors_that_say_what_to_use(stated: str, problem: str) -> None:
    account = "accounts:\n- {accessKey: application, secretKey: application-secret, quotas: {%s}}\n"
    with pytest.raises(AccessError) as of_account:
        parse(account % stated, 0)
    assert str(of_account.value).startswith("account application: quotas: " + problem)
    with pytest.raises(AccessError) as of_file:
        parse(f"defaultQuotas: {{{stated}}}\naccounts: []\n", 0)
    assert str(of_file.value).startswith("defaultQuotas: " + problem)


@pytest.mark.parametrize("stated", ["5", "[connections]", "unlimited"])
def test_quotas_that_are_no_mapping_are_errors(stated: str) -> None:
    with pytest.raises(AccessError, match="defaultQuotas: use one `QUOTA: NUMBER` per line below it"):
        parse(f"defaultQuotas: {stated}\naccounts: []\n", 0)


def test_reload_with_an_invalid_quota_keeps_the_rules_in_force(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    rules = rules_of(path, FILE)
    before = dict(rules.accounts)
    path.write_text(FILE.replace("connections: 10", "connection: 10") + "\n")
    reload(rules)
    assert dict(rules.accounts) == before
    assert [each for each in rules.problems if "unknown quota 'connection'" in each]
    path.write_text(FILE.replace("connections: 10", "connections: 12") + "\n")
    reload(rules)
    assert rules.problems == []
    assert rules.accounts["others-key"].quotas == Quotas(send_bytes_per_second=1000, connections=12)


def test_change_of_defaults_alone_takes_effect(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    rules = rules_of(path, FILE)
    path.write_text(FILE.partition("accounts:")[1] + FILE.partition("accounts:")[2])
    reload(rules)
    assert rules.accounts["others-key"].quotas is None


def test_name_servers_accept_rule_files_with_quotas() -> None:
    assert [each.entry.access_key for each in parse_for_namesrv(FILE, 0).accounts][:2] == ["operators", "application"]


def test_every_rate_is_charged_by_a_request() -> None:
    charged = {quota for charges in _CHARGED.values() for quota, _ in charges}
    assert charged == {key for key in NAMES if key.endswith(("PerSecond", "Percent"))}


def test_page_lists_every_quota() -> None:
    assert all(f"| `{key}` |" in PAGE.read_text() for key in NAMES)
