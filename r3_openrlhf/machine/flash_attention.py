"""OpenRLHF imports flash-attn always; here is what a run does without it."""

import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Callable

SLOWER = (
    "flash-attn is not installed: training takes PyTorch's attention, without packing and dynamic batches, which is about half as "
    "fast; `make setup-gpu` builds it"
)


def is_missing() -> bool:
    """Return True on a machine with GPUs and without flash-attn. Nothing is known of other machines."""
    import torch

    try:
        return torch.cuda.is_available() and not importlib.metadata.version("flash-attn")
    except importlib.metadata.PackageNotFoundError:
        return True


def stand_in() -> None:
    """Install, where flash-attn is missing, plain versions of what openrlhf/models/ring_attn_utils.py:3
    imports; enough for packing. transformers takes a module without a file for none."""
    if importlib.util.find_spec("flash_attn") is not None:
        return
    import torch
    from einops import rearrange

    def index_first_axis(tensor, indices):
        return tensor[indices]

    def unpad_input(tensor_BS, attention_mask_BS):
        lengths_B = attention_mask_BS.sum(-1, dtype=torch.int32)
        indices_N = attention_mask_BS.flatten().nonzero().flatten()
        offsets = torch.nn.functional.pad(lengths_B.cumsum(0, dtype=torch.int32), (1, 0))
        return (
            tensor_BS.flatten(0, 1)[indices_N],
            indices_N,
            offsets,
            int(lengths_B.max()),
            lengths_B,
        )

    def pad_input(tensor_N, indices_N, batch, seqlen):
        padded = tensor_N.new_zeros((batch * seqlen, *tensor_N.shape[1:]))
        return padded.index_copy(0, indices_N, tensor_N).unflatten(0, (batch, seqlen))

    def all_gather(*_args, **_options):
        raise RuntimeError("ring attention needs flash-attn and CUDA; set ring_attn_size to 1")

    modules: dict[str, list[Callable]] = {
        "flash_attn": [],
        "flash_attn.bert_padding": [index_first_axis, pad_input, rearrange, unpad_input],
        "flash_attn.utils": [],
        "flash_attn.utils.distributed": [all_gather],
    }
    for name, functions in modules.items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        module.__dict__.update({function.__name__: function for function in functions})
