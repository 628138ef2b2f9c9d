"""A server of rewards with answers of its own."""

import json

from tests.answering import answering

GOOD = {
    "verdict": "correct",
    "reason": "correct",
    "score": 1.0,
    "extracted": None,
    "seconds": 0.0,
}


def own_server(answer):
    """A server; `answer(items)`, of another contract `answer(body)` -> (status, what is sent as JSON)."""

    def answer_to(path, body):
        status, content = answer(body.get("items", body))
        return status, json.dumps(content)

    return answering(answer_to)
