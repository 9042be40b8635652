from cluster.firewall import BRIDGE, GUARD, SUBNETS, removals

EMPTY = [
    "iptables filter -P INPUT ACCEPT",
    "iptables filter -P FORWARD ACCEPT",
    "iptables filter -P OUTPUT ACCEPT",
    "iptables nat -P PREROUTING ACCEPT",
]
WITH_DOCKER = [
    "iptables filter -P INPUT ACCEPT",
    "iptables filter -P FORWARD DROP",
    "iptables filter -P OUTPUT ACCEPT",
    f"iptables filter -N {GUARD}",
    "iptables filter -N DOCKER",
    "iptables filter -N DOCKER-ISOLATION-STAGE-1",
    "iptables filter -N DOCKER-USER",
    f"iptables filter -A FORWARD -j {GUARD}",
    "iptables filter -A FORWARD -j DOCKER-USER",
    "iptables filter -A FORWARD -j DOCKER-ISOLATION-STAGE-1",
    f"iptables filter -A FORWARD -o {BRIDGE} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    f"iptables filter -A FORWARD -o {BRIDGE} -j DOCKER",
    f"iptables filter -A FORWARD -i {BRIDGE} ! -o {BRIDGE} -j ACCEPT",
    f"iptables filter -A {GUARD} -i {BRIDGE} ! -o {BRIDGE} -j REJECT --reject-with icmp-port-unreachable",
    f"iptables filter -A DOCKER -d 172.29.240.2/32 ! -i {BRIDGE} -o {BRIDGE} -p tcp -m tcp --dport 6443 -j ACCEPT",
    "iptables filter -A DOCKER-ISOLATION-STAGE-1 -j RETURN",
    "iptables nat -P PREROUTING ACCEPT",
    "iptables nat -N DOCKER",
    "iptables nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
    "iptables nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER",
    f"iptables nat -A POSTROUTING -s {SUBNETS[0]} ! -o {BRIDGE} -j MASQUERADE",
    "iptables nat -A POSTROUTING -s 172.29.240.2/32 -d 172.29.240.2/32 -p tcp -m tcp --dport 6443 -j MASQUERADE",
    f"iptables nat -A DOCKER -i {BRIDGE} -j RETURN",
]
"""Output of `iptables -S` with Debian's dockerd and one cluster."""


def after(commands: list[list[str]], now: list[str]) -> list[str]:
    """Return the rules that remain after the commands, according to a small model of iptables."""
    left = list(now)
    for program, _, _, table, action, *rest in commands:
        beginning = f"{program} {table}"
        if action == "-D":
            left.remove(f"{beginning} -A {' '.join(rest)}")
        elif action == "-F":
            left = [line for line in left if not line.startswith(f"{beginning} -A {rest[0]} ")]
        elif action == "-X":
            users = [line for line in left if line.startswith(beginning) and f"-j {rest[0]} " in f"{line} "]
            assert not users, "a chain in use cannot be removed"
            left.remove(f"{beginning} -N {rest[0]}")
        elif action == "-P":
            left = [f"{beginning} -P {' '.join(rest)}" if f"-P {rest[0]} " in line else line for line in left]
    return left


def test_all_rules_added_by_docker_and_the_guard_are_removed() -> None:
    assert sorted(after(removals(EMPTY, WITH_DOCKER), WITH_DOCKER)) == sorted(EMPTY)


def test_unchanged_rules_need_no_removal() -> None:
    assert removals(EMPTY, EMPTY) == []


def test_rules_added_by_others_are_kept() -> None:
    foreign = [
        "iptables filter -A FORWARD -i br-lan -o eth0 -j ACCEPT",
        "iptables filter -A INPUT -p tcp -m tcp --dport 22 -j ACCEPT",
        "iptables filter -N KUBE-FORWARD",
        "iptables nat -A POSTROUTING -s 10.0.0.0/8 -o eth0 -j MASQUERADE",
        "iptables nat -A POSTROUTING -s 172.29.0.0/16 -o eth0 -j MASQUERADE",
        "ip6tables filter -A FORWARD -i dmq-kind2 -j ACCEPT",
    ]
    now = WITH_DOCKER + foreign
    assert sorted(after(removals(EMPTY, now), now)) == sorted(EMPTY + foreign)


def test_chains_and_rules_of_an_earlier_docker_are_kept() -> None:
    before = [*EMPTY, "iptables filter -N DOCKER-USER", "iptables filter -A FORWARD -j DOCKER-USER"]
    left = after(removals(before, WITH_DOCKER), WITH_DOCKER)
    assert "iptables filter -N DOCKER-USER" in left
    assert "iptables filter -A FORWARD -j DOCKER-USER" in left


def test_policy_that_was_strict_before_stays_strict() -> None:
    strict = [line.replace("FORWARD ACCEPT", "FORWARD DROP") for line in EMPTY]
    assert "iptables filter -P FORWARD DROP" in after(removals(strict, WITH_DOCKER), WITH_DOCKER)
