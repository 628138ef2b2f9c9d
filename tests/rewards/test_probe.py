"""Every reward is asked a right, a wrong and an empty response before a run."""

import pytest

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.machine.ports import free_port
from r3_openrlhf.problems.label import Label
from r3_openrlhf.rewards.probe import probe_rewards
from tests.rewards.server.own_servers import GOOD, own_server

MODULE = """
def is_right(response, reference): return reference in response
def starts(response, reference): return response.startswith(reference)
def needs(response, row): return row["tests"]
def always(response): return 1.0
def silent(response, reference): return 1.0 if reference in response else None
def tensor(response, reference):
    import torch
    return torch.tensor([float(reference in response)])
def asserts(response, reference):
    assert reference in response
    return 1.0
def last_word(response, reference): return response.split()[-1] == reference
def tags(response): return float("<answer>" in response)
def both(response, reference): return float(reference in response) + float("<think>" in response)
def tagged(response, reference): return f"<answer>{reference}</answer>" in response
"""


def probe(task="math", **settings):
    label = Label(uid="u", references=["72"], task=task, problem="8 * 9", row={"a": 1})
    return probe_rewards(RewardConfig(**settings), label)


@pytest.mark.parametrize(
    ("name", "words", "refuses"),
    [
        ("is_right", None, None),
        ("starts", None, None),
        ("tensor", None, None),
        ("silent", "says nothing to a wrong answer", False),
        ("asserts", "says nothing to a wrong answer (raised AssertionError)", False),
        ("last_word", "says nothing to an empty response (raised IndexError)", False),
        (
            "needs",
            "grades nothing (raised KeyError, needs: KeyError: 'tests' (my_rewards.py, line 4))",
            True,
        ),
        ("both", "calls a wrong answer in the form of a right one correct", False),
        ("always", "calls a wrong answer correct", False),
        (
            "tagged",
            "does not call the reference '72' correct, alone or in a box, but wrong, reward 0",
            False,
        ),
    ],
)
def test_a_function(name, words, refuses, tmp_path):
    (tmp_path / "my_rewards.py").write_text(MODULE)
    # one imports torch, from a disk
    result = probe(function=f"{tmp_path}/my_rewards.py:{name}", timeout_s=300.0)
    assert len(result.findings) == (words is not None)
    for finding in result.findings:
        assert words in finding.sentence and finding.refuses == refuses


@pytest.mark.parametrize(
    ("others", "settings", "refuses"),
    [
        (["tags"], {}, [True]),
        (["tags"], {"weights": [1, 0.5]}, []),
        (["tags", "data.task"], {}, []),
    ],
)
def test_functions_of_form_do_not_make_errors_correct(others, settings, refuses, tmp_path):
    (tmp_path / "my_rewards.py").write_text(MODULE)
    names = [
        name if "." in name else f"{tmp_path}/my_rewards.py:{name}"
        for name in ("is_right", *others)
    ]
    findings = probe(functions=names, **settings).findings
    assert [finding.refuses for finding in findings] == refuses
    assert all(
        "and alone can reach reward.correct_from" in finding.sentence for finding in findings
    )


def test_every_server(at_rest, monkeypatch):
    monkeypatch.setattr("r3_openrlhf.rewards.probe.MAX_WAIT_S", 300.0)
    nobody = f"http://127.0.0.1:{free_port()}"
    with own_server(lambda items: (200, {"results": [GOOD | {"score": 0.5}]})) as server:
        result = probe(urls=[server.url, nobody])
    words = ("right: ungraded (correct with score 0.5)", "right: ungraded (unreachable)")
    assert all(word in line for word, line in zip(words, result.rewards, strict=True))
    assert [finding.refuses for finding in result.findings] == [True, False]
    assert server.url in result.findings[0].sentence and nobody in result.findings[1].sentence
