"""The teacher's term of a token: by hand, its laws, and against TRL's loss of sampled tokens."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf.method.core.distill import (
    DISTILL_LOSSES,
    SOURCES,
    WEIGHTS,
    LessonFate,
    TeacherScores,
    lesson_metrics,
    token_terms,
    with_rest,
)
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import Context
from tests.method.history.samples import make_rollout

nats = st.floats(-12, 0, width=32)


@st.composite
def scored(draw):
    """Scores of a response, and the tokens that were sampled."""
    length = draw(st.integers(1, 8))
    of_tokens = st.lists(nats, min_size=length, max_size=length)
    teacher, student = (np.array(draw(of_tokens), np.float32) for _ in range(2))
    entropies = -np.array(draw(of_tokens), np.float32)
    flags = st.lists(st.booleans(), min_size=length, max_size=length)
    return TeacherScores(teacher, student, entropies), np.array(draw(flags))


def terms_of(scores, sampled, *, bound=5.0, weight="equal"):
    return token_terms(scores, sampled, bound=bound, weight=WEIGHTS[weight])


def test_by_hand():
    scores = TeacherScores(
        np.array([-1.0, -2.0, -9.0, -0.5]), np.array([-3.0, -1.5, -1.0, -0.5])
    )
    sampled = np.array([True, True, True, False])
    assert terms_of(scores, sampled) == approx([2.0, -0.5, -5.0, 0.0])
    assert terms_of(scores, sampled, bound=1.0) == approx([1.0, -0.5, -1.0, 0.0])
    assert terms_of(scores, sampled, bound=None) == approx([2.0, -0.5, -8.0, 0.0])


def test_a_token_of_which_the_teacher_is_unsure_counts_less():
    """exp(-H) is 1 and 1/3: weights 1.5 and 0.5."""
    scores = TeacherScores(np.full(2, -1.0), np.full(2, -2.0), np.array([0.0, math.log(3)]))
    assert terms_of(scores, np.ones(2, bool), weight="confident") == approx([1.5, 0.5])


@given(scored(), st.sampled_from(["equal", "confident"]))
def test_where_teacher_and_policy_agree_the_term_is_zero(one, weight):
    scores, sampled = one
    same = TeacherScores(scores.student, scores.student, scores.entropies)
    assert not terms_of(same, sampled, weight=weight).any()


@given(scored(), st.floats(0.01, 9))
def test_no_term_is_beyond_the_bound_and_given_tokens_have_none(one, bound):
    scores, sampled = one
    terms = terms_of(scores, sampled, bound=bound)
    assert (np.abs(terms) <= np.float32(bound)).all()
    assert not terms[~sampled].any()
    gap = (scores.teacher - scores.student)[sampled]
    assert (np.sign(terms[sampled]) == np.sign(gap)).all()


@given(scored())
def test_equal_entropies_are_equal_weights(one):
    scores, sampled = one
    flat = TeacherScores(scores.teacher, scores.student, np.ones(len(sampled), np.float32))
    assert terms_of(flat, sampled, weight="confident") == approx(
        terms_of(scores, sampled), rel=1e-5, abs=1e-6
    )


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_logprob_that_is_not_finite_is_refused_where_it_counts(value):
    scores = TeacherScores(np.array([-1.0, value]), np.array([-1.0, -1.0]))
    with pytest.raises(ValueError, match="not finite"):
        terms_of(scores, np.ones(2, bool))
    assert not terms_of(scores, np.array([True, False])).any()


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError):
        terms_of(TeacherScores(np.zeros(2), np.zeros(3)), np.ones(3, bool))


def test_the_gradient_is_that_of_the_loss_of_sampled_tokens_in_trl():
    """Theirs: (log pi_S - log pi_T).detach() * log pi_S; ours: -d_t * log pi_S, by the ratio 1."""
    sdpo = pytest.importorskip("trl.experimental.sdpo.loss_utils")
    generator = torch.Generator().manual_seed(0)
    student_BTV = torch.randn(3, 5, 7, generator=generator).requires_grad_()
    teacher_BTV = torch.randn(3, 5, 7, generator=generator)
    ids_BT = torch.randint(0, 7, (3, 5), generator=generator)
    theirs = sdpo.compute_sampled_token_self_distillation_loss(
        student_BTV, teacher_BTV, ids_BT, distillation_alpha=1.0
    )
    (wanted,) = torch.autograd.grad(theirs.sum(), student_BTV)

    now_BT, taught_BT = (
        logits.log_softmax(-1).gather(-1, ids_BT[..., None])[..., 0]
        for logits in (student_BTV, teacher_BTV)
    )
    terms = [
        terms_of(
            TeacherScores(taught_BT[row].numpy(), now_BT[row].detach().numpy()),
            np.ones(5, bool),
            bound=None,
        )
        for row in range(3)
    ]
    ratio_BT = (now_BT - now_BT.detach()).exp()
    (found,) = torch.autograd.grad(
        -(torch.from_numpy(np.stack(terms)) * ratio_BT).sum(), student_BTV
    )
    torch.testing.assert_close(found, wanted)


# ── losses on the likeliest tokens ──


def distributions(seed, *, shape=(2, 3, 6)):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).log_softmax(-1)


def test_a_rest_completes_the_probabilities():
    kept = distributions(0)[..., :4]
    assert with_rest(kept).exp().sum(-1).numpy() == approx(np.ones((2, 3)), abs=1e-5)


@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl", "jensen_shannon"])
def test_a_divergence_is_zero_of_equals_alone(name):
    loss = DISTILL_LOSSES[name].function
    student, teacher = distributions(0), distributions(1)
    assert loss(student, student).abs().max().item() == approx(0.0, abs=1e-6)
    assert loss(student, teacher).min().item() > 0


def test_the_divergences_by_torch():
    student, teacher = distributions(0), distributions(1)

    def kl(p, q):
        return torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)

    mixture = ((student.exp() + teacher.exp()) / 2).log()
    wanted = {
        "reverse_kl": kl(student, teacher),
        "forward_kl": kl(teacher, student),
        "jensen_shannon": (kl(student, mixture) + kl(teacher, mixture)) / 2,
    }
    for name, values in wanted.items():
        torch.testing.assert_close(DISTILL_LOSSES[name].function(student, teacher), values)


# ── the success that is shown, and functions of a user ──


def test_where_successes_come_from():
    group, own = make_rollout(ids=(1,)), make_rollout(ids=(2,))
    imported = make_rollout(ids=(3,), context=Context.IMPORTED)
    stored = [own, imported]
    assert SOURCES["any"]([group], stored) == [group]
    assert SOURCES["any"]([], stored) == stored
    assert SOURCES["group"]([group], stored) == [group] and not SOURCES["group"]([], stored)
    assert SOURCES["stored"]([group], stored) == [own]
    assert SOURCES["imported"]([group], stored) == [imported]


def shortest(group, stored):
    return sorted([*group, *stored], key=lambda one: one.num_tokens)[:1]


def halved(entropies):
    return np.full_like(entropies, 0.5)


def squared(student, teacher):
    return (student - teacher).square().sum(-1)


def takes_nothing():
    return None


def test_functions_of_a_user_by_import_path_and_as_they_are():
    here = "tests.method.core.test_distill"
    long, short = make_rollout(ids=(1, 2)), make_rollout(ids=(3,))
    assert SOURCES[f"{here}:shortest"]([long], [short]) == [short]
    assert SOURCES[shortest]([long], [short]) == [short]
    scores = TeacherScores(np.full(2, -1.0), np.full(2, -2.0), np.ones(2, np.float32))
    assert terms_of(scores, np.ones(2, bool), weight=f"{here}:halved") == approx([0.5, 0.5])
    assert WEIGHTS[f"{here}:halved"].needs_entropy
    assert DISTILL_LOSSES[f"{here}:squared"].function is squared


@pytest.mark.parametrize("table", [SOURCES, WEIGHTS, DISTILL_LOSSES])
def test_a_word_or_function_that_does_not_fit_is_refused_by_its_key(table):
    with pytest.raises(ConfigError, match=rf"^{table.key} is .*does not exist"):
        table["unheard of"]
    with pytest.raises(ConfigError, match=rf"^{table.key} is .*cannot be called"):
        table["tests.method.core.test_distill:takes_nothing"]


def one_for_all(_entropies):
    return 1.0


def hot(entropies):
    return entropies / (entropies - entropies[0])


@pytest.mark.parametrize("name", ["one_for_all", "hot"])
def test_a_weight_that_is_no_number_for_each_token_is_refused(name):
    with (
        np.errstate(divide="ignore", invalid="ignore"),
        pytest.raises(ConfigError, match=r"for two tokens; use one finite number for each"),
    ):
        WEIGHTS[f"tests.method.core.test_distill:{name}"]


def test_a_weight_that_fails_later_stops_the_step():
    def late(entropies):
        return entropies if len(entropies) == 2 else entropies * math.inf

    scores = TeacherScores(np.zeros(3), np.ones(3), np.ones(3, np.float32))
    with pytest.raises(
        ValueError, match=r"distill.weight returned a number that is not finite"
    ):
        terms_of(scores, np.ones(3, bool), weight=late)


# ── metrics ──


def test_metrics_by_hand():
    """Gaps 1, -1 and -6 nats; the last is doubted and beyond the bound, -1 is doubted."""
    scores = {4: TeacherScores(np.array([-1.0, -2, -7, 0]), np.array([-2.0, -1, -1, -9]))}
    sampled = {4: np.array([True, True, True, False])}
    fates = [LessonFate.TAUGHT, LessonFate.WITHOUT_SUCCESS, LessonFate.WITHOUT_SUCCESS]
    found = lesson_metrics(fates, scores, sampled, bound=5.0)
    assert found == approx(
        {
            "r3/distill/taught": 1,
            "r3/distill/not_failed": 0,
            "r3/distill/starts_elsewhere": 0,
            "r3/distill/without_success": 2,
            "r3/distill/without_room": 0,
            "r3/distill/cut_by_max_share": 0,
            "r3/distill/gap": -2.0,
            "r3/distill/abs_gap": 8 / 3,
            "r3/distill/doubted_share": 2 / 3,
            "r3/distill/at_bound_share": 1 / 3,
        }
    )
    unbounded = lesson_metrics(fates, scores, sampled, bound=None)
    assert unbounded["r3/distill/at_bound_share"] == 0


def test_a_step_without_lessons_has_no_gap():
    """A mean of no tokens is not zero nats."""
    found = lesson_metrics([LessonFate.WITHOUT_SUCCESS], {}, {}, bound=5.0)
    assert "r3/distill/gap" not in found and found["r3/distill/without_success"] == 1
