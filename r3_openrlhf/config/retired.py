"""Keys that were taken out, each with a substitute. A user who types one gets a sentence with it.

A run's file older than the removal may hold one: reading it passes over these keys.
"""

from __future__ import annotations

_CONSTANT = "what was its default always holds; leave it out"

# Values that a section answers in a sentence; in a run's file the default takes their place.
RETIRED_VALUES = {"advantage.scope": "literal"}

RETIRED: dict[str, str] = {
    "exploration.select": _CONSTANT,
    "exploration.first_samples": _CONSTANT,
    "reflection.share_successes": _CONSTANT,
    "reflection.max_per_step": "use reflection.max_share, a share of the step's problems",
    "advantage.zero_collapsed": _CONSTANT,
    "advantage.lam": "what is added to the standard deviation is advantage.std_eps; lambda of GAE is openrlhf.algo.advantage.lambd (algo=ppo)",
    "replay.failure_logprobs": "replay.old_logprobs holds for successes and failures alike; leave it out",
    "replay.rehearse.min_rate": "problems with a share of right rollouts above 0 and up to 1/4 are rehearsed; leave it out",
    "replay.rehearse.max_rate": "problems with a share of right rollouts above 0 and up to 1/4 are rehearsed; leave it out",
    "replay.rehearse.coef": "a rehearsed row has the advantage 1; leave it out",
    "reflection.first_epoch": "reflection begins in the second epoch, as in the paper; leave it out",
    "exploration.rrl.at_delimiters": "a response may be cut after any token; leave it out",
    "train.max_grad_norm": "openrlhf.actor.max_norm and openrlhf.critic.max_norm say the same",
    "train.dual_clip": "replay.dual_clip bounds all rows where replay is on, openrlhf.actor.dual_clip in every algorithm",
    "critic.path": "openrlhf.critic.model_name_or_path says the same",
    "critic.learning_rate": "openrlhf.critic.adam.lr says the same",
    "critic.warmup_steps": "openrlhf.critic.freezing_steps says the same, one less: N freezes the policy for N + 1 steps",
    "critic.value_clip": "openrlhf.critic.value_clip says the same",
    "critic.gamma": "openrlhf.algo.advantage.gamma says the same",
    "critic.lambd": "openrlhf.algo.advantage.lambd says the same",
    "data.keep_rows": "rows are kept where reward.function or reward.functions is set; leave it out",
    "rollout.record": "the environment variable R3_RECORD names the directory",
    "rollout.playback": "the environment variable R3_PLAYBACK names the recording",
    "reward.thinking_marks": "<think>, <thinking>, [THINK], ◁think▷ and the like are known; for others write a grader, data.task=my_module:grade",
    "held_out.sources": "held_out.path takes a directory or a pattern, like held_out/*.jsonl",
    "logging.examples": "`r3 show RUN --step N` and `r3 view` show rollouts",
    "logging.notify": "call your command after `r3 train`, as in r3 train ...; my_command $?",
    "agents.lists_actions": "the actions are listed where the environment knows them; leave it out",
    "agents.instruction": "put a sentence of your own into the environment's goal",
    "agents.std_norm": _CONSTANT,
    "agents.reading": "hgpo follows its paper; leave it out",
    "agents.episode_weight": "it is 1 for gigpo and 0 for hgpo, as in their papers; leave it out",
    "held_out.temperature": "held-out problems are sampled at temperature 1; `r3 eval --temperature` takes another one",
    "checkpoint.resume": "a run continues from its newest checkpoint; another run_dir starts from the beginning",
    "checkpoint.accept_lost_history": "use checkpoint.force=true",
    "checkpoint.accept_foreign": "use checkpoint.force=true",
    "stop.max_p99_logprob_gap": "it is ten times stop.max_abs_logprob_gap; raise that one",
    "exploration.rrl.rule": "use exploration.rrl.cut",
    "exploration.rrl.order": "states are drawn by value and novelty; leave it out",
    "exploration.rrl.max_failures": "a state that fails is cut earlier and drawn less often; leave it out",
}
