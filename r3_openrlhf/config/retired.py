"""Keys that were taken out, each with what to do instead. Whoever types one is answered by its name.

A file of a run that is older than the removal may still hold one: reading it passes over these keys.
"""

from __future__ import annotations

_CONSTANT = "what was its default always holds; leave it out"

RETIRED: dict[str, str] = {
    "advantage.zero_collapsed": _CONSTANT,
    "replay.failure_logprobs": "replay.old_logprobs holds for successes and failures alike; leave it out",
    "replay.rehearse.min_rate": "problems with a share of right rollouts above 0 and up to 1/4 are rehearsed; leave it out",
    "replay.rehearse.max_rate": "problems with a share of right rollouts above 0 and up to 1/4 are rehearsed; leave it out",
    "replay.rehearse.coef": "a rehearsed row has the advantage 1; leave it out",
    "reflection.first_epoch": "reflection begins in the second epoch, as in the paper; leave it out",
    "exploration.rrl.at_delimiters": "a response may be cut after any token; leave it out",
    "exploration.rrl.max_failures": "a state is dropped after 32 continuations without a success; leave it out",
}
