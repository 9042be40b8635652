"""Command errors and their exit codes."""

import errno
from typing import Final

EXIT_NOT_DONE: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
"""No connection, or no response in time: a later attempt or another address may succeed."""
EXIT_INTERRUPTED: Final = 130
_UNUSABLE: Final = frozenset(
    {
        *(errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
        *(errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS),
    }
)


def exit_code_of_path(error: OSError) -> int:
    """Return EXIT_USAGE if the named file or folder cannot be used, EXIT_NOT_DONE if the disk or the system failed."""
    return EXIT_USAGE if error.errno in _UNUSABLE else EXIT_NOT_DONE


class CommandError(Exception):
    """Failure of a command; `main` prints the text and exits with `exit_code`."""

    def __init__(self, text: str, exit_code: int = EXIT_NOT_DONE) -> None:
        super().__init__(text)
        self.exit_code = exit_code
