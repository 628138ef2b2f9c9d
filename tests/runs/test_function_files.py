"""A reward function's file is kept with the run."""

from r3_openrlhf.runs.function_files import copy_in, keep_functions


def test_a_copy_is_made_once_and_a_change_is_said(tmp_path):
    run, file = tmp_path / "run", tmp_path / "mine.py"
    run.mkdir()
    file.write_text("a = 1")
    paths = [f"{file}:right", f"{file}:short", "package.module:other", "data.task"]
    assert keep_functions(run, paths) == [] == keep_functions(run, paths)
    assert copy_in(run, paths[0]) == f"{run}/reward_functions/mine.py:right"
    assert copy_in(run, str(file)) == f"{run}/reward_functions/mine.py" and copy_in(run, paths[2]) == paths[2]
    file.write_text("a = 2")
    (said,) = keep_functions(run, paths)
    assert said.startswith(f"{file} is not what the run began with")
    assert (run / "reward_functions" / "mine.py").read_text() == "a = 1"


def test_a_moved_run_names_its_copy(tmp_path):
    from r3_openrlhf.config import RewardConfig
    from r3_openrlhf.evaluation.run import there

    file = tmp_path / "mine.py"
    file.write_text("def right(response): return True")
    path = RewardConfig(function=f"{file}:right").function
    keep_functions(tmp_path, [path])
    assert there(path, tmp_path) == path
    file.unlink()
    assert there(path, tmp_path) == f"{tmp_path}/reward_functions/mine.py:right"
