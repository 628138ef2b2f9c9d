"""`python -m r3_openrlhf` is the command `r3`."""

from r3_openrlhf.cli import main

main(prog_name="r3")
