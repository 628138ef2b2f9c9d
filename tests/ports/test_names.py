"""The table of names in docs/ports.md: complete for the installed GRPOConfig, and every key of ours exists."""

import re
from pathlib import Path

import pytest

from r3_openrlhf.config.loading import fields_of
from r3_openrlhf.stack.upstream_parser import installed_flags


@pytest.mark.stack
def test_every_field_of_grpo_config_has_one_row_and_every_key_exists():
    trl, transformers = pytest.importorskip("trl"), pytest.importorskip("transformers")
    page = (Path(__file__).parents[2] / "docs" / "ports.md").read_text()
    table = page.partition("| TRL (`GRPOConfig`)")[2].partition("\n\n")[0]
    rows = [line.split("|") for line in table.splitlines()[2:]]
    theirs, ours = (
        [name for row in rows for name in re.findall(r"`([a-z_0-9.]+)`", row[i])]
        for i in (1, 3)
    )
    fields, base = (
        set(kind.__dataclass_fields__)
        for kind in (trl.GRPOConfig, transformers.TrainingArguments)
    )
    assert len(theirs) == len(set(theirs)) and fields - base <= set(theirs)
    assert set(theirs) - fields == {"model", "train_dataset", "eval_dataset", "reward_funcs"}
    assert set(ours) <= {*fields_of(), *(f"openrlhf.{flag}" for flag in installed_flags())}
