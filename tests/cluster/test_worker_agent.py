"""The agent of a further node beside a head of this test. Needs no Slurm and no Ray."""

import asyncio
import json

import pytest

from r3_openrlhf.cluster import node_agent


def test_an_all_reduce_that_cannot_start_ends_the_agent(tmp_path):
    """Its head waits for the sum, and sends nothing more until it has it."""

    class Worker(node_agent.Worker):
        async def add_up(self, **_):
            raise OSError("no more processes")

    async def asks_for_a_sum(reader, writer):
        assert (await node_agent.receive(reader))["token"] == "word"
        node_agent.send(writer, do="sum", address="127.0.0.1:1", rank=1, world=2)
        await node_agent.receive(reader)
        writer.close()

    async def trial():
        head = await asyncio.start_server(asks_for_a_sum, "127.0.0.1", 0)
        host, port = head.sockets[0].getsockname()
        worker = Worker(node_agent.parse(["--run-dir", str(tmp_path), "true"]), {"SLURM_JOB_ID": "1"})
        (worker.folder / "1.0.head").write_text(json.dumps({"host": host, "port": port, "token": "word"}))
        async with head:
            try:
                with pytest.raises(OSError, match="no more processes"):
                    await asyncio.wait_for(worker.work(), 300)
            finally:
                worker.writer.close()

    asyncio.run(trial())
