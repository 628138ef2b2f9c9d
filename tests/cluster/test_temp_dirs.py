"""The agents' temporary folders: each its own, gone when nobody holds them. Needs no Slurm."""

import pytest

from r3_openrlhf.cluster import node_agent


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """Agents of job 1, start 0, whose temporary folders are in a place of this test. They end no process: those of this one are
    not theirs. Nor do they sweep the machine's /dev/shm."""
    monkeypatch.setattr(node_agent.psutil.Process, "children", lambda *_, **__: [])
    monkeypatch.setattr(node_agent.shared_memory, "sweep", lambda: [])
    monkeypatch.setattr(node_agent.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(node_agent, "MAX_BASE", len(str(tmp_path)))
    options = node_agent.parse(["--run-dir", str(tmp_path / "run"), "true"])

    def made():
        new = node_agent.Agent(options, {"SLURM_JOB_ID": "1"})
        new.temp_dir = new._make_temp_dir()
        return new

    return made


def test_two_clusters_on_one_machine_may_both_have_a_job_1(agent):
    first, second = agent(), agent()
    assert first.temp_dir != second.temp_dir
    assert {first.temp_dir.name[:11], second.temp_dir.name[:11]} == {"r3-ray-1.0-"}


def test_a_folder_is_swept_when_its_agent_is_gone_and_not_before(agent):
    living, gone = agent(), agent()
    gone._lock.close()
    assert str(gone.temp_dir) in node_agent.sweep_temp_dirs()
    assert living.temp_dir.is_dir() and not gone.temp_dir.exists()
    living.tidy()
    assert not living.temp_dir.exists()
