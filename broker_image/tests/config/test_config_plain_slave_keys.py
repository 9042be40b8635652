"""Keys of plain slaves."""

from ipaddress import ip_address

import pytest
from delaymq.config import BrokerConfig
from delaymq.config.build import build
from delaymq.config.errors import ConfigError
from delaymq.config.plain_slave_keys import MAX_NETWORKS, parse_networks
from delaymq.config.running import FORBIDDEN_KEYS


def test_networks_contain_addresses() -> None:
    networks = parse_networks("10.0.0.7; 10.1.0.0/16;fd00::/8;")
    assert [any(ip_address(each) in network for network in networks) for each in ("10.0.0.7", "10.1.2.3", "fd00::1")]
    assert not any(ip_address("10.0.0.8") in network for network in networks)


@pytest.mark.parametrize("text", ["broker-1", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.1:10912", "*"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is neither an IP address nor a network"):
        parse_networks(text)


def test_too_many_networks_are_refused() -> None:
    with pytest.raises(ConfigError, match="are too many"):
        parse_networks("10.0.0.1;" * (MAX_NETWORKS + 1))


def test_who_may_copy_the_log_is_not_decided_over_the_network() -> None:
    keys = {"haPlainSlaves", "haPlainSlaveAddresses", "haMasterAddress", "haMasterBrokerAddress", "haListenPort"}
    assert keys <= FORBIDDEN_KEYS


def test_slaves_need_addresses() -> None:
    with pytest.raises(ConfigError, match="haPlainSlaveAddresses is empty"):
        BrokerConfig(ha_plain_slaves=True)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"brokerRole": "SLAVE"}, "haMasterAddress is empty"),
        ({"brokerRole": "SLAVE", "haMasterAddress": "10.0.0.1"}, "is not an address"),
        ({"brokerRole": "SLAVE", "haMasterAddress": "10.0.0.1:10912", "readOnly": "true"}, "writes to its store"),
        ({"brokerRole": "SLAVE", "haMembers": "a=10.0.0.1:10911"}, "is no member of a group"),
        ({"brokerRole": "ASYNC_MASTER", "brokerId": "1"}, "brokerId=1: a master has the id 0"),
    ],
)
def test_contradicting_keys_are_rejected(keys: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        build(BrokerConfig, keys)


def test_only_the_role_decides_whether_a_broker_is_a_slave() -> None:
    keys = {"haMasterAddress": "10.0.0.1:10912"}
    assert not build(BrokerConfig, keys)[0].is_plain_slave
    assert build(BrokerConfig, keys | {"brokerRole": "SLAVE", "brokerId": "1"})[0].is_plain_slave


def test_master_is_reached_on_the_port_below_unless_stated() -> None:
    config, _ = build(BrokerConfig, {"haMasterAddress": "10.0.0.1:10912"})
    assert config.master_ha_address == ("10.0.0.1", 10912)
    assert config.master_broker_address == ("10.0.0.1", 10911)
    config, _ = build(BrokerConfig, {"haMasterAddress": "[fd00::1]:9", "haMasterBrokerAddress": "b:30911"})
    assert (config.master_ha_address, config.master_broker_address) == (("fd00::1", 9), ("b", 30911))
