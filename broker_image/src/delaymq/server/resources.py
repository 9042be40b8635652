"""Operating system resources that a server reserves at startup, so that it does not run out of them later."""

import logging
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError
from typing import Final

from delaymq.server.errors import ServerError
from delaymq.server.listening import BACKLOG
from delaymq.store.consume_queue import MAX_OPEN_FILES

MAX_DESCRIPTORS: Final = 1 << 20
"""Maximum descriptor limit; some containers have a default of a billion."""
HTTP_DESCRIPTORS: Final = 256
"""Connections of HTTP (`server.http.http_server.MAX_CONNECTIONS`)."""
OTHER_DESCRIPTORS: Final = 128
"""For replaced files, new log segments, and connections to NameServers."""
RESERVED_DESCRIPTORS: Final = MAX_OPEN_FILES + HTTP_DESCRIPTORS + OTHER_DESCRIPTORS + BACKLOG
"""Descriptors not used for client connections, including a margin for the connections accepted at a time."""
_START_TIMEOUT_S: Final = 60.0

_logger = logging.getLogger(__name__)


def raise_descriptor_limit() -> int:
    """Raise the limit on open files as far as permitted, and return the effective limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:
            _logger.warning("cannot raise the limit on open files (%s); it remains %d", error, soft)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def descriptor_end(limit: int, max_connections: int) -> int:
    """Return the first descriptor that client connections must not use, given the descriptors open now.

    A new descriptor is always the lowest free one, so the descriptors above stay free for other uses. Raises
    ServerError if no descriptor is left.
    """
    try:
        lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ServerError(
            f"no descriptor is left for connections ({error}): raise the limit on open files, which is {limit} "
            "(ulimit -Hn, LimitNOFILE= in systemd), then start again"
        ) from error
    os.close(lowest_free)
    left = limit - lowest_free
    room = left - min(RESERVED_DESCRIPTORS, left * 3 // 4)
    if room < max_connections:
        _logger.warning(
            "maxConnections is %d, but the limit on open files (%d) leaves room for about %d connections: raise the "
            "limit (ulimit -Hn, LimitNOFILE= in systemd) or lower maxConnections",
            max_connections,
            limit,
            room,
        )
    return lowest_free + room


def started(executor: ThreadPoolExecutor, threads: int) -> ThreadPoolExecutor:
    """Start the threads of `executor` and return it, so that a later lack of threads does not affect it.

    Raises ServerError.
    """
    all_run = Barrier(threads + 1)
    try:
        for _ in range(threads):
            executor.submit(all_run.wait, _START_TIMEOUT_S)
        all_run.wait(_START_TIMEOUT_S)
    except (RuntimeError, BrokenBarrierError) as error:
        all_run.abort()
        executor.shutdown(wait=False, cancel_futures=True)
        raise ServerError(
            f"cannot start a thread ({error}): raise the limit on processes (ulimit -u) or on the container's "
            "PIDs, then start again"
        ) from error
    return executor
