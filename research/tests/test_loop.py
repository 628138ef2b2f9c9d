"""The lab's loop on an untrained model: counts, files and what is left alone. Learning is shown by `make lab`."""

import copy
import json

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from r3_openrlhf.method.errors import ConfigError, DataError, R3Error
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.runs import lock
from r3_openrlhf.runs.directory import RunDirectory
from research import load, loop
from research.controls import LAB_OF_CONTROL, KnownSuccesses, ShuffledReplay, SuccessesOnly
from research.evidence import read
from research.loop import MAX_GRAD_NORM, Lab, held_out_problems
from research.study import CONTROLS, Arm, run_study, settings_of

SMALL = [
    "data.reasoning_gym.size=12",
    "held_out.reasoning_gym.size=20",
    "held_out.max_samples=6",
    "held_out.n_samples=2",
    "held_out.every_steps=2",
    "rollout.batch_size=4",
    "rollout.n_samples_per_prompt=4",
    "rollout.micro_batch_size=4",
    "train.micro_batch_size=4",
    "rollout.max_new_tokens=8",
    "reflection.threshold=0.5",
]


def config_of(tmp_path, *overrides):
    return load("lab", [*SMALL, f"run_dir={tmp_path / 'run'}", *overrides])


def wrong_and_right(lab, labels, *, right):
    """Rollouts of the problems as if the model had said them: `right[i]` of 4 are right."""
    sampled = lab.ask(
        [(label, lab.plain_prompt(label), Context.PLAIN) for label in labels], n=4
    )
    for place, one in enumerate(sampled):
        correct = place % 4 < right[place // 4]
        one.rollout.verdict = Verdict.CORRECT if correct else Verdict.WRONG
        one.rollout.reward = 1.5 if correct else 0.0
    return sampled


def test_two_processes_do_not_train_in_one_directory(model_dir, tmp_path):
    config = config_of(tmp_path)
    lab = Lab(config, model_dir=model_dir)
    with lock.held(RunDirectory(config.run_dir)), pytest.raises(lock.RunBusy):
        lab.train()
    assert not RunDirectory(config.run_dir).metrics.exists()


def test_a_run_leaves_the_files_of_a_run(model_dir, tmp_path):
    config = config_of(tmp_path, "train.num_epochs=2")
    run = Lab(config, model_dir=model_dir).train()
    metrics, evaluations = run.read_metrics(), run.read_evaluations()
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    assert [line["epoch"] for line in metrics] == [1, 1, 1, 2, 2, 2]
    assert [line["step"] for line in evaluations] == [0, 2, 4, 6]
    assert evaluations[0]["generated_tokens"] == 0
    assert evaluations[-1]["generated_tokens"] == metrics[-1]["generated_tokens_total"]
    assert (
        sum(line["generated_tokens"] for line in metrics)
        == metrics[-1]["generated_tokens_total"]
    )
    # an untrained model fails everywhere, so every problem is hard in the second epoch; lab.yaml reflects on two a step
    assert [line["r3/reflection/groups"] for line in metrics] == [0, 0, 0, 1, 1, 1]
    assert all(line["generated_tokens"] == line["response_tokens"] for line in metrics)
    assert run.is_finished(config) and (run.final_model / "config.json").is_file()


@pytest.mark.parametrize("limit", [(), ("train.max_steps=3",)])
def test_the_last_step_is_evaluated_whatever_ends_the_run(model_dir, tmp_path, limit):
    run = Lab(config_of(tmp_path, "train.num_epochs=1", *limit), model_dir=model_dir).train()
    assert [line["step"] for line in run.read_evaluations()] == [0, 2, 3]


def test_a_finished_run_is_left_alone_and_an_unfinished_one_starts_again(model_dir, tmp_path):
    config = config_of(tmp_path, "train.max_steps=2")
    run = Lab(config, model_dir=model_dir).train()
    before = run.metrics.read_text()
    stamp = run.metrics.stat().st_mtime_ns
    Lab(config, model_dir=model_dir).train()
    assert run.metrics.stat().st_mtime_ns == stamp
    run.finished.unlink()
    Lab(config, model_dir=model_dir).train()
    times = ("time/sampling_s", "time/step_s")
    lines = [
        [{k: v for k, v in json.loads(x).items() if k not in times} for x in t.splitlines()]
        for t in (before, run.metrics.read_text())
    ]
    assert lines[0] == lines[1]  # the same seed gives the same run


def test_the_budget_ends_the_run(model_dir, tmp_path):
    run = Lab(
        config_of(tmp_path, "train.max_generated_tokens=300"), model_dir=model_dir
    ).train()
    totals = [line["generated_tokens_total"] for line in run.read_metrics()]
    assert totals[-1] >= 300 > max([0, *totals[:-1]])


def test_a_collapsed_group_recalls_and_its_update_has_the_rows(model_dir, tmp_path):
    config = config_of(tmp_path, "reflection.enabled=false", "ranking.enabled=false")
    lab = Lab(config, model_dir=model_dir)
    from r3_openrlhf.problems.sources import load_problems

    labels = load_problems(config.data).labels[:2]
    with HistoryStore.open(":memory:") as history:
        history.commit_step(
            1, 1, [one.rollout for one in wrong_and_right(lab, labels, right=[2, 0])]
        )
        lab.step = 1
        batch = lab.mixed_batch(
            wrong_and_right(lab, labels, right=[0, 0]), lab.r3_with(history)
        )
        assert [len(group.recalled) for group in batch.groups] == [2, 0]
        recalled = [row for row in batch.rows if row.recalled]
        assert all(
            row.rollout.verdict is Verdict.CORRECT and row.advantage > 0 for row in recalled
        )
        before = [parameter.clone() for parameter in lab.model.parameters()]
        update = lab.update(batch)
        assert update.grad_norm == update.grad_norm_max > 0
        assert any((a != b).any() for a, b in zip(before, lab.model.parameters(), strict=True))


def test_a_ranking_by_logprob_needs_no_entropy(model_dir, tmp_path):
    config = config_of(tmp_path, "replay.enabled=false", "ranking.score=logprob")
    lab = Lab(config, model_dir=model_dir)
    from r3_openrlhf.problems.sources import load_problems

    sampled = wrong_and_right(lab, load_problems(config.data).labels[:1], right=[0])
    for one in sampled:
        one.rollout.truncated, one.entropies = True, None
    batch = lab.mixed_batch(sampled, lab.r3_with(None))
    means = [one.rollout.response_logprobs.mean() for one in sampled]
    best_first = sorted(range(4), key=lambda i: -means[i])
    assert [batch.rows[i].ranking_reward for i in best_first] == pytest.approx(
        [0.5, 1 / 3, 1 / 6, 0.0]
    )


def test_a_second_pass_is_taken_against_the_policy_before_the_first(model_dir, tmp_path):
    """Written out with autograd, row by row: two Adam steps, the second clipped at 1 -/+ 0.02 around
    the log-probs from before the first. The rate is high, so that ratios leave the clip's range."""
    clip = [
        "train.eps_clip_low=0.02",
        "train.eps_clip_high=0.02",
        "openrlhf.actor.dual_clip=1.5",
    ]
    passes = ["train.inner_epochs=2", "train.learning_rate=3e-2"]
    off = ["replay.enabled=false", "reflection.enabled=false", "ranking.enabled=false"]
    lab = Lab(config_of(tmp_path, *clip, *passes, *off), model_dir=model_dir)
    from r3_openrlhf.problems.sources import load_problems

    labels = load_problems(lab.config.data).labels[:2]
    batch = lab.mixed_batch(wrong_and_right(lab, labels, right=[1, 3]), lab.r3_with(None))
    policy = copy.deepcopy(lab.model)
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=3e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
    )
    rows = [(row.rollout, row.advantage) for row in batch.rows]
    tokens = sum(rollout.num_tokens for rollout, _ in rows)
    before, beyond = {}, 0
    for _ in range(2):
        for i, (rollout, advantage) in enumerate(rows):
            ids = torch.tensor(
                np.concatenate([rollout.prompt_ids, rollout.response_ids]).astype(np.int64)
            )[None]
            logits = policy(ids).logits[0, len(rollout.prompt_ids) - 1 : -1]
            logp = logits.log_softmax(-1).gather(1, ids[0, len(rollout.prompt_ids) :, None])[
                :, 0
            ]
            ratio = (logp - before.setdefault(i, logp.detach())).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.98, 1.02) * advantage)
            gain = torch.maximum(gain, torch.tensor(1.5 * advantage)) if advantage < 0 else gain
            beyond += int(((ratio - 1).abs() > 0.02).sum())
            (-gain.sum() / tokens).backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM).item()
        optimizer.step()
        optimizer.zero_grad()
    start = parameters_to_vector(lab.model.parameters()).clone()
    update = lab.update(batch)
    assert beyond > 0 and update.grad_norm == pytest.approx(norm, rel=1e-3)
    mine, other = (
        parameters_to_vector(lab.model.parameters()),
        parameters_to_vector(policy.parameters()),
    )
    # as a whole: Adam divides a gradient of rounding errors by itself, so a single weight may differ by 0.07 of its step
    assert (mine - other).norm() < 2e-3 * (other - start).norm()


