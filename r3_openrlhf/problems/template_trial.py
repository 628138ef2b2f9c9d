"""Try a chat template, which is a program of whoever made the model, in a process that is killed."""

from __future__ import annotations

import functools
import resource
from collections.abc import Callable

from r3_openrlhf.machine.processes.pool import ItemLost, ProcessPool
from r3_openrlhf.method.errors import ConfigError

SECONDS, MORE_BYTES = 10.0, 2**30  # of memory, on top of the libraries
ROLES = ("system", "user", "assistant", "user")
TEXT = "Calculate 5 + 0. " * 100


@functools.cache
def check_template(template: str, model: str) -> None:
    """ConfigError: the template of `model` needs more time or memory for a conversation."""
    pool: ProcessPool[str] = ProcessPool(f"{__name__}:make_trial", answer_type=str, timeout_s=SECONDS)
    with pool:
        try:
            is_too_large = pool.submit(template).result() == "MemoryError"
        except ItemLost as lost:
            if lost.reason == "unavailable":
                raise ConfigError(f"the chat template of {model} cannot be tried: {lost}") from lost
            is_too_large = True
    if is_too_large:
        raise ConfigError(
            f"the chat template of {model} needs more than {SECONDS:.0f} s or {MORE_BYTES // 2**30} GB for one conversation; take "
            "another model or template, or data.chat_template=false"
        )


def make_trial() -> Callable[[str], str]:
    """The process's handler: a template -> the name of its error, or "". The run's own prompts tell
    of errors; here it is the end that counts."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def trial(template: str) -> str:
        with open("/proc/self/statm", encoding="ascii") as sizes:
            reserved = int(sizes.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (reserved + MORE_BYTES, resource.RLIM_INFINITY))
        turns = [{"role": role, "content": TEXT} for role in ROLES]
        tokens = {f"{name}_token": "" for name in ("bos", "eos", "pad", "unk")}
        for messages in (turns[1:2], turns[:2], turns[1:], turns):  # some take no system message
            try:
                render_jinja_template([messages], chat_template=template, add_generation_prompt=True, **tokens)
            except MemoryError:
                return "MemoryError"
            except Exception as error:
                last = type(error).__name__
            else:
                last = ""
        return last

    return trial
