"""No checkpoint runs code: torch reads every pickle with `weights_only`, and knows the few classes
of DeepSpeed's state.

Answers deepspeed/runtime/checkpoint_engine/torch_checkpoint_engine.py:37 and
checkpoint/ds_to_universal.py, which ask for `weights_only=False`: torch's own variable counts for
more. `python -m r3_openrlhf.stack.safe_pickles MODULE ...` runs a module like that."""

import runpy
import sys

ENVIRONMENT = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}


def allow_deepspeed() -> None:
    """Harmless classes that DeepSpeed's optimizers save besides tensors."""
    import torch
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    torch.serialization.add_safe_globals(
        [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
    )


if __name__ == "__main__":
    allow_deepspeed()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
