"""Errors of commands, with their exit codes."""

import errno
from typing import Final

EXIT_NOT_DONE: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
"""Nobody is there, or no answer comes: trying again later, or another address, may help."""
EXIT_INTERRUPTED: Final = 130
_UNUSABLE: Final = frozenset(
    {
        *(errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
        *(errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS),
    }
)


def exit_code_of_path(error: OSError) -> int:
    """Misuse when the named file or folder cannot be used; not done when the disk or the system refused."""
    return EXIT_USAGE if error.errno in _UNUSABLE else EXIT_NOT_DONE


class CommandError(Exception):
    """A command that could not be done; `main` prints the text and ends with `exit_code`."""

    def __init__(self, text: str, exit_code: int = EXIT_NOT_DONE) -> None:
        super().__init__(text)
        self.exit_code = exit_code
