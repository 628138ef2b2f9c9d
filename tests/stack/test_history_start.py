"""A run on two ranks that begins with imported successes of problems that the tiny model never solves, collects others, is trained
on both before step 1, and begins groups with parts of them: killed after that, and started again with the same command."""

import json

import pytest

import tests.stack.cpu_only  # noqa: F401
from r3_openrlhf.method.history import HistoryStore
from r3_openrlhf.method.history.numbers import successes
from r3_openrlhf.method.types import Context, HardBy
from r3_openrlhf.operations.store.verification import verify
from tests.stack.training import Run, lines, r3, rollouts_of, train

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.soak]
HARD, EASY = [(n, n) for n in range(100, 108)], [(2, 3), (4, 1), (3, 5), (6, 2)]


def begun(tmp_path, *settings):
    """Settings of a run on these problems that begins with successes of four hard ones, in a foreign style."""
    rows = [{"problem": f"Calculate {a} + {b}.", "answer": str(a + b)} for a, b in HARD + EASY]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    solved = [
        {"problem": row["problem"], "solution": rf"It is \boxed{{{row['answer']}}}."}
        for row in rows[:4]
    ]
    (tmp_path / "solved.jsonl").write_text("\n".join(map(json.dumps, solved)))
    settings = (
        *(
            f"data.path={tmp_path / 'train.jsonl'}",
            "data.task=math",
            "data.answer_key=answer",
            "held_out.path=null",
        ),
        *(
            "rollout.batch_size=12",
            "train.num_epochs=4",
            "checkpoint.save_steps=2",
            "cluster.gpus_per_node=2",
        ),
        *("replay.rehearse.share=0.125", "replay.imported.warm_start=3"),
        *("replay.imported.min_logprob=null", "replay.imported.foreign=true", *settings),
    )
    start = str(tmp_path / "start")
    done = r3(
        "history",
        "import",
        "solved.jsonl",
        "--into",
        start,
        "experiment=cpu_smoke",
        *settings,
        cwd=tmp_path,
    )
    assert done.returncode == 0 and "successes: 4" in done.stdout, done.stdout + done.stderr
    return (*settings, f"history.start={start}")


def kill_at_step_0(run_dir, settings):
    saved = run_dir / "checkpoints" / "_actor" / "global_step0" / "r3.json"
    with Run(run_dir, *settings) as run:
        run.wait_until(saved.is_file)


def test_a_run_that_samples_ahead_is_trained_once_before_it_samples(tmp_path):
    run_dir = tmp_path / "run"
    settings = begun(tmp_path, "openrlhf.train.async_enable=true", "train.max_steps=2")
    kill_at_step_0(run_dir, settings)
    train(run_dir, *settings)
    first, second = lines(run_dir / "metrics.jsonl")
    assert first["r3/sync/abs_logprob_gap"] < 0.02  # the engines have the trained weights
    (said,) = [
        one["warning"]
        for one in lines(run_dir / "events.jsonl")
        if "warm_start=3: " in one.get("warning", "")
    ]
    assert f" {first['warm_start_tokens_total']:,.0f} tokens of 4 " in said
    assert second["warm_start_tokens_total"] == first["warm_start_tokens_total"]
    assert min(first["r3/replay/imported"], second["r3/replay/imported"]) > 0


def test_what_a_run_begins_with_is_used_and_survives_a_kill(tmp_path):
    run_dir, collected = (
        tmp_path / "run",
        ("rollout.collect.share=0.1", "train.max_generated_tokens=20000"),
    )
    settings = begun(tmp_path, *collected, "replay.imported.use=all", "train.max_steps=4")
    kill_at_step_0(run_dir, settings)
    train(run_dir, *settings)
    page = json.loads((run_dir / "first_page.json").read_text())["imported"]
    assert page[0] == "4 successes (file solved.jsonl) of 4 of 12 problems"
    of_imports, of_collection, of_warm_start = page[-3:]
    assert "nats a token under the first policy" in of_imports and of_collection.startswith(
        "rollout.collect.share=0.1: "
    )
    before, after = map(
        float, of_warm_start.split("; ")[1].removesuffix(" nats a token").split(" -> ")
    )
    assert after > before  # the policy learned them
    said = [event.get("warning") for event in lines(run_dir / "events.jsonl")]
    # no start did it again
    assert [said.count(sentence) for sentence in page[-3:]] == [
        1,
        1,
        1,
    ]

    metrics = lines(run_dir / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    ((collected, trained),) = {
        (line["collected_tokens_total"], line["warm_start_tokens_total"]) for line in metrics
    }
    assert (
        2000 <= collected < 2000 + 12 * 8 * 24
        and f" {trained:,.0f} tokens of " in of_warm_start
    )
    sampled = [line["generated_tokens_total"] for line in metrics]
    assert sampled[0] == collected + metrics[0]["generated_tokens"] and sampled == sorted(
        sampled
    )
    assert all(line["r3/replay/imported"] > 0 for line in metrics)
    rollouts = rollouts_of(run_dir)
    recalled = [row for row in rollouts if row["recalled_from"] == 0]
    assert {row["context"] for row in recalled} == {"imported"} and len(
        {row["uid"] for row in recalled}
    ) >= 4
    assert all(row["advantage"] > 0 for row in recalled)
    assert verify(run_dir / "history.sqlite").findings == []
    kept = [
        one for one in successes(run_dir / "history.sqlite") if one.context is Context.IMPORTED
    ]
    assert {one.origin for one in kept} == {"file solved.jsonl", "collected"} and all(
        one.has_logprobs for one in kept
    )
    with HistoryStore.open(run_dir / "history.sqlite", writer=False) as store:
        rates, continued = store.means(HardBy.SUCCESS_RATE), store.continuations()
    assert all(rates[one.uid] == 0 for one in kept if one.origin != "collected")
    prefixed = [
        row for row in rollouts if row["context"] == "prefix" and row["recalled_from"] is None
    ]
    # each once, as in the files
    assert prefixed and sum(tries for tries, _ in continued.values()) == len(prefixed)
    assert sum(line["r3/prefix/groups"] for line in metrics) * 8 == len(prefixed)
