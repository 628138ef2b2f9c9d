"""`r3 eval`: mistakes are one sentence; a whole evaluation through the real engine, stopped and gone on with."""

import importlib.util
import json
import pickle
import shutil
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pytest import approx

from r3_openrlhf.config import BenchmarkConfig, DataConfig, RewardConfig
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.evaluation.benchmarks import load_problem_set
from r3_openrlhf.evaluation.grading import Grading, graded
from r3_openrlhf.evaluation.model_source import find_model, fingerprint
from r3_openrlhf.evaluation.plan import configuration_of
from r3_openrlhf.evaluation.sample_file import EvaluationDirectory, SampleFile, cut, unpack
from r3_openrlhf.evaluation.sampling import make_work, sample
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.problems.training_file import prepare
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.models.locate import resolve_model
from tests.commands import command
from tests.evaluation.problems import problem, response
from tests.pickles import Planted
from tests.problems.files import config_for, write_jsonl
from tests.rewards.server.service import running

REPOSITORY = Path(__file__).parents[2]
TASK = "reasoning_gym:basic_arithmetic"
GYM = dict(
    seed=7,
    min_terms=2,
    max_terms=3,
    min_digits=1,
    max_digits=1,
    operators=["+"],
    allow_parentheses=False,
    allow_negation=False,
)
KEYS = [f"data.reasoning_gym.{key}={json.dumps(value)}" for key, value in GYM.items()]


call = command("eval")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# ── mistakes ──


@pytest.fixture
def a_run(tmp_path):
    """A run directory that has a checkpoint of step 20 and no final model."""
    run = RunDirectory(tmp_path / "run")
    run.create(
        load_config(
            "cpu_smoke",
            [f"run_dir={run.path}", "data.system_prompt=Add.", "reward.num_workers=3"],
        )
    )
    checkpoint = run.checkpoints / "global_step20_hf"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    return run


