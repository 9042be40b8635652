"""Entry point of `python -m delaymq`, which is equivalent to the command `delaymq`."""

from delaymq.cli.main import main

main()
