"""Weights, optimizer and gradients of real DeepSpeed ranks, beside the formulas."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.models.locate import resolve_model
from r3_openrlhf.planning import formulas as f
from r3_openrlhf.planning.shapes import shape_of

WITHIN = 0.15


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "stage"), [("tiny", 2, 2)])
def test_model_states_are_deepspeeds_tensors(name, ranks, stage, tmp_path):
    """Real ranks of OpenRLHF's strategy after one backward pass: the bytes of their tensors."""
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
    shape, model = shape_of(name), resolve_model(name)
    worker = Path(__file__).with_name("rank_states.py")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    outputs = [tmp_path / f"{rank}.json" for rank in range(ranks)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    processes = []
    for rank in range(ranks):
        given = [model, str(rank), str(ranks), str(stage), str(port), str(outputs[rank])]
        with (tmp_path / f"{rank}.log").open("w") as log:
            processes.append(subprocess.Popen([sys.executable, str(worker), *given], env=environment, stderr=log))
    try:
        codes = [process.wait(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * ranks, (tmp_path / "0.log").read_text()[-2000:]
    found = json.loads(outputs[0].read_text())
    split = dict(ranks=ranks, stage=stage, offloaded=False)
    assert f.weight_bytes(shape, ranks=ranks, stage=stage) == pytest.approx(found["weights"], rel=WITHIN)
    assert f.optimizer_bytes(shape.params, **split) == pytest.approx(found["optimizer"], rel=WITHIN)
    assert f.gradient_bytes(shape.params, **split) == pytest.approx(found["gradients"], rel=WITHIN)
