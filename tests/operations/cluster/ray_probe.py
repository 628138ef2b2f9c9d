"""What the job's Ray looks like from its command, as JSON into RUN_DIR/probe.json; then waits for RUN_DIR/go. With --calls
it asks its actors meanwhile, as a run does, and fails when one is gone.

A signal is written down in RUN_DIR/heard; whether Ray still works at the end, in RUN_DIR/after.json."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import ray

run_dir = Path(sys.argv[1])
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
nodes = [node for node in ray.nodes() if node["Alive"]]
seen = {
    "nodes": sorted(node["Labels"]["r3-node"] for node in nodes),
    "gpus": ray.cluster_resources().get("GPU"),
    "address": os.environ["RAY_ADDRESS"],
    "token": os.environ["RAY_AUTH_TOKEN"],
}


@ray.remote(num_cpus=0, num_gpus=1, scheduling_strategy="SPREAD")
class Worker:
    """Ray's own process on a node, like an actor of a run."""

    def node(self):
        return os.environ["SLURMD_NODENAME"]


workers = [Worker.remote() for _ in nodes]
seen["workers"] = sorted(ray.get([worker.node.remote() for worker in workers]))
(run_dir / "probe.new").write_text(json.dumps(seen))
(run_dir / "probe.new").rename(run_dir / "probe.json")
for number in (signal.SIGTERM, signal.SIGUSR1):  # as a run does
    signal.signal(number, lambda *_: (run_dir / "heard").touch())
while not (run_dir / "go").exists():
    if "--calls" in sys.argv:
        ray.get([worker.node.remote() for worker in workers])
    time.sleep(0.2)  # only the pace of asking
still = sorted(ray.get([worker.node.remote() for worker in workers], timeout=600))
(run_dir / "after.json").write_text(json.dumps(still))
