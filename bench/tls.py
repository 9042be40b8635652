"""Keys and JVM options with which both brokers and RocketMQ's client use TLS only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from delaymq_testing.certificates import Authority
from harness.brokers import HOST, write_properties

CLIENT_OPTIONS = ("-Dtls.enable=true", "-Dtls.config.file=/none")
"""JVM options with which RocketMQ's client accepts any certificate."""


@dataclass(frozen=True)
class ServerKeys:
    """A certificate for both brokers, in a directory of the caller."""

    path: Path
    """Path of a tls.properties file."""

    @classmethod
    def make(cls, folder: Path) -> ServerKeys:
        pair = Authority(folder).issue(HOST)
        keys = {
            "tls.test.mode.enable": "false",
            "tls.server.certPath": str(pair.certificate),
            "tls.server.keyPath": str(pair.key),
        }
        return cls(write_properties(folder / "tls.properties", keys))

    def settings(self) -> dict[str, str]:
        """Return the TLS settings of a DelayMQ broker. TLS is enforced, so no plaintext send can be measured."""
        return {"tls.server.mode": "enforcing", "tls.config.file": str(self.path)}

    def jvm_options(self) -> tuple[str, ...]:
        """Return the JVM options of RocketMQ's servers."""
        return tuple(f"-D{key}={value}" for key, value in self.settings().items())
