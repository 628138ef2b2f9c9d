"""What is looked for first, because it is quickly found, never changes what is found."""

from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from r3_openrlhf.rewards.answers import spelling, withdrawn

HERE = Path(__file__).parent

WORDS = (
    *"I doubt that don't don’t do not think it's the answer is wrong false incorrect that it equals refuse to say".split(),
    *"ignore disregard forget scrap scratch reject strike cross out discard withdraw retract instead of rather than".split(),
    *"isn't isn’t cannot can't be never not NOT DOUBT reſuſe ſcrap diſregard unliKely but wait, sorry no scratch that it fails".split(),
    *("~~", "\\[", "$", "**", "?", ".", ":", "12", "\n", "…"),
)
TEXTS = st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join)


@given(before=TEXTS, behind=TEXTS)
@example(before="I refuſe to say", behind="")
@example(before="", behind=" ~~")
@settings(max_examples=1500, deadline=None)
def test_what_is_taken_back_is_what_the_whole_patterns_say(before, behind):
    one_space = withdrawn._one_space
    patterns = withdrawn._TAKES_BACK
    wanted = patterns["after"].match(one_space(behind)) or patterns["before"].search(one_space(before))
    assert withdrawn._takes_back(before, behind) is (wanted is not None)


def answers():
    """One text per pair of the lists beside this file."""
    lines = [
        line for name in ("pairs_correct.txt", "pairs_wrong.txt") for line in (HERE / name).read_text().splitlines()
    ]
    return [part for line in lines for part in line.split(" === ") if part]


PIECES = (
    *(r"\surd \root 3 \of {x} \not= \backslash \lg \bar{3} \text{ or } \mathrm{d} \pounds \mapsto \Pr \underline{st} \varnothing").split(" "),
    *(r"\overline{AB} \dot{3} \frac12 \dfrac{1}{2} \tfrac ab \sin30^\circ \cos(60^\circ) \square \tag{1} \left. \right. \left< \right>").split(" "),
    *(r"∛8 √2 √(3) – — ² ₃ … 12 x = ( ) [ ] , ; : { } ^ _ 1st 3rd \checkmark \approx \hspace{2} \Big \displaystyle \ast cis pi oo").split(" "),
    "\\text{ the }", "\\text{Area} =", "\\text{ out of }", "\\text{minus}", "~p", " ", "\\", "\\t",
)  # fmt: skip


def unify_by_all_rules(monkeypatch, text):
    with monkeypatch.context() as patched:
        patched.setattr(spelling, "_REWRITES", [([""], pattern, new) for _, pattern, new in spelling._REWRITES])
        return spelling.unify(text)


def test_no_rule_is_passed_over_that_would_have_changed_an_answer(monkeypatch):
    @given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join))
    @settings(max_examples=1500, deadline=None)
    def looks(text):
        assert spelling.unify(text) == unify_by_all_rules(monkeypatch, text)

    looks()
    known = answers() + [rule[0].partition(" => ")[0] for rule in spelling._TABLE["rules"]]
    assert len(known) > 300
    for text in known:
        assert spelling.unify(text) == unify_by_all_rules(monkeypatch, text), text
