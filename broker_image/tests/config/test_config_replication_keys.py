"""Keys of the members of a replicated group."""

from dataclasses import dataclass
from typing import Any, Final

import pytest
from delaymq.config import BrokerConfig
from delaymq.config.build import build
from delaymq.config.errors import ConfigError
from delaymq.config.replication_keys import MAX_MEMBERS, ReplicationKeys, check_replication, parse_members
from hypothesis import given
from hypothesis import strategies as st

MEMBERS = "b-0=10.0.0.1:10911; b-1=[fd00::2]:10911;b_2.x=member-2.brokers.svc:30911;"
ETCD: Final = "etcd:http://127.0.0.1:2379"
COMPLETE: Final[dict[str, Any]] = {"ha_members": MEMBERS, "ha_member_name": "b-1", "ha_secret_file": "/secret"}


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
    ("keys", "register", "problem"),
    [
        (Keys(ha_member_name="b-0"), "", "haMemberName is set, but haMembers is not"),
        (Keys(ha_secret_file="/secret"), "", "haSecretFile is set, but haMembers is not"),
        (Keys(), ETCD, "replicaRegister is set, but haMembers is not"),
        (Keys(broker_role="SYNC_MASTER"), "", "responses cannot wait for replicas"),
        (Keys(ha_members=MEMBERS, ha_secret_file="/secret"), ETCD, "haMembers is set, but haMemberName is not"),
        (
            Keys(ha_members=MEMBERS, ha_member_name="b-3", ha_secret_file="/secret"),
            ETCD,
            "haMembers does not contain b-3",
        ),
        (
            Keys(ha_members=MEMBERS, ha_member_name="b-0"),
            ETCD,
            "but haSecretFile is not: write at least 16 random characters",
        ),
        (Keys(**COMPLETE), "", "haMembers is set, but replicaRegister is not"),
        (Keys(**COMPLETE, min_in_sync_replicas=4), ETCD, "exceeds the number of members in haMembers, 3"),
    ],
)
def test_incomplete_keys_are_rejected_with_a_remedy(keys: Keys, register: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_replication(keys, register)


def test_complete_keys_are_accepted() -> None:
    check_replication(Keys(), "")
    check_replication(Keys(**COMPLETE, broker_role="SYNC_MASTER"), ETCD)


def test_member_is_not_read_only() -> None:
    stated = {"haMembers": MEMBERS, "haMemberName": "b-1", "haSecretFile": "/secret", "replicaRegister": ETCD}
    assert build(BrokerConfig, stated)[0].members["b-1"][1] > 0
    with pytest.raises(ConfigError, match="readOnly: a member of a group cannot be read-only"):
        build(BrokerConfig, stated | {"readOnly": "true"})
