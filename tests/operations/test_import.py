"""`r3 history import`: rows of a file and of a run become successes of the run to come, or are left out and counted."""

import json
import shutil

import numpy as np
import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.evaluation.sample_file import SampledProblem, SampleFile, sampled
from r3_openrlhf.method.errors import DataError, TrainingStopped
from r3_openrlhf.method.history.numbers import successes
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.types import Context
from r3_openrlhf.operations.store.importing import import_successes
from r3_openrlhf.problems.sources import load_problems
from r3_openrlhf.problems.training_file import prepare
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.models.checks import load_tokenizer
from r3_openrlhf.stack.imported import (
    check_start,
    measured,
    rows_to_begin_with,
    write_beginning,
)
from tests.method.history.samples import make_rollout
from tests.recordings import MODEL

PROBLEMS = {f"{a} + {b}": str(a + b) for a in range(1, 9) for b in (2, 3)}


@pytest.fixture
def settings(tmp_path):
    lines = [
        json.dumps({"problem": problem, "answer": answer})
        for problem, answer in PROBLEMS.items()
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(lines[:-1]))
    (tmp_path / "held_out.jsonl").write_text(lines[-1])
    paths = (
        f"data.path={tmp_path / 'train.jsonl'}",
        f"held_out.path={tmp_path / 'held_out.jsonl'}",
    )
    own = (
        "data.task=exact",
        "data.answer_key=answer",
        "rollout.batch_size=8",
        "rollout.max_new_tokens=8",
    )
    return [f"model.path={MODEL}", *paths, *own, f"run_dir={tmp_path / 'run'}"]


@pytest.fixture
def config(settings):
    return load_config("cpu_smoke", settings)


