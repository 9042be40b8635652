"""``python -m harness.isolated -- COMMAND ...``: run a command in a network namespace with loopback only.

The class paths are prepared first, while Maven can reach its repository. Exit code 75 if no namespace can be created.
"""

import os
import sys

from harness import isolation, java
from harness.errors import HarnessError

EXIT_NOT_POSSIBLE = 75


def main(arguments: list[str]) -> int:
    """Replace this process with the command; return only on failure."""
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not command:
        print("usage: python -m harness.isolated -- COMMAND ...", file=sys.stderr)
        return 2
    try:
        java.prepare()
        isolation.enter()
    except HarnessError as e:
        print(f"cannot isolate: {e}", file=sys.stderr)
        return EXIT_NOT_POSSIBLE
    try:
        os.execvp(command[0], command)
    except OSError as e:
        print(f"cannot run {command[0]}: {e.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
