"""One sentence about why a run ended: what ended, the likely cause, what is saved, how to go on."""

import contextlib
import errno
import os
import re
import time
from pathlib import Path
from types import ModuleType

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.checkpoint_record import newest
from r3_openrlhf.runs.directory import RunDirectory

# What Ray calls the end of a process (ray/exceptions.py), by name: this file imports no ray
DIED = {
    "ActorDiedError",
    "ActorUnavailableError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "WorkerCrashedError",
    "ActorLost",
}
PARTS = {
    "R3PolicyActor": "the policy",
    "R3RolloutActor": "the rollout engine",
    "R3Trainer": "the controller",
}
FULL = (errno.ENOSPC, errno.EDQUOT)
# The same from writers that lose the number: safetensors, and torch.save
# (caffe2/serialize/inline_container.cc: "unexpected pos" when the file could not be written)
_FULL = re.compile(
    r"No space left on device|Disk quota exceeded|inline_container\.cc.*(unexpected pos|failed writing)"
)
# What its neighbours say of a process that ended and is no actor of Ray: gloo, NCCL, and vLLM of
# its engine core (vllm/v1/engine/exceptions.py)
_BROKEN = re.compile(
    r"gloo.*Connection (?:closed|reset) by peer|remote process exited|EngineCore encountered an issue"
)

SEEN_S = 3.0  # until Ray knows that a process is gone, which its neighbours notice at once


class ActorLost(Exception):
    """An actor's process died; the other processes report only broken connections."""


def lost_actor(ray: ModuleType) -> ActorLost | None:
    """Find the first actor of this Ray whose worker died; wait up to SEEN_S."""
    end = time.monotonic() + SEEN_S
    while True:
        try:
            ended = [
                one for one in ray._private.state.actors().values() if one["State"] == "DEAD"
            ]
        except Exception:  # Ray itself is gone
            return None
        for one in sorted(ended, key=lambda one: one["EndTime"]):
            about = one["DeathCause"].actor_died_error_context
            if about.reason == about.WORKER_DIED:
                return ActorLost(
                    f"\tclass_name: {about.class_name}\n\tpid: {about.pid}\n{about.error_message}"
                )
        if time.monotonic() > end:
            return None
        time.sleep(0.1)  # only the pace of asking


def memory_kills() -> int:
    """Count the processes that this kernel killed for lack of memory since its start; 0: unknown."""
    with contextlib.suppress(OSError):
        counters = Path("/proc/vmstat").read_text()
        counter = re.search(r"^oom_kill (\d+)$", counters, re.MULTILINE)
        if counter is not None:
            return int(counter[1])
    return 0


def r3_error(error: BaseException, run: RunDirectory, *, killed_before: int) -> R3Error:
    """Return the R3Error inside an error that crossed Ray's processes, or one sentence about
    another one. killed_before: `memory_kills()` of when the run started."""
    chain = _causes(error)
    for one in chain:
        # a wrapper of Ray is of this class, too, and has a `cause`
        if isinstance(one, R3Error) and not hasattr(one, "cause"):
            return one
    last = chain[-1]
    for one in chain:
        if _says_full(one):
            return _no_room_left(one, run)
        if _says_read_only(one):
            return _read_only(one, run)
        lost_its_neighbour = one is last and _BROKEN.search(str(one)) is not None
        if _says_died(one) or lost_its_neighbour:
            return R3Error(
                f"{_killed(one, killed_before)}; {_goes_on(run)} (the whole story is in {run.log})"
            )
    lines = [line.strip() for line in str(last).splitlines() if line.strip()]
    reason = lines[-1] if lines else ""
    return R3Error(
        f"the run failed in the stack: {type(last).__name__}: {reason} (the whole story is in {run.log})"
    )


def _causes(error: BaseException) -> list[BaseException]:
    """Return the error, its cause, the cause of that and so on; Ray's errors have theirs in `cause`."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = getattr(cause, "cause", None) or cause.__cause__
    return chain


def _number_of(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None


def _says_full(error: BaseException) -> bool:
    return _number_of(error) in FULL or _FULL.search(str(error)) is not None


def _no_room_left(error: BaseException, run: RunDirectory) -> R3Error:
    why = os.strerror(_number_of(error) or errno.ENOSPC)
    return R3Error(
        f"there is no room left on the disk of {run.path} ({why}); free some: {_goes_on(run)}"
    )


def _says_read_only(error: BaseException) -> bool:
    return _number_of(error) == errno.EROFS or os.strerror(errno.EROFS) in str(error)


def _read_only(error: BaseException, run: RunDirectory) -> R3Error:
    where = getattr(error, "filename", None) or run.path
    return R3Error(
        f"the file system of {where} is read-only; mount it for writing: {_goes_on(run)}"
    )


def _says_died(error: BaseException) -> bool:
    """Recognize the end of a process by the class. An actor whose creation failed has its reason."""
    classes = {kind.__name__ for kind in type(error).__mro__}
    return not DIED.isdisjoint(classes) and "creation task" not in str(error)


def _killed(error: BaseException, killed_before: int) -> str:
    """Say which process was killed, and the likely reason."""
    text = str(error)
    process = re.search(r"\tpid: (\S+)", text)
    what = _part_that_died(text)
    if process is not None:
        what += f" (process {process[1]})"
    killed = memory_kills() - killed_before
    if type(error).__name__ == "OutOfMemoryError" or "OUT_OF_MEMORY" in text:
        why = "Ray ended it because memory ran short"
    elif killed > 0:
        processes = "process" if killed == 1 else "processes"
        why = f"the kernel ended {killed} {processes} for lack of memory"
    else:
        why = "a signal, or memory that ran short on its node: dmesg there says which"
    return f"{what} was killed: {why}"


def _part_that_died(text: str) -> str:
    """Name the part of the run of which an error with this text says that it ended."""
    name = re.search(r"\tclass_name: (\S+)", text)
    if name is not None:
        return PARTS.get(name[1], name[1])
    if _BROKEN.search(text):
        return "a process of the rollout engine or of the policy"
    return "a process of Ray"


def _goes_on(run: RunDirectory) -> str:
    folder = newest(run.checkpoints)
    if folder is None:
        return "no checkpoint was saved yet, and the same command starts from the beginning"
    return f"step {folder.name.removeprefix('global_step')} is saved, and the same command continues from there"
