"""`r3 doctor` asks the hub for a model and problems that are not here, and says when it could not."""

import json

import pytest
from huggingface_hub import constants
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from r3_openrlhf.operations.doctor import checks
from tests.answering import served
from tests.commands import r3

COMMIT = "0" * 40


def hub_that_knows(*names):
    """A hub whose API has these repositories and no other."""

    async def answer(request):
        if request.path_params["name"] in names:
            return JSONResponse({"id": request.path_params["name"], "sha": COMMIT})
        headers = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
        return JSONResponse({"error": "Repository not found"}, 404, headers=headers)

    kinds = [Route(f"/api/{kind}/{{name:path}}", answer) for kind in ("models", "datasets")]
    return served(Starlette(routes=kinds))


@pytest.fixture
def doctor(monkeypatch, tmp_path):
    """`r3 doctor` of an experiment with two hub names, without the looks at the installation."""
    for name in ("packages", "imports", "running_programs", "disks", "gpu_memory"):
        monkeypatch.setattr(checks, name, lambda *_, **__: [])
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def call(address, *settings):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        paths = ("model.path=nosuch/model", "data.path=nosuch/data", f"run_dir={tmp_path}/run")
        result = r3("doctor", "experiment=quickstart", *paths, *settings, "--json")
        lines = {line["what"]: line for line in json.loads(result.stdout)["lines"]}
        return result.exit_code, lines

    return call


KEYS = ("model.path", "data.path")


def test_a_name_that_the_hub_does_not_have_fails(doctor):
    with hub_that_knows("nosuch/data") as address:
        code, lines = doctor(address)
    model, data = (lines[key] for key in KEYS)
    assert code == 1
    assert (model["status"], model["found"]) == (
        "fail",
        "nosuch/model: the hub does not give it",
    )
    assert "correct model.path" in model["remedy"]
    assert (data["status"], data["found"]) == ("ok", "nosuch/data: the hub has it")


def test_held_out_problems_on_the_hub_are_asked_for(doctor):
    with hub_that_knows("nosuch/model", "nosuch/data") as address:
        _, lines = doctor(address, "held_out.path=nosuch/other")
    assert lines["held_out.path"]["status"] == "fail"
    assert [lines[key]["status"] for key in KEYS] == ["ok", "ok"]


@pytest.mark.parametrize("is_offline", [False, True])
def test_without_the_hub_it_says_that_it_did_not_ask(doctor, monkeypatch, is_offline):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
    _, lines = doctor("http://127.0.0.1:9")
    found = [(lines[key]["status"], lines[key]["found"]) for key in KEYS]
    assert found == [("note", "nosuch/model: not asked"), ("note", "nosuch/data: not asked")]
    assert ("HF_HUB_OFFLINE is set" in lines["model.path"]["remedy"]) == is_offline


def test_what_the_cache_has_needs_no_hub(doctor, tmp_path):
    for name in ("models--nosuch--model", "datasets--nosuch--data"):
        folder = tmp_path / "cache" / name / "snapshots" / COMMIT
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    _, lines = doctor("http://127.0.0.1:9")
    assert [lines[key]["status"] for key in KEYS] == ["ok", "ok"]
    assert all("in the cache of the hub" in lines[key]["found"] for key in KEYS)
