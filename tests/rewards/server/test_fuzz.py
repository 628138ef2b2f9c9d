"""Any request is answered with a documented status and a documented body, never with a 500."""

import http.client
import json
import random
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from .description import description

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


ROUTES = [("POST", "/grade", mode) for mode in GenerationMode] + [
    ("GET", path, GenerationMode.POSITIVE) for path in ("/health", "/ready")
]


@pytest.mark.parametrize(("method", "path", "mode"), ROUTES)
def test_every_route_keeps_to_its_description(service, method, path, mode):
    schema = schemathesis.openapi.from_dict(description())

    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def run(case):
        case.call_and_validate(
            base_url=f"http://127.0.0.1:{service.port}", headers=service.headers, checks=CHECKS, timeout=300
        )

    run()


VALID = {"items": [{"response": r"\boxed{5}", "references": ["5"], "num_tokens": 10, "task": "math"}]}
VALUES = json.loads(Path(__file__).with_name("fuzz_values.json").read_text())


def mutated(rng, value):
    """The value with something replaced, removed, doubled or wrapped at a random place."""
    if rng.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return rng.choice([rng.choice(VALUES), [value], {"items": value}, [value, value]])
    if isinstance(value, dict):
        key = rng.choice(list(value))
        return rng.choice(
            [{**value, key: mutated(rng, value[key])}, {k: v for k, v in value.items() if k != key}, {**value, "x": 1}]
        )
    position = rng.randrange(len(value))
    return value[:position] + [mutated(rng, value[position])] + value[position + 1 :]


def fuzzed_body(rng):
    body = json.dumps(mutated(rng, VALID)).encode()
    if rng.random() < 0.3:  # broken on the level of bytes
        position = rng.randrange(len(body) + 1)
        body = body[:position] + rng.randbytes(rng.randrange(4)) + body[position + rng.randrange(3) :]
    return body


def exchange(connection, body, headers):
    """The answer and its text. Once more on a new connection: the service closes one that is idle for 5 s."""
    for last in (False, True):
        try:
            connection.request("POST", "/grade", body, headers)
            answer = connection.getresponse()
            return answer, answer.read()
        except ConnectionError:
            connection.close()
            if last:
                raise


@pytest.mark.parametrize("num_bodies", [600, pytest.param(10_000, marks=pytest.mark.soak)])
def test_fuzzed_bodies_meet_documented_answers_only(service, num_bodies):
    rng = random.Random(4)
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=300)
    seen = set()
    for _ in range(num_bodies):
        body = fuzzed_body(rng)
        kind = rng.choice(["application/json"] * 8 + ["text/plain", "multipart/form-data"])
        answer, text = exchange(connection, body, {"Content-Type": kind, **service.headers})
        content = json.loads(text)
        assert answer.status in (200, 400, 422), (answer.status, body)
        assert isinstance(content.get("detail"), str) if answer.status != 200 else "detail" not in content, content
        seen.add(answer.status)
    connection.close()
    assert {200, 422} <= seen


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "POST"])
@pytest.mark.parametrize("path", ["/", "/grade", "/nowhere", "/metrics", "/../etc/passwd", "/%00", "/docs"])
def test_other_methods_and_paths(service, method, path):
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=300)
    connection.request(method, path, headers=service.headers)
    assert connection.getresponse().status in (200, 404, 405, 422)
    connection.close()
