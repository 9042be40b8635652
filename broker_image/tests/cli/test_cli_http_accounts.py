"""Commands that sign in to the HTTP API with the account that signs their other requests."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaymq.cli.commands.store.remote_source import RemoteSource
from delaymq.cli.errors import CommandError
from delaymq.cli.target.accounts import SigningAccount
from delaymq.cli.target.contexts import Target, target
from delaymq.cli.target.every_broker import brokers_at
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.target.http_sessions import sign_out_all
from delaymq_testing.accounts.http_accounts import SECRETS, TOKEN, GuardedBroker, bearer
from delaymq_testing.cli_running import Done, called
from delaymq_testing.running_server import run


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    made = GuardedBroker(tmp_path_factory.mktemp("broker"))
    with made.running():
        for topic in ("TopicA", "TopicB"):
            body = {"body": "x", "delayMs": 3_600_000}
            assert made.ask("POST", f"/api/v1/topics/{topic}/messages", body, **bearer(TOKEN)).status == 200
        yield made


def variables(broker: GuardedBroker, account: str, **more: str) -> dict[str, str]:
    keys = {"DELAYMQ_ACCESS_KEY": account, "DELAYMQ_SECRET_KEY": SECRETS[account]}
    return {**broker.environment, **keys, **more}


def as_account(broker: GuardedBroker, account: str, *words: str, **more: str) -> Done:
    return called(*words, environment=variables(broker, account, **more))


def test_command_signs_in_and_out(broker: GuardedBroker) -> None:
    done = as_account(broker, "reader-1", "delay", "status", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["levels"]
    manager = broker.as_account("manager")
    lines = broker.ask("GET", "/api/v1/audit?account=reader-1", **manager).json["lines"]
    assert [each["action"] for each in lines[:2]] == ["session.sign-out", "session.sign-in"]


def test_role_decides_what_a_command_may_do(broker: GuardedBroker) -> None:
    for account, code in (("reader-1", 1), ("operator", 0)):
        done = as_account(broker, account, "delay", "pause")
        assert done.code == code, done.err
        if code:
            assert f"account {account} lacks the role operate" in done.err
            assert "httpToken" not in done.err
    assert as_account(broker, "operator", "delay", "resume").code == 0
    refused = as_account(broker, "operator", "audit")
    assert refused.code == 3
    assert "lacks the role administer" in refused.err
    assert as_account(broker, "admin-1", "audit").code == 0


def test_backup_signs_in_and_continues_when_its_session_ends(
    broker: GuardedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    read = RemoteSource.read

    def read_without_session(source: RemoteSource, base: int, position: int, count: int) -> bytes:
        if not ended:
            ended.append(source._client.client.request("DELETE", "/api/v1/session").status)
        return read(source, base, position, count)

    monkeypatch.setattr(RemoteSource, "read", read_without_session)
    url = f"http://127.0.0.1:{broker.http_port}"
    words = ("store", "backup", url, str(tmp_path / "backup"))
    done = as_account(broker, "manager", *words)
    assert done.code == 0, done.err
    assert ended == [200]
    assert called("store", "verify", str(tmp_path / "backup")).code == 0
    refused = as_account(broker, "operator", "store", "backup", url, str(tmp_path / "other"))
    assert refused.code != 0
    assert "account operator lacks the role administer" in refused.err
    unknown = called(*words, environment=broker.environment)
    assert "returned 401" in unknown.err
    assert "DELAYMQ_ACCESS_KEY" in unknown.err


def test_tenant_sees_its_own_messages_of_all_brokers(broker: GuardedBroker) -> None:
    done = as_account(broker, "tenant-a", "delay", "forecast", "--json")
    assert done.code == 0, done.err
    assert "TopicA" in done.out
    assert "TopicB" not in done.out


def test_account_that_cannot_sign_in_gets_the_reason_and_the_token_is_used_instead(broker: GuardedBroker) -> None:
    wrong = {"DELAYMQ_SECRET_KEY": "wrong-secret"}
    done = as_account(broker, "reader-1", "delay", "status", **wrong)
    assert done.code == 1
    assert "refused to sign in account reader-1: the access key or the secret key is wrong" in done.err
    assert "wrong-secret" not in done.err
    assert as_account(broker, "reader-1", "delay", "status", **wrong, DELAYMQ_HTTP_TOKEN=TOKEN).code == 0
    done = called("delay", "status", environment=broker.environment)
    assert done.code == 1
    assert "--access-key KEY" in done.err
    assert "--token-file" in done.err


def test_broker_without_accounts_gets_the_token(tmp_path: Path) -> None:
    broker = GuardedBroker(tmp_path)
    broker.config_path.write_text(broker.config_path.read_text().replace("aclEnable=true", "aclEnable=false"))
    with broker.running():
        assert as_account(broker, "reader-1", "delay", "status", DELAYMQ_HTTP_TOKEN=TOKEN).code == 0
        done = as_account(broker, "reader-1", "delay", "status")
        assert done.code == 1
        assert "--token-file" in done.err


def test_ended_session_is_begun_again(broker: GuardedBroker) -> None:
    where = target(environment=variables(broker, "reader-1"))
    api = HttpApi(where)
    assert api.get("totals")["pending"] >= 2
    sign_out_all()
    assert api.get("totals")["pending"] >= 2
    sign_out_all()


class Listener:
    """A server that refuses everything, and keeps what it receives."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.received: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        body = b'{"error":{"code":"sign_in_needed","message":"no"}}'
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                self.received.append(connection.recv(65_536))
                head = f"HTTP/1.1 401 Unauthorized\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                connection.sendall(head.encode() + body)


def test_secret_key_is_not_sent_in_plaintext_to_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    account = SigningAccount("reader-1", "reader-1-secret")
    listener = Listener()
    # A name that is not known to be this machine's.
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", listener.port))],
    )
    where = Target("", f"http://broker.example:{listener.port}", "", "", http_account=account)
    with pytest.raises(CommandError, match="would be sent in plaintext"):
        HttpApi(where).get("totals")
    assert len(listener.received) == 1
    monkeypatch.setenv("DELAYMQ_HTTP_PLAIN_SIGN_IN", "true")
    with pytest.raises(CommandError, match="refused to sign in"):
        HttpApi(where).get("totals")
    assert len(listener.received) == 3
    listener.socket.close()


def test_secret_key_of_a_context_is_sent_to_its_address_only(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("reader-1-secret\n")
    file = tmp_path / "contexts.toml"
    file.write_text(
        '[contexts.dev]\nhttp = "http://127.0.0.1:1"\naccess-key = "reader-1"\n' + f'secret-key-file = "{secret}"\n'
    )
    known = {"DELAYMQ_CONFIG": str(file)}
    assert target(context="dev", environment=known).http_account is not None
    assert target(context="dev", http="http://127.0.0.1:1", environment=known).http_account is not None
    elsewhere = target(context="dev", http="http://127.0.0.1:2", environment=known)
    assert elsewhere.http_account is None
    assert elsewhere.account is not None
    own = {"DELAYMQ_ACCESS_KEY": "reader-1", "DELAYMQ_SECRET_KEY": "reader-1-secret"}
    assert target(http="http://127.0.0.1:2", environment={**known, **own}).http_account is not None


def test_broker_is_identified_by_an_account_without_a_role(broker: GuardedBroker) -> None:
    async def scenario() -> None:
        found = await brokers_at(target(environment=variables(broker, "tenant-a")))
        assert [name for name, _ in found] == ["broker-a"]

    run(scenario)
    sign_out_all()
