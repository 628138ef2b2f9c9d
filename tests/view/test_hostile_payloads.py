"""The hostile payloads of the grading suite, and those of the pages, in a browser: as responses, answers, problems, references, uids,
reasons, settings, and as names of runs, evaluations and benchmarks. No script runs, no request leaves, nothing of them is an element."""

import json
from urllib.parse import quote

import numpy as np
import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.problems.sources import Label
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.view.rendering import link
from tests.rewards.hostile_payloads import CODE, ENDLESS, HUGE, UNICODE
from tests.view.conftest import HOSTILE, script, serving, wait_for_counts

NAME = "\"'><img src=x onerror=window.hacked=1><script>window.hacked=1<!--{{7*7}}"
TOGETHER = 12  # payloads that are the responses of one group
LONG = [text[:150_000] for text in HUGE]  # a page holds several
TEXTS = [*CODE, *ENDLESS, *LONG, *UNICODE, *HOSTILE]
PIECE = 1000  # characters of a token


def shown(text):
    """What a run can hold of it: a file of text has no lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def rollout(uid, number, text):
    tokens = max(1, -(-len(text) // PIECE))
    right = number % 3 == 0
    return {
        "step": 1,
        "uid": uid,
        "context": "plain",
        "group": None,
        "verdict": "correct" if right else "wrong",
        "reason": text[:300],
        "outcome_reward": float(right),
        "reward": float(right),
        "ranked": False,
        "advantage": float(number % 3 - 1),
        "recalled_from": None,
        "truncated": not right,
        "num_tokens": tokens,
        "text": text,
        "answer": text[:5000],
        "prompt": text,
        "extras": json.dumps({text[:50]: text[:200]}),
        "token_chars": np.array(
            [min(PIECE, len(text) - at) for at in range(0, max(1, len(text)), PIECE)],
            dtype=np.uint16,
        ),
        "token_entropy": np.full(tokens, 0.5, dtype=np.float16),
        "trajectory": f"{number} {text[:50]}",
        "turn": 0,
        "state": text[:2000],
        "turn_reward": 0.0,
        "step_return": 0.0,
        "valid": True,
    }


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """(the directories, addresses of their pages)."""
    run = tmp_path_factory.mktemp("hostile") / NAME
    directory = RunDirectory(run)
    settings = [f"run_dir='{run.parent}'", "logging.token_values=all", "model.path=smollm2"]
    directory.create(load_config("cpu_smoke", settings))
    config = directory.config.read_text(encoding="utf-8")
    directory.config.write_text(
        config.replace("path: smollm2", f"path: {json.dumps(NAME)}"), encoding="utf-8"
    )
    directory.data.parent.mkdir(parents=True, exist_ok=True)
    texts, rows, groups = [shown(text) for text in TEXTS], [], []
    with directory.data.open("w", encoding="utf-8") as file:
        for first in range(0, len(texts), TOGETHER):
            mine = texts[first : first + TOGETHER]
            uid = f"{mine[0][:40]}/{first}"
            label = Label(uid=uid, problem=mine[0], references=mine[1:], task="math")
            file.write(json.dumps({"input": mine[0], "label": label.to_json()}) + "\n")
            rows += [
                rollout(uid, number, text) | {"group": first}
                for number, text in enumerate(mine)
            ]
            groups.append((uid, len(mine)))
    directory.write_rollouts(1, rows)
    directory.append_metrics(
        {"step": 1, "reward_mean": 0.5, "<script>window.hacked=1</script>": 1.0}
    )
    evaluation = run.parent / f"evaluation {NAME}"
    evaluation.mkdir()
    (evaluation / "settings.json").write_text("{}")
    responses = [
        {
            "text": text,
            "num_tokens": 3,
            "finish_reason": "stop",
            "verdict": "wrong",
            "reason": text[:100],
            "extracted": text[:2000],
        }
        for text in [*CODE, *UNICODE, *HOSTILE]
    ]
    line = {"benchmark": NAME, "uid": groups[0][0], "responses": responses}
    (evaluation / "samples.jsonl").write_text(json.dumps(line) + "\n")
    page = link
    of_groups = [("step", 1, "plain", uid) for uid, _ in groups]
    markup = next(uid for uid, _ in groups if uid.startswith(HOSTILE[0][:10]) or "<" in uid)
    addresses = [
        page(NAME),
        page(NAME, "step", 1),
        *(page(NAME, *parts) for parts in of_groups),
        page(NAME, "problem", markup),
        *(
            page(NAME, kind, 1, place, "plain", markup)
            for kind in ("tokens", "trajectory")
            for place in (0, 3)
        ),
        page(evaluation.name),
        page(evaluation.name, "sample", NAME, groups[0][0]),
        page("compare", evaluation.name, evaluation.name),
        f"/search?q={quote('window hacked')}",
        f"/search?q={quote(NAME)}",
        f"{page(NAME, 'step', 1)}?text={quote(NAME)}",
    ]
    return (run, evaluation), addresses


def test_payloads_are_text_and_do_nothing(page, places, tmp_path):
    """Each response is there, letter by letter but for what HTML has no letter for. `page` fails the test for a console error and
    for a request to another host."""
    listener = "addEventListener('securitypolicyviolation', event => { window.refused = event.blockedURI; });"
    page.add_init_script(listener)
    page.on("dialog", lambda dialog: page.faults.append(f"a dialog: {dialog.message}"))
    paths, addresses = places
    seen = set()
    with serving(*paths, page=page) as address:
        answer = page.goto(f"{address}/{quote(NAME * 2)}")
        assert answer.status == 404 and page.evaluate("window.hacked") is None
        page.faults.clear()  # the browser complains about the status
        page.goto(address + addresses[0])
        wait_for_counts(page, 1)
        for one in addresses:
            assert page.goto(address + one).status == 200, one
            page.wait_for_function("() => document.readyState === 'complete'")
            if "/step/1/plain/" in one:
                page.locator("#render-math").click()  # the texts as they are
                seen |= set(page.locator("#cards .response").all_text_contents())
                page.locator("#render-math").click()
            heat = page.locator("[data-heat=entropy]:enabled")
            if heat.count() and "/step/" in one:
                page.locator("#cards").scroll_into_view_if_needed()
                heat.click()
                page.locator("#cards .response .heat").first.wait_for(state="attached")
            found = page.evaluate(script("foreign_elements"))
            title = found.pop("title")
            nothing = dict.fromkeys(("hacked", "refused")) | dict.fromkeys(
                ("scripts", "elements", "handlers", "forms"), 0
            )
            nothing["links"] = []
            assert found == nothing, (one, title)
    for text in map(shown, TEXTS):
        if text:
            assert text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "") in seen, (
                text[:80]
            )
