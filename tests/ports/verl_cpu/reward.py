"""A reward that makes a recall certain: the first response to each prompt is right, and none after it."""

import os
from hashlib import sha256
from pathlib import Path


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    name = sha256(ground_truth.encode()).hexdigest()
    try:
        (Path(os.environ["R3_TEST_SEEN"]) / name).touch(exist_ok=False)
    except FileExistsError:
        return 0.0
    return 1.0
