"""Where no problem is asked twice, most of R³ has nothing to work with: a law, so that no seeds are needed to say so."""

from research import load
from research.loop import Lab


def test_in_one_epoch_whatever_needs_a_second_visit_does_nothing(model_dir, tmp_path):
    """Replay and reflection on: the run is GRPO's, to the last digit. In a second epoch it is not."""
    on = ["replay.include_reflection=true", "reflection.threshold=0.9"]
    sizes = [
        "data.reasoning_gym.size=8",
        "held_out.path=null",
        "rollout.batch_size=4",
        "rollout.n_samples_per_prompt=4",
        "rollout.micro_batch_size=4",
        "rollout.max_new_tokens=8",
        "train.micro_batch_size=4",
    ]
    found = {}
    for epochs in (1, 2):
        for name, preset in (
            ("grpo", ["algo=grpo"]),
            ("all", ["algo=r3", "ranking.enabled=false", *on]),
        ):
            config = load(
                "lab",
                [
                    *sizes,
                    *preset,
                    f"train.num_epochs={epochs}",
                    f"run_dir={tmp_path / f'{name}-{epochs}'}",
                ],
            )
            lines = Lab(config, model_dir=model_dir).train().read_metrics()
            found[name, epochs] = [
                (
                    line["generated_tokens_total"],
                    line["loss"],
                    line["grad_norm"],
                    line["trained_tokens"],
                )
                for line in lines
            ]
    assert found["all", 1] == found["grpo", 1] and len(found["grpo", 1]) == 2
    assert found["all", 2][:2] == found["grpo", 2][:2] and found["all", 2] != found["grpo", 2]
