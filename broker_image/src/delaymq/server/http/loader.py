"""Loading of the HTTP modules in a thread, because importing aiohttp takes a while.

On import, aiohttp reads two things that no server uses: the certificates of all trusted CAs of the system (twice, for
its client), and the system's MIME types (for file responses). They would take 2.4 MB permanently, and processor time
while the first clients connect, so both reads are suppressed.
"""

import asyncio
import importlib
import mimetypes
import ssl
import threading
from types import ModuleType

_one_at_a_time = threading.Lock()


async def load(name: str) -> ModuleType:
    """Import the module `name` in a thread and return it."""
    return await asyncio.get_running_loop().run_in_executor(None, _load, name)


def _load(name: str) -> ModuleType:
    with _one_at_a_time:
        importer = threading.get_ident()
        read = ssl.SSLContext.set_default_verify_paths

        def read_for_others(context: ssl.SSLContext) -> None:
            if threading.get_ident() != importer:
                read(context)

        ssl.SSLContext.set_default_verify_paths = read_for_others  # type: ignore[assignment, method-assign]
        mimetypes.knownfiles.clear()
        try:
            return importlib.import_module(name)
        finally:
            ssl.SSLContext.set_default_verify_paths = read  # type: ignore[method-assign]
