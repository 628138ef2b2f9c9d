"""Steps that pause their longest responses, played on a seeded engine without a model: what is trained, when, and what a checkpoint keeps."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.stack import partial_checkpoint
from r3_openrlhf.stack.partial_engines import Occupancy
from r3_openrlhf.stack.partial_rollouts import Drawn, PartialSampler

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from partial_rollouts import PlayedEngines, draw_from  # noqa: E402

from tests.stack.whole_engines import WholeEngines, as_plain

pytestmark = pytest.mark.stack


def lengths_of(seed, *, most):
    """Lengths of a seed, half of them short, and every fifth as long as possible."""

    def length_of(prompt, sample):
        generator = np.random.default_rng(
            [seed, sum(prompt.encode()) * 1000 + len(prompt), sample]
        )
        kind = generator.integers(10)
        if kind < 2:
            return most
        return int(generator.integers(1, most // 4 if kind < 7 else most + 1))

    return length_of


def run_steps(sampler, engines, *, draw, keeps=lambda group: True, steps=None):
    """Every step until nothing is left, or `steps` of them; a run that knows its number draws for these alone."""
    found = []
    while steps is None or len(found) < steps:
        most = None if steps is None else sampler.batch_size * (steps - len(found))
        engines.policy_step = len(found)
        step = sampler.sample(engines, draw=draw, keeps=keeps, most=most)
        if not step.trained and not sampler.groups:
            break
        found.append(step)
    return found


def runs_of(step):
    return [sample["r3"]["pieces"] for group in step.trained for sample in group.samples]


drawn_settings = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**20),
        "batch": st.integers(1, 6),
        "samples": st.integers(1, 5),
        "partial": st.floats(0.05, 3),
        "more_pauses": st.integers(0, 3),
        "places": st.integers(1, 40),
        "problems": st.integers(1, 40),
    }
)


@given(drawn_settings)
@settings(max_examples=200, deadline=None)
def test_every_group_that_is_drawn_is_trained_once_and_whole(drawn):
    """So an epoch's responses are those of an epoch that waits: of every length, no more and no fewer."""
    length_of = lengths_of(drawn["seed"], most=40)
    max_pauses = int(np.ceil(drawn["partial"])) + drawn["more_pauses"]
    sampler = PartialSampler(
        batch_size=drawn["batch"], partial=drawn["partial"], max_pauses=max_pauses
    )
    engines = PlayedEngines(length_of, places=drawn["places"])
    prompts = [f"p{number}" for number in range(drawn["problems"])]
    steps = run_steps(sampler, engines, draw=draw_from(iter(prompts), drawn["samples"]))

    trained = [group for step in steps for group in step.trained]
    assert sorted(group.prompt for group in trained) == sorted(prompts)
    lengths = Counter()
    for group in trained:
        for place, sample in enumerate(group.samples):
            assert sample["action_ranges"] == [(0, length_of(group.prompt, place))]
            lengths[sample["action_ranges"][0][1]] += 1
    waiting = Counter(
        length_of(one, place) for one in prompts for place in range(drawn["samples"])
    )
    assert lengths == waiting
    # each step but the last is full, so there are as many as without
    sizes = [len(step.trained) for step in steps]
    assert sizes[:-1] == [drawn["batch"]] * (len(steps) - 1) and 0 < sizes[-1] <= drawn["batch"]
    # each token counts once, in the step that sampled it
    assert sum(step.tokens for step in steps) == sum(
        length * count for length, count in waiting.items()
    )
    for group in trained:
        assert group.pauses <= max_pauses
    for number, step in enumerate(steps):
        for pieces in runs_of(step):
            sampled = [at for _, at in pieces]
            assert sampled == sorted(set(sampled)) and sampled[-1] <= number
        numbers = [group.number for group in step.trained]
        assert numbers == sorted(numbers)


