"""Loads the HTTP side in a thread: it is aiohttp for the most part, which takes a while.

aiohttp's client reads the certificates of all issuers that the system trusts when it is imported, twice. No server uses
that client, and they would take 2 MB for ever and the processor while the first clients come: so they are left out.
"""

import asyncio
import importlib
import ssl
import threading
from types import ModuleType

_one_at_a_time = threading.Lock()


async def load(name: str) -> ModuleType:
    """The module `name`, imported."""
    return await asyncio.get_running_loop().run_in_executor(None, _load, name)


def _load(name: str) -> ModuleType:
    with _one_at_a_time:
        importer = threading.get_ident()
        read = ssl.SSLContext.set_default_verify_paths

        def read_for_others(context: ssl.SSLContext) -> None:
            if threading.get_ident() != importer:
                read(context)

        ssl.SSLContext.set_default_verify_paths = read_for_others  # type: ignore[assignment, method-assign]
        try:
            return importlib.import_module(name)
        finally:
            ssl.SSLContext.set_default_verify_paths = read  # type: ignore[method-assign]
