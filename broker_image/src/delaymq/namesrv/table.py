"""Dispatch table of the NameServer: request code → function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from delaymq.namesrv import processors as do
from delaymq.namesrv import registrations
from delaymq.protocol.codes import RequestCode

if TYPE_CHECKING:
    from delaymq.namesrv.nameserver import Processor

PROCESSORS: Final[dict[int, Processor]] = {
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: do.rule_versions,
    RequestCode.PUT_KV_CONFIG: do.put_kv,
    RequestCode.GET_KV_CONFIG: do.get_kv,
    RequestCode.DELETE_KV_CONFIG: do.delete_kv,
    RequestCode.REGISTER_BROKER: registrations.register_broker,
    RequestCode.UNREGISTER_BROKER: registrations.unregister_broker,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: do.route_of_topic,
    RequestCode.GET_BROKER_CLUSTER_INFO: do.cluster_info,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: do.wipe_write_permission,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: do.all_topics,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: do.delete_topic,
    RequestCode.GET_KVLIST_BY_NAMESPACE: do.kv_table,
    RequestCode.GET_TOPICS_BY_CLUSTER: do.topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: do.system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: do.unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: do.unit_subscription_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: do.unit_subscription_only_topics,
    RequestCode.UPDATE_NAMESRV_CONFIG: do.update_config,
    RequestCode.GET_NAMESRV_CONFIG: do.get_config,
    RequestCode.QUERY_DATA_VERSION: registrations.query_data_version,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: do.add_write_permission,
}
