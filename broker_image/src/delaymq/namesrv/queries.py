"""Access control of queries with `namesrvAclMetadata=own`: each account sees only topics of its rules.

All queries need a signature. Routes need a permission for the topic, lists are reduced to permitted topics by their
processors, and settings need an administrator. Names and addresses of brokers and clusters are shown to all accounts,
because routes contain them and tools need them. Brokers query their registration (322) with the account, or from the
networks, with which they register. Versions of the rules need an administrator without this setting, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from delaymq.access.accounts import Account, shown
from delaymq.access.views import View, sees_all
from delaymq.message.names import AUTO_CREATE_TOPIC, REPLY_TOPIC_POSTFIX, TRACE_TOPIC
from delaymq.namesrv.errors import RefusalError
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command

if TYPE_CHECKING:
    from delaymq.namesrv.routes import Routes

ACCOUNT: Final = "account"
"""Any account."""
TOPIC: Final = "topic"
"""An account with PUB or SUB for the topic."""
REDUCED: Final = "reduced"
"""Any account; the response contains only topics for which it has a permission."""
BROKER: Final = "broker"
"""The account of the broker's name, or an administrator."""
ADMIN: Final = "admin"
QUERIES: Final[Mapping[int, str]] = {
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: ADMIN,
    RequestCode.GET_KV_CONFIG: ADMIN,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO: ACCOUNT,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: REDUCED,
    RequestCode.GET_KVLIST_BY_NAMESPACE: ADMIN,
    RequestCode.GET_TOPICS_BY_CLUSTER: REDUCED,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: ACCOUNT,
    RequestCode.GET_UNIT_TOPIC_LIST: REDUCED,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: REDUCED,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: REDUCED,
    RequestCode.GET_NAMESRV_CONFIG: ADMIN,
    RequestCode.QUERY_DATA_VERSION: BROKER,
}
"""Request codes that return data, with their requirements. A code in neither this table nor GUARDED needs ADMIN."""
OF_RULES: Final = frozenset({RequestCode.GET_BROKER_CLUSTER_ACL_INFO})
"""Queries about the rules, which are restricted even with `namesrvAclMetadata=open`."""
FOR_ALL: Final = frozenset({TRACE_TOPIC, AUTO_CREATE_TOPIC})
"""Topics whose routes clients of every account need: for traces, and before the first message to a new topic."""
_SHOWN_CHARACTERS: Final = 128


def view_of(account: Account, routes: Routes, topic: str = "") -> View | None:
    """Return what an account may see, None for everything. `topic` is one that may be a cluster's reply topic."""
    if sees_all(account):
        return None
    cluster, postfix, rest = topic.rpartition("_" + REPLY_TOPIC_POSTFIX)
    is_reply_topic = bool(postfix) and not rest and routes.has_cluster(cluster)
    return View(account, topic if is_reply_topic else "")


def check_permission(account: Account, routes: Routes, registrars: frozenset[str], command: Command) -> None:
    """Raise RefusalError unless the account of a signed query may send it.

    `registrars` are the access keys of the broker that a request names.
    """
    needs = QUERIES.get(command.code, ADMIN)
    key = account.entry.access_key
    if sees_all(account) or needs in (ACCOUNT, REDUCED) or (needs == BROKER and key in registrars):
        return
    if needs == TOPIC:
        topic = command.fields.get("topic", "")
        view = view_of(account, routes, topic)
        if topic in FOR_ALL or view is None or view.shows(topic):
            return
        raise RefusalError("permission", f"No default permission for topic:{topic[:_SHOWN_CHARACTERS]}")
    text = f"Need admin permission for request code={command.code}, but accessKey={shown(key)} is not"
    raise RefusalError("admin", text)
