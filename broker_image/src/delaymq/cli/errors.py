"""What this layer raises."""


class CommandError(Exception):
    """A command that could not be done; `main` prints the text and ends with `exit_code`."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code
