"""The pass after the teacher's prompts, and what it makes of the advantages, against a computation that is written out.

A log-prob is a made-up function of all tokens before it: teacher and policy agree exactly where they read the same."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.core.distill import LessonFate
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.types import Context, EntropyStatistics, Verdict
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.prompts import RunPrompts, prompt_of
from r3_openrlhf.stack import teacher_pass
from r3_openrlhf.stack.experience_maker import R3ExperienceMaker, StockExperienceMaker
from r3_openrlhf.stack.taught_update import NO_TARGET, TARGET, has_target
from tests.recordings import MODEL
from tests.stack.entering_the_loss import args_of
from tests.stack.experience_makers import Given, maker, sample

pytestmark = pytest.mark.stack
C, W, U = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED
G, NUM_PROBLEMS = 4, 3
OFF = [f"{name}.enabled=false" for name in ("replay", "reflection", "ranking")]


def made_up(ids):
    """Log-prob of the last of these tokens after the others, and the entropy there, in nats."""
    digest = math.sin(sum((place + 1) * token for place, token in enumerate(ids)))
    return -1.5 + 1.4 * digest, 1.0 + digest


def of_token(ids, token):
    """Made-up log-prob of a token after these."""
    return -8 + math.sin(3 * made_up(ids)[0] + token)


def likeliest_of(ids, count):
    """Made-up likeliest tokens after these."""
    return sorted(range(50), key=lambda token: -of_token(ids, token))[:count]


def kept_of(experience, row, wanted):
    """Ids and log-probs at the sampled places of a row: of its likeliest tokens, or of given ones."""
    ids, found, read = experience.sequences[row].tolist(), [], []
    for number, place in enumerate(experience.action_mask[row].nonzero()[:, 0].tolist()):
        before = ids[: place + 1]
        tokens = likeliest_of(before, wanted) if isinstance(wanted, int) else wanted[number]
        found.append(list(tokens))
        read.append([of_token(before, token) for token in tokens])
    return np.array(found, np.int32), np.array(read, np.float32)


def at_positions(experience, part):
    """Values of every action position [B, A], 0 outside of the mask."""
    found_BA = torch.zeros(experience.action_mask.shape)
    for row, mask_A in enumerate(experience.action_mask):
        ids = experience.sequences[row].tolist()
        for place in mask_A.nonzero()[:, 0].tolist():
            found_BA[row, place] = made_up(ids[: place + 2])[part]
    return found_BA


class Reading(Given, R3ExperienceMaker):
    """In place of the actor's passes: the made-up function. Remembers the rows of the teacher's passes."""

    asked: tuple = ()
    scored: tuple = ()

    def make_experience(self, samples_list):
        self.passed = [index for samples in samples_list for index in samples.index]
        experiences = super().make_experience(samples_list)
        for one in experiences:
            one.action_log_probs = at_positions(one, 0)
            one.info |= {name: torch.zeros(len(one.index)) for name in ("kl", "logprobs_diff")}
        return experiences

    def _score(self, passes):
        self.scored = [one.index for one in passes]
        for one in passes:
            one.action_log_probs = at_positions(one, 0)

    def _announce_tokens(self, samples_list, wanted):
        self.wanted.append(wanted)

    def _kept_tokens(self, samples_list):
        wanted, found = self.wanted.pop(), {}
        for one in samples_list:
            for row, index in enumerate(one.index):
                if index in wanted:
                    found[index] = kept_of(one, row, wanted[index])
        return found

    def _announce_entropy(self, samples_list, wanted, *, tokens=False):
        self.asked = (wanted, tokens)

    def _exact_entropy(self, samples_list):
        found = {}
        for one in samples_list:
            for row, index in enumerate(one.index):
                values = at_positions(one, 1)[row][one.action_mask[row].bool()]
                found[index] = EntropyStatistics(
                    peak=0.0,
                    global_=0.0,
                    source="exact",
                    tokens=values.numpy().astype(np.float16),
                )
        return {index: found[index] for index in self.asked[0]}, 0.0


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL)


def config_of(*settings, ranks=1):
    return load_config(
        "cpu_smoke",
        [
            *OFF,
            "distill.coef=0.5",
            "stop.max_abs_logprob_gap=100",
            f"rollout.n_samples_per_prompt={G}",
            f"rollout.batch_size={NUM_PROBLEMS}",
            "rollout.micro_batch_size=2",
            "train.micro_batch_size=1",
            "data.max_len=400",
            f"cluster.gpus_per_node={ranks}",
            *settings,
        ],
    )


def rollouts_of(config, tokenizer, *, verdicts="CWWC WWWW CUWW", texts=None):
    """Rows of a step: problem by problem, with prompts and labels as a run has them."""
    found = []
    for number, group in enumerate(verdicts.split()):
        label = Label(
            uid=f"u{number}",
            problem=f"Calculate {number} + 3.",
            references=[str(number + 3)],
            task="math",
        )
        prompt = prompt_of(tokenizer, config.data, label)
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        for place, letter in enumerate(group):
            text = f"{place} + {number} = {place * 7}." if texts is None else texts
            tokens = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
            tokens = tokens[: len(tokens) - place % 3]
            verdict = {"C": C, "W": W, "U": U}[letter]
            found.append(row_of(verdict, label, prompt, ids, tokens))
    return found


def row_of(verdict, label, prompt, ids, tokens):
    made = sample(verdict, prompt=prompt, tokens=tokens)
    made.labels = [label.to_json()]
    made.sequences = torch.tensor([[*ids, *tokens]])
    length = made.sequences.size(1)
    made.attention_mask = torch.ones_like(made.sequences)
    made.action_mask = torch.zeros(1, length - 1, dtype=torch.long)
    made.action_mask[0, len(ids) - 1 :] = 1
    made.total_length = torch.tensor([float(length)])
    logprobs = made.rollout_log_probs[0, -len(tokens) :]
    made.rollout_log_probs = torch.zeros(1, length - 1)
    made.rollout_log_probs[0, len(ids) - 1 :] = logprobs
    rollout = made.r3_rollout
    rollout.uid, rollout.prompt_ids = label.uid, np.array(ids, dtype=np.int32)
    return made


def step_of(config, tokenizer, samples, *, stored=(), ranks=1, dynamic=False):
    history = HistoryStore.open(":memory:")
    if stored:
        history.commit_step(3, 1, stored)
    made = maker(Reading, config=config, history=history, ranks=ranks)
    made.args = args_of(config, ranks, dynamic=dynamic, packed=dynamic)
    made.args.rollout.max_tokens_per_gpu = 400
    made.args.algo.advantage.is_correction_level = "off"
    made.strategy.args, made.tokenizer, made.wanted = made.args, tokenizer, []
    return made, made.make_experience_batch(samples)


def advantages_by_tokens(experiences):
    """(prompt and response) -> the advantages of the response's tokens. A row with unequal ones is taught: it has 0 elsewhere."""
    found = {}
    for one in experiences:
        for row, mask_A in enumerate(one.action_mask.bool()):
            if len(one.advantages[row][mask_A].unique()) > 1:
                assert not one.advantages[row][~mask_A].any()
            if mask_A.any():
                length = int(one.attention_mask[row].sum())
                ids = tuple(one.sequences[row][:length].tolist())
                found[ids] = one.advantages[row][mask_A].tolist()
    return found


