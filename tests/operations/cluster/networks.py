"""A real Slurm whose nodes have a network, an address, a host name and a /dev/shm each. Needs root and iproute2.

Nothing of the loopback helps here: the nodes' Rays and the ranks of a training must really talk to each other.
"""

import os
import shutil
import subprocess
from pathlib import Path

import psutil

from tests.operations.cluster.conftest import CONFIGURATION, NODES, Slurm, kill

BRIDGE = "r3br"
CONTROLLER = "10.77.0.254"
ADDRESSES = {node: f"10.77.0.{number}" for number, node in enumerate(NODES, start=1)}
# Enough for Ray's object store and a rank's shared memory, and not this machine's own /dev/shm.
SHARED_MEMORY = "3g"
IN_NODE = """set -e
hostname {node}
mount --bind {folder}/hosts /etc/hosts
mount -t tmpfs -o size={size} tmpfs /dev/shm
exec slurmd -N {node}
"""


def missing() -> str | None:
    """Why there can be no such cluster here; None if there can."""
    if os.geteuid() != 0:
        return "networks of their own need root"
    lacking = [
        program for program in ("ip", "nsenter", "unshare") if shutil.which(program) is None
    ]
    if lacking:
        return f"{', '.join(lacking)} is not installed"
    if Path("/sys/class/net", BRIDGE).exists():
        return f"there is a network {BRIDGE} already, of a run that was killed; ip link del {BRIDGE}"
    probe = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True
    )
    return (
        f"this kernel gives no namespaces: {probe.stderr.strip()}" if probe.returncode else None
    )


class NetworkedSlurm(Slurm):
    """`Slurm` with nodes that share a file system and nothing else."""

    def configuration(self, user: str, ports: list[int]) -> str:
        text = CONFIGURATION.format(user=user, ports=ports, folder=self.folder)
        text = text.replace("localhost(127.0.0.1)", f"{os.uname().nodename}({CONTROLLER})")
        for node, address in ADDRESSES.items():
            text = text.replace(
                f"NodeName={node} NodeAddr=127.0.0.1 NodeHostname=localhost",
                f"NodeName={node} NodeAddr={address} NodeHostname={node}",
            )
        assert "127.0.0.1" not in text
        return text

    def start_nodes(self) -> None:
        hosts = [
            "127.0.0.1 localhost",
            *(f"{address} {node}" for node, address in ADDRESSES.items()),
        ]
        (self.folder / "hosts").write_text(
            "\n".join([*hosts, f"{CONTROLLER} {os.uname().nodename}"]) + "\n"
        )
        for node, address in ADDRESSES.items():
            number = address.rpartition(".")[2]
            inside = ("ip", "-n", self.network(node))
            self.call("ip", "netns", "add", self.network(node))
            self.call(
                "ip",
                "link",
                "add",
                f"r3v{number}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                self.network(node),
            )
            self.call("ip", "link", "set", f"r3v{number}", "master", BRIDGE, "up")
            self.call(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
            self.call(*inside, "link", "set", "eth0", "up")
            self.call(*inside, "link", "set", "lo", "up")
            script = IN_NODE.format(node=node, folder=self.folder, size=SHARED_MEMORY)
            # nsenter and not `ip netns exec`, which would hide the control groups
            enter = (
                "nsenter",
                f"--net=/run/netns/{self.network(node)}",
                "unshare",
                "--uts",
                "--mount",
            )
            self.call(*enter, "bash", "-c", script)

    def shared_memory(self) -> list[Path]:
        return [Path(f"/proc/{self.daemon(node)}/root/dev/shm") for node in NODES]

    def start(self) -> None:
        self.call("ip", "link", "add", BRIDGE, "type", "bridge")
        self.call("ip", "addr", "add", f"{CONTROLLER}/24", "dev", BRIDGE)
        self.call("ip", "link", "set", BRIDGE, "up")
        super().start()

    def stop(self) -> None:
        super().stop()
        for node in NODES:
            left = [
                psutil.Process(int(pid))
                for pid in self.call(
                    "ip", "netns", "pids", self.network(node), check=False
                ).split()
            ]
            for process in left:
                kill(process)
            psutil.wait_procs(left, timeout=30)
            self.call("ip", "netns", "del", self.network(node), check=False)
        self.call("ip", "link", "del", BRIDGE, check=False)

    def network(self, node: str) -> str:
        return f"r3-{node}-{os.getpid()}"
