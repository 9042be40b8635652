"""`delaymq config`: settings and their origins, all problems of a file together, and explanations of keys."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from delaymq.cli.app import run
from delaymq.cli.errors import CommandError
from delaymq.config import BrokerConfig, keys_of
from delaymq_testing.cli_running import Standalone, command

CONF = "brokerName=b\nfileReservedTime=48\nrouteGraceMs=7\nsendMessageThreadPoolNums=4\n"
BAD = "lisenPort=1\nbrokerRole=LEADER\n\nbrokerId=-1\nmaxMessageSize=many\nrouteGraceMs=-1\nbrokerName=\\u12\n"
Config = Callable[..., str]


@pytest.fixture
def config(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Config:
    """Runs `delaymq config …` in this process and gives what it printed."""

    def call(*words: str, code: int = 0, **environment: str) -> str:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        try:
            run(["config", *words])
            ended: object = 0
        except SystemExit as error:
            ended = error.code or 0
        except CommandError as error:
            ended = error.exit_code
            print(f"error: {error}")
        assert ended == code
        return capsys.readouterr().out

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(CONF)
    return path


def test_print_shows_the_origin_of_each_value(config: Config, file: Path) -> None:
    words = ("print", "standalone", "-c", str(file), "--listen-port", "5", "--json")
    answer = json.loads(config(*words, DELAYMQ_MAX_MESSAGE_SIZE="2048", DELAYMQ_HTTP_TOKEN="very-secret"))
    found = {row["key"]: row for row in answer["broker"]}
    assert list(found) == list(keys_of(BrokerConfig))
    assert {key: (found[key]["value"], found[key]["origin"]) for key in (
        "brokerName", "fileReservedTime", "listenPort", "maxMessageSize", "mappedFileSizeCommitLog", "deleteWhen",
        "httpToken",
    )} == {
        "brokerName": ("b", f"{file}:1"),
        "fileReservedTime": ("48", f"{file}:2"),
        "listenPort": ("5", "flag --listen-port"),
        "maxMessageSize": ("2048", "variable DELAYMQ_MAX_MESSAGE_SIZE"),
        "mappedFileSizeCommitLog": ("67108864", "standalone default"),
        "deleteWhen": ("04", "default"),
        "httpToken": (None, "variable DELAYMQ_HTTP_TOKEN"),
    }  # fmt: skip
    assert (found["brokerName"]["change"], found["fileReservedTime"]["change"]) == ("restart", "hot")
    assert [row["origin"] for row in answer["namesrv"] if row["key"] == "routeGraceMs"] == [f"{file}:3"]
    assert answer["notes"] == ["ignored keys without a meaning here: sendMessageThreadPoolNums"]
    assert "very-secret" not in json.dumps(answer)


def test_print_omits_defaults_on_request(config: Config, file: Path) -> None:
    text = config("print", "broker", "-c", str(file), "--changed", DELAYMQ_HTTP_TOKEN="very-secret")
    from_file = [line.split()[0] for line in text.splitlines() if "broker.conf:" in line]
    assert from_file == ["brokerName", "fileReservedTime"]
    assert "(set)" in text
    assert "very-secret" not in text
    assert "maxMessageSize" not in text
    assert "maxMessageSize" in config("print", "broker")


def test_print_accepts_nameserver_flags(config: Config) -> None:
    answer = json.loads(config("print", "namesrv", "--namesrv-port", "5", "--changed", "--json"))
    assert [(row["key"], row["origin"]) for row in answer["namesrv"]] == [("listenPort", "flag --namesrv-port")]


def test_print_reports_all_errors_instead(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "bad.conf"
    path.write_text("lisenPort=1\nrouteGraceMs=-1\n")
    text = config("print", "-c", str(path), code=2)
    assert "bad.conf:1: lisenPort" in text
    assert "bad.conf:2: routeGraceMs" in text
    assert "'brokr' is not a server" in config("print", "brokr", code=2)


def test_check_names_every_problem_with_its_line(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "bad.conf"
    path.write_text(BAD)
    assert "bad.conf: line 7: " in config("check", str(path), code=2)
    path.write_text(BAD.replace("\\u12", "b"))
    text = config("check", str(path), code=2)
    assert [line.partition("bad.conf:")[2].partition(":")[0] for line in text.splitlines()] == ["1", "2", "4", "5", "6"]
    assert "did you mean listenPort?" in text
    answer = json.loads(config("check", str(path), "--json", code=2).splitlines()[0])
    assert len(answer["problems"]) == 5


def test_check_of_a_valid_file_lists_ignored_keys_with_reasons(config: Config, file: Path) -> None:
    text = config("check", str(file))
    assert f"{file}:4: sendMessageThreadPoolNums is ignored: thread pools and queues of the Java broker" in text
    assert f"{file}: no errors" in text
    assert f"{file}:1: brokerName is ignored: only brokers have this key" in config("check", str(file), "--namesrv")
    assert "cannot read" in config("check", str(file) + "x", code=2)


def test_keys_explains_one_key_and_lists_all(config: Config) -> None:
    text = config("keys", "mappedFileSizeCommitLog")
    for words in (
        "size of a commit log segment, in bytes",
        "1073741824 (standalone: 67108864)",
        "4096 to 2147483648",
        "after a restart",
    ):
        assert words in text
    assert "DELAYMQ_LOG_LEVEL" in config("keys", "logLevel")
    listed = config("keys")
    assert all(key in listed for key in keys_of(BrokerConfig))
    rows = [json.loads(line) for line in config("keys", "listenPort", "--json").splitlines()]
    assert [(row["server"], row["default"]) for row in rows] == [("broker", "10911"), ("namesrv", "9876")]


def test_keys_explains_unsupported_rocketmq_keys(config: Config) -> None:
    assert "has no meaning here" in config("keys", "serverWorkerThreads")
    assert "is rejected (accepted: false): light queues are not supported" in config("keys", "enableLmq")
    assert json.loads(config("keys", "enableLmq", "--json"))["kind"] == "refused"
    assert "did you mean listenPort?" in config("keys", "lisenPort", code=2)


def test_token_may_come_from_a_file(config: Config, file: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("very-secret\n")
    file.write_text(f"httpTokenFile={token}\n")
    text = config("print", "broker", "-c", str(file), "--json")
    found = {row["key"]: row for row in json.loads(text)["broker"]}
    assert (found["httpToken"]["isSet"], found["httpToken"]["origin"]) == (True, f"the file {token} (httpTokenFile)")
    assert "very-secret" not in text
    token.write_text("\n")
    assert "is empty" in config("print", "broker", "-c", str(file), code=2)
    token.unlink()
    assert "token: No such file" in config("print", "broker", "-c", str(file), code=2)
    assert "keep one of them" in config("print", "broker", "-c", str(file), code=2, DELAYMQ_HTTP_TOKEN="x")


def test_print_shows_a_running_brokers_settings_and_pending_changes(tmp_path: Path) -> None:
    server = Standalone(tmp_path)
    with server.running():
        url = f"http://127.0.0.1:{server.http_port}"
        done = command("config", "print", "--http", url, "--changed", "--json")
        found = {row["key"]: row for row in json.loads(done.stdout)["broker"]}
        assert found["messageDelayLevel"]["origin"] == f"{server.config_path}:4"
        assert found["listenPort"]["origin"] == "flag --listen-port"
        assert "messageDelayLevel" in command("config", "print", "--http", url).stdout
    done = command("config", "print", "--http", url)
    assert done.returncode == 3
    assert "is it running?" in done.stderr


def test_server_reports_all_errors_of_its_file_and_exits_with_2(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("lisenPort=1\nmaxMessageSize=many\n")
    done = command("standalone", "-c", str(path))
    assert done.returncode == 2
    assert [
        line.startswith(f"delaymq: {path}:{number}: ") for number, line in enumerate(done.stderr.splitlines(), 1)
    ] == [
        True,
        True,
    ]
