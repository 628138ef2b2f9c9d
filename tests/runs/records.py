"""Records of rollouts for the tests of run directories and pages."""

# of no turn
PLACE = dict.fromkeys(("trajectory", "turn", "state", "turn_reward", "step_return", "valid"))
STATES = dict.fromkeys(("prefix_state", "cut_tokens", "cut_value", "cut_state"))


def rollout(step=1, **changes):
    """A row with every column."""
    return {
        "step": step,
        "uid": "p",
        "context": "plain",
        "origin": None,
        "group": 0,
        "group_replay": None,
        "group_ranking": None,
        "verdict": "wrong",
        "reason": "wrong",
        "outcome_reward": 0.0,
        "ranking_reward": None,
        "reward": 0.25,
        "ranked": True,
        "advantage": -0.5,
        "distill": None,
        "recalled_from": None,
        "truncated": True,
        "num_tokens": 3,
        "entropy_peak": 1.5,
        "entropy_global": 0.4,
        "entropy_source": "exact",
        "entropy_peak_lower": 1.0,
        "entropy_peak_upper": 2.0,
        "entropy_global_lower": 0.3,
        "entropy_global_upper": 0.5,
        "text": "3 + 4 = 8",
        "answer": "8",
        "extras": None,
        "prompt": "What is 3 + 4?",
        "prefix_tokens": 0,
        "given": None,
        "pieces": None,
        **STATES,
        **PLACE,
        **changes,
    }
