"""White lists: RocketMQ's address patterns and invalid ones."""

from contextlib import suppress

import pytest
from delaymq.access.addresses import MAX_ALTERNATIVES, REMEMBERED_PEERS, WhiteList, split_list
from delaymq.access.errors import AccessError
from delaymq.message.ids import pack_host
from hypothesis import given
from hypothesis import strategies as st


def listed(pattern: str, address: str) -> bool:
    return WhiteList([pattern]).matches(pack_host(address, 12_345))


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.0.0.7", ["10.0.0.7"], ["10.0.0.8", "::1"]),
        ("10.0.0.*", ["10.0.0.0", "10.0.0.255"], ["10.0.1.0"]),
        ("10.0.*.*", ["10.0.255.1"], ["10.1.0.1"]),
        ("10.*.3.4", ["10.9.3.4"], ["10.9.3.5"]),
        ("10.0.1-3.*", ["10.0.1.9", "10.0.3.9"], ["10.0.0.9", "10.0.4.9"]),
        ("10.0.0.5-20", ["10.0.0.5", "10.0.0.20"], ["10.0.0.4", "10.0.0.21"]),
        ("10.0.0.{1,2}", ["10.0.0.1", "10.0.0.2"], ["10.0.0.3", "10.0.0.12"]),
        ("10.0.0.1,10.0.0.9", ["10.0.0.1", "10.0.0.9"], ["10.0.0.2"]),
        ("10.0.0.{1,2},10.0.0.9", ["10.0.0.2", "10.0.0.9"], ["10.0.0.3"]),
        ("::1", ["::1"], ["::2", "127.0.0.1"]),
        ("2::AC5:78:1", ["2:0:0:0:0:ac5:78:1"], ["2::ac5:78:2"]),
        ("2::ac5:78:*", ["2::ac5:78:ffff"], ["2::ac5:79:1"]),
        ("2::ac5:78:1-200:*", ["2::ac5:78:1:9", "2::ac5:78:200:ffff"], ["2::ac5:78:201:0", "2::ac5:78:0:1"]),
        ("2::ac5:78:{1,ff}", ["2::ac5:78:1", "2::ac5:78:ff"], ["2::ac5:78:2"]),
        ("::ffff:10.0.0.7", ["10.0.0.7"], ["10.0.0.8"]),
        ("*", ["1.2.3.4", "::1"], []),
        ("*.*.*.*", ["1.2.3.4", "::1"], []),
        ("*:*:*:*:*:*:*:*", ["1.2.3.4", "::1"], []),
    ],
)
def test_pattern_matches_exactly_its_addresses(pattern: str, inside: list[str], outside: list[str]) -> None:
    assert [address for address in inside if not listed(pattern, address)] == []
    assert [address for address in outside if listed(pattern, address)] == []


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0", "10.0.0.256", "10.0.0.-1", "10.0.0.5-", "10.0.0.20-5", "10.0.0.{1,}", "10.0.0.{1", "10.0.0.x",
        "10.0.0.0/24", "localhost", "10.0.0.1.2", "1:2:3", "1::2::3", "1:2:3:4:5:6:7:8:9", "::10000", "::*-2",
        "1:2:3:4:5:6:7::8:*", "٣.0.0.1", "10.0.0.1e1",
    ],
)  # fmt: skip
def test_invalid_address_is_rejected_by_value(text: str) -> None:
    with pytest.raises(AccessError, match="Netaddress examine Exception"):
        WhiteList([text])


def test_empty_list_matches_nothing() -> None:
    assert not WhiteList([])
    assert not WhiteList(["", " , "])
    assert not WhiteList([]).matches(pack_host("10.0.0.1", 1))


def test_list_is_split_at_commas_outside_braces() -> None:
    assert split_list("10.0.0.{1,2}, 10.0.0.* ,,::1") == ["10.0.0.{1,2}", "10.0.0.*", "::1"]


@given(st.text(alphabet="0123456789.:*-{},af", max_size=40))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    with suppress(AccessError):
        WhiteList([text]).matches(pack_host("10.0.0.1", 1))


@given(st.ip_addresses(), st.ip_addresses())
def test_plain_address_matches_only_itself(one: object, other: object) -> None:
    assert listed(str(one), str(one)) or str(one).startswith("::ffff:")
    assert listed(str(one), str(other)) is (one == other) or "::ffff:" in f"{one}{other}"


def test_lists_and_peer_cache_are_bounded() -> None:
    with pytest.raises(AccessError, match="use ranges"):
        WhiteList([f"10.0.{number // 256}.{number % 256}" for number in range(MAX_ALTERNATIVES + 1)])
    one = WhiteList(["10.0.0.1"])
    for number in range(REMEMBERED_PEERS + 10):
        assert not one.matches(pack_host(f"11.{number >> 16}.{number >> 8 & 255}.{number & 255}", 1))
    assert len(one._known) <= REMEMBERED_PEERS
    assert one.matches(pack_host("10.0.0.1", 1))


@pytest.mark.parametrize("text", ["x" * 5_000, "x:" * 2_500])
def test_long_invalid_address_is_truncated_in_error(text: str) -> None:
    with pytest.raises(AccessError) as refused:
        WhiteList([text])
    assert len(str(refused.value)) < 500
