"""How long the supervisor of a pool of processes, of grading or of environments, plans to look away."""


def planned_looks(monkeypatch, pool: type) -> list[float]:
    """Seconds, a new entry for each plan of every pool of that class; plans without an end are left out."""
    planned, plan = [], pool._seconds_to_next_look

    def recorded(self):
        seconds = plan(self)
        planned.extend([] if seconds is None else [seconds])
        return seconds

    monkeypatch.setattr(pool, "_seconds_to_next_look", recorded)
    return planned
