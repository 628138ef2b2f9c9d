"""The state of a run, read from its directory. Every command that names a state asks `state_of`."""

from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from r3_openrlhf.method.errors import R3Error, on_one_line, without_secrets
from r3_openrlhf.method.history.lease import last_holder
from r3_openrlhf.method.types import Word
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.files import read_json, read_text
from r3_openrlhf.runs.stop_request import GO_ON

SlurmId = Annotated[str, Meta(pattern=r"\A\d+(_\d+)?\Z")]
LOST = "the end of its job was not recorded: it was killed, or its first node was lost"


class JobRecord(TypedDict):
    """cluster/state.json, which a job's first agent writes."""

    job: NotRequired[SlurmId]
    task: NotRequired[SlurmId | None]
    state: NotRequired[str]
    nodes: NotRequired[list[str]]
    code: NotRequired[int]
    why: NotRequired[str]


class State(Word):
    """The state of a run."""

    FINISHED = "finished"
    FAILED = "failed"  # its last start ended with an error
    DEAD = "dead"  # its process was killed, or its node was lost
    PREEMPTED = "preempted, saved"
    STOPPED = "stopped"  # no process trains here, and the same command continues
    RUNNING = "running"
    NOT_STARTED = "not started"
    UNKNOWN = "not known"  # a file that would tell is damaged


@dataclass(frozen=True, slots=True)
class RunState:
    """A state, and its reason where one is known."""

    state: State
    why: str | None = None

    @property
    def is_bad(self) -> bool:
        """True if the run ended without being finished or asked to end."""
        return self.state in (State.FAILED, State.DEAD)

    def sentence(self, *, step: int | None, num_steps: int | None) -> str:
        """Format "failed after step 5 of 8: the disk is full"."""
        text = str(self.state)
        if self.is_bad or self.state == State.STOPPED:
            of_all = f" of {num_steps}" if num_steps else ""
            text += f" after step {step}{of_all}" if step else " before its first step"
        return f"{text}: {self.why}" if self.why else text


def state_of(run: RunDirectory) -> RunState:
    """Read the state of a run. Never raises for a damaged file: the state is then not known."""
    try:
        return _state_of(run)
    except R3Error as error:
        return RunState(State.UNKNOWN, str(error))


def _state_of(run: RunDirectory) -> RunState:
    if run.finished.is_file():
        return RunState(State.FINISHED)
    holder, lives = last_holder(run.lock)
    if lives:
        return RunState(State.RUNNING)
    error = last_error(run)
    if error is not None:
        return RunState(State.FAILED, error)
    if holder is not None:
        return RunState(State.DEAD, f"{holder} was killed")
    record = job_record(run)
    if record.get("state") == "ended":
        return _ended_job(run, record)
    if record:
        return RunState(State.DEAD, LOST)
    has_begun = run.has_steps or run.events.is_file()
    return RunState(State.STOPPED if has_begun else State.NOT_STARTED)


def _ended_job(run: RunDirectory, record: dict[str, Any]) -> RunState:
    """Return the state of a run whose job has ended, by the job's exit code."""
    states = {0: State.STOPPED, GO_ON: State.PREEMPTED}
    state = states.get(record.get("code", 1), State.FAILED)
    return RunState(state, saved_when_preempted(run, record) or record.get("why"))


def job_record(run: RunDirectory) -> dict[str, Any]:
    """Read the JobRecord of the newest job; {} without one. Raises R3Error for a damaged one."""
    file = run.cluster / "state.json"
    return read_json(file, JobRecord) if file.is_file() else {}


def saved_when_preempted(run: RunDirectory, record: dict[str, Any]) -> str | None:
    """Say at which checkpoint a preempted job saved; None if it was not preempted, or saved none."""
    if record.get("state") != "ended" or record.get("code") != GO_ON:
        return None
    step = newest_checkpoint(run)
    return f"preempted at {step}, saved" if step else None


def newest_checkpoint(run: RunDirectory) -> str:
    """Name the newest checkpoint, "step 12"; "" without one. Raises R3Error."""
    latest = run.checkpoints / "_actor" / "latest"
    return read_text(latest).strip().replace("global_step", "step ") if latest.is_file() else ""


def last_error(run: RunDirectory) -> str | None:
    """Read the sentence with which the last start failed; None without one. Raises R3Error."""
    if not run.error.is_file():
        return None
    return without_secrets(on_one_line(read_text(run.error).strip()))


def planned_steps(run: RunDirectory) -> int | None:
    """Return the number of steps of the whole run; None: not known. Raises R3Error."""
    if not run.first_page.is_file():
        return None
    steps = read_json(run.first_page, dict).get("steps")
    return steps if isinstance(steps, int) else None
