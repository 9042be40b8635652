"""Access control as RocketMQ 4.9 has it: who may ask what of the broker.

Here: rule files and their reading (`files`, `plain_acl`, `yaml_tree`), accounts, white lists, what each request needs
(`requirements`), and the check (`access`). Not here: signatures (protocol/signatures.py), and requests 50 to 53
(processors/access.py). Invariant: no secret is in an answer, a log or an error, and what cannot be read lets nobody in.
"""

from delaymq.broker.access.access import Access
from delaymq.broker.access.errors import AccessError

__all__ = ["Access", "AccessError"]
