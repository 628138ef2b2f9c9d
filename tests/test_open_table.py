"""What a user adds by import path: found, checked at start, and used as if it were ours."""

import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import r3_openrlhf.rewards.code.languages  # noqa: F401
import r3_openrlhf.stack.trackers  # noqa: F401
from r3_openrlhf.config import R3Config, RewardConfig, TrainConfig
from r3_openrlhf.config.algorithms import ALGORITHMS
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.core.ranking import RANKING_SCORES
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.open_table import OpenTable, load_object, looking_only
from r3_openrlhf.method.prompts import ChatPrompts
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.settings import (
    AdvantageSettings,
    ImportedSettings,
    RankingSettings,
    ReplaySettings,
    StateReplaySettings,
)
from tests.method.steps import W, rollout, settings_of

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_parts.py"
MODULE = f"""{EXAMPLE.read_text()}
from r3_openrlhf.rewards.code.languages import Language

NOT_MINE = Algorithm(estimator="rloo", mechanisms=frozenset(["telepathy"]))
NUMBER = 7

def last(values, places, rng):
    return places[-1], values[places[-1]]

def centred(rewards):
    return [reward - sum(rewards) / len(rewards) for reward in rewards]

def rising(probs):
    return probs / (probs + 1)

def plain(logprobs, old_logprobs, advantages, mask):
    return -(logprobs - old_logprobs).exp() * advantages

def squared(student, teacher):
    return (student - teacher).square().sum(-1)

def track(step, numbers):
    pass

def text_of(problem):
    return problem + "!"

LANGUAGE = Language(command=("lua",))
"""


@pytest.fixture(params=["a module of the working directory", "a file"])
def mine(request, tmp_path, monkeypatch):
    """name -> its import path, in both forms."""
    module = f"mine_{tmp_path.name}"  # another one in each test
    (tmp_path / f"{module}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    form = module if request.param.startswith("a module") else f"{module}.py"
    return lambda name: f"{form}:{name}"


def test_a_ranking_score_of_a_user_ranks(mine):
    rows = [rollout(W, number=i, truncated=True) for i in range(3)]
    rows[1].response_ids, rows[1].response_logprobs = (
        np.zeros(1, np.int32),
        np.zeros(1, np.float32),
    )
    batch = R3(settings_of(ranking=RankingSettings(score=mine("shortest"), guard="none"))).mix(
        rows, step=0
    )
    assert [row.ranking_reward for row in batch.rows] == [0.125, 0.5, 0.125]


def test_what_only_looks_at_a_run_imports_nothing_that_it_names(tmp_path):
    path = f"{tmp_path / 'hostile.py'}:score"
    (tmp_path / "hostile.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\ndef score(rollouts):\n    return []\n"
    )
    with looking_only():
        assert RANKING_SCORES[path].needs_entropy  # an entry of ours stands for it
        with pytest.raises(
            ConfigError, match="a command that only looks at a run never runs its code"
        ):
            load_object("ranking.score", path)
    assert not (tmp_path / "ran").exists()


def test_a_score_that_names_entropies_gets_them_measured(mine):
    assert (
        RANKING_SCORES[mine("calm")].needs_entropy
        and not RANKING_SCORES[mine("shortest")].needs_entropy
    )
    rows = [rollout(W, number=i, truncated=True) for i in range(2)]
    r3 = R3(settings_of(ranking__score=mine("calm")))
    assert r3.rows_to_measure(r3.recall(rows, step=0)) == {0, 1}
    batch = r3.mix(rows, step=0, entropy=[np.array([2.0, 2.0]), np.array([1.0, 1.0])])
    assert [row.ranking_reward for row in batch.rows] == [0.0, 0.5]


def test_an_algorithm_of_a_user_is_a_configuration(mine):
    off = {
        name: getattr(settings_of(**{f"{name}__enabled": False}), name)
        for name in ("replay", "reflection", "ranking")
    }
    config = R3Config(run_dir="run", algo=mine("RLOO_FILTERED"), **off)
    assert (
        config.algorithm.estimator == "rloo"
        and config.filters_groups
        and not config.keeps_history
    )


@pytest.mark.parametrize(
    ("entrance", "sentence"),
    [
        (lambda path: ReplaySettings(order=path("missing")), "has no missing"),
        (
            lambda path: RankingSettings(score="no_module:score"),
            "ranking.score is 'no_module:score', which cannot be imported",
        ),
        (lambda path: RankingSettings(score="nofile.py:score"), "nofile.py does not exist"),
        (
            lambda path: RankingSettings(score="entropie"),
            "did you mean entropy?, or package.module:name of your own",
        ),
        (
            lambda path: ALGORITHMS[path("NUMBER")],
            "is not an instance of r3_openrlhf.config.algorithms.Algorithm",
        ),
        (lambda path: ALGORITHMS[path("NOT_MINE")], "whose mechanisms include 'telepathy'"),
    ],
)
def test_what_cannot_be_used_is_refused_at_start(mine, entrance, sentence):
    with pytest.raises(ConfigError) as refusal:
        entrance(mine)
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)


