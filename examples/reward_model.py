"""Rewards from a reward model, served as OpenRLHF serves them (openrlhf.cli.serve_rm), on a machine without a GPU.

    python examples/reward_model.py runs/reward_model --port 5000
    r3 train experiment=cpu_smoke algo=rrl run_dir=runs/rrl reward.urls=[http://127.0.0.1:5000/get_reward] \
        reward.length_reward_max_tokens=null reward.correct_from=4

The first line makes a tiny reward model, whose head is random, if the directory does not exist, and says so: put a reward model that
OpenRLHF trained there. Its numbers are the rewards as they are; what counts as correct, for accuracies and for algo=rrl's states, is
a reward of `reward.correct_from` or more.
"""

import argparse
import runpy
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer

from r3_openrlhf.machine.cpu import cpu_platform
from r3_openrlhf.runs.models.locate import resolve_model


def make(path: Path) -> None:
    """A reward model on the tiny model, with rewards of both signs."""
    from openrlhf.models import get_llm_for_sequence_regression

    torch.manual_seed(0)
    model = get_llm_for_sequence_regression(
        resolve_model("tiny"), "reward", attn_implementation="sdpa", init_value_head=True
    )
    model.score.weight.data.mul_(50)
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(resolve_model("tiny")).save_pretrained(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--port", type=int, default=5000)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        cpu_platform.install()
    if not (args.directory / "config.json").is_file():
        if args.directory.exists():
            parser.error(
                f"{args.directory} has no config.json, so there is no reward model; give its directory, or a new one"
            )
        print(
            f"Warning: {args.directory} is new: it gets a tiny reward model with a random head, whose rewards mean nothing",
            file=sys.stderr,
        )
        make(args.directory)
    sys.argv = [
        "serve_rm",
        "--reward.model_name_or_path",
        str(args.directory),
        "--ds.attn_implementation",
        "sdpa",
    ]
    sys.argv += ["--host", "127.0.0.1", "--port", str(args.port)]
    runpy.run_module("openrlhf.cli.serve_rm", run_name="__main__")


if __name__ == "__main__":
    main()