def written_out(config, tokenizer, samples, lessons):
    """The advantages of each row, from its group's by `group_norm` and the teacher's term of each token."""
    found = {}
    for sample_ in samples:
        one = sample_.r3_rollout
        if one.verdict is U:
            continue
        group = [
            other.r3_rollout
            for other in samples
            if other.r3_rollout.uid == one.uid and other.r3_rollout.verdict is not U
        ]
        rewards = [other.graded_reward for other in group]
        mean = sum(rewards) / len(rewards)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
        value = (one.graded_reward - mean) / (deviation + 1e-9)
        ids, prompt = one.response_ids.tolist(), one.prompt_ids.tolist()
        lesson = lessons.get(tuple(ids))
        if lesson is not None and config.distill.group_advantage == "untaught":
            value = 0.0
        if config.distill.group_advantage == "none":
            value = 0.0
        values = []
        for place in range(len(ids)):
            term = 0.0
            if lesson is not None:
                read = tokenizer(lesson, add_special_tokens=False)["input_ids"]
                after, _ = made_up(read + ids[: place + 1])
                before, _ = made_up(prompt + ids[: place + 1])
                bound = config.distill.bound or math.inf
                term = min(max(after - before, -bound), bound)
            values.append(value + config.distill.coef * term)
        if lesson is not None and config.distill.weight == "confident":
            values = weighed(values, value, read, ids)
        found[(*prompt, *ids)] = values
    return found


def weighed(values, value, read, ids):
    certain = [math.exp(-made_up(read + ids[: place + 1])[1]) for place in range(len(ids))]
    mean = sum(certain) / len(certain)
    return [value + (one - value) * w / mean for one, w in zip(values, certain, strict=True)]


