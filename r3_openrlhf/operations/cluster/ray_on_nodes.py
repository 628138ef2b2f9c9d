"""`ray start` on a job's nodes, and a program to watch them: `python -m ... HOST:PORT NODE...`.

Every job has a secret token (Ray's RAY_AUTH_MODE=token): no node or process gets into another
job's Ray. Ports are free ones, chosen at the start: two jobs may share a node.
"""

import contextlib
import os
import shlex
import shutil
import socket
import sys
import time
from pathlib import Path

from r3_openrlhf.machine import ray_start
from r3_openrlhf.machine.memory import available_memory, object_store_bytes
from r3_openrlhf.machine.ports import free_port
from r3_openrlhf.operations.cluster import ClusterError

NODE_LABEL = "r3-node"
LOST = "Ray lost"  # how the watch's last line begins


def node_address(name: str | None = None) -> str:
    """Return the address under which the other nodes reach this one: R3_NODE_IP, else the node name's,
    else the default route's. A loopback address does not count: Ray's clients would replace it."""
    for candidate in filter(None, (os.environ.get("R3_NODE_IP"), name, socket.gethostname())):
        with contextlib.suppress(OSError):  # a node name that is no host name
            address = socket.gethostbyname(candidate)
            if not address.startswith("127."):
                return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError as error:
            raise ClusterError(
                f"{socket.gethostname()} has no address that other nodes could reach; export R3_NODE_IP in the prologue"
            ) from error
        return probe.getsockname()[0]


def start_command(
    *,
    address: str,
    port: int | None,
    head: str,
    node: str,
    temp_dir: Path,
    gpus: int | None,
    ray_args: str,
) -> list[str]:
    """`ray start` of one node. port: of the head, if this is it; None: join HOST:PORT."""
    command = [
        sys.executable,
        "-m",
        ray_start.__name__,
        "start",
        "--block",
        "--disable-usage-stats",
    ]
    if port is not None:
        command += [
            "--head",
            f"--port={port}",
            "--include-dashboard=false",
            f"--ray-client-server-port={free_port()}",
        ]
        # for the whole cluster; Ray's niceness of 15 lets workers starve next to another job
        command += ['--system-config={"worker_niceness": 0}']
    else:
        command += [f"--address={head}"]
    command += [
        f"--node-ip-address={address}",
        f"--temp-dir={temp_dir}",
        f"--labels={NODE_LABEL}={node}",
    ]
    # 0: workers' ports by the kernel, an agent's by us: jobs must not meet in Ray's ranges
    command += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
    free = shutil.disk_usage("/dev/shm").free
    command += [f"--object-store-memory={object_store_bytes(free, available_memory())}"]
    if gpus is not None:
        command += [f"--num-gpus={gpus}"]
    return command + shlex.split(ray_args)  # of an option given twice Ray takes the last


def main() -> None:
    """Print a line when nodes of these labels have joined the Ray; end with one when one is gone.

    Never in an agent's process: Ray's client puts C handlers of its own in the place of all that
    Python had set, also from a thread, and SIGTERM would end the agent."""
    import ray

    address, wanted = sys.argv[1], set(sys.argv[2:])
    ray.init(address=address, log_to_driver=False, logging_level="warning")

    def living() -> set[str]:
        return {node["Labels"].get(NODE_LABEL, "") for node in ray.nodes() if node["Alive"]}

    while not wanted <= living():
        time.sleep(1)  # only the pace of asking
    sys.stdout.write(f"Ray has {len(wanted)} nodes at {address}: {', '.join(sorted(wanted))}\n")
    sys.stdout.flush()
    while not (gone := wanted - living()):
        time.sleep(1)  # only the pace of asking
    sys.stdout.write(f"{LOST} {', '.join(sorted(gone))}\n")
    sys.stdout.flush()
    os._exit(0)  # Ray's own end may hang on what is lost


if __name__ == "__main__":
    main()
