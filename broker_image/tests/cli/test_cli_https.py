"""Commands against brokers that serve only HTTPS, one and several, and their errors."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaymq_testing.certificates import Authority
from delaymq_testing.cli_running import SMALL, Standalone, called, command
from harness.ports import free_broker_port

HOST = "127.0.0.1"
TOKEN = "t0ken"


class Secure(Standalone):
    """Only TLS on all ports."""

    scheme = "https"

    def __init__(self, folder: Path, authority: Authority, name: str = HOST, groups: int = 1) -> None:
        pair = authority.issue(name, file=folder.name)
        super().__init__(
            folder,
            f"{SMALL}httpTls=true\nhttpToken={TOKEN}\ntls.server.mode=enforcing\n"
            f"tls.server.certPath={pair.certificate}\ntls.server.keyPath={pair.key}\n"
            f"tls.client.authServer=true\ntls.client.trustCertPath={authority.certificate}\n",
        )
        self.groups = groups
        self.listen_port = free_broker_port(groups)

    @property
    def arguments(self) -> list[str]:
        return [*super().arguments, "--groups", str(self.groups)]

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "DELAYMQ_HTTP_TOKEN": TOKEN}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    broker = Secure(tmp_path_factory.mktemp("broker"), authority)
    with broker.running():
        yield broker


def test_commands_use_https_with_the_options_of_tls(secure: Secure, authority: Authority, tmp_path: Path) -> None:
    ca = str(authority.certificate)
    assert called("--tls-ca", ca, "delay", "status", environment=secure.environment).code == 0
    # The scheme of a broker that the NameServer lists, which does not receive the token.
    told = called("--tls-ca", ca, "delay", "list", environment={**secure.environment, "DELAYMQ_HTTP": ""})
    assert f"{secure.url} returned 401" in told.err
    variables = {**secure.environment, "DELAYMQ_TLS_CA": ca}
    assert called("delay", "pause", environment=variables).code == 0
    assert called("delay", "resume", environment=variables).code == 0
    assert "HTTPS on 127.0.0.1" in secure.log_path.read_text()


def test_context_contains_the_https_address_and_its_ca(secure: Secure, authority: Authority, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    environment = {"DELAYMQ_CONFIG": str(tmp_path / "contexts.toml")}
    words = ("context", "set", "secure", "--http", secure.url, "--tls-ca", str(authority.certificate))
    assert called(*words, "--token-file", str(token_file), environment=environment).code == 0
    shown = called("delay", "status", "--json", "--context", "secure", environment=environment)
    assert shown.code == 0, shown.err
    assert "levels" in json.loads(shown.out)


def test_backup_reads_a_store_over_https(secure: Secure, authority: Authority, tmp_path: Path) -> None:
    ca = ("--tls-ca", str(authority.certificate))
    assert called(*ca, "send", "T", "one", environment=secure.environment).code == 0
    done = called(*ca, "store", "backup", secure.url, str(tmp_path / "copy"), environment=secure.environment)
    assert done.code == 0, done.err
    failed = called("store", "backup", secure.url, str(tmp_path / "other"), environment=secure.environment)
    assert "not trusted" in failed.err
    plain = secure.url.replace("https", "http")
    failed = called("store", "backup", plain, str(tmp_path / "other"), environment=secure.environment)
    assert f"serves only HTTPS (httpTls=true): use {secure.url}" in failed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("delay", "status"), "not trusted"),
        (("--tls-ca", "CA", "--tls-server-name", "other.example", "delay", "status"), "for another name"),
        (("--tls-ca", "/none.crt", "delay", "status"), "cannot be read"),
        (("--tls-ca", "CA", "delay", "status", "--http", "PLAIN"), "serves only HTTPS (httpTls=true): use https://"),
        (("--tls-insecure", "delay", "status", "--http", "REMOTING"), "is not an HTTP server"),
    ],
)
def test_errors_say_what_to_do(secure: Secure, authority: Authority, words: tuple[str, ...], said: str) -> None:
    places = {
        "CA": str(authority.certificate),
        "PLAIN": secure.url.replace("https", "http"),
        "REMOTING": f"https://127.0.0.1:{secure.listen_port}",
    }
    done = called(*(places.get(word, word) for word in words), environment=secure.environment)
    assert done.code != 0
    assert said in done.err
    assert TOKEN not in done.err


def test_https_address_of_a_plaintext_server_is_an_error_that_names_both_remedies(tmp_path: Path) -> None:
    broker = Standalone(tmp_path)
    with broker.running():
        done = called("--tls-insecure", "delay", "status", "--http", broker.url.replace("http", "https"))
    assert done.code == 3
    assert f"does not serve HTTPS: use {broker.url}, or set httpTls=true" in done.err


def test_expired_certificate_is_rejected(authority: Authority, tmp_path: Path) -> None:
    broker = Secure(tmp_path, authority)
    # The server reloads files that change, and also serves an expired certificate.
    expired = authority.issue(HOST, days=-1, file="expired")
    broker.config_path.write_text(
        broker.config_path.read_text()
        + f"tls.server.certPath={expired.certificate}\ntls.server.keyPath={expired.key}\ntls.client.authServer=false\n"
    )
    with broker.running():
        done = called("--tls-ca", str(authority.certificate), "delay", "status", environment=broker.environment)
    assert done.code == 3
    assert "has expired" in done.err


def test_server_name_replaces_the_host_of_the_address(authority: Authority, tmp_path: Path) -> None:
    broker = Secure(tmp_path, authority, name="broker.example")
    flags = ("--tls-ca", str(authority.certificate))
    with broker.running():
        assert "for another name" in called(*flags, "delay", "status", environment=broker.environment).err
        named = called(*flags, "--tls-server-name", "broker.example", "delay", "status", environment=broker.environment)
    assert named.code == 0, named.err


def test_several_groups_are_served_over_https(authority: Authority, tmp_path: Path) -> None:
    broker = Secure(tmp_path, authority, groups=2)
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    with broker.running():
        request = urllib.request.Request(f"{broker.url}/brokers/broker-a-1/api/v1/totals")
        request.add_header("Authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request, timeout=20, context=trusting) as reply:
            assert reply.status == 200
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(broker.url.replace("https", "http"), timeout=20)
        flags = ("--tls-ca", str(authority.certificate))
        told = called(*flags, "delay", "list", "--json", environment=broker.environment)
        assert told.code == 0, told.err
        assert "HTTPS on 127.0.0.1" in broker.log_path.read_text()


def test_server_without_a_certificate_does_not_start(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("httpTls=true\n")
    done = command("broker", "-c", str(config), "--store-path", str(tmp_path / "store"))
    assert done.returncode != 0
    assert "httpTls=true requires a certificate: set tls.server.certPath" in done.stderr + done.stdout