def lessons_of(seen):
    """Response -> its teacher's prompt."""
    return {tuple(row.rollout.response_ids.tolist()): lesson.prompt for row, lesson in seen}


@pytest.fixture
def seen(monkeypatch):
    """The lessons of the step, with their rows."""
    found = []
    original = teacher_pass.choose_lessons

    def choose(r3, config, tokenizer, batch, samples, *, step):
        lessons = original(r3, config, tokenizer, batch, samples, step=step)
        found.extend((batch.rows[lesson.row], lesson) for lesson in lessons)
        return lessons

    monkeypatch.setattr("r3_openrlhf.stack.experience_maker.choose_lessons", choose)
    return found


LAYOUTS = {"one rank": (1, False), "two ranks": (2, False), "dynamic": (2, True)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["distill.bound=0.4"],
        ["distill.bound=null", "distill.rows=all", "distill.group_advantage=none"],
        ["distill.group_advantage=untaught", "distill.weight=confident"],
    ],
)
def test_the_advantages_of_a_step_are_those_written_out(tokenizer, seen, settings, layout):
    ranks, dynamic = LAYOUTS[layout]
    config = config_of(*settings, ranks=ranks)
    samples = rollouts_of(config, tokenizer)
    made, experiences = step_of(config, tokenizer, samples, ranks=ranks, dynamic=dynamic)
    wanted = written_out(config, tokenizer, samples, lessons_of(seen))
    found = advantages_by_tokens(experiences)
    assert found.keys() == wanted.keys()
    for ids, values in wanted.items():
        assert found[ids] == pytest.approx(
            values, abs=2e-3 if "confident" in str(settings) else 1e-5
        )
    # of the groups CWWC, WWWW and CUWW
    teaches_all = "distill.rows=all" in settings
    num_taught, num_alone = (6, 5) if teaches_all else (4, 4)
    assert len(seen) == made.metrics["r3/distill/taught"] == num_taught
    assert made.metrics["r3/distill/without_success"] == num_alone
    # every rank runs as many passes, and the rows are completed to a multiple of the ranks
    assert len(made.scored) % ranks == 0
    rows = [index for one in made.scored for index in one]
    assert sorted(rows) == list(range(num_taught + -num_taught % ranks))
    weighs = "distill.weight=confident" in settings
    assert made.asked == ((set(range(num_taught)), True) if weighs else ())


def targets_by_tokens(experiences):
    """(prompt and response) -> the target of the row."""
    found = {}
    for one in experiences:
        assert len(one.info[TARGET]) == len(one.index)
        for row, target in enumerate(one.info[TARGET]):
            length = int(one.attention_mask[row].sum())
            found[tuple(one.sequences[row][:length].tolist())] = target
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("support", ["teacher", "student"])
def test_a_loss_on_logits_has_its_targets_in_the_rows(tokenizer, seen, support, layout):
    """The teacher's log-probs of its own likeliest tokens, or of the policy's; the advantages are the group's."""
    ranks, dynamic = LAYOUTS[layout]
    config = config_of(
        "distill.loss=jensen_shannon",
        "distill.top_k=3",
        f"distill.support={support}",
        "distill.weight=confident",
        ranks=ranks,
    )
    samples = rollouts_of(config, tokenizer)
    made, experiences = step_of(config, tokenizer, samples, ranks=ranks, dynamic=dynamic)
    found, lessons = targets_by_tokens(experiences), lessons_of(seen)
    assert sum(map(has_target, found.values())) == len(lessons) == 4 and made.wanted == []
    for ids, target in found.items():
        if not has_target(target):
            assert target is NO_TARGET
            continue
        row = next(one.r3_rollout for one in samples if ids == whole_ids(one.r3_rollout))
        response = row.response_ids.tolist()
        read = tokenizer(lessons[tuple(response)], add_special_tokens=False)["input_ids"]
        certain = []
        for place, (kept, logprobs) in enumerate(zip(target.ids, target.logprobs, strict=True)):
            after = read + response[:place]
            before = row.prompt_ids.tolist() + response[:place]
            chooses = after if support == "teacher" else before
            assert kept.tolist() == likeliest_of(chooses, 3)
            assert logprobs == pytest.approx([of_token(after, one) for one in kept], abs=1e-4)
            certain.append(math.exp(-made_up(read + response[: place + 1])[1]))
        wanted = 0.5 * np.array(certain) / np.mean(certain)
        assert target.weights == pytest.approx(wanted, rel=3e-3)
    _, plain = step_of(
        config_of("distill.coef=0", ranks=ranks),
        tokenizer,
        rollouts_of(config, tokenizer),
        ranks=ranks,
        dynamic=dynamic,
    )
    assert advantages_by_tokens(experiences) == advantages_by_tokens(plain)