MISTAKES = {
    "no benchmark": (["tiny"], "r3 eval needs --benchmark NAME"),
    "unknown suite": (["tiny", "--suite", "papr"], "--suite is 'papr'; did you mean paper?"),
    "suite": (
        ["tiny", "--suite", "paper", "--data-dir", "/no"],
        "--data-dir is /no, which has no aime24.jsonl",
    ),
    "unknown benchmark": (["tiny", "--benchmark", "math50"], "did you mean math500?"),
    "unknown model": (
        ["/nowhere", "--benchmark", "aime24"],
        "model.path is '/nowhere', which does not exist",
    ),
    "temperature": (
        ["tiny", "--benchmark", TASK, "--temperature", "-1"],
        "--temperature is -1.0; use 0 or more",
    ),
    "n": (["tiny", "--benchmark", TASK, "--n", "0"], "--n is 0; use 1 or more"),
    "top_p": (
        ["tiny", "--benchmark", TASK, "--top-p", "0"],
        "--top-p is 0.0; use a number above 0 and at most 1",
    ),
    "lengths": (
        ["tiny", "--benchmark", TASK, "--lengths", "5,x"],
        "--lengths is '5,x'; use whole numbers",
    ),
    "too long": (
        ["tiny", "--benchmark", TASK, "--lengths", "9000"],
        "--lengths holds 9000, but responses have 1 to 8192",
    ),
    "step": (
        ["tiny", "--benchmark", TASK, "--step", "4"],
        "--step is 4, but tiny is not a run directory",
    ),
    "setting": (
        ["tiny", "--benchmark", TASK, "train.seed=4"],
        "takes keys of data, reward, cluster, model.trust_remote_code, model.revision and rollout.stop after the model",
    ),
    "key": (
        ["tiny", "--benchmark", TASK, "data.sistem_prompt=x"],
        "did you mean data.system_prompt?",
    ),
    "path": (
        ["tiny", "--benchmark", TASK, "data.path=x"],
        "the problems come from --benchmark",
    ),
    "experiment": (
        ["tiny", "--benchmark", TASK, "--experiment", "cpu_smok"],
        "did you mean cpu_smoke?",
    ),
    "hard": (
        ["tiny", "--benchmark", TASK, "--hard-of", "/no", "--max-problems", "2"],
        "/no holds no evaluation",
    ),
    "twice": (
        ["tiny", "--benchmark", TASK, "--benchmark", TASK, "--max-problems", "2"],
        "two benchmarks are called",
    ),
    "task": (["tiny", "--benchmark", "reasoning_gym:chain_summ"], "did you mean chain_sum?"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_on_stderr(name, tmp_path):
    arguments, sentence = MISTAKES[name]
    result = call(*arguments)
    assert result.exit_code == 1 and result.stdout == ""
    assert sentence in result.stderr
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_loaded_is_one_sentence(tmp_path, monkeypatch):
    # the variable of the environment was read when the hub's client was imported: it would wait for a network
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "no_such_model"}')
    for model, sentence in (
        (
            "model",
            f"Error: the model {tmp_path}/model is of model_type 'no_such_model', which",
        ),
        ("nobody/nothing", "Error: the tokenizer of nobody/nothing cannot be loaded"),
    ):
        result = call(model, "--benchmark", TASK, "--max-problems", 2)
        last = result.stderr.splitlines()[-1]  # Transformers may have something to say before
        assert (
            result.exit_code == 1
            and last.startswith(sentence)
            and "Traceback" not in result.stderr
        )
    assert not (tmp_path / "runs").exists()


def test_a_run_says_what_it_has(a_run):
    result = call(a_run.path, "--benchmark", TASK)
    assert result.exit_code == 1
    assert "has no final_model yet; its checkpoints are of step 20: use --step" in result.stderr
    result = call(a_run.path, "--benchmark", TASK, "--step", 10)
    assert (
        "has no checkpoint of step 10 in Hugging Face format; its checkpoints are of step 20"
        in result.stderr
    )
    result = call(a_run.path, "--benchmark", TASK, "--step", 20, "--experiment", "cpu_smoke")
    assert "has its own configuration" in result.stderr


def test_a_run_brings_its_prompt_and_its_grading(a_run):
    source = find_model(str(a_run.path), step=20)
    assert (
        source.path == str(a_run.checkpoints / "global_step20_hf")
        and source.output.parent.parent == a_run.path
    )

    def configured(*overrides, benchmark=TASK):
        return configuration_of(source, [benchmark], overrides)

    config = configured("data.reasoning_gym.seed=9")
    assert config.data.system_prompt == "Add." and config.reward.num_workers == 3
    assert config.data.reasoning_gym == {**a_run.load_config().data.reasoning_gym, "seed": 9}
    source.config.data.problem_key = "question"
    assert configured(benchmark="my.jsonl").data.problem_key == "question"
    assert configured("data.system_prompt=Think.").data.system_prompt == "Think."
    # another task's options
    assert configured(benchmark="reasoning_gym:chain_sum").data.reasoning_gym == {}


def test_the_fingerprint_is_of_the_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(3 * 2**20))
    before = fingerprint(str(tmp_path))
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert fingerprint(str(tmp_path / "copy")) == before
    weights.write_bytes(bytes(3 * 2**20 - 1) + b"\1")
    assert fingerprint(str(tmp_path)) != before
    assert fingerprint("org/name") == "org/name"


def test_other_settings_are_refused_by_name(tmp_path):
    directory = EvaluationDirectory(tmp_path / "out")
    settings = {"n_samples": 4, "temperature": 0.6, "seed": 1}
    for _ in range(2):
        with directory.start(settings) as file:
            assert list(file.read()) == []
    named = r"other settings: n_samples \(4 there, 8 now\), seed \(1 there, None now\);"
    with (
        pytest.raises(ConfigError, match=named),
        directory.start({"n_samples": 8, "temperature": 0.6}),
    ):
        pass
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    full = EvaluationDirectory(tmp_path / "full")
    with pytest.raises(ConfigError, match="holds files but no evaluation"), full.start({}):
        pass


