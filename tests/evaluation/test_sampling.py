"""The seeds of an evaluation's responses."""

import itertools

from r3_openrlhf.config import BenchmarkConfig
from r3_openrlhf.evaluation.sample_file import SampleFile
from r3_openrlhf.evaluation.sampling import Work, sample
from r3_openrlhf.problems.label import Label


class Recorded:
    """An engine that keeps the seeds and answers at once."""

    def __init__(self):
        self.seeds = []

    def sample(self, requests):
        for number, (_, seeds) in enumerate(requests):
            self.seeds.append(seeds)
            yield number, [([1], "stop") for _ in seeds]


def seeds_of(tmp_path, *, seed, num_problems, n_samples):
    """The seeds of each problem, as the engine gets them."""
    work = [
        Work("math500", Label(uid=f"p{i}", problem="", references=[], task="math"), [1], "c")
        for i in range(num_problems)
    ]
    engine = Recorded()
    options = BenchmarkConfig(seed=seed, n_samples=n_samples)
    tmp_path.mkdir(exist_ok=True)
    sample(work, engine, SampleFile(tmp_path / f"{seed}.jsonl"), lambda ids: "1", options)
    return engine.seeds


def test_no_two_groups_share_a_seed(tmp_path):
    """vLLM 0.29's n samples of the seed s are the single samples of the seeds s, s + 1, ... (v1/engine/parallel_sampling.py),
    so that counted seeds would make the groups of neighbouring seeds copies of each other."""
    groups = [
        group
        for seed in (0, 1, 2)
        for group in seeds_of(tmp_path, seed=seed, num_problems=20, n_samples=32)
    ]
    assert [len(group) for group in groups] == [32] * 60
    seeds = sorted(itertools.chain(*groups))
    gaps = [after - before for before, after in itertools.pairwise(seeds)]
    # farther apart than any number of samples
    assert min(gaps) > 1_000
    assert seeds[0] >= 0 and seeds[-1] < 2**63


def test_a_seed_is_the_same_in_every_run(tmp_path):
    first, second = (
        seeds_of(tmp_path / name, seed=3, num_problems=4, n_samples=2) for name in ("a", "b")
    )
    assert first == second
    # of more responses the first ones are those of fewer
    more = seeds_of(tmp_path / "c", seed=3, num_problems=4, n_samples=8)
    assert [group[:2] for group in more] == first
