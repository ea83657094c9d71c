"""`python -m trainer`: the `trainer` command of the Python that is called."""

from trainer.cli import main

main()