SECTIONS = {
    "advantage": AdvantageSettings,
    "exploration.rrl": StateReplaySettings,
    "ranking": RankingSettings,
    "replay": ReplaySettings,
    "replay.imported": ImportedSettings,
    "train": TrainConfig,
}
UNUSABLE = tomllib.loads(Path(__file__).with_name("unusable_parts.toml").read_text())


@pytest.mark.parametrize(
    ("key", "source", "sentence"),
    [(key, *case) for key, cases in UNUSABLE.items() for case in cases],
)
def test_what_cannot_work_is_refused_when_the_settings_are_made(
    tmp_path, key, source, sentence
):
    (tmp_path / "own.py").write_text(source)
    section, _, name = key.rpartition(".")
    with pytest.raises(ConfigError) as refusal:
        SECTIONS[section](**{name: f"{tmp_path / 'own.py'}:f"})
    assert str(refusal.value).startswith(f"{key} is ") and sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_parts_of_the_example_are_taken(tmp_path):
    """What docs/usage.md shows, with the settings of an experiment."""
    mine = [
        f"ranking.score={EXAMPLE}:shortest",
        f"replay.order={EXAMPLE}:best",
        f"data.task={EXAMPLE}:contains",
    ]
    config = load_config("cpu_smoke", [f"run_dir={tmp_path}", *mine])
    assert config.ranking.score.endswith(":shortest") and not config.ranks_by_entropy


def test_a_file_that_failed_is_read_again_when_it_is_corrected(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("1 / 0")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        load_object("ranking.score", f"{file}:shortest")
    file.write_text(MODULE)
    assert load_object("ranking.score", f"{file}:shortest")([]) == []
    with pytest.raises(
        ConfigError,
        match=r"ranking\.score is '7:up!'; use package\.module:name or file\.py:name",
    ):
        load_object("ranking.score", "7:up!")


OF_TABLES = {
    "ranking.score": "shortest",
    "replay.order": "best",
    "replay.imported.weight": "rising",
    "algo": "RLOO_FILTERED",
    "data.task": "contains",
    "advantage.function": "centred",
    "train.loss": "plain",
    "exploration.rrl.cut": "last",
    "distill.source": "briefest",
    "distill.weight": "sure",
    "distill.loss": "squared",
    "language": "LANGUAGE",
    "logging.tracker": "track",
}


def test_every_open_table_takes_an_object_as_it_takes_its_path(mine):
    """The tables of the whole package; a new one is missing in OF_TABLES. A run, which is kept as text, takes paths alone."""
    ours = [
        vars(module)
        for name, module in list(sys.modules.items())
        if name.startswith("r3_openrlhf")
    ]
    tables = {
        one.key: one for module in ours for one in module.values() if isinstance(one, OpenTable)
    }
    assert tables.keys() == OF_TABLES.keys()
    for key, table in tables.items():
        path = mine(OF_TABLES[key])
        found = load_object(key, path)
        by_path, by_object = table[path], table[found]
        if key == "data.task":
            assert (by_path.grade, by_object.grade) == (path, found)
        else:
            assert by_object == by_path
        with pytest.raises(ConfigError, match=key):
            table[object()]
    score = load_object("ranking.score", mine("shortest"))
    with pytest.raises(
        ConfigError, match="ranking.score is .*; a run is kept as text, so use its import path"
    ):
        R3Config(run_dir="run", ranking=RankingSettings(score=score))
    with pytest.raises(ConfigError, match="reward.function is .*; use text"):
        RewardConfig(function=score)
    chat = ChatPrompts(None, max_prompt_tokens=9, message=mine("text_of"), render=str.upper)
    assert chat.plain("a problem") == "A PROBLEM!"


def test_a_table_lists_what_is_ours_alone():
    assert len(RANKING_SCORES) == len(list(RANKING_SCORES)) == 2
    assert "entropy" in RANKING_SCORES and "numpy:mean" not in RANKING_SCORES