def test_two_evaluations_do_not_write_one_directory(tmp_path):
    one, other = EvaluationDirectory(tmp_path), EvaluationDirectory(tmp_path)
    with (
        one.start({}),
        pytest.raises(ConfigError, match="is being written by another r3 eval"),
        other.start({}),
    ):
        pass
    with other.start({}):
        pass


def test_a_shortened_response_is_graded_anew(byte_tokenizer, tmp_path):
    """ "... 4 \\boxed{4}" is right, its beginning is not; a response that is short enough keeps its grade."""
    label = load_problem_set(
        TASK, DataConfig(path=TASK, reasoning_gym=GYM), max_problems=1
    ).labels[0]
    answer = label.references[0]
    text = f"The answer is \\boxed{{{answer}}}"
    ids = byte_tokenizer(text=text, add_special_tokens=False)["input_ids"]
    whole = problem(label.uid, response(ids, text=text, verdict=Verdict.CORRECT), benchmark="b")

    def under(limit):
        responses = [cut(whole.responses[0], limit, byte_tokenizer.decode)]
        return next(
            graded([replace(whole, responses=responses)], {whole.key: label}, grading)
        ).responses[0]

    with Grading(RewardConfig(num_workers=1)) as grading:
        assert under(len(ids)) == whole.responses[0]
        shorter, one_brace = under(len(ids) - 2 - len(answer)), under(len(ids) - 1)
    for response_ in (shorter, one_brace):
        assert response_.truncated and response_.verdict is Verdict.WRONG
    assert shorter.text == "The answer is \\boxed"


class Parrot:
    """Where only the grading matters, instead of vLLM: says much the same to everything."""

    num_calls = 0

    def __init__(self, *_, **__):
        Parrot.num_calls += 1

    def sample(self, requests):
        for number, (_, seeds) in enumerate(requests):
            yield number, [([50, 51, 52 + index], "stop") for index in range(len(seeds))]

    def close(self):
        pass


def test_a_server_that_is_gone_ends_it_soon_and_what_was_sampled_is_graded_later(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("r3_openrlhf.evaluation.engine.Engine", Parrot)
    with socket.create_server(("127.0.0.1", 0)) as port:
        nobody = f"reward.urls=[http://127.0.0.1:{port.getsockname()[1]}]"
    out = tmp_path / "out"
    words = f"tiny --benchmark {TASK} --max-problems 3 --n 2 --max-new-tokens 8 --output {out}"
    command = [*words.split(), *KEYS]
    texts = []
    for _ in range(2):  # the second one samples nothing
        gone = call(*command, nobody, "reward.deadline_s=2")
        assert gone.exit_code == 1, gone.output
        assert "3 problems wait for it; their responses are kept in" in gone.stderr, gone.output
        assert (
            "Traceback" not in gone.output
            and "Task was destroyed" not in (out / "eval.log").read_text()
        )
        kept = list(SampleFile(out / "samples.jsonl").read())
        assert len(kept) == 3 and all(one.is_waiting for one in kept)
        texts.append([[one.text for one in problem.responses] for problem in kept])
    assert texts[0] == texts[1] and Parrot.num_calls == 1
    with running("--workers", "1") as service:
        there = call(*command, f"reward.urls=[{service.url}]", "--json")
    assert there.exit_code == 0, there.output
    assert json.loads(there.stdout)["this_call"]["num_responses"] == 0
    assert json.loads(there.stdout)["benchmarks"]["basic_arithmetic"]["num_ungraded"] == 0
    kept = SampleFile(out / "samples.jsonl").read()
    assert [[one.text for one in problem.responses] for problem in kept] == texts[0]


def test_problems_that_a_run_trained_on_are_counted(
    tmp_path, monkeypatch, a_run, byte_tokenizer, capfd
):
    """Equal ones and near copies; of a model that is no run it is not known."""
    monkeypatch.setattr("r3_openrlhf.evaluation.engine.Engine", Parrot)
    shutil.copytree(resolve_model("tiny"), a_run.final_model)
    rows = [{"problem": f"Calculate {n} + {n} for me.", "answer": str(2 * n)} for n in range(9)]
    prepare(config_for(write_jsonl(tmp_path / "train.jsonl", rows)), byte_tokenizer, a_run.data)
    near = [{**row, "problem": row["problem"].upper().replace(" ", "  ")} for row in rows[:3]]
    new = [{"problem": f"Calculate {n} + 50 for me.", "answer": str(n + 50)} for n in range(4)]
    mine = write_jsonl(tmp_path / "mine.jsonl", [*near, *new])
    options = ["--benchmark", mine, "--n", 1, "--max-new-tokens", 8, "--json", "data.task=math"]
    against = ("--against", tmp_path / "train.jsonl")
    for place, (model, number) in enumerate(
        (((a_run.path,), 3), (("tiny",), None), (("tiny", *against), 3))
    ):
        done = call(*model, *options, "--output", tmp_path / str(place))
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)["benchmarks"]["mine"]
        assert (found["num_trained_on"], found["pass_at_1_of_others"] is None) == (
            number,
            number is None,
        )
        assert (
            "3 of the problems of mine, or near copies, were" in "".join(capfd.readouterr())
        ) == (number == 3)
        said = (
            ", 3 of which were trained on (Pass@1 of the others: "
            in (tmp_path / f"{place}/results.md").read_text()
        )
        assert said == (number == 3)
    assert (
        "--against none.jsonl cannot be used: "
        in call("tiny", *options, "--against", "none.jsonl").output
    )


