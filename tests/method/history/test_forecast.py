"""What a run's history will hold: by hand, against a real store, and for the full-size experiments."""

import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.history import HistoryStore
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.runs.planning.history_forecast import forecast, history_warnings

from .samples import noisy_rollout

DEEPSCALER = 40_315  # problems of agentica-org/DeepScaleR-Preview-Dataset
FULL_SIZE = ("r3_1p5b_deepscaler_8gpu", "r3_7b_deepscaler_multinode")


def test_by_hand():
    """4,096 tokens: 15,974 bytes of log-probs and 9,011 of ids are 26,520 with pages and the row. 100 problems, both
    verdicts: 5.3 MB for one of each; a step of 2 x 16 brings 0.8 MB, a quarter more is kept free."""
    run = dict(
        num_problems=100, problems_per_step=2, samples=16, mean_tokens=4096, steps_to_floor=1
    )
    free = 10_000_000 - 120_000 - 100 * (640 + 440 * 3 // 2) - 32 * 26_520 * 5 // 4
    rows, _ = forecast(HistorySettings(max_bytes=10_000_000), **run)
    assert rows == pytest.approx(free / (200 * 26_520)) and rows > 1
    rows, enough_bytes = forecast(HistorySettings(max_bytes=4_000_000), **run)
    assert rows == pytest.approx((free - 6_000_000) / (200 * 26_520)) and rows < 0.6
    assert forecast(HistorySettings(max_bytes=enough_bytes), **run)[0] == pytest.approx(1.0)


@pytest.mark.parametrize("max_bytes", [1_000_000, 2_000_000])
def test_a_real_store_holds_what_was_forecast(max_bytes, quick_path):
    """60 problems, one success and one error of 1,500 tokens a visit, two visits. Lengths are exact, so within 5%."""
    limits = HistorySettings(max_bytes=max_bytes)
    expected, _ = forecast(
        limits,
        num_problems=60,
        problems_per_step=1,
        samples=2,
        mean_tokens=1500,
        steps_to_floor=1,
    )
    with HistoryStore.open(quick_path / "history.sqlite", limits=limits) as store:
        for step in range(120):
            batch = [
                noisy_rollout(f"p{step % 60}", 1500, verdict=v)
                for v in (Verdict.CORRECT, Verdict.WRONG)
            ]
            store.commit_step(step, 1, batch)
            store.set_rollback_floor(step)
        rows = [
            len(store.recall(f"p{problem}", verdict, k=9, step=120, max_policy_lag=999))
            for problem in range(60)
            for verdict in (Verdict.CORRECT, Verdict.WRONG)
        ]
    assert sum(map(bool, rows)) / 120 == pytest.approx(min(1, expected), rel=0.05)
    assert sum(rows) / 120 == pytest.approx(min(2, expected), rel=0.05)


@pytest.mark.parametrize("name", FULL_SIZE)
def test_the_full_size_experiments_hold_as_much_as_their_cap_asks_for(name):
    config = load_config(name, [])
    assert history_warnings(config, num_problems=DEEPSCALER) == []
    rows, _ = forecast(
        config.history,
        num_problems=DEEPSCALER,
        problems_per_step=config.rollout.batch_size,
        samples=config.rollout.n_samples_per_prompt,
        mean_tokens=config.rollout.max_new_tokens / 2,
        steps_to_floor=config.checkpoint.save_steps * config.checkpoint.max_num,
    )
    assert rows == config.history.max_per_problem_and_verdict


def test_a_history_that_will_starve_is_said_before_the_run():
    config = load_config(FULL_SIZE[0], ["history.max_bytes=2000000000"])
    (starving,) = history_warnings(config, num_problems=DEEPSCALER)
    assert (
        "history.max_bytes is 2,000,000,000" in starving
        and "use 4,329,144,700 or more" in starving
    )
    assert "about 46% of them" in starving
    assert (
        history_warnings(
            load_config(FULL_SIZE[0], ["history.max_bytes=5000000000"]), num_problems=DEEPSCALER
        )
        == []
    )
    assert (
        history_warnings(load_config("grpo_1p5b_deepscaler_8gpu", []), num_problems=DEEPSCALER)
        == []
    )
