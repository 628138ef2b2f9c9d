"""Public data sets as made-up rows in their published schema: do they load as they are, with which keys, or why not?"""

import base64
import json
import pickle
import tempfile
import zlib
from pathlib import Path

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.sources import Problems, load_problems

NUM_ROWS = 40
STDIN = {"input": "1\n", "output": "2\n", "testtype": "stdin"}


def user(text):
    return [{"role": "user", "content": text}]


def verl(n, ground_truth, source="math"):
    return {
        "data_source": source,
        "prompt": user(f"What is {n} + {n}?"),
        "ability": "MATH",
        "reward_model": {"ground_truth": ground_truth, "style": "rule"},
        "extra_info": {"index": str(n), "split": "train"},
    }


# name on the hub -> (row n, the keys that it needs; None: it is refused)
DATA_SETS = {
    "openai/gsm8k": (
        lambda n: {
            "question": f"Tom has {n} and buys {n}.",
            "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}",
        },
        {},
    ),
    "EleutherAI/hendrycks_math": (
        lambda n: {
            "problem": f"Find {n}x.",
            "level": "Level 3",
            "type": "Algebra",
            "solution": f"We have\n$x=2$, so it is $\\boxed{{{2 * n}}}$.",
        },
        {},
    ),
    "HuggingFaceH4/MATH-500": (
        lambda n: {
            "problem": f"Find {n}x.",
            "solution": "So it is.",
            "answer": f"\\frac{{{n}}}{{7}}",
            "unique_id": f"t/{n}",
        },
        {},
    ),
    "agentica-org/DeepScaleR-Preview-Dataset": (
        lambda n: {"problem": f"Find {n}.", "answer": f"{n}", "solution": "Long."},
        {},
    ),
    "BytedTsinghua-SIA/DAPO-Math-17k": (lambda n: verl(n, str(2 * n), "math_dapo"), {}),
    "open-r1/DAPO-Math-17k-Processed": (
        lambda n: {
            **verl(n, str(2 * n)),
            "prompt": f"Find {n}.",
            "solution": str(2 * n),
            "source_prompt": user("Find."),
        },
        {},
    ),
    "Skywork/Skywork-OR1-RL-Data": (lambda n: verl(n, f'["{2 * n}"]', "train-math"), {}),
    "AI-MO/NuminaMath-1.5": (
        lambda n: {
            "problem": f"Find {n}.",
            "solution": "Long.",
            "answer": "proof" if n % 10 == 3 else "notfound" if n % 10 == 7 else str(n),
            "source": "olympiads",
        },
        {},
    ),
    "AI-MO/NuminaMath-CoT": (
        lambda n: {
            "source": "cn_k12",
            "problem": f"Find {n}.",
            "solution": f"So $\\boxed{{{n}}}$." if n % 8 else "Q.E.D.",
            "messages": [*user(f"Find {n}."), {"role": "assistant", "content": "So."}],
        },
        {},
    ),
    "open-r1/OpenR1-Math-220k": (
        lambda n: {
            "problem": f"Find {n}.",
            "solution": "Long.",
            "answer": str(n),
            "generations": ["a", "b"],
            "uuid": f"u{n}",
        },
        {},
    ),
    "SynthLabsAI/Big-Math-RL-Verified": (
        lambda n: {"problem": f"Find {n}.", "answer": str(n), "source": "orca_math", "llama8b_solve_rate": 0.5},
        {},
    ),
    "nvidia/OpenMathReasoning": (
        lambda n: {
            "problem": f"Find {n}.",
            "expected_answer": str(n),
            "generated_solution": "So.",
            "problem_type": "has_answer",
        },
        {},
    ),
    "zwhe99/DeepMath-103K": (
        lambda n: {
            "question": f"Find {n}.",
            "final_answer": str(n),
            "difficulty": 4.5,
            "topic": "Algebra",
            "r1_solution_1": "S",
        },
        {},
    ),
    "POLARIS-Project/Polaris-Dataset-53K": (
        lambda n: {"problem": f"Find {n}.", "answer": str(n), "difficulty": f"{n % 8}/8"},
        {},
    ),
    "allenai/RLVR-GSM": (lambda n: {"messages": user(f"Find {n}."), "ground_truth": str(n), "dataset": "gsm8k"}, {}),
    "TIGER-Lab/WebInstruct-verified": (
        lambda n: {
            "id": n,
            "question": f"Find {n}.",
            "answer": f"{n} m/s",
            "answer_type": "Float",
            "category": "Physics",
        },
        {},
    ),
    "GAIR/LIMO": (lambda n: {"question": f"Find {n}.", "solution": "Long.", "answer": str(n)}, {}),
    "PrimeIntellect/SYNTHETIC-1": (
        lambda n: {
            "problem_id": f"v_{n}",
            "task_type": "verifiable_math",
            "prompt": f"Find {n}.",
            "verification_info": json.dumps({"ground_truth": str(n)}),
        },
        {"answer_key": "verification_info"},
    ),
    "microsoft/orca-math-word-problems-200k": (
        lambda n: {
            "question": f"Find {n}.",
            "answer": "First we see it.\nThen we add both of them.\n" * 4 + f"So it is {n}.",
        },
        None,
    ),
    "meta-math/MetaMathQA": (
        lambda n: {"query": f"Find {n}.", "response": f"We add.\nThe answer is: {n}", "type": "MATH_AnsAug"},
        None,
    ),
    "TIGER-Lab/MMLU-Pro": (
        lambda n: {
            "question": f"Which is {n}?",
            "options": ["1", "2", "3", "4"],
            "answer": "ABCD"[n % 4],
            "answer_index": n % 4,
        },
        None,
    ),
    "Jiayi-Pan/Countdown-Tasks-3to4": (lambda n: {"target": n, "nums": [n, 1, 2]}, None),
    "agentica-org/DeepCoder-Preview-Dataset": (
        lambda n: {"problem": f"Write {n}.", "tests": '{"inputs": ["1"], "outputs": ["2"]}', "metadata": "{}"},
        {"task": "code"},
    ),
    "codeparrot/apps": (
        lambda n: {
            "question": f"Write {n}.",
            "solutions": '["pass"]',
            "input_output": '{"inputs": ["1\\n"], "outputs": ["2\\n"]}',
            "starter_code": "",
        },
        {"task": "code"},
    ),
    "BAAI/TACO": (
        lambda n: {
            "question": f"Write {n}.",
            "input_output": '{"fn_name": "f", "inputs": [[1]], "outputs": [[2]]}',
            "starter_code": "def f(x):\n\t",
            "time_limit": "2.0 seconds",
            "memory_limit": None,
        },
        {"task": "code"},
    ),
    "deepmind/code_contests": (
        lambda n: {
            "description": f"Write {n}.",
            "public_tests": {"input": ["1\n"], "output": ["2\n"]},
            "private_tests": {"input": [], "output": []},
            "generated_tests": {"input": ["2\n"], "output": ["3\n"]},
            "time_limit": {"seconds": 2, "nanos": 0},
            "memory_limit_bytes": 256000000,
            "input_file": "",
        },
        {"task": "code"},
    ),
    "livecodebench/code_generation_lite": (
        lambda n: {
            "question_content": f"Write {n}.",
            "starter_code": "",
            "public_test_cases": json.dumps([STDIN]),
            "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(json.dumps([STDIN])))).decode(),
            "metadata": "{}",
        },
        {"task": "code"},
    ),
    "google-research-datasets/mbpp": (
        lambda n: {"text": f"Write {n}.", "code": "pass", "test_list": ["assert f(1) == 2"], "test_setup_code": ""},
        {"task": "code"},
    ),
    "openai/openai_humaneval": (
        lambda n: {
            "prompt": f'def f(x):\n    """Write {n}."""\n',
            "canonical_solution": "    return x",
            "test": "def check(candidate):\n    assert candidate(1) == 1\n",
            "entry_point": "f",
        },
        {"task": "code"},
    ),
    "KodCode/KodCode-V1": (
        lambda n: {
            "question": f"Write {n}.",
            "solution": "pass",
            "test": "from solution import f\n\ndef test_f():\n    assert f(1) == 2\n",
            "test_info": [{"function_name": "f", "function_declaration": "def f(x):", "parameter_list": "(x)"}],
        },
        {"task": "code"},
    ),
    "PRIME-RL/Eurus-2-RL-Data": (
        lambda n: {
            "data_source": "taco",
            "prompt": user(f"Write {n}."),
            "ability": "code",
            "reward_model": {"ground_truth": '{"inputs": ["1\\n"], "outputs": ["2\\n"]}', "style": "rule"},
        },
        {"task": "code"},
    ),
    "open-r1/verifiable-coding-problems-python": (
        lambda n: {
            "problem": f"Write {n}.",
            "verification_info": {
                "language": "python",
                "test_cases": [{"fn_name": None, "type": "stdin_stdout", "input": "1\n", "output": "2\n"}],
            },
        },
        {"task": "code"},
    ),
    "PrimeIntellect/SYNTHETIC-2-RL": (
        lambda n: {"prompt": f"Write {n}.", "verification_info": json.dumps({"test_cases": json.dumps([STDIN])})},
        {"task": "code"},
    ),
    "open-r1/codeforces": (
        lambda n: {
            "description": f"Write {n}.",
            "input_format": "A number.",
            "output_format": "A number.",
            "official_tests": [{"input": "1\n", "output": "2\n"}],
            "generated_checker": None,
            "input_mode": "stdio",
            "time_limit": 2.0,
            "memory_limit": 256.0,
        },
        {"task": "code"},
    ),
}


