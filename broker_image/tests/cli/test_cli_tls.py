"""Commands over TLS against a standalone broker that requires it, and their errors."""

import errno
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaymq.protocol.command import encode_command, request_command
from delaymq_testing.certificates import Authority, client_context
from delaymq_testing.cli_running import SMALL, Standalone, called, command

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def standalone(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("broker")
    pair = authority.issue(HOST)
    (folder / "tls.properties").write_text(
        f"tls.server.certPath={pair.certificate}\ntls.server.keyPath={pair.key}\ntls.test.mode.enable=false\n"
    )
    broker = Standalone(folder)
    broker.config_path.write_text(
        f"{SMALL}tls.server.mode=enforcing\ntls.config.file={folder / 'tls.properties'}\n"
        f"tls.client.authServer=true\ntls.client.trustCertPath={authority.certificate}\n"
    )
    with broker.running():
        yield broker


def test_tls_is_enabled_by_flags_environment_or_context(
    standalone: Standalone, authority: Authority, tmp_path: Path
) -> None:
    environment = standalone.environment | {"DELAYMQ_CONFIG": str(tmp_path / "contexts.toml")}
    ca = str(authority.certificate)
    assert called("--tls-ca", ca, "send", "T", "one", environment=environment).code == 0
    assert called("--tls", "--tls-insecure", "send", "T", "two", environment=environment).code == 0
    assert called("send", "T", "three", environment=environment | {"DELAYMQ_TLS_CA": ca}).code == 0
    words = ("context", "set", "secure", "--namesrv", standalone.environment["DELAYMQ_NAMESRV"], "--tls-ca", ca)
    assert called(*words, environment=environment).code == 0
    shown = called("context", "show", "secure", "--json", environment=environment)
    assert json.loads(shown.out)["tls-ca"] == ca
    got = called("receive", "T", "--context", "secure", "--count", "3", "--json", environment=environment)
    assert sorted(json.loads(line)["body"] for line in got.out.splitlines()) == ["one", "three", "two"]
    off = called("send", "T", "four", environment=environment | {"DELAYMQ_TLS": "false"})
    assert off.code == 3
    assert "accepts only TLS" in off.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "accepts only TLS"),
        (("--tls",), "not trusted"),
        (("--tls-ca", "CA", "--tls-server-name", "other.example"), "for another name"),
        (("--tls-ca", "/none.crt"), "cannot be read"),
    ],
)
def test_errors_say_what_to_do(standalone: Standalone, authority: Authority, words: tuple[str, ...], said: str) -> None:
    flags = [str(authority.certificate) if word == "CA" else word for word in words]
    done = called(*flags, "topic", "list", environment=standalone.environment)
    assert done.code != 0
    assert said in done.err
    assert "--tls" in done.err or "none.crt" in done.err


def test_invalid_mode_or_file_is_rejected(tmp_path: Path) -> None:
    environment = {"DELAYMQ_CONFIG": str(tmp_path / "contexts.toml")}
    assert "true or false" in called("topic", "list", environment=environment | {"DELAYMQ_TLS": "yes"}).err
    assert "true or false" in called("context", "set", "c", "--tls", "maybe", environment=environment).err


def test_server_reports_tls_errors_before_it_starts(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue(HOST, password="the secret", file="closed")
    where = ("--store-path", str(tmp_path / "store"), "--listen-port", "0", "--namesrv-port", "0", "--http-port", "0")
    for words, said in (
        (("--tls-cert", str(pair.certificate)), "tls.server.keyPath is not"),
        (("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)), "keyPassword is not set"),
        (("--tls-mode", "sometimes"), "use one of disabled, permissive, enforcing"),
        (("--tls-config", str(tmp_path / "none.properties")), "cannot read"),
    ):
        done = command("standalone", *words, *where)
        assert done.returncode != 0
        assert said in done.stderr + done.stdout
    conf = tmp_path / "broker.conf"
    conf.write_text(f"tls.server.keyPassword=the secret\ntls.server.certPath={pair.certificate}\n")
    shown = called("config", "print", "-c", str(conf), "--tls-key", str(pair.key))
    assert "tls.server.certPath" in shown.out
    assert "the secret" not in shown.out + shown.err


def test_killed_process_resets_tls_connections(authority: Authority, tmp_path: Path) -> None:
    """Clients whose peer ends otherwise wait for their answers until the time is over."""
    pair = authority.issue(HOST)
    broker = Standalone(tmp_path)
    broker.config_path.write_text(f"{SMALL}tls.server.certPath={pair.certificate}\ntls.server.keyPath={pair.key}\n")
    with broker.running() as process, socket.create_connection((HOST, broker.listen_port), 20) as plain:
        secure = client_context(authority).wrap_socket(plain, server_hostname=HOST)
        secure.sendall(encode_command(request_command(28)))
        assert secure.recv(65_536)
        process.kill()
        process.wait()
        assert secure.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
        secure.close()
