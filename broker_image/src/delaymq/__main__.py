"""`python -m delaymq`: the same as the command `delaymq`."""

from delaymq.cli.main import main

main()