@given(drawn_settings, st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_a_run_of_so_many_steps_trains_the_problems_that_it_would_have_trained(drawn, steps):
    """The last steps draw nothing that would not be trained: none of what is long is lost at the end."""
    sampler = PartialSampler(batch_size=drawn["batch"], partial=drawn["partial"], max_pauses=9)
    engines = PlayedEngines(lengths_of(drawn["seed"], most=40), places=drawn["places"])
    prompts = (f"p{number}" for number in range(1000))
    found = run_steps(sampler, engines, draw=draw_from(prompts, drawn["samples"]), steps=steps)
    trained = {group.prompt for step in found for group in step.trained}
    assert trained == {f"p{number}" for number in range(steps * drawn["batch"])}
    assert sampler.groups == [] and sampler.num_drawn == len(trained)


@given(drawn_settings)
@settings(max_examples=60, deadline=None)
def test_groups_that_belong_to_a_problem_take_no_place_and_are_not_lost(drawn):
    """Reflection adds a group to some problems. A step counts problems alone, and the last one waits for all."""
    length_of = lengths_of(drawn["seed"], most=30)
    prompts = [f"p{number}" for number in range(drawn["problems"])]
    plain = draw_from(iter(prompts), drawn["samples"])

    def draw(count):
        found = plain(count)
        asked = [group.prompt for group in found.groups if length_of(group.prompt, 9) % 2]
        added = draw_from((f"{prompt}+" for prompt in asked), drawn["samples"])(len(asked) + 1)
        for group in added.groups:
            group.is_plain = False
        return Drawn([*found.groups, *added.groups], found.is_all)

    sampler = PartialSampler(batch_size=drawn["batch"], partial=drawn["partial"], max_pauses=9)
    steps = run_steps(sampler, PlayedEngines(length_of, places=drawn["places"]), draw=draw)
    trained = [group.prompt for step in steps for group in step.trained]
    reflected = [f"{prompt}+" for prompt in prompts if length_of(prompt, 9) % 2]
    assert sorted(trained) == sorted([*prompts, *reflected])
    problems = [sum(group.is_plain for group in step.trained) for step in steps]
    assert problems[:-1] == [drawn["batch"]] * (len(steps) - 1) and problems[-1] > 0


@given(drawn_settings)
@settings(max_examples=50, deadline=None)
def test_what_dynamic_sampling_drops_is_drawn_again(drawn):
    """A step is full of groups that are kept, and every other one is dropped when it is whole."""
    length_of = lengths_of(drawn["seed"], most=20)
    sampler = PartialSampler(batch_size=drawn["batch"], partial=drawn["partial"], max_pauses=9)
    prompts = [f"p{number}" for number in range(drawn["problems"])]
    kept = {prompt for prompt in prompts if length_of(prompt, 0) % 3}
    steps = run_steps(
        sampler,
        PlayedEngines(length_of, places=drawn["places"]),
        draw=draw_from(iter(prompts), drawn["samples"]),
        keeps=lambda group: group.is_whole and group.prompt in kept,
    )
    trained = [group.prompt for step in steps for group in step.trained]
    dropped = [group.prompt for step in steps for group in step.dropped]
    assert sorted(trained) == sorted(kept) and sorted(dropped) == sorted(set(prompts) - kept)
    full = [len(step.trained) for step in steps if len(step.trained) == drawn["batch"]]
    assert len(full) == len(kept) // drawn["batch"]


def test_the_step_waits_for_a_group_that_was_paused_too_often():
    """p0 takes 100 iterations and the others 10; two pauses are allowed, so step 3 waits for it."""
    engines = PlayedEngines(lambda prompt, sample: 100 if prompt == "p0" else 10, places=99)
    sampler = PartialSampler(batch_size=2, partial=1.0, max_pauses=2)
    draw = draw_from((f"p{number}" for number in range(100)), 1)
    ends, trained = [], []
    for step in run_steps(sampler, engines, draw=draw, steps=5)[:4]:
        ends.append(engines.clock)
        trained.append([group.prompt for group in step.trained])
    assert trained[:2] == [["p1", "p2"], ["p3", "p4"]] and trained[2][0] == "p0"


def test_what_was_paused_is_asked_first():
    asked = []

    class Listening(PlayedEngines):
        def ask(self, group):
            asked.append(group.prompt)
            super().ask(group)

    engines = Listening(lambda prompt, sample: 50 if prompt == "p1" else 5, places=2)
    sampler = PartialSampler(batch_size=1, partial=1.0, max_pauses=5)
    draw = draw_from((f"p{number}" for number in range(9)), 1)
    for _ in range(2):
        sampler.sample(engines, draw=draw, keeps=lambda group: True, most=None)
    assert asked == ["p0", "p1", "p1", "p2"]


# ── checkpoints ──


@given(drawn_settings)
@settings(max_examples=40, deadline=None)
def test_a_run_that_is_killed_after_every_step_is_the_undisturbed_one(drawn):
    """Tokens, log-probs, policy steps, grades, counts: what comes back from the file is what went into it."""
    stories = []
    for is_killed in (False, True):
        made = dict(
            batch_size=drawn["batch"],
            partial=drawn["partial"],
            max_pauses=int(np.ceil(drawn["partial"])) + drawn["more_pauses"],
        )
        sampler = PartialSampler(**made)
        engines = WholeEngines(lengths_of(drawn["seed"], most=12), places=drawn["places"])
        draw = draw_from(
            (f"p{number}" for number in range(drawn["problems"])), drawn["samples"]
        )
        story = []
        for number in range(1000):
            engines.policy_step = number
            step = sampler.sample(engines, draw=draw, keeps=lambda group: True, most=None)
            for group in step.trained:
                story += [as_plain(sample) for sample in group.samples]
            story.append((step.tokens, step.paused, len(step.trained)))
            if not sampler.groups:
                break
            if is_killed:
                data = partial_checkpoint.encoded(sampler, n_samples=drawn["samples"])
                sampler = PartialSampler(**made)
                partial_checkpoint.decode_into(sampler, data, n_samples=drawn["samples"])
        stories.append(story)
    assert stories[0] == stories[1]


def paused_sampler():
    """One group of a whole response and a paused one, one that has not begun."""
    sampler = PartialSampler(batch_size=1, partial=1.0, max_pauses=3)
    lengths = {("p0", 0): 3, ("p0", 1): 50, ("p1", 0): 2, ("p1", 1): 2}
    engines = WholeEngines(lambda prompt, sample: lengths[prompt, sample], places=2)
    draw = draw_from(iter(["p0", "p1"]), 2)
    sampler.sample(engines, draw=draw, keeps=lambda group: True, most=None)
    return sampler


def test_a_group_that_is_graded_together_keeps_its_requests(tmp_path):
    """A function of a whole group grades when the last of it is there; until then a response has a request."""
    sampler = paused_sampler()
    (group,) = sampler.groups
    request = GradeRequest(
        task="exact",
        response="x",
        references=("2",),
        truncated=False,
        num_tokens=3,
        metadata={"a": [1]},
        row={"b": None},
    )
    group.samples[0]["r3"]["grade"] = request
    data = partial_checkpoint.encoded(sampler, n_samples=2)
    partial_checkpoint.write(tmp_path, data, step=7)
    again = PartialSampler(batch_size=1, partial=1.0, max_pauses=3)
    partial_checkpoint.decode_into(
        again, partial_checkpoint.read(tmp_path, step=7), n_samples=2
    )
    assert again.groups[0].samples[0]["r3"]["grade"] == request
    assert partial_checkpoint.read(tmp_path, step=8) is None


def test_a_damaged_file_is_named(tmp_path):
    data = partial_checkpoint.encoded(paused_sampler(), n_samples=2)
    partial_checkpoint.write(tmp_path, data, step=1)
    file = partial_checkpoint.file_of(tmp_path, 1)
    assert file.stat().st_mode & 0o077 == 0
    whole = file.read_bytes()
    for place in (0, 40, len(whole) - 1):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ConfigError, match="checkpoint .*are damaged: its checksum differs"):
            partial_checkpoint.read(tmp_path, step=1)
    file.write_bytes(whole[:-5])
    with pytest.raises(ConfigError, match="are damaged"):
        partial_checkpoint.read(tmp_path, step=1)
    with pytest.raises(ConfigError, match="are damaged"):
        partial_checkpoint.decode_into(paused_sampler(), b"\x81\xa1a\x01", n_samples=2)


