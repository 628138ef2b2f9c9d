"""Forks of a server that has imported: what they are given, and when they end. With a small module in the place of the stack,
and with Ray. tests/openrlhf_adapter/test_end_to_end.py runs the stack in them."""

import ast
import json
import os
import shlex
import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from r3_openrlhf.cpu_stack import setup_worker, worker_shim  # noqa: E402
from r3_openrlhf.cpu_stack.fork_server import Fork, ForkServer, connect  # noqa: E402
from r3_openrlhf.errors import R3Error  # noqa: E402
from tests.cpu_stack import forked  # noqa: E402

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parents[2]
LIMIT_S = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    place = tmp_path_factory.mktemp("s")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multiprocessing.forkserver.connect_to_new_process", None)
        with ForkServer({"R3_TEST_SERVER": "1"}, place / "new", modules=("decimal",)) as found:
            found.wait()
            connect(found.address)
            yield found
    assert list((place / "new").iterdir()) == []


def finished(target, *arguments, code=0):
    process = Fork(target=target, args=arguments)
    process.start()
    process.join(LIMIT_S)
    assert process.exitcode == code


def written_by(owner, path):
    """What `owner` writes into the file as long as it lives."""
    while not path.is_file() or not (text := path.read_text()):
        owner.join(0.02)
        assert owner.is_alive()
    return text


def wait_for_the_end_of(pid):
    """A zombie that nobody has collected yet has ended, too."""
    try:
        process = psutil.Process(pid)
        for _ in range(20 * LIMIT_S):
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            psutil.wait_procs([process], timeout=0.05)
    except psutil.NoSuchProcess:
        return
    raise AssertionError(f"process {pid} is still there")


