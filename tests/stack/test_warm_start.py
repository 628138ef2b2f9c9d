"""The rows of supervised training: exactly the solution's tokens, after the run's own prompt, whatever the chat template.

OpenRLHF's SFTDataset (datasets/sft_dataset.py:95) cuts the length of the rendered prompt off the rendered conversation,
so that a template whose generation prompt is no prefix of it loses the first characters of the target."""

import functools
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from openrlhf.datasets import sft_dataset

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.history.numbers import successes
from r3_openrlhf.operations.store.importing import import_successes
from r3_openrlhf.runs.models.checks import load_tokenizer
from r3_openrlhf.stack import warm_start
from tests.recordings import MODEL

pytestmark = pytest.mark.stack
TRL = importlib.util.find_spec("trl")
FOLDER = Path(TRL.origin).with_name("chat_templates") if TRL and TRL.origin else Path("none")
TEMPLATES = {
    file.stem: file.read_text(encoding="utf-8")
    for file in sorted(FOLDER.glob("*.jinja"))
    if not file.stem.endswith("_training")
}
READS_PARTS = ("idefics3", "llava_next", "smolvlm")  # a turn is a list of texts and images
END = "<|im_end|>"


PROBLEMS = {
    name: (f"1000 + {number}", str(1000 + number)) for number, name in enumerate(TEMPLATES)
}


def config_of(tmp_path):
    """One source a template, with a problem each."""
    sources = []
    for name, template in TEMPLATES.items():
        problem, answer = PROBLEMS[name]
        file = tmp_path / f"{name}.jsonl"
        file.write_text(json.dumps({"problem": problem, "answer": answer}))
        values = {"chat_template": template, "bos_token": "<s>"}
        sources.append({"name": name, "path": str(file), "chat_template_kwargs": values})
    settings = {
        "model": {"path": str(MODEL)},
        "data": {"sources": sources, "task": "exact", "answer_key": "answer"},
        "rollout": {"batch_size": 8, "max_new_tokens": 64},
        "held_out": {"path": None},
        "run_dir": str(tmp_path / "run"),
    }
    experiment = tmp_path / "templates.yaml"
    experiment.write_text("# @package _global_\n" + yaml.safe_dump(settings), encoding="utf-8")
    return load_config(str(experiment), [])


class Actors:
    """Keeps the rows that the policy is given."""

    def __init__(self):
        self.rows = []

    def async_run_method_batch(self, *, method_name, experience):
        assert method_name == "append"
        self.rows += experience
        return []

    def async_run_method(self, name, **_):
        assert name == "fit_supervised"
        return [{}]


def imported_rows(tmp_path, solutions):
    """`r3 history import` of a file, and what the store of a run that begins with it has."""
    lines = [
        json.dumps({"problem": problem, "solution": one}) for problem, one in solutions.items()
    ]
    (tmp_path / "solved.jsonl").write_text("\n".join(lines))
    import_successes(
        str(tmp_path / "solved.jsonl"),
        tmp_path / "start",
        config_of(tmp_path),
        problem="problem",
        solution="solution",
        origin=None,
    )
    return list(successes(tmp_path / "start" / "history.sqlite"))


def trained_rows(rows, monkeypatch):
    """The rows that supervised training gives to the policy: (tokens before the first trained one, trained tokens)."""
    monkeypatch.setattr(warm_start, "ray", SimpleNamespace(get=lambda refs: refs))
    actors = Actors()
    args = SimpleNamespace(
        train=SimpleNamespace(batch_size=len(rows), seed=0, dynamic_batch_enable=False),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=1),
        ds=SimpleNamespace(enable_sleep=False, ring_attn_size=1, tensor_parallel_size=1),
    )
    warm_start.warm_start(actors, rows, args, passes=1, pad_token_id=0)
    for one in actors.rows:
        ids = one.sequences[0].tolist()
        is_trained = [False, *one.action_mask[0].bool().tolist()]
        first = is_trained.index(True)
        assert one.advantages[0][one.action_mask[0].bool()].eq(1).all()
        yield ids[:first], [i for i, trained in zip(ids, is_trained, strict=True) if trained]


def upstream_response(template, problem, solution):
    """What OpenRLHF's supervised data trains on."""
    tokenizer = load_tokenizer(str(MODEL))
    messages = {
        "input": [{"role": "user", "content": problem}],
        "output": [{"role": "assistant", "content": solution}],
    }
    render = functools.partial(
        tokenizer.apply_chat_template, chat_template=template, bos_token="<s>"
    )
    _, response = sft_dataset.preprocess_data(
        messages, input_key="input", output_key="output", apply_chat_template=render
    )
    return response


def test_the_trained_tokens_are_the_solution_after_our_prompt(tmp_path, monkeypatch):
    """Published templates, each a source of one run; the expected prompt is transformers' own."""
    if not TEMPLATES:
        pytest.skip("TRL, which has published templates, is not installed")
    solutions = {
        problem: f"So: a plan.</think>{answer}" for problem, answer in PROBLEMS.values()
    }
    tokenizer = load_tokenizer(str(MODEL))
    expected = {}
    for name, (problem, _) in PROBLEMS.items():
        content = [{"type": "text", "text": problem}] if name in READS_PARTS else problem
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            chat_template=TEMPLATES[name],
            add_generation_prompt=True,
            tokenize=False,
            bos_token="<s>",
        )
        expected[prompt] = solutions[problem] + END
    rows = imported_rows(tmp_path, solutions)
    found = {
        tokenizer.decode(before): tokenizer.decode(trained)
        for before, trained in trained_rows(rows, monkeypatch)
    }
    assert found == expected


def test_upstreams_supervised_data_loses_first_characters():
    """Why the warm start makes its own rows. If this fails, upstream was repaired."""
    template = TEMPLATES.get("deepseek_r1_distill")
    if template is None:
        pytest.skip("TRL, which has published templates, is not installed")
    solution = "So: a plan.</think>1002"
    assert not upstream_response(template, "1000 + 2", solution).startswith(solution[:3])
