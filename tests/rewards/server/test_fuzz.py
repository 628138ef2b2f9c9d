"""Any request is answered with a documented status and a documented body, never with a 500."""

import http.client

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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


BODY = rb'{"items": [{"response": "\\boxed{5}", "references": ["5"], "num_tokens": 10, "task": "math"}]}'
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


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data"])
def test_bodies_that_are_no_json_meet_documented_answers_only(service, kind):
    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(body=st.binary() | st.integers(0, len(BODY)).map(lambda end: BODY[:end]))
    def run(body):
        answer = httpx.post(
            f"http://127.0.0.1:{service.port}/grade", content=body, headers={"Content-Type": kind, **service.headers}
        )
        assert answer.status_code in (200, 400, 422) and (answer.status_code == 200) == ("results" in answer.json())

    run()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "POST"])
@pytest.mark.parametrize("path", ["/", "/grade", "/nowhere", "/metrics", "/../etc/passwd", "/%00", "/docs"])
def test_other_methods_and_paths(service, method, path):
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=300)
    connection.request(method, path, headers=service.headers)
    assert connection.getresponse().status in (200, 404, 405, 422)
    connection.close()
