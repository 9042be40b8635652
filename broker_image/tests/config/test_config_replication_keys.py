"""Keys of the members of a replicated group. No broker has them yet."""

from dataclasses import dataclass

import pytest
from delaymq.config import BrokerConfig
from delaymq.config.build import build
from delaymq.config.errors import ConfigError
from delaymq.config.fields import wire_name
from delaymq.config.replication_keys import MAX_MEMBERS, ReplicationKeys, check_replication, parse_members
from hypothesis import given
from hypothesis import strategies as st

MEMBERS = "b-0=10.0.0.1:10911; b-1=[fd00::2]:10911;b_2.x=member-2.brokers.svc:30911;"


@dataclass(frozen=True, kw_only=True)
class Keys(ReplicationKeys):
    pass


def test_members_have_names_and_addresses() -> None:
    assert parse_members(MEMBERS) == {
        "b-0": ("10.0.0.1", 10911),
        "b-1": ("fd00::2", 10911),
        "b_2.x": ("member-2.brokers.svc", 30911),
    }
    assert parse_members("") == parse_members(" ; ") == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("10.0.0.1:10911", "is not a member: use name=host:port"),
        ("=10.0.0.1:10911", "is not a member"),
        ("b-0=10.0.0.1", "is not an address"),
        ("b-0=10.0.0.1:0", "is not an address"),
        ("b-0=10.0.0.1:65536", "is not an address"),
        ("b 0=10.0.0.1:10911", "is not a name"),
        (f"{'b' * 65}=10.0.0.1:10911", "is not a name"),
        ("b-0=ho st:10911", "is neither a host name nor an IP address"),
        (f"b-0={'h' * 254}:10911", "is neither a host name nor an IP address"),
        ("b-0=10.0.0.1:1;b-0=10.0.0.2:1", "two members have the name b-0"),
        ("b-0=10.0.0.1:1;b-1=10.0.0.1:1", "the members b-0 and b-1 have the same address"),
        (";".join(f"b-{each}=10.0.0.{each}:1" for each in range(MAX_MEMBERS + 1)), "at most 9 members, and 10 are"),
    ],
)
def test_invalid_members_are_rejected_with_a_remedy(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_members(text)


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        members = parse_members(text)
    except ConfigError:
        return
    assert len(members) <= MAX_MEMBERS
    assert all(name and host and 0 < port < 65_536 for name, (host, port) in members.items())


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (Keys(ha_member_name="b-0"), "haMemberName is set, but haMembers is not"),
        (Keys(ha_secret_file="/secret"), "haSecretFile is set, but haMembers is not"),
        (Keys(ha_members=MEMBERS, ha_secret_file="/secret"), "haMembers is set, but haMemberName is not"),
        (Keys(ha_members=MEMBERS, ha_member_name="b-3", ha_secret_file="/secret"), "haMembers does not contain b-3"),
        (
            Keys(ha_members=MEMBERS, ha_member_name="b-0"),
            "but haSecretFile is not: write at least 16 random characters",
        ),
    ],
)
def test_incomplete_keys_are_rejected_with_a_remedy(keys: Keys, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_replication(keys)


def test_complete_keys_are_accepted() -> None:
    check_replication(Keys())
    check_replication(Keys(ha_members=MEMBERS, ha_member_name="b-1", ha_secret_file="/secret"))


@pytest.mark.parametrize("field", ["ha_member_name", "ha_members", "ha_secret_file"])
def test_no_broker_accepts_the_keys_yet(field: str) -> None:
    key = wire_name(field)
    with pytest.raises(ConfigError, match=f"{key} is not a key"):
        build(BrokerConfig, {key: "b-0"})