def test_a_success_behind_a_reflection_prompt_is_trained_behind_the_plain_one(
    model_dir, tmp_path, monkeypatch
):
    config = config_of(tmp_path, "replay.include_reflection=true", "ranking.enabled=false")
    lab = Lab(config, model_dir=model_dir)
    from r3_openrlhf.problems.sources import load_problems

    label = load_problems(config.data).labels[0]
    plain = wrong_and_right(lab, [label], right=[0])
    reflected = lab.ask(
        [(label, lab.plain_prompt(label) + "Try again. ", Context.REFLECTION)], n=4
    )
    reflected[2].rollout.verdict, reflected[2].rollout.reward = Verdict.CORRECT, 1.5
    with HistoryStore.open(":memory:") as history:
        history.commit_step(1, 1, [one.rollout for one in reflected])
        lab.step = 1
        batch = lab.mixed_batch(plain, lab.r3_with(history))
    (recalled,) = [row for row in batch.rows if row.recalled]
    assert recalled.group == 0 and recalled.advantage > 0
    trained = []
    gradient = loop.accumulate_gradient
    monkeypatch.setattr(
        loop,
        "accumulate_gradient",
        lambda model, rows, **options: trained.extend(rows) or gradient(model, rows, **options),
    )
    lab.update(batch)
    row = trained[recalled.index]
    assert row.prompt_ids.tolist() == plain[0].rollout.prompt_ids.tolist()
    assert row.response_ids.tolist() == reflected[2].rollout.response_ids.tolist()
    # filled in by the first pass, so that a second one would be taken against them: the policy's, behind the plain prompt
    assert not np.allclose(row.old_logprobs, recalled.rollout.response_logprobs)


