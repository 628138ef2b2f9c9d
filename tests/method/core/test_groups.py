import pytest

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
