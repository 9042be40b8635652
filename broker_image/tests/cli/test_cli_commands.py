"""Commands as a user runs them: exit codes, helpful errors, no stack traces."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from delaymq import __version__, kernels
from delaymq.message.ids import pack_host
from delaymq.message.record import encode_record
from delaymq_testing.cli_running import command, ended

NOBODY = "127.0.0.1:1"


def test_version_is_printed() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"delaymq {__version__}\nkernels: {kernels.ABOUT}\n")


def test_help_lists_all_commands() -> None:
    done = command("--help")
    assert done.returncode == 0
    for name in (
        "standalone",
        "broker",
        "namesrv",
        "send",
        "receive",
        "topic",
        "group",
        "message",
        "deadletter",
        "delay",
    ):
        assert f"  {name}" in done.stdout


@pytest.mark.parametrize("server", ["standalone", "broker", "namesrv"])
def test_server_help_lists_their_options(server: str) -> None:
    done = command(server, "--help")
    assert done.returncode == 0
    assert "--listen-port" in done.stdout
    assert "--store-path" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("send",),
        ("send", "T", "x", "--count", "0"),
        ("standalone", "--listen-port", "99999"),
        ("standalone", "--nonsense"),
        ("namesrv", "--namesrv-port", "1", "--listen-port", "2"),
        ("broker", "--host", "0.0.0.0"),
        ("receive", "T", "--namesrv", "no-port"),
        ("delay", "status", "--http", "ftp://x"),
        ("store", "verify"),
    ],
)
def test_wrong_arguments_exit_with_two(words: tuple[str, ...]) -> None:
    code, _, error = ended(*words)
    assert code == 2
    assert error


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("send", "T", "x", "--namesrv", NOBODY), "Start one with `delaymq standalone`"),
        (("receive", "T", "--namesrv", NOBODY), "Start one with `delaymq standalone`"),
        (("delay", "status", "--http", f"http://{NOBODY}"), "Start one with `delaymq standalone`"),
        (("topic", "list", "--namesrv", NOBODY), "Start one with `delaymq standalone`"),
        (("delay", "pending", "--http", NOBODY), "Start one with `delaymq standalone`"),
        (("message", "life", "7F" * 16, "--http", NOBODY), "which RocketMQ's broker does not have"),
    ],
)
def test_connection_error_says_what_to_do(words: tuple[str, ...], hint: str) -> None:
    code, out, error = ended(*words)
    assert (code, out) == (3, "")
    assert hint in error


def test_invalid_configuration_is_rejected_with_its_key(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("listnPort=1\n")
    done = command("standalone", "-c", str(config), "--store-path", str(tmp_path / "store"))
    assert done.returncode == 2
    assert "did you mean listenPort?" in done.stderr
    done = command("standalone", "-c", str(tmp_path / "missing.conf"))
    assert done.returncode == 2
    assert "cannot read" in done.stderr
    assert not (tmp_path / "store").exists()


def test_invalid_store_exits_with_two(tmp_path: Path) -> None:
    for name in ("verify", "inspect"):
        code, out, error = ended("store", name, str(tmp_path))
        assert code == 2
        assert "is not a store" in out + error
    assert json.loads(ended("store", "verify", str(tmp_path), "--json")[1])["exit_code"] == 2


def test_configuration_for_the_real_broker_is_printed_without_starting(tmp_path: Path) -> None:
    segment = tmp_path / "commitlog" / "00000000000000000000"
    segment.parent.mkdir()
    segment.write_bytes(bytes(8192))
    done = command("standalone", "--store-path", str(tmp_path), "--print-rocketmq-conf")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert f"storePathRootDir={tmp_path}" in lines
    # What is there counts, not what a new store would get.
    assert "mappedFileSizeCommitLog=8192" in lines
    assert "mappedFileSizeConsumeQueue=2000000" in lines
    assert [path.name for path in tmp_path.iterdir()] == ["commitlog"]


def test_servers_start_without_terminal_libraries() -> None:
    program = (
        "import sys, delaymq.cli.main, delaymq.cli.servers.serve, delaymq.server.main, delaymq.server.standalone;"
        "sys.exit(bool({'typer', 'rich', 'click'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=30).returncode == 0


def test_undecodable_names_are_shown_escaped(tmp_path: Path) -> None:
    body, topic, host = b"x", b"Bad\xaaName", pack_host("127.0.0.1", 10911)
    record = encode_record(
        topic=topic, queue_id=0, queue_offset=0, physical_offset=0, flag=0, sys_flag=0, born_timestamp_ms=1,
        born_host=host, store_timestamp_ms=1, store_host=host, reconsume_times=0, prepared_transaction_offset=0,
        body=body, properties=b"",
    )  # fmt: skip
    segment = tmp_path / "commitlog" / "00000000000000000000"
    segment.parent.mkdir()
    segment.write_bytes(record.ljust(4096, b"\0"))
    done = command("store", "inspect", str(tmp_path))
    assert done.returncode == 0
    assert "Bad\\udcaaName" in done.stdout
    data = json.loads(command("store", "inspect", str(tmp_path), "--json").stdout)
    assert list(data["topics"]) == ["Bad\udcaaName"]
