"""A master keeps the part of the log that a connected replica lacks, up to a limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from delaymq.protocol.codes import ResponseCode
from delaymq.replication import Settings
from delaymq_testing.replicated_group import replicated
from delaymq_testing.running_server import BrokerPeer, run, until


def test_log_that_a_connected_replica_lacks_is_pinned_up_to_the_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = Settings(waits_for_replicas=False, replica_timeout_ms=1_000)
        async with replicated(tmp_path / "g", "ab", settings) as group:
            broker = group["a"].running.broker
            peer = await BrokerPeer.connect(group["a"].port)
            assert (await peer.send("T", b"x" * 1_000)).code == ResponseCode.SUCCESS
            replica = group["b"].running.broker.store
            await until(lambda: replica.end_offset == broker.store.end_offset)
            await until(lambda: broker.store.pins.oldest() == broker.store.end_offset)
            lacks_from = replica.end_offset
            group["b"].replica.driver.halt()  # it stays connected
            for _ in range(5):
                assert (await peer.send("T", b"x" * 1_000)).code == ResponseCode.SUCCESS
            assert broker.store.pins.oldest() == lacks_from
            assert "replicas" in [pin.holder for pin in broker.store.pins.report()]
            broker.apply(replace(broker.config, ha_pin_max_bytes=2_000))
            holders = [pin.holder for pin in broker.store.pins.report()]
            assert "replicas" not in holders, "it would have to begin again"

    run(scenario)
