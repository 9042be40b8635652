"""Transactions of a running broker: rounds of checks, and metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from delaymq.protocol.bodies import HeartbeatData, ProducerData
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command
from delaymq.transport import RemotingConnection, connect
from delaymq_testing.running_server import HOST, BrokerPeer, run, standalone

LIMIT_S = 60.0


def test_running_broker_sends_checks_and_counts_outcomes(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = {"transaction_time_out": 100, "transaction_check_interval": 200}
        async with standalone(tmp_path, http=True, **settings) as server:
            asked: asyncio.Queue[Command] = asyncio.Queue()

            def on_commands(connection: RemotingConnection, commands: list[Command]) -> None:
                for command in commands:
                    asked.put_nowait(command)

            producer = await connect(HOST, server.broker.port, on_commands)
            beat = HeartbeatData("p", producer_data_set=[ProducerData("payers")]).encode()
            await producer.request(request_command(RequestCode.HEART_BEAT, body=beat), 5_000)
            peer = await BrokerPeer.connect(server.broker.port)
            note_stall = await peer.send("T", b"open", TRAN_MSG="true", PGROUP="nobody", UNIQ_KEY="O")
            assert note_stall.code == 0
            sent = await peer.send("T", b"paid", TRAN_MSG="true", PGROUP="payers", UNIQ_KEY="U")
            assert sent.code == 0
            async with asyncio.timeout(LIMIT_S):
                question = await asked.get()
            assert question.code == RequestCode.CHECK_TRANSACTION_STATE
            fields = {name: question.fields[name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId")}
            fields |= {"producerGroup": "payers", "commitOrRollback": "8", "fromTransactionCheck": "true"}
            answer = await producer.request(request_command(RequestCode.END_TRANSACTION, fields), 5_000)
            assert answer.code == 0
            assert (await peer.pull("T", 0)).code == 0
            url = f"http://{HOST}:{server.broker.http_port}"
            async with aiohttp.ClientSession() as http:
                told = (await (await http.get(f"{url}/api/v1/broker")).json())["transactions"]
                remaining = await (await http.get(f"{url}/api/v1/remaining")).json()
                text = await (await http.get(f"{url}/metrics")).text()
            assert told == {"pending": 1, "committed": 1, "rolledBack": 0, "checked": told["checked"], "givenUp": 0}
            assert told["checked"] >= 1
            assert remaining["pendingDelays"] == 1  # an open transaction goes with its broker
            assert "delaymq_transactions_pending 1.0" in text
            assert "delaymq_transactions_committed_total 1.0" in text
            producer.close()

    run(scenario)
