"""Grader of task "reasoning_gym": the data set's own scorer, chosen by the entry's `metadata.source_dataset`."""

from __future__ import annotations

import reasoning_gym

from r3_openrlhf.grading.mathematics import Result


def grade_reasoning_gym(answer: str, entry: dict | None) -> Result:
    name = ((entry or {}).get("metadata") or {}).get("source_dataset")
    if name is None:
        return "ungraded", "bad_reference", None, answer
    scorer = reasoning_gym.get_score_answer_fn(name)
    score = float(scorer(answer=answer, entry=entry))
    verdict = "correct" if score >= 1.0 else "wrong"
    return verdict, verdict, min(score, 1.0), answer
