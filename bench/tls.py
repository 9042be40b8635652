"""Keys and JVM options with which both brokers and RocketMQ's client use TLS only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from delaymq_testing.certificates import Authority
from harness.brokers import HOST, write_properties

CLIENT_OPTIONS = ("-Dtls.enable=true", "-Dtls.config.file=/none")
"""RocketMQ's client takes any certificate then."""


@dataclass(frozen=True)
class ServerKeys:
    """One certificate for both brokers; the files lie in a folder of the caller's."""

    path: Path
    """A tls.properties."""

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
        """The TLS files of a DelayMQ broker. TLS is enforced, so no plaintext send can be measured."""
        return {"tls.server.mode": "enforcing", "tls.config.file": str(self.path)}

    def jvm_options(self) -> tuple[str, ...]:
        """The same for RocketMQ's servers."""
        return tuple(f"-D{key}={value}" for key, value in self.settings().items())
