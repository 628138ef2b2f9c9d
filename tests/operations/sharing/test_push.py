"""A model and its card go to a hub that speaks the protocol of huggingface_hub's client."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from r3_openrlhf.cli import main
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory

EMPTY_COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """Makes a repository, says how files are sent, and keeps the files of a commit."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        answer = {}
        if self.server.refuses:
            self._send(403, {"error": "this account may not write here"})
            return
        if self.path == "/api/repos/create":
            answer = {"url": f"{self.server.address}/me/model"}
        elif "/preupload/" in self.path:
            wanted = json.loads(body)["files"]
            answer = {
                "files": [
                    {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for one in wanted
                ]
            }
        elif "/commit/" in self.path:
            for line in body.decode().splitlines():
                part = json.loads(line)
                if part["key"] == "file":
                    value = part["value"]
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
            answer = {
                "commitUrl": f"{self.server.address}/me/model/commit/{EMPTY_COMMIT}",
                "commitOid": EMPTY_COMMIT,
            }
        self._send(200, answer)

    def do_GET(self):
        self._send(200, {"id": "me/model", "sha": EMPTY_COMMIT, "siblings": []})

    def _send(self, code, answer):
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.files, server.asked, server.refuses = {}, [], False
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def run(tmp_path):
    """A run of two steps with a model, and held-out problems asked twice."""
    settings = [f"run_dir={tmp_path / 'run'}", "data.path=open-r1/DAPO-Math-17k-Processed"]
    config = load_config("cpu_smoke", settings)
    directory = RunDirectory(config.run_dir)
    directory.create(config)
    for step in (1, 2):
        directory.append_metrics({"step": step, "epoch": 1, "fresh/reward": 0.25})
    for step, accuracy in ((0, 0.25), (2, 0.5)):
        directory.append_evaluation({"step": step, "pass_at_1": accuracy})
    directory.final_model.mkdir()
    (directory.final_model / "config.json").write_text("{}")
    return directory


def push(*words):
    return CliRunner().invoke(main, ["push", *map(str, words)])


def test_the_model_arrives_with_a_card(run, hub):
    result = push(run.path, "me/model", "--private")
    assert result.exit_code == 0, result.output
    assert result.output.strip() == f"{hub.address}/me/model/commit/{EMPTY_COMMIT}"
    assert set(hub.files) == {"README.md", "config.json"}
    card = hub.files["README.md"].decode()
    assert card == push(run.path, "--card").output
    assert 'datasets: ["open-r1/DAPO-Math-17k-Processed"]' in card
    assert "| before | 0 | 0.250 |" in card and "| after | 2 | 0.500 |" in card
    assert "after 2 steps" in card and "not reached its end" in card
    assert "hf_secret" not in card
    assert all(token == "Bearer hf_secret" for _, token in hub.asked)


def test_a_card_that_is_there_stays(run, hub):
    (run.final_model / "README.md").write_text("mine")
    assert push(run.path, "me/model").exit_code == 0
    assert hub.files["README.md"] == b"mine"


def test_a_refusal_is_a_sentence(run, hub):
    hub.refuses = True
    result = push(run.path, "me/model")
    assert result.exit_code == 1
    assert "the hub did not take" in result.output and "hf auth login" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", [[], ["model"], ["a/b/c"]])
def test_a_repository_has_an_owner(run, name):
    result = push(run.path, *name)
    assert result.exit_code == 1 and "use ORGANISATION/NAME" in result.output


def test_without_a_model_nothing_is_sent(run, hub):
    (run.final_model / "config.json").unlink()
    result = push(run.path, "me/model")
    assert result.exit_code == 1 and "holds no model" in result.output and not hub.asked
    result = push(run.path, "me/model", "--step", 3)
    assert "global_step3_hf holds no model" in result.output