def test_shuffled_replay_has_the_rows_and_the_rewards_but_not_the_verdicts(model_dir, tmp_path):
    config = config_of(tmp_path, "reflection.enabled=false", "ranking.enabled=false")
    lab = ShuffledReplay(config, model_dir=model_dir)
    from r3_openrlhf.problems.sources import load_problems

    labels = load_problems(config.data).labels[:1]
    with HistoryStore.open(":memory:") as history:
        stored = wrong_and_right(lab, labels, right=[2])
        history.commit_step(1, 1, [one.rollout for one in stored])
        truly_right = {one.rollout.response_ids.tobytes() for one in stored[:2]}
        lab.step, false = 1, 0
        for _ in range(20):
            rows = [
                row
                for row in lab.mixed_batch(
                    wrong_and_right(lab, labels, right=[0]), lab.r3_with(history)
                ).rows
                if row.recalled
            ]
            assert len(rows) == 2 and all(row.reward == 1.5 for row in rows)
            false += sum(row.rollout.response_ids.tobytes() not in truly_right for row in rows)
        assert 8 < false < 32  # of 40, half on average


def test_known_successes_are_recalled_where_history_has_none(model_dir, tmp_path, monkeypatch):
    config = config_of(tmp_path, "reflection.enabled=false", "ranking.enabled=false")
    lab = KnownSuccesses(config, model_dir=model_dir)
    from r3_openrlhf.problems.sources import load_problems

    labels = load_problems(config.data).labels[:2]
    both_right, none_right = (
        wrong_and_right(lab, labels, right=[1, 1]),
        wrong_and_right(lab, labels, right=[0, 0]),
    )
    answers = [
        none_right,
        [one for one in both_right if one.rollout.uid == labels[0].uid],
        both_right,
    ]
    asked_for = []
    with monkeypatch.context() as patch:
        patch.setattr(
            lab, "ask", lambda asked, **_: asked_for.append(len(asked)) or answers.pop(0)
        )
        lab.prepare_history(labels, r3 := lab.r3_with(None))
    assert asked_for == [2, 2, 1]  # until every problem has one
    assert {uid: rollout.verdict for uid, rollout in lab.known.items()} == {
        label.uid: Verdict.CORRECT for label in labels
    }
    assert lab.tokens == 0  # they cost nothing
    with HistoryStore.open(":memory:") as history:
        r3.history = history
        recalled = [row for row in lab.mixed_batch(none_right, r3).rows if row.recalled]
        assert [row.rollout.response_ids.tobytes() for row in recalled] == [
            lab.known[label.uid].response_ids.tobytes() for label in labels
        ]
        assert all(row.reward > 0 for row in recalled)
        del lab.known[labels[0].uid]
        assert sum(row.recalled for row in lab.mixed_batch(none_right, r3).rows) == 1


