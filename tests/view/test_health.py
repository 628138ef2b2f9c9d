"""The signs of health: the page of the documentation is the list of the viewer, and each is seen red."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from r3_openrlhf.view.app import create_app
from r3_openrlhf.view.health import CHECKS
from r3_openrlhf.view.library import Library

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "is-it-working.md"
NAMES = [check.name for check in CHECKS]
# of 20 steps: the values of the first and of the last half that make a sign red
RED = {
    "ungraded": (0.2, 0.2),
    "accuracy": (0.0, 0.0),
    "log-prob gap, actor and engine": (0.2, 0.2),
    "truncated": (0.6, 0.6),
    "rise of truncated": (0.1, 0.45),
    "mixed groups": (0.0, 0.0),
    "doubted by the teacher": (0.9, 0.9),
    "gradient norm": (0.0, 0.0),
    "growth of the gradient norm": (1.0, 200.0),
    "recalled": (0.0, 0.0),
    "coverage of the history": (0.0, 0.0),
    "accuracy with a stored error shown": (0.075, 0.075),
    "entropy": (1.0, 0.05),
    "change of the reward": (1.0, 0.5),
    "change of accuracy": (0.6, 0.4),
    "change of held-out accuracy": (0.6, 0.4),
}
HEALTHY = {
    "epoch": 2,
    "r3/grading/ungraded_rate": 0.0,
    "fresh/accuracy": 0.5,
    "fresh/reward": 0.5,
    "fresh/truncated": 0.1,
    "fresh/entropy": 1.0,
    "r3/sync/abs_logprob_gap": 0.01,
    "r3/groups/mixed": 4.0,
    "r3/groups/all_correct": 2.0,
    "r3/groups/none_correct": 2.0,
    "r3/groups/collapsed_before": 4.0,
    "r3/replay/recalled": 3.0,
    "r3/history/coverage": 0.5,
    "r3/reflection/groups": 1.0,
    "r3/reflection/accuracy": 0.6,
    "r3/reflection/plain_accuracy": 0.6,
    "r3/distill/doubted_share": 0.2,
    "grad_norm": 1.0,
}


def healthy_verdict(run, *, changed="", values=(0.0, 0.0)):
    """What the page of a run of 20 steps says, whose key `changed` has these values."""
    for step in range(1, 21):
        value = values[0] if step <= 10 else values[1]
        change = {changed: value} if changed in HEALTHY else {}
        run.append_metrics({"step": step} | HEALTHY | change)
    for step, value in zip((0, 20), values, strict=True):
        pass_at_1 = value if changed == "pass_at_1" else 0.5
        run.append_evaluation({"step": step, "pass_at_1": pass_at_1})
    client = TestClient(create_app(Library([run.path])), base_url="http://localhost")
    page = client.get(f"/{run.path.name}").text
    (answer,) = re.findall(r"<dt>Healthy\?</dt><dd>(.*?)</dd>", page, re.S)
    return re.sub("<[^>]*>", "", answer)


def test_a_healthy_run_is_good(run):
    assert healthy_verdict(run) == f"✓ good all {len(CHECKS)} checks hold"


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
def test_each_sign_is_seen_red(run, check):
    text = healthy_verdict(run, changed=check.key, values=RED[check.name])
    signs = text.removeprefix("✗ wrong ").split("; ")
    assert text.startswith("✗ wrong ")
    assert [sign for sign in signs if sign.startswith(check.name)]


def test_reflection_that_misleads_is_named_with_its_points(run):
    text = healthy_verdict(run, changed="r3/reflection/accuracy", values=(0.075, 0.075))
    assert text == ("✗ wrong accuracy with a stored error shown -0.525 (healthy: -0.1 to 1)")


def test_no_gradient_at_first_is_to_be_watched_and_never_is_wrong(run):
    """A ratio to 0 is no reason to leave the sign out."""
    (growth,) = (check for check in CHECKS if check.name == "growth of the gradient norm")
    lines = [{"step": step, "grad_norm": 0.0} for step in range(8)]
    assert growth.of_steps(lines)[0] == "red"
    assert (
        growth.of_steps([*lines, *({"step": 8 + n, "grad_norm": 1.0} for n in range(8))])[0]
        == "amber"
    )


def look_at(check):
    """The cell of the page that names the keys of a check."""
    text = f"`{check.key}`"
    if check.per:
        text += " per " + " + ".join(f"`{key}`" for key in check.per)
    if check.less:
        text += f" less `{check.less}`"
    return text


def test_the_page_is_the_list():
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ][2:]
    told = [
        (when, look, re.sub(r" \(\[else\]\(#\S+\)\)$", "", healthy))
        for when, look, healthy in rows
    ]
    assert told == [(check.when, look_at(check), check.healthy) for check in CHECKS]
    assert set(RED) == set(NAMES) and len(RED) == len(CHECKS)


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        (
            ("algo=grpo",),
            {"recalled", "coverage of the history", "accuracy with a stored error shown"},
        ),
        ((), set()),
    ],
)
def test_a_sign_of_what_the_run_lacks_is_left_out(settings, left_out):
    from r3_openrlhf.config.loading import load_config

    config = load_config("cpu_smoke", list(settings))
    assert {check.name for check in CHECKS if not check.applies_to(config)} == left_out


def lines_of(check, before, value):
    """Sixteen steps, or as many as the check needs, whose value goes from `before` to `value` after their first quarter."""
    count = max(16, check.min_steps)
    others = {check.less: 0.0} if check.less else {}
    others |= {key: 0.0 for key in check.per} | ({check.where: 1.0} if check.where else {})
    lines = []
    for number in range(count):
        now = before if number < count // 4 else value
        of_per = (
            {check.per[-1]: 1.0 - (now if check.key in check.per else 0.0)} if check.per else {}
        )
        lines.append({"step": number, "epoch": 2} | others | of_per | {check.key: now})
    return lines


@given(st.sampled_from(CHECKS), st.floats(1e-3, 1e3), st.floats(0.5, 2))
def test_a_check_is_green_within_its_ends_and_red_beyond_the_wider_ones(check, value, scale):
    """Independent of the order of the steps' first and last quarter for a mean; a ratio knows no unit."""
    before = {"mean": value, "whole": value, "ratio": 1.0, "change": 0.0}[check.of]
    state, text = check.of_steps(lines_of(check, before, value))
    (low, high), (least, most) = check.green, check.amber
    assert least <= low < high <= most
    assert state == (
        "green" if low <= value <= high else "amber" if least <= value <= most else "red"
    )
    assert check.healthy in text
    if check.of == "ratio":
        assert check.of_steps(lines_of(check, scale, scale * value))[0] == state
    assert check.of_steps([{"step": 1}])[0] == "none"  # absence is not zero
