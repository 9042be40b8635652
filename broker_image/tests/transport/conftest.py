import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from delaymq_testing.certificates import Authority
from delaymq_testing.transport.loopback_tls import BOUND_S, LOOPS, Run


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Run:
    def running(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(BOUND_S):
                await scenario()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(bounded())

    return running


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))