def test_half_of_replay_recalls_successes_and_no_failures(model_dir, tmp_path):
    config = config_of(tmp_path, "reflection.enabled=false", "ranking.enabled=false")
    lab = SuccessesOnly(config, model_dir=model_dir)
    from r3_openrlhf.problems.sources import load_problems

    labels = load_problems(config.data).labels[:2]
    with HistoryStore.open(":memory:") as history:
        history.commit_step(
            1, 1, [one.rollout for one in wrong_and_right(lab, labels, right=[2, 2])]
        )
        lab.step = 1
        rows = lab.mixed_batch(
            wrong_and_right(lab, labels, right=[0, 4]), lab.r3_with(history)
        ).rows
        recalled = [row.rollout for row in rows if row.recalled]
        assert recalled and {(one.uid, one.verdict) for one in recalled} == {
            (labels[0].uid, Verdict.CORRECT)
        }


@pytest.mark.parametrize("arm", CONTROLS)
def test_every_control_is_an_arm_of_its_own(arm, tmp_path):
    settings = settings_of("lab", arm, 1, tmp_path, [])
    config = load(settings[0], settings[1:])
    assert (config.algo, config.arm) == ("r3", arm) and arm in LAB_OF_CONTROL


def test_dynamic_sampling_fills_the_batch_and_counts_every_token(
    model_dir, tmp_path, monkeypatch
):
    config = config_of(
        tmp_path,
        "algo=dapo",
        "replay.enabled=false",
        "reflection.enabled=false",
        "ranking.enabled=false",
    )
    lab = Lab(config, model_dir=model_dir)
    from r3_openrlhf.problems.sources import load_problems

    labels = load_problems(config.data).labels
    asked, draw = [], np.random.default_rng(0)
    real = Lab.ask

    def ask(self, questions, **options):
        sampled = real(self, questions, **options)
        for one in sampled:  # a model that is right half of the time on every other problem
            lucky = one.group[2] % 2 == 0 and draw.random() < 0.5
            one.rollout.verdict = Verdict.CORRECT if lucky else Verdict.WRONG
            one.rollout.reward = float(lucky)
        asked.extend(sampled)
        return sampled

    monkeypatch.setattr(Lab, "ask", ask)
    lab._spare = labels[4:]
    sampled, _ = lab.sample_step(labels[:4], lab.r3_with(None))
    kept, dropped = lab._filtered(sampled, labels)
    assert len({one.group for one in kept}) == 4 and len(kept) == 16
    assert dropped > 0
    assert lab.tokens == sum(one.rollout.num_tokens for one in asked)
    batch = lab.mixed_batch(kept, lab.r3_with(None))
    assert len(batch.groups) == 4 and not any(group.collapsed_before for group in batch.groups)


