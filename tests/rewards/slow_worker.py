"""A worker that hangs or ends where an item says so, for test_slow.py."""

import os

from r3_openrlhf.rewards.answers.request import Item, Outcome


def make_worker():
    def handle(item: Item) -> Outcome:
        texts = (item.response, *item.references)
        while any("hang" in text for text in texts):
            pass
        if any("crash" in text for text in texts):
            os._exit(1)
        return (
            Outcome("correct", "correct", 1.0)
            if item.response in item.references
            else Outcome("wrong", "wrong", 0.0)
        )

    return handle
