"""What is looked for first, because it is quickly found, never changes what is found."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.rewards.answers import spelling

HERE = Path(__file__).parent


def answers():
    """One text per pair of the lists beside this file."""
    lines = [
        line
        for name in ("pairs_correct.txt", "pairs_wrong.txt")
        for line in (HERE / name).read_text().splitlines()
    ]
    return [part for line in lines for part in line.split(" === ") if part]


PIECES = (
    *(
        r"\surd \root 3 \of {x} \not= \backslash \lg \bar{3} \text{ or } \mathrm{d} \pounds \mapsto \Pr \underline{st} \varnothing"
    ).split(" "),
    *(
        r"\overline{AB} \dot{3} \frac12 \dfrac{1}{2} \tfrac ab \sin30^\circ \cos(60^\circ) \square \tag{1} \left. \right. \left< \right>"
    ).split(" "),
    *(
        r"∛8 √2 √(3) – — ² ₃ … 12 x = ( ) [ ] , ; : { } ^ _ 1st 3rd \checkmark \approx \hspace{2} \Big \displaystyle \ast cis pi oo"
    ).split(" "),
    "\\text{ the }",
    "\\text{Area} =",
    "\\text{ out of }",
    "\\text{minus}",
    "~p",
    " ",
    "\\",
    "\\t",
)


def unify_by_all_rules(monkeypatch, text):
    with monkeypatch.context() as patched:
        patched.setattr(
            spelling,
            "_REWRITES",
            [([""], pattern, new) for _, pattern, new in spelling._REWRITES],
        )
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