def imported(config, rows, tmp_path, **options):
    (tmp_path / "solved.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"problem": "problem", "solution": "solution", "origin": None} | options
    return import_successes(
        str(tmp_path / "solved.jsonl"), tmp_path / "start", config, **options
    )


RIGHT = {"problem": "1 + 2", "solution": "3", "correct": False}  # a column that nobody reads


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"problem": "1 + 3", "solution": "3", "correct": True}, "wrong by the run's grader"),
        ({"problem": "9 + 9", "solution": "18"}, "no problem of data.path"),
        ({"problem": None, "solution": "4"}, "no problem of data.path"),
        ({"problem": "1 + 3", "solution": None}, "no response, or ended by a token limit"),
        ({"problem": "1 + 3", "solution": "4" * 9}, "longer than rollout.max_new_tokens"),
        ({"problem": "1 + 3", "solution": "4<|im_end|>4"}, "not restored by the tokenizer"),
        (
            {"problem": "1 + 3", "solution": "e\u0301 4"},
            "not restored by the tokenizer",
        ),  # it composes
        (
            {"problem": "1 + 3", "solution": "\ud800"},
            "wrong by the run's grader",
        ),  # no text of Unicode
        ({"problem": "1 + 3", "solution": ["5"]}, "wrong by the run's grader"),
        ({"problem": "1 + 3", "solution": []}, "no response, or ended by a token limit"),
        (
            RIGHT | {"problem": " 1  + 2"},
            "equal to another one, or beyond history.max_per_problem_and_verdict",
        ),
    ],
)
def test_what_is_no_success_of_the_run_is_left_out_and_counted(config, tmp_path, row, why):
    result = imported(config, [RIGHT, row], tmp_path, origin="teacher T")
    assert (result["left_out"], result["successes"]) == ({why: 1}, 1)
    (kept,) = successes(tmp_path / "start" / "history.sqlite")
    assert (kept.origin, kept.context, kept.has_logprobs) == (
        "teacher T",
        Context.IMPORTED,
        False,
    )
    tokenizer = load_tokenizer(str(MODEL))
    assert tokenizer.decode(kept.response_ids) == "3<|im_end|>"
    assert tokenizer.decode(kept.prompt_ids).endswith(
        "1 + 2<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_mark_of_thinking_that_the_prompt_opens_is_not_there_twice(config, tmp_path):
    config.data.chat_template, config.data.prompt_template = False, "{problem}\n<think>\n"
    config.rollout.max_new_tokens = 24
    rows = [
        {"problem": "1 + 2", "solution": text}
        for text in ("<think>\na</think>3", "b</think>3", "<think>\n3")
    ]
    # thinking that never ends
    assert imported(config, rows, tmp_path)["left_out"] == {"wrong by the run's grader": 1}
    texts = [
        load_tokenizer(str(MODEL)).decode(one.response_ids[:-1])
        for one in successes(tmp_path / "start" / "history.sqlite")
    ]
    assert sorted(texts) == ["a</think>3", "b</think>3"]


@pytest.mark.parametrize(
    ("rows", "options", "sentence"),
    [
        (
            [RIGHT, {"problem": " 8 +  3", "solution": "11"}],
            {},
            "holds the problem '8 + 3' of held_out.path",
        ),
        ([RIGHT], {"solution": "text"}, "has no column text; name the columns"),
        ([{"problem": "1 + 2", "solution": "4"}], {}, "gives no success for data.path"),
    ],
)
def test_what_would_spoil_a_run_is_refused(config, tmp_path, rows, options, sentence):
    with pytest.raises(DataError, match=sentence.replace("+", r"\+")):
        imported(config, rows, tmp_path, **options)
    assert not (tmp_path / "start").exists()


def begin(config, run, tokenizer, mean=-1.0):
    """As launch and trainer do; the first policy gives every token `mean` nats."""
    lines = check_start(config, run, tokenizer)
    run.first_page.write_text(json.dumps({"imported": lines}))
    rows, _ = rows_to_begin_with(config, run)
    kept, sentence, aside = measured(
        config, rows, [np.full(one.num_tokens, mean, np.float32) for one in rows]
    )
    write_beginning(config, run, [sentence], aside)
    return kept, sentence


def test_a_run_begins_with_what_its_first_policy_could_say(config, tmp_path):
    imported(config, [RIGHT, {"problem": "2 + 2", "solution": "4"}], tmp_path)
    config.history.start = str(tmp_path / "start")
    run, tokenizer = RunDirectory(tmp_path / "run"), load_tokenizer(str(MODEL))
    prepare(config, tokenizer, run.data)
    first, *shown = check_start(config, run, tokenizer)
    assert first == "2 successes (file solved.jsonl) of 2 of 15 problems" and shown[0].endswith(
        "assistant\n3<|im_end|>"
    )
    kept, sentence = begin(config, run, tokenizer)
    assert [one.response_logprobs.tolist() for one in kept] == [[-1.0, -1.0]] * 2
    assert "-1.00 nats a token under the first policy, those shown -1.00, -1.00" in sentence
    assert json.loads(run.first_page.read_text())["imported"][-1] == sentence
    with pytest.raises(
        TrainingStopped,
        match="2 of 2 are below replay.imported.min_logprob=-4.0 .* none is left",
    ):
        begin(config, run, tokenizer, mean=-5.0)
    values = [
        np.full(one.num_tokens, mean, np.float32)
        for one, mean in zip(kept * 2, (-1, -5, -2, -6), strict=True)
    ]
    rows, _, aside = measured(config, kept * 2, values)
    assert ([one.uid for one in rows], aside) == (
        [kept[0].uid] * 2,
        {kept[1].uid: [-5.0, -6.0]},
    )
    settings = config.replay.imported
    settings.min_logprob, settings.warm_start = None, 3  # nothing would bound it
    with pytest.raises(
        TrainingStopped,
        match=r"2 imported successes are below -4.0 .*foreign=true if you mean it",
    ):
        begin(config, run, tokenizer, mean=-5.0)
    settings.foreign = True
    assert len(begin(config, run, tokenizer, mean=-5.0)[0]) == 2


def test_another_prompt_or_another_import_is_refused(config, tmp_path):
    imported(config, [RIGHT, {"problem": "2 + 2", "solution": "4\n"}], tmp_path)
    config.history.start = str(tmp_path / "start")
    run, tokenizer = RunDirectory(tmp_path / "run"), load_tokenizer(str(MODEL))
    prepare(config, tokenizer, run.data)
    text, (merged, ended) = run.data.read_text(), (load_tokenizer(str(MODEL)) for _ in range(2))
    for content, why in (
        (text.replace("assistant", "user"), "has another prompt of problem"),
        ("", "has no success"),
    ):
        run.data.write_text(content)
        with pytest.raises(DataError, match=why):
            check_start(config, run, tokenizer)
    run.data.write_text(text)
    merged.add_tokens(["4\n"])  # which no prompt has
    config.data.chat_template, ended.eos_token = False, "!"
    for other in (merged, ended):
        with pytest.raises(DataError, match="or another tokenizer"):
            check_start(config, run, other)
    (run.checkpoints / "_actor" / "global_step2").mkdir(parents=True)
    (run.checkpoints / "_actor" / "latest").write_text("global_step2")
    # it began with none
    with pytest.raises(DataError, match="is not the import that the run began with"):
        check_start(config, run, tokenizer)
    shutil.move(run.checkpoints, tmp_path / "checkpoints")
    begin(config, run, tokenizer)
    shutil.move(tmp_path / "checkpoints", run.checkpoints)
    # a resumed run's page says it again
    assert "-1.00 nats a token" in check_start(config, run, tokenizer)[-1]
    shutil.rmtree(tmp_path / "start")
    imported(config, [RIGHT], tmp_path)
    with pytest.raises(DataError, match="is not the import that the run began with"):
        check_start(config, run, tokenizer)
    with HistoryStore.open(tmp_path / "start" / "history.sqlite") as store:
        store.roll_back(-1)
    with pytest.raises(DataError, match="is not what the import wrote"):
        check_start(config, run, tokenizer)


def test_successes_of_a_run_and_of_an_evaluation(config, tmp_path):
    """The earlier run has one under another prompt, and one that a limit ended; the evaluation a torn line."""
    tokenizer, earlier = load_tokenizer(str(MODEL)), RunDirectory(tmp_path / "earlier")
    earlier.create(config)
    prepare(config, tokenizer, earlier.data)
    known = {label.problem: label.uid for label in load_problems(config.data).labels}
    uids = [known[problem] for problem in ("1 + 2", "2 + 2", "3 + 2")]
    with HistoryStore.open(earlier.history) as store:
        texts = [tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] for text in "345"]
        options = {"verdict": "correct", "prompt": [5]}
        rows = [
            make_rollout(uid, ids=ids, truncated=uid == uids[2], **options)
            for uid, ids in zip(uids, texts, strict=True)
        ]
        store.commit_step(1, 1, rows)
    evaluation = tmp_path / "evaluated"
    evaluation.mkdir()
    responses = [
        sampled(text, [1], reason)
        for text, reason in (("3", "stop"), ("9", "stop"), ("3", "length"))
    ]
    SampleFile(evaluation / "samples.jsonl").append(
        SampledProblem(benchmark="train.jsonl", uid=uids[0], content="", responses=responses)
    )
    with (evaluation / "samples.jsonl").open("a") as file:
        file.write('{"uid": "torn')
    columns = {"problem": "", "solution": "", "origin": None}
    for source, origin, left_out, number in (
        (earlier.path, "run earlier", {"no response, or ended by a token limit": 1}, 2),
        (
            evaluation,
            "evaluation evaluated",
            {"no response, or ended by a token limit": 1, "wrong by the run's grader": 1},
            1,
        ),
    ):
        result = import_successes(str(source), tmp_path / origin, config, **columns)
        assert (result["origin"], result["left_out"], result["successes"]) == (
            origin,
            left_out,
            number,
        )
        assert not any(
            one.has_logprobs for one in successes(tmp_path / origin / "history.sqlite")
        )
    with pytest.raises(DataError, match="has a history and no .*, so it is no run"):
        import_successes(str(tmp_path / "run earlier"), tmp_path / "no run", config, **columns)
    (evaluation / "samples.jsonl").write_text('{"uid": 1}\n')
    with pytest.raises(DataError, match="samples.jsonl, line 1 is no problem of an evaluation"):
        import_successes(str(evaluation), tmp_path / "damaged", config, **columns)
