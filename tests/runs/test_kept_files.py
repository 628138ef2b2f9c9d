"""Copies of reward functions and of the model on the way."""

from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.evaluation.plan import function_path
from r3_openrlhf.runs.kept_files import (
    best_step,
    copy_in,
    copy_steps,
    forget_superseded,
    keep_functions,
    superseded,
)


def test_a_copy_is_made_once_and_a_change_is_said(tmp_path):
    run, file = tmp_path / "run", tmp_path / "mine.py"
    run.mkdir()
    file.write_text("a = 1")
    paths = [f"{file}:right", f"{file}:short", "package.module:other", "data.task"]
    assert keep_functions(run, paths) == [] == keep_functions(run, paths)
    assert copy_in(run, paths[0]) == f"{run}/reward_functions/mine.py:right"
    assert (
        copy_in(run, str(file)) == f"{run}/reward_functions/mine.py"
        and copy_in(run, paths[2]) == paths[2]
    )
    file.write_text("a = 2")
    (said,) = keep_functions(run, paths)
    assert said.startswith(f"{file} is not what the run began with")
    assert (run / "reward_functions" / "mine.py").read_text() == "a = 1"


def test_a_moved_run_names_its_copy(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def right(response): return True")
    path = RewardConfig(function=f"{file}:right").function
    keep_functions(tmp_path, [path])
    assert function_path(path, tmp_path) == path
    file.unlink()
    assert function_path(path, tmp_path) == f"{tmp_path}/reward_functions/mine.py:right"


def test_by_hand():
    assert superseded([20, 40, 60, 80], newest=80, max_num=3, best=None) == [20]
    assert superseded([20, 40, 60, 80], newest=80, max_num=1, best=40) == [20, 60]
    # 60 and 80: of another course
    assert superseded([20, 40, 60, 80], newest=40, max_num=1, best=None) == [20]
    accuracies = [
        {"step": 0, "pass_at_1": 0.9},
        {"step": 20, "pass_at_1": 0.4},
        {"step": 40, "pass_at_1": None},
    ]
    assert best_step(accuracies, {20, 40}) == 20  # there is no copy of step 0
    assert best_step([*accuracies, {"step": 60, "pass_at_1": 0.4}], {20, 60}) == 60
    assert best_step(accuracies, {40}) is None


@given(steps=st.sets(st.integers(1, 99)), max_num=st.integers(1, 5), data=st.data())
def test_any_run_keeps_the_newest_and_the_best(steps, max_num, data):
    newest = data.draw(st.sampled_from(sorted(steps)) if steps else st.just(1))
    best = data.draw(st.none() | st.sampled_from(sorted(steps)) if steps else st.none())
    gone = superseded(steps, newest=newest, max_num=max_num, best=best)
    kept = steps - set(gone)
    assert best is None or best in kept
    assert newest in kept or not steps
    assert all(step <= newest for step in gone)
    assert max_num <= len([step for step in kept if step <= newest]) <= max_num + 1 or not gone


def test_directories_go(run):
    """A run with the best copy at step 2, and something that is no copy."""
    for step, accuracy in ((2, 0.5), (4, 0.1), (6, 0.3), (8, 0.2)):
        copy = run.checkpoints / f"global_step{step}_hf"
        copy.mkdir()
        (copy / "config.json").write_text("{}")
        (copy / "model.safetensors").write_bytes(b"x" * 10)
        run.append_evaluation({"step": step, "pass_at_1": accuracy})
    (run.checkpoints / "_actor" / "global_step2").mkdir(parents=True)
    forget_superseded(run, newest=8, max_num=1)
    assert copy_steps(run) == [2, 8] and (run.checkpoints / "_actor" / "global_step2").is_dir()
