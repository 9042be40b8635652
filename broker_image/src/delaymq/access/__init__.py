"""Accounts and their files, for brokers and NameServers: RocketMQ's plain_acl.yml.

Here: rule files and their reading (`files`, `plain_acl`, `yaml_tree`), accounts, white lists. Not here: signatures
(protocol/signatures.py), and what an account may do: of a broker's requests (broker/access), of a NameServer's
(namesrv/guard.py). Invariant: no secret is in an answer, a log or an error.
"""

from typing import Final

EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
"""What a refusal begins with. Clients in Java show the name of their broker's exception; people look for it."""
