"""Entry point of the command `delaymq`: starts servers without typer and runs all other commands with it."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Sequence

from delaymq import __version__
from delaymq.cli.errors import CommandError
from delaymq.cli.terminal.sanitize import visible

SERVERS = ("standalone", "broker", "namesrv")
EXIT_INTERRUPTED = 130
_EXTRA_OF = {
    "aiohttp": "server", "prometheus_client": "server", "uvloop": "server", "tzdata": "server",
    "msgspec": "cli", "rich": "cli", "typer": "cli",
}  # fmt: skip
"""The distribution's extra that provides each library; without extras, only the core is installed."""
_OUTPUT_FAILS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit the process with its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # Names in a damaged store may be invalid text, and a terminal may lack some characters.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(words)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF.get(error.name or "")
        if extra is None:
            raise
        print(f"delaymq: this command requires {error.name}: install 'delaymq[{extra}]'", file=sys.stderr)
        code = 1
    except CommandError as error:
        print(f"delaymq: {visible(str(error))}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, has exited; nothing may be flushed to it at exit.
        _give_up_output()
        code = 1
    except OSError as error:
        if error.errno not in _OUTPUT_FAILS:
            raise
        print(f"delaymq: cannot write the output: {error.strerror}", file=sys.stderr)
        _give_up_output()
        code = 1
    sys.exit(code)


def _open_closed_streams() -> None:
    """Replace closed standard streams (`>&-`) by /dev/null: otherwise the next socket would become standard output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor is the one that was closed.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _give_up_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    if words[:1] in (["--version"], ["-V"]):
        from delaymq.kernels import ABOUT  # loads the kernels

        print(f"delaymq {__version__}\nkernels: {ABOUT}")
        return 0
    if words and words[0] in SERVERS:
        # The first process of a container ignores unhandled signals, and loading takes a while.
        signal.signal(signal.SIGTERM, _stopped_early)
        from delaymq.cli.servers.serve import serve

        return serve(words[0], words[1:])
    from delaymq.cli.app import run

    return run(words)


def _stopped_early(*_: object) -> None:
    """Handle SIGTERM while nothing is open yet; a started server installs its own handler."""
    os._exit(0)
