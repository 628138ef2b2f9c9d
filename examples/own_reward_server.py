"""A reward of your own: a server that a run asks when `reward.urls` names it. Most rewards need no server:
examples/own_reward.py has functions (docs/rewards.md).

    python examples/own_reward_server.py --port 5005
    r3 train experiment=... reward.urls=[http://127.0.0.1:5005]

Change `is_right`. The rest is what a run expects of a server: POST /grade with a list of items, one JSON line back for
each of them.
"""

import argparse
import json
import re
import time
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel


def is_right(response: str, references: list[str]) -> tuple[bool | None, str | None]:
    """(verdict, the answer that was found). Here: the last number is right, and nothing is said in words.
    None: it cannot be said."""
    numbers = re.findall(r"-?\d+", response)
    if not numbers:
        return False, None
    in_words = re.search("[A-Za-z]{2}", response.replace("\\boxed", ""))
    return numbers[-1] in references and not in_words, numbers[-1]


class Item(BaseModel):
    response: str
    references: list[str]
    num_tokens: int
    truncated: bool = False  # the token limit ended the response
    metadata: dict | None = None


class Batch(BaseModel):
    items: list[Item]


app = FastAPI()


@app.post("/grade")
def grade(batch: Batch) -> StreamingResponse:
    return StreamingResponse(lines(batch.items), media_type="application/x-ndjson")


def lines(items: list[Item]) -> Iterator[str]:
    for index, item in enumerate(items):
        started = time.perf_counter()
        right, answer = is_right(item.response, item.references)
        result = {
            "index": index,
            "verdict": "ungraded" if right is None else "correct" if right else "wrong",
            "reason": "unknown"
            if right is None
            else "correct"
            if right
            else "no_answer"
            if answer is None
            else "wrong",
            "score": None if right is None else float(right),
            "extracted": answer,
            "seconds": round(time.perf_counter() - started, 3),
        }
        yield json.dumps(result) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5005)
    options = parser.parse_args()
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning")
