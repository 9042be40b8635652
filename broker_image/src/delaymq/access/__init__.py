"""Accounts and their files for brokers and NameServers, in the format of RocketMQ's plain_acl.yml.

Here: reading of rule files (`files`, `plain_acl`, `yaml_tree`), accounts, white lists, and verification that a request
is signed by an account (`signed`). Not here: the signatures (protocol/signatures.py, second_signature.py), and the
permissions for requests to brokers (broker/access) and to NameServers (namesrv/guard.py). Invariant: responses, logs
and errors never contain a secret.
"""

from typing import Final

EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
"""Prefix of rejections: Java clients show the exception name of RocketMQ's broker, which users search for."""
