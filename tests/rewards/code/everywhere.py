"""Runs the honest programs and the attacks as whoever starts this, and prints what became of them as JSON.

python -m tests.rewards.code.everywhere [short]

short: without the attacks that last until a limit of time.
"""

import json
import os
import sys

from r3_openrlhf.rewards.code.data import decode
from r3_openrlhf.rewards.code.run import Limits, Runner
from tests.rewards.code.attacks import ATTACKS, attack
from tests.rewards.code.honest import HONEST

if __name__ == "__main__":
    with Runner() as runner:
        runner.start()
        wrong = []
        for name, (program, call, expected) in HONEST.items():
            (outcome,) = runner.run_program(program, [call], limits=Limits())
            if outcome.status != "finished" or expected not in (
                outcome.stdout,
                outcome.value and decode(outcome.value),
            ):
                wrong.append(
                    f"{name}: {outcome.status} {outcome.detail} {outcome.stdout[:80]!r}"
                )
        names = [
            name
            for name, known in ATTACKS.items()
            if not (sys.argv[1:] and "timeout" in known.statuses)
        ]
        got_through = [
            f"{name}: {result}"
            for name in names
            if not (result := attack(runner, name)).is_held
        ]
    tried = {"honest": len(HONEST), "attacks": len(names)}
    answer = tried | {
        "barriers": {name: bool(holds) for name, holds in runner.barriers.items()}
    }
    json.dump(
        answer | {"wrong": wrong, "got through": got_through, "user": os.getuid()}, sys.stdout
    )
