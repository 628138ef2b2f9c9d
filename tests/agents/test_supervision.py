"""How often the supervisor of environments looks."""

from r3_openrlhf.agents.processes.pool import MAX_LOOK_S, EnvironmentPool

PATIENCE_S = 300


class Looking(EnvironmentPool):
    planned = ()

    def _seconds_to_next_look(self):
        planned = super()._seconds_to_next_look()
        self.planned += (planned,)
        return planned


def test_while_somebody_works_nobody_looks_away_for_long():
    """Of a pause of everything it forgives what comes behind the time that it had planned to wait."""
    with Looking("tests.agents.awkward:Awkward", {}, step_timeout_s=PATIENCE_S) as pool:
        world = pool.environment()
        world.reset(1).result(PATIENCE_S)
        world.step("work").result(PATIENCE_S)
        assert max(planned for planned in pool.planned if planned is not None) <= MAX_LOOK_S
