"""The program `delaymq-operator`: settings, logging, and one replica until SIGTERM; errors are reported in one
sentence.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from delaymq_operator.logs import configure_logging
from delaymq_operator.settings import OperatorSettings, SettingsError, read_settings

if TYPE_CHECKING:
    from delaymq_operator.runtime import Reconcilers

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2

_logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until it is stopped, then end the process; return the exit code only if nothing was started."""
    try:
        settings = read_settings(sys.argv[1:] if arguments is None else arguments, os.environ)
    except SettingsError as error:
        print(f"delaymq-operator: {error}", file=sys.stderr)
        return EXIT_USAGE
    configure_logging(settings.log_format, settings.log_level)
    return end_process(serve(settings, _reconcilers))


def end_process(code: int) -> NoReturn:
    """End the process immediately: the operator's resources are closed, and hanging threads or tasks of libraries
    are not awaited.
    """
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def serve(settings: OperatorSettings, reconcilers: Callable[[], Reconcilers]) -> int:
    """Run one replica and return the exit code. Tasks of libraries may remain: end the process afterwards."""
    # These imports take a second, which --help does not need.
    from kopf import LoginError

    from delaymq_operator.adapters.election import LeaseLostError
    from delaymq_operator.reconcile.errors import KubeError
    from delaymq_operator.runtime import OperatorRuntime

    async def run() -> None:
        await OperatorRuntime(settings, reconcilers()).run()

    try:
        # Not asyncio.run, which waits until every task has been cancelled: some of a failed kopf never end.
        asyncio.new_event_loop().run_until_complete(run())
    except (LeaseLostError, SettingsError) as error:
        _logger.error("%s", error)
        return EXIT_FAILURE
    except KubeError as error:
        _logger.error("%s", error.message)
        return EXIT_FAILURE
    except LoginError as error:
        _logger.error("the API server rejects the operator's token, restarting: %s", error)
        return EXIT_FAILURE
    except Exception as error:
        status = getattr(error, "status", None)
        if status == 404:
            _logger.error(
                ("the API server no longer recognises a kind: check whether the CRDs were removed; restarting: %s"),
                error,
            )
        elif isinstance(status, int):
            _logger.error("kopf stopped, restarting: HTTP status %d: %s", status, error)
        else:
            _logger.exception("unexpected error, a bug in the operator; restarting")
        return EXIT_FAILURE
    _logger.info("stopped")
    return 0


def _reconcilers() -> Reconcilers:
    from delaymq_operator.reconcile.broker import reconcile_broker
    from delaymq_operator.reconcile.delay_level_config import reconcile_levels, release_levels
    from delaymq_operator.reconcile.topic import reconcile_topic, release_topic
    from delaymq_operator.reconcile.users import reconcile_user
    from delaymq_operator.runtime import Reconcilers

    return Reconcilers(
        reconcile={
            "Broker": reconcile_broker,
            "Topic": reconcile_topic,
            "DelayLevelConfig": reconcile_levels,
            "User": reconcile_user,
        },
        release={"Topic": release_topic, "DelayLevelConfig": release_levels},
    )


if __name__ == "__main__":
    sys.exit(main())
