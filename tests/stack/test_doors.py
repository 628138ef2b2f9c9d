"""The Ray of a run is closed to another user of the machine: real processes, with another user's rights. It lies where paths are as
long as they may be."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore

import tests.stack.cpu_only  # noqa: F401
from r3_openrlhf.machine.ray_temporary import MAX_BYTES, bytes_of
from tests.stack.training import ROOT, Run

pytestmark = [pytest.mark.stack, pytest.mark.slow]
MAX_PID_DIGITS = 7  # /proc/sys/kernel/pid_max is 4194304 at most
LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
NOBODY = 54321  # a user id that no one has; only root can become another user
# A Ray as `r3 train` starts it. It says where it is, and ends with its standard input.
OWNER = """
import json, os, sys
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.stack.ray_cluster import ray_options, running_ray
from r3_openrlhf.machine.ray_start import of_this_machine

os.environ.update(of_this_machine())
options = ray_options(load_config("cpu_smoke", ["run_dir=unused"]), "cpu")
options["runtime_env"].pop("worker_process_setup_hook")
with running_ray(options) as ray:
    ray.get(ray.remote(lambda: 1).remote())
    node = ray._private.worker._global_node
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    sockets = [node.raylet_socket_name, node.plasma_store_socket_name]
    print(json.dumps([node.gcs_address, node.get_session_dir_path(), *sockets, os.getpid(), token, *sys.modules]), flush=True)
    sys.stdin.read()
"""
# What a user tries who knows the address and the paths. Prints what succeeded. This Python may be root's own, so it first imports
# what its standard input names.
STRANGER = """
import contextlib, importlib, os, socket, sys
for name in sys.stdin.read().split():
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
import ray
user, address, session, raylet_socket, *names = sys.argv[1:]
if int(user) != os.getuid():
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))

def files():
    os.listdir(session)

def connect():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(raylet_socket)

def read():
    ray._raylet.GcsClient(address=address).internal_kv_keys(b"", b"fun", 10)

def write():
    ray._raylet.GcsClient(address=address).internal_kv_put(b"r3-test", b"1", True, b"fun", 10)

def code():
    ray.init(address=address, log_to_driver=False, logging_level="error")
    assert ray.get(ray.remote(lambda: os.getpid()).remote(), timeout=300) != os.getpid()

for name in names:
    try:
        globals()[name]()
    except Exception as error:
        print(name, type(error).__name__, str(error)[:200].replace("\\n", " "), file=sys.stderr)
    else:
        print(name, flush=True)
"""
ATTEMPTS = ("files", "connect", "read", "write", "code")


def python(code, *arguments, **environment):
    """With no variable of Ray, and no home whose token it could read."""
    surroundings = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_")
    }
    surroundings |= {"PYTHONPATH": str(ROOT), "HOME": "/nonexistent", **environment}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=surroundings,
        cwd="/",
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def opened_by(user, owner, *attempts, **environment):
    """What succeeded, and the errors of the rest."""
    place, modules = owner[1:4], owner[7:]
    # else Ray asks another address than this one
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    with python(STRANGER, str(user), *place, *attempts, **environment) as stranger:
        try:
            out, said = stranger.communicate("\n".join(modules), timeout=600)
        finally:
            stranger.kill()
    assert stranger.returncode == 0, said
    return out.split(), said


@pytest.fixture(scope="module")
def temporary():
    """Anybody may look into it, as into /tmp. Its path is the longest that is let through."""
    with tempfile.TemporaryDirectory(prefix="r3t", dir="/tmp") as short:
        Path(short).chmod(0o755)
        directory = Path(short) / ("t" * (MAX_BYTES - bytes_of(Path(short)) - 1))
        directory.mkdir()
        directory.chmod(0o1777)
        yield directory


@pytest.fixture(scope="module")
def owner(temporary):
    with python(OWNER, RAY_TMPDIR=str(temporary), HOME=str(Path.home())) as process:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, *json.loads(line)
        process.communicate(timeout=300)
    assert process.returncode == 0
    assert list(temporary.iterdir()) == []  # nothing is left behind


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_neither_runs_code_nor_reads_or_writes_the_key_store(owner):
    opened, said = opened_by(NOBODY, owner, *ATTEMPTS)
    assert opened == [], said
    assert (
        said.count("PermissionError") == 2
        and said.count("\nread Auth") == said.count("\nwrite Auth") == 1
    ), said
    assert "\ncode ConnectionError" in said, said  # after 20 s; it has the same reason
    # the attempts are real: the token opens the key store, and the owner's rights the rest
    credentials = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": owner[6]}
    assert opened_by(NOBODY, owner, "read", "write", **credentials)[0] == ["read", "write"]
    opened, said = opened_by(os.getuid(), owner, *ATTEMPTS, **credentials)
    assert opened == [*ATTEMPTS], said


def test_the_longest_path_that_is_let_through_is_the_longest_that_ray_takes(owner, temporary):
    socket, pid = owner[4:6]
    assert bytes_of(temporary) == MAX_BYTES
    assert bytes_of(socket) + MAX_PID_DIGITS - len(str(pid)) == 107


def is_torch_store(address):
    """It answers a ping of torch's protocol (TCPStoreBackend.hpp): queries 0, with a magic number, and 13."""
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=10) as link:
        link.sendall(struct.pack("=BIBI", 0, 0x3C85F7CE, 13, 123456))
        return link.recv(4) == struct.pack("=I", 123456)
    return False


@pytest.mark.soak
def test_a_whole_run_listens_on_loopback_alone_and_no_store_answers_a_stranger(tmp_path):
    """From its start until the weight sync of the second step, with every process that it has."""
    store, listening, steps = (
        TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
        {},
        set(),
    )
    assert is_torch_store(("127.0.0.1", store.port))
    # any path will do
    with Run(tmp_path / "研究 Läufe (a)&#=~'", "train.max_steps=2", held_in=2) as run:

        def is_held():
            for process in run.family():
                with contextlib.suppress(psutil.NoSuchProcess):
                    name, connections = process.name(), process.net_connections("tcp")
                    listening.update(
                        {c.laddr: name for c in connections if c.status == psutil.CONN_LISTEN}
                    )
            steps.add(run.steps_done())
            return run.steps_done() >= 1

        run.wait_until(is_held)
        assert any("Policy" in name for name in listening.values()) and steps >= {0, 1}
        assert {
            address: name for address, name in listening.items() if address.ip not in LOOPBACK
        } == {}
        with ThreadPoolExecutor(len(listening)) as strangers:
            stores = zip(
                listening.items(), strangers.map(is_torch_store, listening), strict=True
            )
            assert [listener for listener, answers in stores if answers] == []
        assert run.dir.stat().st_mode & 0o777 == 0o700 and (run.dir / "rollouts").is_dir()


def test_its_directory_is_the_users_own(owner, temporary):
    (private,) = temporary.iterdir()
    assert private.stat().st_mode & 0o777 == 0o700 and private.stat().st_uid == os.getuid()
