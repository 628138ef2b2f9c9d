"""Compare the weights and the optimizer's state of two runs."""

import torch


def tensors(value, path=""):
    """(where, tensor) of everything in a checkpoint's file."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (dict, list, tuple)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from tensors(part, f"{path}/{key}")


def weights(run_dir, step):
    """All tensors of a step's checkpoint: weights of both models, masters, Adam's moments."""
    files = sorted((run_dir / "checkpoints").glob(f"_*/global_step{step}/*.pt"))
    return {
        f"{file.parent.parent.name}/{file.name}{path}": tensor
        for file in files
        for path, tensor in tensors(torch.load(file, weights_only=False))
    }


def assert_same_weights(run_dir, other, *, step, masters=True):
    """masters: DeepSpeed's float32 copies of the bfloat16 weights too."""
    kept = lambda name: masters or "single_partition_of_fp32_groups" not in name  # noqa: E731
    found, expected = (
        {name: tensor for name, tensor in weights(run, step).items() if kept(name)}
        for run in (run_dir, other)
    )
    assert found.keys() == expected.keys() and len(found) > 20
    assert [
        name for name, tensor in found.items() if not torch.equal(tensor, expected[name])
    ] == []
