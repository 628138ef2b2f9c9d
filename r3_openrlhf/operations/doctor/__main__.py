"""`python -m r3_openrlhf.operations.doctor`: as `r3 doctor`, with Python alone."""

import argparse
import sys

from r3_openrlhf.operations.doctor import run
from r3_openrlhf.operations.doctor.checks import STACKS

parser = argparse.ArgumentParser(
    prog="python -m r3_openrlhf.operations.doctor", description=__doc__
)
parser.add_argument("settings", nargs="*", metavar="experiment=NAME KEY=VALUE")
parser.add_argument("--stack", choices=STACKS)
parser.add_argument("--json", action="store_true", dest="as_json")
options = parser.parse_args()
sys.exit(run(tuple(options.settings), stack=options.stack, as_json=options.as_json))