def test_a_checkpoint_of_paused_groups_wants_the_run_that_paused_them(tmp_path):
    partial_checkpoint.check_nothing_is_paused(tmp_path, step=4)
    data = partial_checkpoint.encoded(paused_sampler(), n_samples=2)
    with pytest.raises(
        ConfigError, match="n_samples_per_prompt is 3, but .* groups of 2 responses"
    ):
        partial_checkpoint.decode_into(paused_sampler(), data, n_samples=3)
    partial_checkpoint.write(tmp_path, data, step=4)
    with pytest.raises(ConfigError, match="rollout.partial is 0, but .* step 4 holds 1 groups"):
        partial_checkpoint.check_nothing_is_paused(tmp_path, step=4)
    empty = partial_checkpoint.encoded(
        PartialSampler(batch_size=1, partial=1.0, max_pauses=3), n_samples=2
    )
    partial_checkpoint.write(tmp_path, empty, step=4)
    partial_checkpoint.check_nothing_is_paused(tmp_path, step=4)


def test_files_go_with_their_checkpoints(tmp_path):
    for step in (1, 2, 3):
        partial_checkpoint.write(tmp_path, b"", step=step)
    (tmp_path / "_actor" / "global_step3").mkdir(parents=True)
    (tmp_path / "_actor" / "global_step2").mkdir()
    partial_checkpoint.forget_superseded(tmp_path)
    assert sorted(file.stem for file in (tmp_path / "_partial").iterdir()) == [
        "global_step2",
        "global_step3",
    ]


