import pytest
from hypothesis import given
from hypothesis.strategies import lists, sampled_from

from r3_openrlhf.method.core.groups import GroupState, group_state, opposite_verdict
from r3_openrlhf.method.types import Verdict

C, W, U = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED


@pytest.mark.parametrize(
    ("verdicts", "state", "wanted"),
    [
        ([C, C], GroupState.ALL_CORRECT, W),
        ([C, U, C], GroupState.ALL_CORRECT, W),
        ([W, W, W], GroupState.NONE_CORRECT, C),
        ([U, W, W], GroupState.NONE_CORRECT, C),
        ([W, C], GroupState.MIXED, None),
        ([C, U], GroupState.TOO_SMALL, None),
        ([U, U, U], GroupState.TOO_SMALL, None),
        ([W], GroupState.TOO_SMALL, None),
        ([], GroupState.TOO_SMALL, None),
    ],
)
def test_state_and_what_to_recall(verdicts, state, wanted):
    assert group_state(verdicts) is state
    assert opposite_verdict(state) is wanted


@given(lists(sampled_from(Verdict), max_size=8))
def test_ungraded_rows_and_order_change_nothing(verdicts):
    assert group_state(verdicts) == group_state(verdicts[::-1]) == group_state([U, *verdicts, U])


def test_a_recall_of_the_wanted_verdict_makes_a_collapsed_group_mixed():
    for verdicts in ([C, C, C], [W, W]):
        wanted = opposite_verdict(group_state(verdicts))
        assert group_state([*verdicts, wanted]) is GroupState.MIXED


def test_refuses_an_unknown_verdict():
    with pytest.raises(ValueError, match="maybe"):
        group_state(["maybe", "wrong"])