def load(name: str, directory: Path, **keys: str) -> Problems:
    """The problems of the stand-in. Raises DataError."""
    row, _ = DATA_SETS[name]
    path = directory / "train.jsonl"
    path.write_text("".join(json.dumps(row(n)) + "\n" for n in range(NUM_ROWS)))
    return load_problems(DataConfig(path=str(path), **keys))


def outcome(name: str, directory: Path) -> str:
    """A cell of the table."""
    keys = DATA_SETS[name][1] or {}
    try:
        problems = load(name, directory, **keys)
    except DataError as refusal:
        return "refused: " + str(refusal).replace(f"data.path {directory / 'train.jsonl'}", "data.path ...").replace(
            "|", "\\|"
        )
    (counts,) = problems.sources
    how = [f"`{counts.problem_key}`, `{counts.answer_key}`"]
    how += [f"answer: {form}" for form in counts.forms if form != "as it is"]
    how += [f"left out: {reason}" for reason in counts.left_out]
    with_keys = " ".join(f"`data.{key}={value}`" for key, value in keys.items())
    return "; ".join([f"works with {with_keys}" if keys else "works as it is", *how])


def section() -> str:
    """The table of data sets."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [f"| {name} | {outcome(name, Path(folder))} |" for name in DATA_SETS]
    text = f"""## Data sets

A file, a directory, a pattern, a hub name: `data.path`. The columns are found by their published names, or named with
`data.problem_key` and `data.answer_key`; dots go into structures, lists and JSON texts (`reward_model.ground_truth`).
An answer is cut at the `####` of a last line, taken from a JSON text or what Python prints, after a last "The answer is", or from the last `\\boxed{{}}`. A row
with two boxes side by side, and one that says that there is no answer (`proof`, `notfound`), is left out. In messages the
last turn of the user is the problem; earlier turns are kept, and later ones are left out. A grader of your
own gets the cell as it is. With `data.task=code` the answer is the tests of a program ([code](code.md)). Several files at once: [`data.sources`](usage.md).

| data set | with {NUM_ROWS} rows in its schema |
|---|---|
"""
    return text + "\n".join(rows) + "\n"
