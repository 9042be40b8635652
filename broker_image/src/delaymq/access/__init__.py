"""Accounts and their files for brokers and NameServers, in the format of RocketMQ's plain_acl.yml.

Here: reading of rule files (`files`, `plain_acl`, `yaml_tree`), accounts, white lists, the precedence of an account's
rules (`permissions`), what it may see (`views`), and verification that a request is signed by an account (`signed`).
Not here: the signatures (protocol/signatures.py, second_signature.py), and the permissions that requests to brokers
(broker/access) and to NameServers (namesrv/guard.py, queries.py) need. Invariant: responses, logs
and errors never contain a secret.
"""

from typing import Final

EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
"""Prefix of rejections: Java clients show the exception name of RocketMQ's broker, which users search for."""
OWN_METADATA: Final = "own"
"""Value of `aclMetadata`: accounts see only topics and groups for which they have a permission (`views`)."""
DENY: Final = 1
PUB: Final = 4
SUB: Final = 8
ROLES: Final = ("read", "operate", "administer")
"""Roles of accounts on HTTP, in ascending order; each includes those before it."""