# ── the real engine ──

stack = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vllm is not installed"
)


@pytest.fixture(scope="module")
def started_once(tmp_path_factory):
    """vLLM starts for the first engine; what an engine leaves undone ends with it."""
    import vllm

    from r3_openrlhf.evaluation.engine import Engine

    real, found = vllm.LLM, []

    def llm(**settings):
        found[:] = found or [real(**settings | {"max_model_len": 256})]
        return found[0]

    def close(self):
        self._engine.abort_request(
            list(self._engine.output_processor.request_states), internal=True
        )
        while self._engine.has_unfinished_requests():
            self._engine.step()

    folder = tmp_path_factory.mktemp("t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        patch.setattr(vllm, "LLM", llm)
        patch.setattr(Engine, "close", close)
        yield
        assert not list(folder.glob("vllm_dist_*"))
    Engine.close(SimpleNamespace(_engine=found[0].llm_engine))


@stack
@pytest.mark.stack
@pytest.mark.slow
def test_an_evaluation_that_was_stopped_goes_on_and_samples_nothing_twice(
    tmp_path, monkeypatch, started_once
):
    command = [
        "tiny",
        "--benchmark",
        TASK,
        "--max-problems",
        90,
        "--n",
        4,
        "--max-new-tokens",
        24,
        "--lengths",
        "12",
    ]
    command += ["--output", tmp_path / "out", *KEYS]
    append = SampleFile.append
    finished = []

    def stop_at_the_fifth(self, sampled):
        append(self, sampled)
        finished.append(sampled)
        if len(finished) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SampleFile, "append", stop_at_the_fifth)
        stopped = call(*command)
    assert stopped.exit_code == 130 and "the same command continues" in stopped.stderr
    directory = EvaluationDirectory(tmp_path / "out")
    assert (
        list(SampleFile(directory.samples).read()) == finished
        and not directory.results.exists()
    )

    went_on = call(*command, "--json")
    assert went_on.exit_code == 0, went_on.output
    results = json.loads(went_on.stdout)
    problems = list(SampleFile(directory.samples).read())
    kept = [
        [response.token_ids for response in one.responses] for one in (*finished, *problems[:5])
    ]
    assert kept[:5] == kept[5:]
    assert len(problems) == len({one.key for one in problems}) == 90
    assert results["this_call"]["num_responses"] == (90 - 5) * 4
    assert results == json.loads(directory.results.read_text())
    found = results["benchmarks"]["basic_arithmetic"]
    rights = [sum(r.verdict is Verdict.CORRECT for r in one.responses) / 4 for one in problems]
    assert found["num_problems"] == 90 and found["pass_at_1"]["value"] == approx(
        sum(rights) / 90
    )
    assert found["num_ungraded"] == 0
    at_12, at_24 = found["lengths"]["12"], found["lengths"]["24"]
    assert at_24["pass_at_1"] == found["pass_at_1"]
    responses = [response for one in problems for response in one.responses]
    cut_off = [r.num_tokens > 12 or (r.num_tokens == 12 and r.truncated) for r in responses]
    assert at_12["truncated_rate"]["value"] == approx(sum(cut_off) / len(responses))
    total = sum(min(12, r.num_tokens) for r in responses)
    assert at_12["response_tokens_mean"]["value"] == approx(total / len(responses))
    for name in ("results.md", "eval.log"):
        assert (directory.path / name).stat().st_size > 0

    # everything is there: no engine is started, and the same numbers come out
    again = call(*command, "--json")
    assert json.loads(again.stdout)["this_call"]["num_responses"] == 0
    assert json.loads(again.stdout)["benchmarks"] == results["benchmarks"]
    refused = call(*command, "--temperature", 1.0)
    assert (
        refused.exit_code == 1
        and "other settings: temperature (0.6 there, 1.0 now)" in refused.stderr
    )

    # the hard subset of these results, answered from what was sampled
    hard = call(*command, "--hard-of", directory.path, "--json")
    assert json.loads(hard.stdout)["benchmarks"]["basic_arithmetic"]["num_problems"] == sum(
        r <= 1 / 4 for r in rights
    )


