"""Groups, resets and messages by time through Admin: local rejections and odd responses."""

from typing import Any

import pytest
from delaymq.client import EARLIEST, Admin, BadAnswerError, Client, ClientError, GroupConfig, MessageQueue, RefusedError
from delaymq.client.admin.reading import TOOLS_GROUP, QueueReading
from delaymq.protocol.bodies import BrokerData, ClusterInfo, ConsumeOffset, ConsumeStats, ResetOffset
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq_testing.client.fake_peer import FakeBroker, run, running

QUEUE = MessageQueue("broker-a", 0, "T")


def known(broker: FakeBroker, name_server: Any) -> None:
    """Has the NameServer tell where the broker is."""
    info = ClusterInfo({broker.name: BrokerData(broker.name, "C", {0: broker.address})}, {"C": [broker.name]})
    name_server.scripts[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda _: Response(body=info.encode())


@pytest.mark.parametrize("config", [GroupConfig(group="no good"), GroupConfig(group="g", retry_queues=-1)])
def test_invalid_requests_are_rejected_locally(config: GroupConfig) -> None:
    async def scenario() -> None:
        async with Client(None) as client:
            with pytest.raises(ValueError, match=r"illegal|or more"):
                await Admin(client).put_group(config)
            with pytest.raises(ValueError, match="illegal"):
                await Admin(client).reset_offset("no good", "T", EARLIEST)
            with pytest.raises(ValueError, match="is not a valid time"):
                await Admin(client).reset_offset("g", "T", -5)
            with pytest.raises(ValueError, match="0 or more"):
                await Admin(client).set_offset("g", QUEUE, -1)

    run(scenario)


def test_group_config_survives_the_wire() -> None:
    config = GroupConfig(
        group="g", consume=False, broadcast=False, retry_queues=3, retry_max_times=4, from_min=False, broker_id=1,
        which_broker_when_slow=2, notify_members=False,
    )  # fmt: skip
    assert GroupConfig.from_wire(config.to_wire()) == config


def test_broker_without_offsets_gets_them_before_a_reset() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"x")
        answers = [Response(ResponseCode.SYSTEM_ERROR, "THe consumer group <g> not exist")]
        answers.append(Response(body=ResetOffset({QUEUE: 0}).encode()))
        broker.scripts[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET] = lambda _: answers.pop(0)
        stats = ConsumeStats({QUEUE: ConsumeOffset(1, 0, 0)})
        broker.scripts[RequestCode.GET_CONSUME_STATS] = lambda _: Response(body=stats.encode())
        async with running(broker) as (client, _):
            outcome = await Admin(client).reset_offset("g", "T", EARLIEST)
        assert outcome.told_members
        assert (broker.committed, outcome.queues[QUEUE].new) == (0, 0)

    run(scenario)


@pytest.mark.parametrize(
    ("code", "remark"), [(ResponseCode.SYSTEM_ERROR, "disk full"), (ResponseCode.NO_PERMISSION, "no")]
)
def test_other_errors_of_a_reset_are_raised(code: int, remark: str) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET] = lambda _: Response(code, remark)
        broker.scripts[RequestCode.GET_CONSUME_STATS] = lambda _: Response(body=ConsumeStats().encode())
        async with running(broker) as (client, _):
            with pytest.raises(RefusedError, match=remark):
                await Admin(client).reset_offset("g", "T", EARLIEST)
        assert broker.committed is None

    run(scenario)


def test_members_known_to_two_brokers_are_listed_once_and_errors_raised() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, name_server):
            known(broker, name_server)
            body = (
                b'{"connectionSet":[{"clientId":"c","clientAddr":"a:1","language":"JAVA","version":407}],'
                b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"X"}'
            )
            broker.scripts[RequestCode.GET_CONSUMER_CONNECTION_LIST] = lambda _: Response(body=body)
            seen = await Admin(client).group_members("g")
            assert (list(seen.members), seen.model) == (["c"], "CLUSTERING")
            broker.scripts[RequestCode.GET_CONSUMER_CONNECTION_LIST] = lambda _: Response(16, "no")
            with pytest.raises(RefusedError):
                await Admin(client).group_members("g")
            broker.scripts[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = lambda _: Response(body=b"nonsense")
            with pytest.raises(BadAnswerError):
                await Admin(client).groups()

    run(scenario)


def test_queue_is_read_as_the_tools_group_without_commits() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(100):
            broker.add("T", b"%d" % number)
        async with running(broker) as (client, _):
            reading = QueueReading(client)
            assert [message.body for message in await reading.last(QUEUE, 3)] == [b"97", b"98", b"99"]
            assert len(await reading.read(QUEUE, 10, 90)) == 80
            assert await reading.read(QUEUE, 100, 200) == []
            # All have the same store time, and the broker answers with one in the middle.
            broker.scripts[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda _: Response(fields={"offset": "70"})
            assert await reading.first_at(QUEUE, 1_700_000_000_001) == 0
            assert await reading.first_at(QUEUE, 1_700_000_000_002) == 100
            assert await Admin(client).query_by_time("T", 0, 1_700_000_000_000) == []
            assert len(await Admin(client).query_by_time("T", 0, 1_700_000_000_001, max_messages=100)) == 100
        pulls = broker.asked(RequestCode.PULL_MESSAGE)
        assert {pull.fields["consumerGroup"] for pull in pulls} == {TOOLS_GROUP}
        assert broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET) == []
        assert broker.asked(RequestCode.HEART_BEAT) == []

    run(scenario)


def test_read_ends_when_the_broker_returns_no_progress() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"x")

        def stuck(command: Command) -> Response:
            fields = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "9", "nextBeginOffset": "0"}
            return Response(ResponseCode.PULL_RETRY_IMMEDIATELY, None, fields)

        broker.scripts[RequestCode.PULL_MESSAGE] = stuck
        broker.scripts[RequestCode.GET_MAX_OFFSET] = lambda _: Response(fields={"offset": "9"})
        broker.scripts[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda _: Response(fields={"offset": "4"})
        async with running(broker) as (client, _):
            reading = QueueReading(client)
            assert await reading.read(QUEUE, 0, 9) == []
            assert await reading.first_at(QUEUE, 5) == 9

    run(scenario)


def test_failure_while_reading_many_queues_is_one_error() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.GET_MIN_OFFSET] = lambda _: Response(1, "broken")
        async with running(broker, queues=20) as (client, _):
            with pytest.raises(ClientError, match="broken"):
                await Admin(client).last_messages("T", 5)

    run(scenario)