def test_occupancy_counts_places_and_not_who_waits():
    """Two places: one request for 2 s, three for 1 s, none for 1 s, one for 4 s."""
    now = [0.0]
    share = Occupancy(2, clock=lambda: now[0])
    assert share.take() == 0.0
    for moment, by in ((1, 1), (3, 1), (3, 1), (4, -1), (4, -1), (4, -1), (5, 1), (9, -1)):
        now[0] = moment
        share.change(by)
    assert share.take() == pytest.approx((2 + 2 + 0 + 4) / (2 * 8))
    assert share.take() == 0.0


# ── settings ──


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["rollout.partial=-1"], "rollout.partial is -1.0; use 0 or more"),
        (["rollout.partial=2.5"], "rollout.partial is 2.5 and rollout.max_pauses is 2"),
        (["rollout.max_pauses=3"], "rollout.max_pauses is 3, but rollout.partial is 0"),
        (["rollout.partial=1", "rollout.max_pauses=0"], "rollout.max_pauses is 0; use"),
        (["rollout.partial=1", "train.deterministic=true"], "timing decides"),
        (["rollout.partial=1", "rollout.stop=[END]"], "a text that begins before a pause"),
        (
            ["rollout.partial=1", "agents.tools=[examples/calculator.py:calculate]"],
            "agents.tools",
        ),
        (["rollout.partial=1", "algo=ppo"], "a critic is untested"),
        (["rollout.partial=1", "openrlhf.train.agent_func_path=x.py"], "that agent"),
        (["rollout.partial=1", "algo=rrl", "exploration.rrl.ratio=0.5"], "critic"),
    ],
)
def test_what_cannot_be_paused_is_refused_in_a_sentence(overrides, sentence):
    with pytest.raises(ConfigError) as error:
        load_config("cpu_smoke", ["run_dir=unused", *overrides])
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_a_run_is_off_unless_it_is_asked():
    assert load_config("cpu_smoke", ["run_dir=unused"]).rollout.partial == 0
    assert (
        load_config("cpu_smoke", ["run_dir=unused", "rollout.partial=1.7"]).rollout.partial
        == 1.7
    )