def test_held_out_problems_are_not_trained_on(model_dir, tmp_path):
    config = config_of(tmp_path)
    lab = Lab(config, model_dir=model_dir)
    same = load(
        "lab",
        [
            *SMALL,
            f"run_dir={tmp_path}",
            "held_out.reasoning_gym.seed=1",
            "held_out.reasoning_gym.size=12",
        ],
    )
    assert len(held_out_problems(config, lab.tokenizer, RunDirectory(tmp_path))) == 6
    with pytest.raises(DataError, match="gives no problem that is not trained on"):
        held_out_problems(same, lab.tokenizer, RunDirectory(tmp_path / "same"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algo=ppo", "r3 train"),
        ("data.task=math", "data.task=exact"),
        ("train.batch_size=8", "one update"),
        ("distill.support=student", "the lab's teacher is today's policy"),
        ("openrlhf.actor.lr_scheduler=cosine", "no flag of OpenRLHF's but actor.dual_clip"),
    ],
)
def test_what_the_loop_does_not_do_is_refused(model_dir, tmp_path, override, words):
    off = (
        ["replay.enabled=false", "reflection.enabled=false", "ranking.enabled=false"]
        if "ppo" in override
        else []
    )
    with pytest.raises(ConfigError, match=words):
        Lab(config_of(tmp_path, *off, override), model_dir=model_dir)


def test_a_maker_of_ones_own_is_refused_and_other_estimators_are_not(tmp_path):
    (tmp_path / "own.py").write_text(
        "from r3_openrlhf.config.algorithms import Algorithm\nMINE = Algorithm(experience_maker='own:Maker')\n"
    )
    off = [f"{name}.enabled=false" for name in ("replay", "reflection", "ranking")]
    with pytest.raises(ConfigError, match="has an experience maker of its own, own:Maker"):
        loop.check(config_of(tmp_path, f"algo={tmp_path / 'own.py'}:MINE", *off))
    for algo in ("rloo", "dr_grpo", "gspo", "dapo", "grpo", "r3", "r3_paper"):
        loop.check(config_of(tmp_path, f"algo={algo}"))
    for algo in ("reinforce_pp", "rrl"):
        with pytest.raises(ConfigError, match=f"algo is {algo}, which"):
            loop.check(config_of(tmp_path, f"algo={algo}"))


def test_maxrl_and_cispo_of_a_user_train_by_their_formulas(model_dir, tmp_path):
    """One of four right, and two of four: (r - mean) / mean. On the policy that sampled: -sum A log pi / tokens."""
    own = [
        "advantage.function=examples/own_maxrl.py:maxrl",
        "train.loss=examples/own_cispo.py:cispo",
    ]
    config = config_of(tmp_path, *own, "ranking.enabled=false")
    lab = Lab(config, model_dir=model_dir)
    labels = held_out_problems(config, lab.tokenizer, RunDirectory(tmp_path))[:2]
    batch = lab.mixed_batch(wrong_and_right(lab, labels, right=[1, 2]), lab.r3_with(None))
    assert [row.advantage for row in batch.rows] == pytest.approx([3, -1, -1, -1, 1, 1, -1, -1])
    tokens = sum(row.rollout.num_tokens for row in batch.rows)
    expected = (
        -sum(row.advantage * row.rollout.response_logprobs.sum() for row in batch.rows) / tokens
    )
    before = parameters_to_vector(lab.model.parameters()).detach().clone()
    assert lab.update(batch).loss == pytest.approx(expected, rel=1e-3)
    assert not torch.equal(before, parameters_to_vector(lab.model.parameters()))