def whole_ids(rollout):
    return (*rollout.prompt_ids.tolist(), *rollout.response_ids.tolist())


def test_where_the_teacher_reads_the_plain_prompt_every_term_is_zero(tokenizer, monkeypatch):
    monkeypatch.setattr(
        RunPrompts, "teacher", lambda self, problem, success, **_: self.plain(problem)
    )
    config = config_of()
    samples = rollouts_of(config, tokenizer)
    made, taught = step_of(config, tokenizer, samples)
    assert made.metrics["r3/distill/taught"] == 4 and made.metrics["r3/distill/abs_gap"] == 0
    _, plain = step_of(config_of("distill.coef=0"), tokenizer, rollouts_of(config, tokenizer))
    assert advantages_by_tokens(taught) == advantages_by_tokens(plain)


def test_without_a_teacher_there_is_no_pass_and_no_metric(tokenizer):
    config = config_of("distill.coef=0")
    made, _ = step_of(config, tokenizer, rollouts_of(config, tokenizer))
    about_it = [key for key in made.metrics if "distill" in key or "teacher" in key]
    assert made.scored == () and about_it == []
    assert {record["distill"] for record in made.records} == {None}


def test_a_taught_row_of_a_collapsed_group_passes_and_is_trained(tokenizer):
    """All wrong: without the store's success every row would have advantage 0 and be left out of the pass."""
    config = config_of("rollout.batch_size=1", "distill.max_share=0.5")
    samples = rollouts_of(config, tokenizer, verdicts="WWWW")
    stored = replace(samples[0].r3_rollout, verdict=C, reward=1.0, policy_step=2)
    made, experiences = step_of(config, tokenizer, samples, stored=[stored])
    trained = [ids for ids, values in advantages_by_tokens(experiences).items() if any(values)]
    assert len(trained) == made.metrics["r3/distill/taught"] == 2
    places = {i for i, record in enumerate(made.records) if record["distill"] == "taught"}
    assert len(places) == 2 and places <= set(made.passed)
    plain, experiences = step_of(
        config_of("rollout.batch_size=1", "distill.coef=0"),
        tokenizer,
        rollouts_of(config, tokenizer, verdicts="WWWW"),
        stored=[stored],
    )
    assert not any(any(values) for values in advantages_by_tokens(experiences).values())
    assert len(plain.passed) < 4


def test_recalled_rows_are_shown_and_keep_their_own_advantage(tokenizer, seen):
    config = config_of("rollout.batch_size=1", "replay.enabled=true", "replay.k=1")
    samples = rollouts_of(config, tokenizer, verdicts="WWWW")
    stored = replace(samples[0].r3_rollout, verdict=C, reward=1.0, policy_step=2)
    stored.response_ids = stored.response_ids[:-1]
    stored.response_logprobs = stored.response_logprobs[:-1]
    made, experiences = step_of(config, tokenizer, samples, stored=[stored])
    assert len(seen) == 4 and all(lesson.success.policy_step == 2 for _, lesson in seen)
    found = advantages_by_tokens(experiences)
    recalled = found[(*stored.prompt_ids.tolist(), *stored.response_ids.tolist())]
    # rewards 0, 0, 0, 0 and 1: mean 1/5, variance 1/5
    assert recalled == pytest.approx([0.8 / math.sqrt(0.2)] * stored.num_tokens, rel=1e-5)


@pytest.mark.parametrize(("ranks", "dynamic"), [(1, False), (2, False), (4, False), (4, True)])
def test_fillers_complete_taught_rows_to_as_many_passes_on_every_rank(
    tokenizer, ranks, dynamic
):
    """Three rows are taught, one of a micro-batch's two is missing."""
    config = config_of("rollout.batch_size=2", ranks=ranks)
    samples = rollouts_of(config, tokenizer, verdicts="CWWW WWWW")
    made, experiences = step_of(config, tokenizer, samples, ranks=ranks, dynamic=dynamic)
    rows = sorted(index for one in made.scored for index in one)
    assert rows == list(range(3 + -3 % ranks)) and len(made.scored) % ranks == 0
    taught = [
        values for values in advantages_by_tokens(experiences).values() if len(set(values)) > 1
    ]
    assert len(taught) == made.metrics["r3/distill/taught"] == 3


