"""An empty CUDA_VISIBLE_DEVICES, as people hide GPUs: Ray counts its words, and a rank on CPUs takes the place of a GPU."""

import pytest

pytestmark = pytest.mark.stack


def test_ray_takes_ranks_on_cpus_where_all_gpus_are_hidden(monkeypatch):
    from ray._private.resource_and_label_spec import ResourceAndLabelSpec

    from r3_openrlhf.config import ClusterConfig, R3Config
    from r3_openrlhf.stack.ray_cluster import hidden_gpus

    config = R3Config(cluster=ClusterConfig(gpus_per_node=2))
    spec = {"num_cpus": 4, "num_gpus": 2, "memory": 10**9, "object_store_memory": 10**8}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert hidden_gpus(config, "cpu") == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert hidden_gpus(config, "cuda") == {}
    with pytest.raises(ValueError, match="Attempting to start raylet with 2 GPU"):
        ResourceAndLabelSpec(**spec).resolve(is_head=True)
    for name, value in hidden_gpus(config, "cpu").items():
        monkeypatch.setenv(name, value)
    assert ResourceAndLabelSpec(**spec).resolve(is_head=True).num_gpus == 2
