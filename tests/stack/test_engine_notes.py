"""An engine that differs from what the run asked of it is named; test_end_to_end.py has a real one."""

import pytest

from r3_openrlhf.stack.engine_notes import EngineFacts, engine_notes

AS_ASKED = EngineFacts(max_model_len=4096, dtype="bfloat16", has_prefix_cache=True)
ASKED = {"max_len": 4096, "policy_dtype": "bf16", "wants_prefix_cache": True}


@pytest.mark.parametrize(
    ("facts", "asked", "begin"),
    [
        ({}, {}, []),
        ({"max_model_len": 2048}, {}, ["engine: it takes 2,048 tokens"]),
        (
            {},
            {"policy_dtype": "fp16"},
            ["engine: its weights are bfloat16, the policy's float16"],
        ),
        ({"has_prefix_cache": False}, {}, ["engine: vLLM turned the prefix cache off"]),
        ({"has_prefix_cache": False}, {"wants_prefix_cache": False}, []),
    ],
)
def test_a_sentence_for_each_difference(facts, asked, begin):
    found = engine_notes(AS_ASKED._replace(**facts), **(ASKED | asked))
    assert [note[: len(start)] for note, start in zip(found, begin, strict=True)] == begin
