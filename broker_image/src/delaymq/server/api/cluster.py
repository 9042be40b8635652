"""GET /api/v1/cluster: brokers known to the NameServers, and this broker's registrations."""

from delaymq.api_types.cluster import BrokerRow, Cluster, NameServerRow
from delaymq.protocol.bodies import ClusterInfo
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.protocol.errors import RequestError
from delaymq.server.api.routing import Api
from delaymq.server.registration import NameServerLink
from delaymq.transport import TransportError

REQUEST_TIMEOUT_MS = 2_000
"""Timeout per NameServer, after which the next one is queried."""
MAX_BROKERS = 1_000
"""Maximum number of brokers shown."""


async def cluster(api: Api) -> Cluster:
    """Return the brokers known to the first NameServer that responds; only this broker if none does."""
    config = api.broker.config
    links = api.server.registration.links
    brokers: list[BrokerRow] = []
    for link in links:
        if brokers := await _brokers_of(link):
            break
    if not any(row.broker_name == config.broker_name for row in brokers):
        own = BrokerRow(
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            address=api.broker.address,
            cluster=config.broker_cluster_name,
        )
        brokers.insert(0, own)
    return Cluster(
        as_of_ms=api.broker.now_ms(),
        cluster_name=config.broker_cluster_name,
        brokers=brokers[:MAX_BROKERS],
        name_servers=[
            NameServerRow(address=link.address, registered=link.problem is None, problem=link.problem) for link in links
        ],
    )


async def _brokers_of(link: NameServerLink) -> list[BrokerRow]:
    try:
        answer = await link.request(request_command(RequestCode.GET_BROKER_CLUSTER_INFO, {}), REQUEST_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            return []
        table = ClusterInfo.decode(answer.body).broker_addr_table
    except (TransportError, RequestError):
        return []
    return [
        BrokerRow(broker_name=name, broker_id=broker_id, address=address, cluster=data.cluster)
        for name, data in sorted(table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]