def test_a_fork_has_the_environment_and_the_outputs_of_who_starts_it(server, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("R3_TEST_ASKED", "by me")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/where/only/this/process/looks")
    finished(forked.tell, str(tmp_path / "told"))
    parent, folder, asked, of_server, loaded, deaf, path = ast.literal_eval((tmp_path / "told").read_text())
    assert (parent, folder, asked, of_server, loaded) == (server.pid, str(tmp_path), "by me", None, True)
    assert deaf  # a terminal's ^C is not for it
    assert "/where/only/this/process/looks" not in path and any("site-packages" in entry for entry in path)
    assert capfd.readouterr() == ("to standard output\n", "to standard error\n")


def test_its_exit_code_comes_back(server):
    finished(forked.fail, code=7)


def test_what_it_registered_for_its_exit_runs(server, tmp_path):
    finished(forked.write_at_exit, str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "tidied up"


def test_it_ends_with_who_started_it(server, tmp_path):
    owner = forked.start(forked.own_fork, server.address, str(tmp_path / "pid"))
    fork = int(written_by(owner, tmp_path / "pid"))
    assert psutil.Process(fork).ppid() == server.pid
    os.kill(owner.pid, signal.SIGKILL)
    owner.join()
    wait_for_the_end_of(fork)


def test_nobody_else_reaches_the_socket(server):
    folder = Path(server.address).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_server_whose_owner_is_killed_ends_and_leaves_nothing(tmp_path):
    owner = forked.start(forked.own_server, str(tmp_path / "t"), str(tmp_path / "report"))
    server, fork, address = written_by(owner, tmp_path / "report").split()
    os.kill(owner.pid, signal.SIGKILL)
    owner.join()
    wait_for_the_end_of(int(server))
    wait_for_the_end_of(int(fork))
    assert not Path(address).parent.exists()


def test_an_import_that_fails_is_one_sentence(tmp_path, capsys):
    with (
        ForkServer({}, tmp_path, modules=("no_such_module",)) as server,
        pytest.raises(R3Error, match="imports the stack ended with exit code 1 .*; `r3 doctor`"),
    ):
        server.wait()
    assert "No module named 'no_such_module'" in capsys.readouterr().out  # in a run this is train.log
    assert list(tmp_path.iterdir()) == []


CONTEXT = {"command_prefix": [], "env_vars": {"A": "1"}, "override_worker_entrypoint": None, "java_jars": []}
SHIM = ["python", "-P", "-m", worker_shim.NAME, "/where/it/is"]


@pytest.mark.parametrize(
    "changed, language, expected",
    [
        ({}, "PYTHON", ("/where/it/is", ["default_worker.py", "--a=b"], {"A": "1"})),
        ({"env_vars": None}, "PYTHON", ("/where/it/is", ["default_worker.py", "--a=b"], {})),
        ({}, "JAVA", None),
        ({"py_executable": None}, "PYTHON", None),
        ({"py_executable": "/usr/bin/python3"}, "PYTHON", None),
        ({"command_prefix": ["conda", "run"]}, "PYTHON", None),
        ({"override_worker_entrypoint": "other.py"}, "PYTHON", None),
    ],
)
def test_what_a_worker_is_asked_to_be(changed, language, expected, monkeypatch):
    """None: Ray's own script does it."""
    context = json.dumps({"py_executable": shlex.join(SHIM), **CONTEXT, **changed})
    words = ["default_worker.py", "--a=b", f"{setup_worker.CONTEXT}{context}", f"{setup_worker.LANGUAGE}{language}"]
    monkeypatch.setattr(sys, "argv", ["setup_worker.py", *words])
    assert setup_worker.asked() == expected


def test_without_a_runtime_env_it_is_rays(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["setup_worker.py", "default_worker.py", f"{setup_worker.LANGUAGE}PYTHON"])
    assert setup_worker.asked() is None


def test_the_name_of_the_shim_is_its_own():
    assert worker_shim.NAME == worker_shim.__name__


WITH_RAY = """
import os, sys, tempfile
from pathlib import Path
from r3_openrlhf.cpu_stack.fork_server import ForkServer, quick_setup
from r3_openrlhf.ray_start import patient_raylet
from tests.processes import command_of
import psutil, ray

def look():
    import multiprocessing
    from vllm.v1.engine import utils
    engine = utils.get_mp_context().Process(target=print)
    engine.start()
    parent = int(open(f"/proc/{engine.pid}/stat").read().split()[3])
    engine.join()
    return os.getppid(), parent, engine.exitcode, os.environ["RAY_JOB_ID"], os.environ["R3_TEST_ASKED"]

def look_from_elsewhere():
    return os.getppid(), os.environ["R3_TEST_ASKED"]

with tempfile.TemporaryDirectory(prefix="r3t", dir="/tmp") as place, ForkServer({}, Path(place)) as server:
    server.wait()
    with quick_setup(), patient_raylet():
        ray.init(
            address="local", include_dashboard=False, num_cpus=1, object_store_memory=100 * 2**20, _temp_dir=place,
            runtime_env={"py_executable": server.py_executable, "env_vars": {"R3_TEST_ASKED": "${R3_TEST_NAMED} and ${R3_TEST_NOT}me"}},
        )
    try:
        found = ray.get(ray.remote(look).remote())
        assert found == (server.pid, server.pid, 0, "01000000", "by you and me"), (found, server.pid)
        words = [word for process in psutil.Process().children(recursive=True) for word in command_of(process)]
        assert any(word.endswith("r3_openrlhf/cpu_stack/setup_worker.py") for word in words)
        assert not any(word.endswith("ray/_private/workers/setup_worker.py") for word in words)
        assert not any(word.endswith(("/monitor.py", "/dashboard.py")) for word in words), words
        assert any("--dashboard_agent_command=" in word and "--minimal" in word for word in words), words
        own = ray.remote(look_from_elsewhere).options(runtime_env={"py_executable": sys.executable})
        parent, asked = ray.get(own.remote())
        assert parent != server.pid and asked == "by you and me", (parent, asked)
        assert ray.get_runtime_context().get_job_id() == "01000000"
    finally:
        ray.shutdown()
print("as expected")
"""


@pytest.mark.slow
def test_rays_workers_and_vllms_engines_are_forks(tmp_path):
    """The contract with the installed versions: ray's py_executable and setup_worker.py, what its library reads when it is loaded,
    the number of the first job, the names of Node's two starts, and the name by which vLLM finds its processes. A worker with an executable of its own is Ray's."""
    import subprocess

    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"R3_TEST_NAMED": "by you", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", WITH_RAY],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.stdout.endswith("as expected\n"), done.stderr[-3000:]
