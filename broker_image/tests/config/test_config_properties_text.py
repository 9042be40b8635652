"""Java's properties format, parsed as by Java, and edited without touching users' text."""

import stat
from pathlib import Path

import pytest
from delaymq.config.errors import ConfigError
from delaymq.config.layers import file_layer
from delaymq.config.properties_text import (
    MAX_FILE_BYTES,
    parse_entries,
    parse_properties_text,
    read_entries,
    rewrite,
    with_values,
)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("  a \t=\t 1  ", {"a": "1"}),
        ("a = = b", {"a": "= b"}),
        ("a", {"a": ""}),
        ("a=1\\\n   2\\\n3", {"a": "123"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\\\\\nb=2", {"a": "1\\b=2"}),
        ("a=1\\\n# no comment", {"a": "1# no comment"}),
        ("a=1\\", {"a": "1"}),
        ("#a=1\n!b=2\n \t#c=3\n\n", {}),
        ("# a comment is not continued \\\na=1", {"a": "1"}),
        ("a=1\r\nb=2\r\nc=3\\\r\n  4\r\n", {"a": "1", "b": "2", "c": "34"}),
        ("a=1\rb=2", {"a": "1", "b": "2"}),
        ("a\\ b=1", {"a b": "1"}),
        ("a\\=b=1", {"a=b": "1"}),
        ("a=\\u00e4\\tb\\z", {"a": "ä\tbz"}),
        ("path=C\\:\\\\store", {"path": "C:\\store"}),
        ("a=x\x85y\u2028z", {"a": "x\x85y\u2028z"}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_text_is_parsed_as_by_java(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties_text(text) == pairs


@pytest.mark.parametrize("escape", ["\\u12", "\\uwxyz", "\\u 123", "\\u"])
def test_invalid_escape_is_rejected_with_its_line(escape: str) -> None:
    with pytest.raises(ConfigError, match=r"line 2: .* four hexadecimal digits"):
        parse_properties_text(f"a=1\nb={escape}\n")


def test_entries_record_their_lines() -> None:
    entries = parse_entries("# x\na=1\\\n 2\n\nb=3\r\nc=4")
    assert [(entry.key, entry.line, entry.last_line) for entry in entries] == [("a", 2, 3), ("b", 5, 5), ("c", 6, 6)]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("brokerName=bröker".encode(), "bröker"),
        ("brokerName=bröker".encode("iso-8859-1"), "bröker"),
        ("\ufeffbrokerName=bröker".encode(), "bröker"),
    ],
)
def test_files_are_utf_8_or_latin_1(tmp_path: Path, data: bytes, value: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(data)
    assert [(entry.key, entry.value) for entry in read_entries(path)] == [("brokerName", value)]


@pytest.mark.parametrize(
    "data", ["brokerName=b".encode("utf-16"), b"\x7fELF\x01", b"a=1\x00", b"x" * (MAX_FILE_BYTES + 1)]
)
def test_binary_data_is_rejected(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="is it a configuration file"):
        read_entries(path)


def test_duplicate_key_is_reported_with_both_lines_and_the_last_wins(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=a\n\nbrokerName=b\n")
    layer, notes = file_layer(path)
    assert layer["brokerName"] == ("b", f"{path}:3")
    assert notes == [f"brokerName is set in {path}:1 and in {path}:3: the last value is used"]


def test_change_touches_only_the_lines_of_its_keys() -> None:
    text = "# mine\nbrokerName = a\nfileReservedTime: 4\\\n  8\n\n! end\nbrokerName=b\n"
    changed = with_values(text, {"fileReservedTime": "72", "brokerName": "c", "deleteWhen": "03"})
    assert changed == "# mine\nbrokerName = a\nfileReservedTime=72\n\n! end\nbrokerName=c\ndeleteWhen=03\n"


def test_windows_line_ends_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"# mine\r\na=1\r\nb=2\r\n")
    rewrite(path, {"b": "3", "c": "4"})
    assert path.read_bytes() == b"# mine\r\na=1\r\nb=3\r\nc=4\r\n"


@pytest.mark.parametrize("value", ["plain", "a\\b", "tab\tin it", "ä ö", "1s 5s # no comment", "x=y:z", "end\\"])
def test_written_text_is_parsed_back(tmp_path: Path, value: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("a=1\n")
    rewrite(path, {"a": value, "b": value})
    assert {entry.key: entry.value for entry in read_entries(path)} == {"a": value, "b": value}


def test_symlink_target_is_written_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "real" / "broker.conf"
    path.parent.mkdir()
    path.write_text("a=1")
    path.chmod(0o640)
    link = tmp_path / "link.conf"
    link.symlink_to(path)
    rewrite(link, {"a": "2"})
    assert link.is_symlink()
    assert path.read_text() == "a=2\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(each.name for each in path.parent.iterdir()) == ["broker.conf"]


def test_unwritable_file_stays_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("a=1\n")
    (tmp_path / ".broker.conf.new").mkdir()  # nothing can be created under this name, not even by root
    with pytest.raises(OSError, match=r"broker\.conf\.new"):
        rewrite(path, {"a": "2"})
    assert path.read_text() == "a=1\n"