def test_an_arm_of_a_study_has_settings_of_its_own(tmp_path):
    arm = Arm.parse("slow=grpo train.learning_rate=1e-4 'data.system_prompt=a b'")
    assert arm == Arm("slow", "grpo", ("train.learning_rate=1e-4", "data.system_prompt=a b"))
    assert Arm.parse("r3_no_ccr") == Arm("r3_no_ccr", "r3_no_ccr")
    settings = settings_of(
        "lab", arm, 2, tmp_path, ["train.learning_rate=1", "train.inner_epochs=2"]
    )
    config = load(settings[0], settings[1:])
    assert (config.algo, config.arm, config.train.seed, config.run_dir[-6:]) == (
        "grpo",
        "slow",
        2,
        "slow-2",
    )
    # the arm's own wins
    assert (config.train.learning_rate, config.train.inner_epochs) == (
        1e-4,
        2,
    )
    control = settings_of("lab", "known=r3_known_successes replay.k=4", 1, tmp_path, [])
    assert control[1:3] == ["algo=r3", "arm=known"] and "replay.k=4" in control


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no usable name"),
        ("../x=grpo", "has no usable name"),
        ("x=grpo replay.k", "holds 'replay.k', which sets nothing; use KEY=VALUE"),
        ("x=grpo train.seed=3", "sets train.seed, which the study sets itself"),
        ("x=grpo 'a", "cannot be read: No closing quotation"),
    ],
)
def test_an_arm_that_cannot_be(text, words):
    with pytest.raises(ConfigError, match=words):
        Arm.parse(text)


def test_two_arms_of_one_name_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(
        ConfigError, match="several arms called grpo; give each a name of its own"
    ):
        run_study("lab", arms=["grpo", "grpo=r3"], seeds=[1], directory=tmp_path, jobs=1)
    assert not any(tmp_path.iterdir())


def test_the_settings_of_a_study(tmp_path):
    assert settings_of("lab", "r3_no_ccr", 3, tmp_path, ["replay.k=4"]) == [
        "lab",
        "algo=r3",
        "arm=r3_no_ccr",
        "replay.enabled=false",
        "train.seed=3",
        "replay.k=4",
        f"run_dir={tmp_path / 'r3_no_ccr-3'}",
    ]


def test_a_study_leaves_evidence_and_runs_nothing_that_has_some(model_dir, tmp_path):
    """Run directories are thrown away in between; another seed is added, and other settings are refused."""
    kept = tmp_path / "evidence.jsonl.zst"
    settings = [
        *SMALL,
        f"model.path={model_dir}",
        "train.max_steps=1",
        "cluster.gpus_per_node=1",
    ]

    def study(seeds, directory, *more):
        return run_study(
            "lab",
            arms=["grpo"],
            seeds=seeds,
            directory=directory,
            jobs=1,
            overrides=[*settings, *more],
            keep=kept,
        )

    assert study([1], tmp_path / "first") == [str(tmp_path / "first" / "grpo-1")]
    (before,) = read(kept)
    assert before.curve["step"] == [0, 1]
    assert study([1, 2], tmp_path / "second") == [str(tmp_path / "second" / "grpo-2")]
    assert [path.name for path in (tmp_path / "second").iterdir()] == ["grpo-2"]
    assert [record.seed for record in read(kept)] == [1, 2] and read(kept)[0] == before
    with pytest.raises(
        R3Error, match=r"grpo-1 is a run with train.learning_rate=0.0003, and now it is 0.001"
    ):
        study([1, 3], tmp_path / "third", "train.learning_rate=1e-3")
    assert not (tmp_path / "third").exists()
