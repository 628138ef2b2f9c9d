"""A checkpoint is judged by what it carries itself, before anything of it is read."""

import json
import os
import pickle
import zipfile

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from r3_openrlhf.config.loading import experiments, load_config
from r3_openrlhf.method.errors import ConfigError, HistoryError
from r3_openrlhf.method.history import witness
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.runs import checkpoint_record


def config_of(path, *more):
    return load_config("cpu_smoke", [f"run_dir={path}", *more])


def save(file, value):
    """As torch.save does."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value))


@pytest.fixture
def run(run):
    """With two steps, and a checkpoint of the second."""
    for step in (1, 2):
        run.append_metrics({"step": step})
    folder = run.checkpoints / "_actor" / "global_step2"
    folder.mkdir(parents=True)
    folder.with_name("latest").write_text(folder.name)
    save(folder / "mp_rank_00_model_states.pt", {"step": 2})
    checkpoint_record.write(folder, step=2, config=config_of(run.path), history=None)
    return run


@pytest.mark.parametrize(
    "left", ["", '{"step": 1}\n', None], ids=["empty", "shortened", "removed"]
)
def test_without_its_metrics_a_run_keeps_its_settings(run, left):
    run.metrics.unlink() if left is None else run.metrics.write_text(left)
    run.check(config_of(run.path, "checkpoint.save_steps=5"))
    with pytest.raises(ConfigError, match=r"other settings: replay\.k \(2 there, 7 now\)"):
        run.check(config_of(run.path, "replay.k=7"))


def test_the_checkpoint_knows_its_settings_when_config_yaml_was_edited(run):
    run.config.write_text(
        run.config.read_text().replace("learning_rate:", "learning_rate: 0.1 #", 1)
    )
    with pytest.raises(ConfigError, match=r"other settings: train\.learning_rate"):
        run.check(config_of(run.path, "train.learning_rate=0.1"))
    run.check(config_of(run.path))


def folder_of(run):
    return checkpoint_record.newest(run.checkpoints)


def test_it_is_one_users_and_as_it_was_written(run):
    folder = folder_of(run)
    record = checkpoint_record.check(folder, force=False)
    assert record.step == 2 and (folder / "r3.json").stat().st_mode & 0o777 == 0o600
    save(folder / "mp_rank_00_model_states.pt", {"step": 3})
    with pytest.raises(
        ConfigError, match="mp_rank_00_model_states.pt is not what the run wrote"
    ):
        checkpoint_record.check(folder, force=False)
    checkpoint_record.check(folder, force=True)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_flipped_bits_are_refused_or_not_read(run, data):
    """Law, over every file of a checkpoint as DeepSpeed saves it: what torch reads is what was written."""
    folder = run.checkpoints / "_actor" / "global_step2"
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        state = {"module": {f"layer.{i}": torch.arange(40.0) + i for i in range(3)}, "step": 2}
        torch.save(state, folder / name)
    folder.with_name("latest").write_text(folder.name)
    checkpoint_record.write(folder, step=2, config=config_of(run.path), history=None)
    before = {file: torch.load(file, weights_only=True) for file in folder.glob("*.pt")}
    file = data.draw(st.sampled_from([*before, folder / "r3.json", folder.with_name("latest")]))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, 2**20)) % len(content)] ^= 1 << data.draw(
            st.integers(0, 7)
        )
    file.write_bytes(content)
    try:
        run.check(config_of(run.path))
        checkpoint_record.check(folder_of(run), force=False)
    except ConfigError as error:
        assert "trust" not in str(error) or file.name == "r3.json"  # the writer's name was hit
        return
    assert str({file: torch.load(file, weights_only=True) for file in before}) == str(before)


def test_another_users_needs_a_word(run):
    folder = folder_of(run)
    about = json.loads((folder / "r3.json").read_text())
    (folder / "r3.json").write_text(json.dumps(about | {"user": "somebody"}))
    with pytest.raises(ConfigError, match="written by 'somebody'; checkpoint.force=true"):
        checkpoint_record.check(folder, force=False)
    (folder / "r3.json").unlink()
    assert checkpoint_record.check(folder, force=False) is None  # its directory is ours
    if os.getuid() == 0:
        os.chown(folder, 54321, -1)
        with pytest.raises(ConfigError, match="written by '54321'"):
            checkpoint_record.check(folder, force=False)


@pytest.mark.parametrize("text", ["{", "[]", '{"step": 1}', "[" * 100_000])
def test_a_damaged_record_is_a_sentence(run, text):
    (folder_of(run) / "r3.json").write_text(text)
    with pytest.raises(ConfigError, match="r3.json is damaged"):
        checkpoint_record.read(folder_of(run))


def test_a_store_of_another_run_is_noticed(tmp_path):
    """A store with as many steps came in its place."""
    with HistoryStore.open(tmp_path / "one.sqlite", seed=1) as store:
        store.commit_step(0, 1, [])
        record = witness.record_of(tmp_path / "one.sqlite", 0)
    with HistoryStore.open(tmp_path / "other.sqlite", seed=1) as store:
        store.commit_step(0, 2, [])
    witness.check_checkpoint(tmp_path / "one.sqlite", record, step=0)
    with pytest.raises(HistoryError, match="its rows of then are others"):
        witness.check_checkpoint(tmp_path / "other.sqlite", record, step=0)


@pytest.mark.parametrize("name", experiments())
def test_settings_are_the_same_after_a_round_trip(name, tmp_path):
    config = load_config(name, [f"run_dir={tmp_path}"])
    checkpoint_record.write(tmp_path, step=1, config=config, history=None)
    assert checkpoint_record.read(tmp_path).settings == checkpoint_record.settings_of(config)


def test_a_run_goes_on_from_what_policy_and_critic_both_have(run):
    """It was killed after the policy had saved step 4 and before the critic had."""
    actor, critic = run.checkpoints / "_actor", run.checkpoints / "_critic"
    for folder in (actor / "global_step4", critic / "global_step2"):
        folder.mkdir(parents=True)
    (actor / "latest").write_text("global_step4")
    assert folder_of(run) is None  # the critic has none yet
    (critic / "latest").write_text("global_step2")
    assert folder_of(run) == actor / "global_step2"
    checkpoint_record.settle(run.checkpoints)
    assert (actor / "latest").read_text() == (critic / "latest").read_text() == "global_step2"
    save(critic / "global_step2" / "mp_rank_00_model_states.pt", {"step": 2})
    checkpoint_record.write(folder_of(run), step=2, config=config_of(run.path), history=None)
    checkpoint_record.check(folder_of(run), force=False)
    save(critic / "global_step2" / "mp_rank_00_model_states.pt", {"step": 3})
    with pytest.raises(
        ConfigError,
        match="_critic/global_step2/mp_rank_00_model_states.pt is not what the run wrote",
    ):
        checkpoint_record.check(folder_of(run), force=False)
    (critic / "latest").write_text("global_step6")
    (actor / "latest").write_text("global_step4")
    with pytest.raises(ConfigError, match=r"of different steps \(global_step4, global_step6\)"):
        folder_of(run)
