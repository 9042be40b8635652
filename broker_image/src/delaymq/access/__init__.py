"""Accounts and their files, for brokers and NameServers: RocketMQ's plain_acl.yml.

Here: rule files and their reading (`files`, `plain_acl`, `yaml_tree`), accounts, white lists, and whether a request
carries an account's signature (`signed`). Not here: the signatures (protocol/signatures.py, second_signature.py), and
what an account may do: of a broker's requests (broker/access), of a NameServer's (namesrv/guard.py). Invariant: no
secret is in an answer, a log or an error.
"""

from typing import Final

EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
"""What a refusal begins with. Clients in Java show the name of their broker's exception; people look for it."""
