"""A reward of your own: a server that a run asks when `reward.urls` names it. Most rewards need no server:
examples/own_reward.py has functions (docs/rewards.md).

    python examples/own_reward_server.py --port 5005
    r3 train experiment=... reward.urls=[http://127.0.0.1:5005]

Change `is_right`. The rest is what a run expects of a server: POST /grade with a list of items, a list of results back.
"""

import argparse
import re
import time
from typing import Any

import uvicorn
from fastapi import FastAPI
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
def grade(batch: Batch) -> dict[str, list[dict[str, Any]]]:
    return {"results": [result(item) for item in batch.items]}


def result(item: Item) -> dict[str, Any]:
    started = time.perf_counter()
    right, answer = is_right(item.response, item.references)
    if right is None:
        verdict, reason = "ungraded", "unknown"
    elif right:
        verdict = reason = "correct"
    else:
        verdict, reason = "wrong", "no_answer" if answer is None else "wrong"
    return {
        "verdict": verdict,
        "reason": reason,
        "score": None if right is None else float(right),
        "extracted": answer,
        "seconds": round(time.perf_counter() - started, 3),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5005)
    options = parser.parse_args()
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning")
