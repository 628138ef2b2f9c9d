"""What the supervisor of the grading processes owes to its items when it is late, or everything stood still."""

import select
from contextlib import closing

from r3_openrlhf.grading.processes.pool import MAX_LOOK_S, WorkerPool
from tests.grading.processes.pools import SHORTER, item
from tests.looks import planned_looks

PATIENCE_S = 300


class LateInTheLook(WorkerPool):
    """Its thread stands still before it looks at the clocks, for an hour, in which the workers answer."""

    def _look_at_clocks(self):
        for worker in self._workers.values():
            if worker.jobs:
                select.select([worker.handle.connection], [], [], PATIENCE_S)
                worker.item_started -= 3600
        super()._look_at_clocks()


def test_an_outcome_that_is_there_is_not_late():
    with closing(LateInTheLook(num_workers=1, timeout_s=2.0)) as pool:
        outcomes = [pool.submit(one).result(PATIENCE_S) for one in (item(), item(SHORTER), item())]
        assert [outcome.reason for outcome in outcomes] == ["correct", "wrong", "correct"]
        assert pool.restarts["timeout"] == 0


class Forgiving(WorkerPool):
    """Before its end, one worker is paused and all are forgiven an hour."""

    def _stop_everything(self):
        worker, *_ = self._workers.values()
        self.seen = [worker.item_started]
        worker.pause()
        self._forgive_pause(3600.0)
        self.seen.append(worker.item_started)
        worker.go_on()
        self._forgive_pause(3600.0)
        self.seen.append(worker.item_started)
        super()._stop_everything()


def test_a_paused_worker_is_forgiven_once():
    with closing(Forgiving(num_workers=1, timeout_s=2.0)) as pool:
        pool.submit(item()).result(PATIENCE_S)
    before, paused, went_on = pool.seen
    assert paused == before and went_on >= before + 3600


def test_while_somebody_works_nobody_looks_away_for_long(monkeypatch):
    """A slow item of its own time stays until its deadline. Of a pause of everything it forgives what comes behind the
    time that it had planned to wait."""
    planned = planned_looks(monkeypatch, WorkerPool)
    with closing(WorkerPool(num_workers=1, timeout_s=PATIENCE_S)) as pool:
        pool.submit(item(SHORTER)).result(PATIENCE_S)
    assert max(planned) <= MAX_LOOK_S
