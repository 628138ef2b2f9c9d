"""Any request is answered with a documented status and a documented body, never with a 500."""

import http.client
import json

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

BODY = rb'{"items": [{"response": "\\boxed{5}", "references": ["5"], "num_tokens": 10, "task": "math"}]}'

GOOD = {
    "response": "5",
    "references": ["5"],
    "num_tokens": 1,
    "task": "exact",
    "truncated": False,
    "problem": "",
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
)
CHANGES = st.dictionaries(st.sampled_from([*GOOD, "metadata", "other"]), VALUES, max_size=3)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(changes=CHANGES)
def test_an_item_with_other_values_is_graded_or_refused(service, changes):
    body = json.dumps({"items": [GOOD, GOOD | changes]})
    answer = httpx.post(
        f"{service.url}/grade",
        content=body,
        headers={"Content-Type": "application/json"},
        timeout=300,
    )
    if answer.status_code == 422:
        assert "$" in answer.json()["detail"]
    else:
        results = answer.json()["results"]
        assert (answer.status_code, results[0]["verdict"], len(results)) == (200, "correct", 2)
        assert all(
            (result["score"] is None) == (result["verdict"] == "ungraded") for result in results
        )


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data"])
def test_bodies_that_are_no_json_meet_documented_answers_only(service, kind):
    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(body=st.binary() | st.integers(0, len(BODY)).map(lambda end: BODY[:end]))
    def run(body):
        answer = httpx.post(
            f"http://127.0.0.1:{service.port}/grade",
            content=body,
            headers={"Content-Type": kind, **service.headers},
            timeout=300,
        )
        assert answer.status_code in (200, 400, 422) and (answer.status_code == 200) == (
            "results" in answer.json()
        )

    run()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "POST"])
@pytest.mark.parametrize(
    "path", ["/", "/grade", "/nowhere", "/metrics", "/../etc/passwd", "/%00", "/docs"]
)
def test_other_methods_and_paths(service, method, path):
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=300)
    connection.request(method, path, headers=service.headers)
    assert connection.getresponse().status in (200, 404, 405, 422)
    connection.close()