class Group:
    """In place of the actor's processes: remembers what upstream asks of them."""

    def __init__(self):
        self.calls = []

    def async_run_method_batch(self, method_name, **kwargs):
        self.calls.append((method_name, kwargs))
        answers = [mask.float() for mask in kwargs["action_mask"]]
        return [answers, answers]

    def async_run_method(self, method_name):
        self.calls.append((method_name, {}))


@pytest.mark.parametrize("colocated", [True, False])
def test_the_pass_asks_the_actor_what_upstreams_pass_asks(tokenizer, monkeypatch, colocated):
    """The same call and the same answer; two processes of one tensor-parallel group answer alike, and one is read."""
    monkeypatch.setattr("ray.get", lambda refs: refs)
    monkeypatch.setattr("ray.put", lambda value: value)
    config = config_of()
    made = maker(R3ExperienceMaker, config=config)
    made.args.train.colocate_all = colocated
    made.args.train.colocate_actor_ref = False
    made.args.ds.tensor_parallel_size = 2
    made.reward_model_group = None
    rows = rollouts_of(config, tokenizer)[:2]
    for row in rows:
        row.mm_train_inputs = []  # no images
    calls = []
    for ask in (made._score, super(StockExperienceMaker, made).make_experience):
        made.actor_model_group = Group()
        for row in rows:
            row.action_log_probs = None
        ask(rows)
        calls.append(made.actor_model_group.calls)
        for row in rows:
            assert torch.equal(row.action_log_probs, row.action_mask.float())
    assert calls[0] == calls[1] and len(calls[0]) == 1 + colocated


def test_records_have_the_fate_and_the_teachers_logprobs(tokenizer, seen):
    config = config_of("logging.token_values=all")
    samples = rollouts_of(config, tokenizer)
    made, _ = step_of(config, tokenizer, samples)
    by_ids = {tuple(row.rollout.response_ids.tolist()): lesson for row, lesson in seen}
    counted = 0
    for record, rollout in zip(made.records, _in_order(made.records, samples), strict=True):
        lesson = by_ids.get(tuple(rollout.response_ids.tolist()))
        if rollout.verdict is U:
            assert record["distill"] is None and record["token_teacher_logprob"] is None
        elif lesson is None:
            fates = (LessonFate.NOT_FAILED, LessonFate.WITHOUT_SUCCESS)
            assert record["distill"] in fates and record["token_teacher_logprob"] is None
        else:
            counted += 1
            read = tokenizer(lesson.prompt, add_special_tokens=False)["input_ids"]
            ids = rollout.response_ids.tolist()
            values = [made_up(read + ids[: place + 1])[0] for place in range(len(ids))]
            assert record["token_teacher_logprob"] == pytest.approx(values, abs=2e-3)
    assert counted == 4
    used, _ = step_of(
        config_of("logging.token_values=used"), tokenizer, rollouts_of(config, tokenizer)
    )
    for record in used.records:
        is_taught = record["distill"] == LessonFate.TAUGHT
        for name in ("token_teacher_logprob", "token_policy_logprob"):
            assert (record[name] is not None) == is_taught
    quiet, _ = step_of(
        config_of("logging.token_values=none"), tokenizer, rollouts_of(config, tokenizer)
    )
    assert {record["token_teacher_logprob"] for record in quiet.records} == {None}


def _in_order(records, samples):
    """The rollouts of records: group by group, an ungraded one at the end."""
    graded = [one.r3_rollout for one in samples if one.r3_rollout.verdict is not U]
    return graded + [one.r3_rollout for one in samples if one.r3_rollout.verdict is U]


def test_the_students_logprobs_are_the_policys_and_not_the_engines(tokenizer):
    """Rows of older weights have stored log-probs for their ratio: the gap is not one to these."""
    config = config_of("rollout.partial=1")
    samples = rollouts_of(config, tokenizer)
    for one in samples:
        one.r3_rollout.policy_step = 4  # of 5
    made, experiences = step_of(config, tokenizer, samples)
    whole, _ = step_of(config_of(), tokenizer, rollouts_of(config, tokenizer))
    assert made.metrics["r3/distill/gap"] == whole.metrics["r3/distill/gap"]


def test_a_prompt_is_the_ids_that_the_rollout_engine_would_read(tokenizer, seen):
    config = config_of()
    samples = rollouts_of(config, tokenizer)
    step_of(config, tokenizer, samples)
    for row, lesson in seen:
        plain = tokenizer.decode(row.rollout.prompt_ids.tolist())
        problem = plain.split("user\n")[1].split("<|im_end|>")[0]
        assert problem in lesson.prompt and lesson.prompt.endswith(plain[-len("assistant\n") :])
        assert row.rollout.context is Context.PLAIN
