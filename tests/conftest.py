"""What several test files need: a run directory, and a real tokenizer that needs no download."""

import gc
import importlib.util
import os
import signal
import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, settings

from tests import left_behind

# The files that take longest, in the order in which they begin. Those that mostly wait (for Slurm, for the end of a time limit)
# are between those that compute, so that no core is idle while three files wait and no core is shared by three that compute.
# A name that no file has does no harm.
LONG_FILES = (
    *("test_resume.py", "test_preemption.py", "test_async.py"),
    *(
        "test_end_to_end.py",
        "test_submission.py",
        "test_beyond_the_paper.py",
        "test_hostile.py",
    ),
    *(
        "test_packaging.py",
        "test_ppo.py",
        "test_ray_jobs.py",
        "test_algorithms.py",
        "test_pool.py",
    ),
    *(
        "test_trl.py",
        "test_service.py",
        "test_agents_end_to_end.py",
        "test_remote_grader.py",
        "test_any_number_of_rows.py",
    ),
    *(
        "test_tutorial.py",
        "test_doors.py",
        "test_critic.py",
        "test_gpu_check.py",
        "test_more_pages.py",
        "test_commands.py",
    ),
)

# What a test file may import and a machine may lack, with what to do about it.
MAY_LACK = {
    **dict.fromkeys(("deepspeed", "openrlhf", "ray", "torch", "vllm"), "make setup"),
    "alfworld": "pip install alfworld==0.4.2",
    "reasoning_gym": "pip install reasoning-gym",
    "trl": "pip install 'r3_openrlhf[trl]'",
    **dict.fromkeys(
        ("transfer_queue", "verl"),
        "make test-verl, because verl needs Transformers below 5.11 and the stack has a newer one",
    ),
}

# As `r3` does: with the system's ninja in turn with ours DeepSpeed's operators would be built anew each time, for minutes.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# `make test` runs three tests side by side, and a test of the stack is five processes. On a machine that lacks a part of its cores,
# threads without a core wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

gc.disable()  # until everything is collected: what is imported for that stays, and a quarter of the time went into looking

# A shell starts what it puts into the background with SIGINT ignored, and programs that tests start would inherit it:
# they could not be interrupted, and the tests that do would wait until they give up.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What a run changes in other packages is changed as they are imported, before any test: a later change is one left behind.
if importlib.util.find_spec("openrlhf") is not None:
    from r3_openrlhf.machine.cpu import cpu_platform

    cpu_platform.install()

# anyio loads its parts when they are first asked for, and pytest rewrites them then. In a server's thread that was beside an
# ast.parse of another one, and CPython 3.11 counts the depth of both together: "AST constructor recursion depth mismatch".
for _name in dir(anyio):
    getattr(anyio, _name)

# A busy machine is no counterexample, and every run tries the same examples: `make soak` looks for new ones.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize="R3_TEST_NEW_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</{{ message.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class TestFile(pytest.Module):
    """Is skipped where its imports need a package that is not installed."""

    def collect(self):
        try:
            return super().collect()
        except self.CollectError as error:
            missing = str(getattr(error.__cause__, "name", "")).partition(".")[0]
            if not isinstance(error.__cause__, ModuleNotFoundError) or missing not in MAY_LACK:
                raise
            pytest.skip(f"{missing} is not installed: {MAY_LACK[missing]}")


def pytest_pycollect_makemodule(module_path, parent):
    return TestFile.from_parent(parent, path=module_path)


# Before the plug-in that shuffles, after the one that reverses.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run the long files first, then the others that start a cluster, so that what is left at the end can be shared evenly."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    begins = {name: number for number, name in enumerate(LONG_FILES)}
    items.sort(
        key=lambda item: (begins.get(item.path.name, len(begins)), item.path not in slow)
    )


def pytest_collection_finish():
    """What collecting has made stays until the end: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
    # of 700, 10, 10: tests make many things that live for a moment
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind():
    """Each test file leaves the process and the patched libraries as it found them."""
    before = left_behind.process() | left_behind.code_of_libraries()
    yield
    changed = left_behind.differences(
        before, left_behind.process() | left_behind.code_of_libraries()
    )
    assert not changed, f"this file left changed: {', '.join(changed)}"


@pytest.fixture(scope="module")  # some files change it
def byte_tokenizer():
    """A tokenizer of Transformers in which every byte is one token: lengths can be counted by hand.

    Like many, it puts a <s> before a text unless it is told not to."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT_TEMPLATE)


@pytest.fixture
def run(tmp_path):
    """A run directory of cpu_smoke, as a start makes it."""
    from r3_openrlhf.config.loading import load_config
    from r3_openrlhf.runs.directory import RunDirectory

    run = RunDirectory(tmp_path / "run")
    run.create(load_config("cpu_smoke", [f"run_dir={run.path}"]))
    return run
