"""A run on two ranks that begins with imported successes of problems that the tiny model never solves: killed before its first
checkpoint and after it, and started again with the same command."""

import json

import pytest

import tests.stack.cpu_only  # noqa: F401
from r3_openrlhf.method.history import HistoryStore
from r3_openrlhf.method.history.numbers import successes
from r3_openrlhf.method.types import Context, HardBy
from r3_openrlhf.operations.store.verification import verify
from tests.stack.training import Run, lines, r3, rollouts_of, train

pytestmark = [pytest.mark.stack, pytest.mark.slow]
NUMBERS = range(100, 108)


def test_imported_successes_are_recalled_and_survive_kills(tmp_path):
    rows = [{"problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in NUMBERS]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    solved = [{"problem": row["problem"], "solution": rf"It is \boxed{{{row['answer']}}}."} for row in rows[:4]]
    (tmp_path / "solved.jsonl").write_text("\n".join(map(json.dumps, solved)))
    settings = (
        f"data.path={tmp_path / 'train.jsonl'}",
        *(
            "data.task=math",
            "data.answer_key=answer",
            "held_out.path=null",
            "rollout.batch_size=8",
            "train.num_epochs=4",
        ),
        *("train.max_steps=4", "checkpoint.save_steps=2", "replay.rehearse.share=0.125", "cluster.gpus_per_node=2"),
        "replay.imported.min_logprob=null",
    )
    start = str(tmp_path / "start")
    done = r3("history", "import", "solved.jsonl", "--into", start, "experiment=cpu_smoke", *settings, cwd=tmp_path)
    assert done.returncode == 0 and "successes: 4" in done.stdout, done.stdout + done.stderr

    run_dir, settings = tmp_path / "run", (*settings, f"history.start={start}")
    for step in (1, 3):
        with Run(run_dir, *settings) as run:
            run.wait_for_step(step)
    train(run_dir, *settings)
    page = json.loads((run_dir / "first_page.json").read_text())
    assert page["imported"][0] == "4 successes (file solved.jsonl) of 4 of 8 problems"
    assert "nats a token under the first policy" in page["imported"][-1]

    metrics = lines(run_dir / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    assert all(line["r3/replay/imported"] >= line["r3/replay/hits_correct"] > 0 for line in metrics)
    recalled = [row for row in rollouts_of(run_dir) if row["recalled_from"] == 0]
    assert {row["context"] for row in recalled} == {"imported"} and len({row["uid"] for row in recalled}) == 4
    assert all(row["advantage"] > 0 for row in recalled)
    assert verify(run_dir / "history.sqlite").findings == []
    with HistoryStore.open(run_dir / "history.sqlite", writer=False) as store:
        assert all(rate == 0 for rate in store.means(HardBy.SUCCESS_RATE).values())
    (kept, *_) = [one for one in successes(run_dir / "history.sqlite") if one.context is Context.IMPORTED]
    assert kept.has_logprobs and kept.origin == "file solved.jsonl"
