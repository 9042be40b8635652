"""Idle process of a pod in which tests run the other programs; it runs until it is stopped."""

import signal
import sys


def main() -> None:
    # Process 1 of a container receives only signals for which it has a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
