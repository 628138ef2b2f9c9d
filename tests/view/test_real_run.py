"""A run of the whole stack, as it was left by

    r3 train experiment=cpu_smoke run_dir=runs/cpu_smoke logging.token_values=all
    tar cJf cpu_smoke.tar.xz config.yaml metrics.jsonl rollouts history.sqlite data final_model/tokenizer.json

Its pages say what its metrics say.
"""

import pytest

from r3_openrlhf.runs.step_groups import groups_of
from r3_openrlhf.view.responses import of_group
from r3_openrlhf.view.tokens import TokenTexts, find_tokenizer, token_values
from tests.view.conftest import unpacked


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return unpacked(
        "cpu_smoke", tmp_path_factory.mktemp("real") / "cpu_smoke", "logging.token_values=all"
    )


def test_groups_are_those_of_the_metrics(run):
    for line in run.metrics():
        step = line["step"]
        groups = groups_of(run.rows(step), step=step)
        assert len(groups) == sum(
            line[f"r3/groups/{state}"] for state in ("all_correct", "none_correct", "mixed")
        )
        assert sum(group.num_recalled for group in groups) == line["r3/replay/recalled"]
        assert sum(group.num_ranked for group in groups) == line["r3/ranking/rows"]
        assert sum(group.num_recalled > 0 for group in groups) == line["r3/replay/hits"]
        assert (
            sum(group.context == "reflection" for group in groups)
            == line["r3/reflection/groups"]
        )
        assert sum(group.mass for group in groups) == pytest.approx(
            line["r3/advantage/abs_sum"]
        )
        assert max((group.oldest for group in groups), default=0) == line["r3/replay/max_lag"]


def test_every_graded_response_finds_its_tokens(run):
    texts = TokenTexts(find_tokenizer(run))
    found = missing = ratios = 0
    for step in run.steps():
        for group in groups_of(run.rows(step), step=step):
            rows = of_group(run, step, group, run.rows_with_text(step, group.uid))
            columns = of_group(run, step, group, run.token_columns(step, group.uid))
            for row, values in zip(
                rows, token_values(run, rows, columns, step=step, texts=texts)[0], strict=True
            ):
                if values is None or values.ids is None:
                    missing += 1
                    continue
                found += 1
                ratios += (
                    row["recalled_from"] is not None and values.policy_logprobs is not None
                )
                assert texts.text(values.ids.tolist()) == row["text"]
                assert (
                    len(values.entropies)
                    == len(values.logprobs)
                    == len(values.pieces)
                    == row["num_tokens"]
                )
    assert ratios == sum(line["r3/replay/recalled"] for line in run.metrics()) > 0
    assert missing < found / 20
