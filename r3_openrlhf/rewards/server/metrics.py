"""Prometheus metrics of the reward service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from r3_openrlhf.rewards.exchange import Grade

LOST = ("timeout", "crashed")


class Metrics:
    """Counters of the service, in an own registry, so that two in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.items = Counter(
            "r3_grading_items", "Items answered", ["task", "verdict", "reason"], registry=self.registry
        )
        self.seconds = Histogram(
            "r3_grading_seconds",
            "Seconds spent grading one item",
            buckets=(0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
            registry=self.registry,
        )
        self.refused = Counter("r3_grading_refused_requests", "Requests answered with 503", registry=self.registry)
        self.pending = Gauge("r3_grading_pending_items", "Items accepted and not yet answered", registry=self.registry)
        self.lost = Gauge(
            "r3_grading_worker_restarts", "Workers replaced, by reason", ["reason"], registry=self.registry
        )

    def count(self, task: str, grade: Grade) -> None:
        """One more item is answered."""
        # "failed test 3 of 10: ValueError" would be a series of its own for each test and line
        reason = "failed test" if grade.reason.startswith("failed test ") else grade.reason
        self.items.labels(task, grade.verdict.value, reason).inc()
        self.seconds.observe(grade.seconds)

    def text(self, *, pending: int, lost: dict[str, int]) -> bytes:
        """All in Prometheus's format. pending: unanswered; lost: reason -> replaced workers."""
        self.pending.set(pending)
        for reason, count in lost.items():
            self.lost.labels(reason).set(count)
        return generate_latest(self.registry)
