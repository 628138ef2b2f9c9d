"""One process trains in a run directory at a time: a lease (method/history/lease.py) on run.lock.

`r3 train` holds it. In a job of `r3 submit slurm` the first node's agent does, and its command is
told so by R3_RUN_LEASE_TOKEN."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from r3_openrlhf.method.errors import HistoryError, R3Error
from r3_openrlhf.method.history.lease import Lease, last_holder
from r3_openrlhf.runs.directory import RunDirectory, write_whole

TOKEN = "R3_RUN_LEASE_TOKEN"  # environment variable


class RunBusy(R3Error):
    """Somebody else trains in this run directory now."""


def acquire(run: RunDirectory) -> Lease:
    """Acquire the right to train here, until release(). Makes the directory. RunBusy names the holder.

    Waits half a minute where the last holder was killed on another host (lease.py)."""
    run.check_place()
    run.make()
    try:
        return Lease.acquire(run.lock, name=str(run.path))
    except HistoryError as error:
        raise RunBusy(str(error)) from error


@contextlib.contextmanager
def held(run: RunDirectory) -> Iterator[None]:
    """`acquire` and release; nothing where the agent above holds the lease. Raises RunBusy."""
    if _is_our_agents(run):
        yield
        return
    lease = acquire(run)
    try:
        yield
    finally:
        lease.release()


def size_of(file: Path) -> int:
    """Return the bytes of a file; -1 without one."""
    try:
        return file.stat().st_size
    except OSError:
        return -1


def note_error(run: RunDirectory, sentence: str, *, has_begun: bool = True) -> None:
    """Keep why a start failed for `r3 status`, in error.txt, which the next start removes. Nothing
    where there is neither a run nor a job, or where somebody else trains. ConfigError: not ours.

    has_begun: Did this start do anything in the directory? One that was refused at once, such as a resume
    with another key, leaves the state of the run as it is; in a job it is kept all the same."""
    is_job = run.cluster.is_dir()
    if not (run.config.is_file() or is_job):
        return
    if not has_begun and run.events.is_file() and not is_job:
        return
    if _is_our_agents(run) or not last_holder(run.lock)[1]:
        run.check_place()
        write_whole(run.error, sentence + "\n")


def _is_our_agents(run: RunDirectory) -> bool:
    holder, _ = last_holder(run.lock)
    return holder is not None and holder.token == os.environ.get(TOKEN)