@stack
@pytest.mark.stack
def test_vllm_runs_no_code_of_weights(tmp_path):
    """How it reads a pytorch_model.bin."""
    import torch
    from vllm.model_executor.model_loader.weight_utils import pt_weights_iterator

    torch.save(Planted(tmp_path / "ran"), tmp_path / "pytorch_model.bin")
    with pytest.raises(pickle.UnpicklingError):
        list(pt_weights_iterator([str(tmp_path / "pytorch_model.bin")], use_tqdm_on_load=False))
    assert not (tmp_path / "ran").exists()


@stack
@pytest.mark.stack
@pytest.mark.slow
def test_a_cut_response_is_what_the_smaller_limit_gives(tmp_path, started_once):
    """Greedy, so that both are the same draw: vLLM itself under the smaller limit, and our cut of the longer response."""
    from transformers import AutoTokenizer

    from r3_openrlhf.evaluation.engine import Engine

    data = DataConfig(path=TASK, reasoning_gym=GYM)
    options = BenchmarkConfig(n_samples=1, temperature=0.0, max_new_tokens=24)
    model = resolve_model("tiny")
    tokenizer = AutoTokenizer.from_pretrained(model)
    labels = load_problem_set(TASK, data, max_problems=30).labels
    work = [make_work("b", label, data, tokenizer) for label in labels]
    engine = Engine(model, max_model_len=256, options=options)
    from vllm import SamplingParams

    def under(limit):
        params = SamplingParams(temperature=0.0, max_tokens=limit)
        prompts = [{"prompt_token_ids": list(item.prompt_ids)} for item in work]
        outputs = engine.llm.generate(prompts, params, use_tqdm=False)
        return [
            (list(found.outputs[0].token_ids), found.outputs[0].finish_reason == "length")
            for found in outputs
        ]

    try:
        file = SampleFile(tmp_path / "samples.jsonl")
        sample(work, engine, file, tokenizer.decode, options)
        sampled = {one.uid: one.responses[0] for one in file.read()}
        lengths = {one.num_tokens for one in sampled.values()}
        ended = {one.num_tokens for one in sampled.values() if not one.truncated}
        assert len(lengths) > 1 and ended
        # the lengths of whole responses among them
        for limit in sorted({5, *ended, min(ended) - 1})[:4]:
            cuts = [cut(sampled[item.label.uid], limit, tokenizer.decode) for item in work]
            assert [(unpack(one.token_ids), one.truncated) for one in cuts] == under(limit)
    finally:
        engine.close()
