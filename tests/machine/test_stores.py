"""Groups of torch and vLLM on one node meet in files. Real groups, in another process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

ROOT = Path(__file__).parents[2]
# Both ranks in one process. Prints what rank 1 has got, and who listens.
MEET = """
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
import psutil
from r3_openrlhf.machine import stores
from r3_openrlhf.machine.ports import free_port
if sys.argv[1:] == ["patched"]:
    stores.install()
from torch.distributed.rendezvous import rendezvous
from vllm.distributed.utils import StatelessProcessGroup
ports = {free_port(): name for name in ("torch", "vllm")}

def member(rank):
    torch_port, vllm_port = ports
    store, *_ = next(rendezvous(f"tcp://127.0.0.1:{torch_port}?rank={rank}&world_size=2", timeout=timedelta(seconds=600)))
    return store, StatelessProcessGroup.create("127.0.0.1", vllm_port, rank, 2)

with ThreadPoolExecutor(2) as ranks:
    (store, sender), (other, receiver) = ranks.map(member, (0, 1))
store.set("key", b"value")
sender.broadcast_obj({"unique": "id"}, 0)
listening = {c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN}
print(other.get("key"), receiver.broadcast_obj(None, 0), sorted(ports[port] for port in listening))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patched", "listeners"), [("patched", []), ("as upstream", ["torch", "vllm"])]
)
def test_on_one_node_the_groups_of_torch_and_vllm_have_no_listener(
    tmp_path, patched, listeners
):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "R3_STORES": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", MEET, patched], env=environment, text=True, capture_output=True
    )
    assert done.stdout.splitlines()[-1:] == [f"b'value' {{'unique': 'id'}} {listeners}"], (
        done.stderr
    )
