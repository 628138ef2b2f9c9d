"""The agent of a further node beside a head of this test. Needs no Slurm and no Ray."""

import asyncio
import json
import shutil
import subprocess
import sys

import pytest

from r3_openrlhf.operations.cluster import node_agent


def worker_of(tmp_path, *messages, add_up):
    """A worker's work beside a head that sends these messages and then nothing more; add_up: what the worker's sum does."""

    class Worker(node_agent.Worker):
        async def add_up(self, **_):
            return await add_up()

    async def head_says(reader, writer):
        assert (await node_agent.receive(reader))["token"] == "word"
        for message in messages:
            node_agent.send(writer, **message)
        await node_agent.receive(reader)
        writer.close()

    async def trial():
        head = await asyncio.start_server(head_says, "127.0.0.1", 0)
        host, port = head.sockets[0].getsockname()
        worker = Worker(node_agent.parse(["--run-dir", str(tmp_path), "true"]), {"SLURM_JOB_ID": "1"})
        (worker.folder / "1.0.head").write_text(json.dumps({"host": host, "port": port, "token": "word"}))
        async with head:
            try:
                await asyncio.wait_for(worker.work(), 300)
            finally:
                worker.writer.close()

    asyncio.run(trial())


SUM = {"do": "sum", "address": "127.0.0.1:1", "rank": 1, "world": 2}


def test_an_all_reduce_that_cannot_start_ends_the_agent(tmp_path):
    """Its head waits for the sum, and sends nothing more until it has it."""

    async def fails():
        raise OSError("no more processes")

    with pytest.raises(OSError, match="no more processes"):
        worker_of(tmp_path, SUM, add_up=fails)


def test_an_agent_whose_sum_lasts_hears_that_the_job_is_over(tmp_path):
    with pytest.raises(node_agent.Ended, match="the head says: a signal"):
        worker_of(tmp_path, SUM, {"do": "stop", "code": 85, "why": "a signal"}, add_up=asyncio.Event().wait)


SILENT = """
import asyncio, subprocess, sys
from r3_openrlhf.operations.cluster import node_agent
node_agent.SILENCE_S = 6

async def trial():
    accepted = asyncio.Queue()
    head = await asyncio.start_server(lambda *streams: accepted.put_nowait(streams), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*head.sockets[0].getsockname())
    ends = [await accepted.get(), (reader, writer)]
    for _, end in ends:
        node_agent.keep_watch(end)
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    print(await asyncio.gather(*(node_agent.receive(end) for end, _ in ends)))

asyncio.run(asyncio.wait_for(trial(), 120))
"""


def test_a_node_whose_network_is_gone_is_lost():
    """Nothing closes the connection, and nothing arrives any more: a network of the test's own is switched off."""
    alone = ["unshare", "--map-root-user", "--net"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*alone, "ip", "link", "set", "lo", "up"], capture_output=True).returncode
    ):
        pytest.skip("a network of its own needs unshare and ip")
    command = [*alone, "bash", "-euc", 'ip link set lo up; exec "$@"', "bash", sys.executable, "-c", SILENT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "[None, None]\n", done.stderr
