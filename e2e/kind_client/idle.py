"""Does nothing until it is stopped: the process of a pod in which tests run the other programs."""

import signal
import sys


def main() -> None:
    # Process 1 of a container gets no signal that it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
