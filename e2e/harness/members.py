"""Settings of a member of a replicated group, whose register is in etcd."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.brokers import BROKER_NAME, CLUSTER_NAME

SECRET = "a secret of the tests"


def member_settings(
    name: str,
    addresses: Mapping[str, tuple[str, int]],
    etcd_urls: Sequence[str],
    *,
    store_path: Path,
    http_port: int,
    secret_path: Path,
) -> dict[str, str]:
    """Write the secret, and return what distinguishes a member from a broker without replicas."""
    secret_path.write_text(SECRET)
    return {
        "brokerName": BROKER_NAME,
        "brokerClusterName": CLUSTER_NAME,
        "listenPort": str(addresses[name][1]),
        "httpPort": str(http_port),
        "storePathRootDir": str(store_path),
        "haMemberName": name,
        "haMembers": ";".join(f"{each}={host}:{port}" for each, (host, port) in addresses.items()),
        "haSecretFile": str(secret_path),
        "replicaRegister": f"etcd:{','.join(etcd_urls)}",
    }
