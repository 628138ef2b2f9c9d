"""Do the references of a file look like answers? One Finding for each way in which they do not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from r3_openrlhf.config import DataConfig
from r3_openrlhf.config.answer_tasks import TASKS
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.method.errors import quoted
from r3_openrlhf.problems.label import Label

# Of the 38,682 answers of DeepScaleR 3 are longer than 200 characters and 48 have several lines; of 9,739 answers of GSM8K, MATH-500,
# Minerva and OlympiadBench 2 are, and none has. So one in a hundred is worth a word, and one in ten is another column.
LONGEST_ANSWER = 200  # characters
SUSPICIOUS, CERTAIN = 0.01, 0.1
# The grader compares what is longer only letter by letter (MAX_ANSWER_CHARS), so a model would have to repeat it.
MOST_CHARACTERS = 1000
# With one answer for all: so few problems are not worth a word, and a try of fewer than MANY may be meant so.
FEW, MANY = 8, 30
# DeepScaleR's most frequent answer, 10, has 1.6% of the problems; one of four choices has about a quarter, "yes" half of them.
FREQUENT, MANY_TEXTS = 0.2, 20
# Sums of digits have at most 19 answers, and a data set of them rarely 1,000 problems.
PER_ANSWER = 50
# None of DeepScaleR's answers has so many words outside formulas; one of OlympiadBench's 675 has.
MOST_WORDS = 8
_WORD = re.compile(r"(?<![\\\w])[^\W\d_]{2,}")
_WORDS = re.compile(r"[^\W\d_]{2}[\w /&.-]*")
_LETTER = re.compile(r"\(?[A-J]\)?\.?")
# "(B) 12", "B. 12", "B: 12", "\\textbf{(B)}"
_OPTION = re.compile(r"(?:^|[\s({*])B\s*[).:}]")
# The marks of ChatML (Qwen), Llama, Mistral, Gemma, DeepSeek and Phi
_TEMPLATE = re.compile(
    r"<\|(?:im_start|im_end|start_header_id|eot_id|begin_of_text|user|assistant|system|endoftext|end)\|>"
    r"|\[/?INST\]|<start_of_turn>|<[|｜](?:User|Assistant)[|｜]>"
)


def check_references(labels: Sequence[Label], *, path: str, answer_key: str) -> list[Finding]:
    """What is wrong, or looks wrong, with the references of the problems of one source.

    Refused is what cannot be meant: see the constants of this file for each threshold. A grader of the user's own may
    compare anything, so there only a constant column is worth a word.
    """
    known = [label for label in labels if label.references]
    if not known:
        return []
    of_user, is_math = TASKS[known[0].task].of_user, known[0].task == "math"
    where, use = f"data.path {path}", "name the column with the final answer in data.answer_key"
    findings = []

    def say(
        labels_found: Sequence[Label],
        what: str,
        *,
        certain: float = CERTAIN,
        suspicious: float = SUSPICIOUS,
        remedy: str = use,
    ) -> None:
        share = len(labels_found) / len(known)
        if share >= suspicious:
            count = f"{len(labels_found)} of {len(known)} answers ({answer_key})"
            example = quoted(labels_found[0].references[0])
            findings.append(Finding(f"{where}: {count} {what}, like {example}; {remedy}", refuses=share >= certain))

    first = Counter(label.references[0] for label in known)
    (text, most), num_texts = first.most_common(1)[0], len(first)
    if num_texts == 1 and len(known) >= FEW:
        findings.append(
            Finding(
                f"{where}: all {len(known)} answers ({answer_key}) are {quoted(text)}; {use}",
                refuses=not of_user and len(known) >= MANY,
            )
        )
    if of_user:
        return findings
    long = [label for label in known if min(map(len, label.references)) > LONGEST_ANSWER]
    lines = [label for label in known if all("\n" in text.strip() for text in label.references) and label not in long]
    prose = [
        label for label in known if min(map(num_words, label.references)) >= MOST_WORDS and label not in long + lines
    ]
    problem = [label for label in known if label.problem.strip() in label.references]
    if is_math:
        say(long, f"are longer than {LONGEST_ANSWER} characters, as solutions are and answers are not")
        say(lines, "have several lines, as solutions and lists of options have")
        say(prose, f"have {MOST_WORDS} words or more, as sentences have", certain=0.5)
    say(problem, "are the problem itself", suspicious=1 / len(known))
    letters = all(map(_LETTER.fullmatch, first))
    if num_texts > 2 and len(known) >= MANY and letters:
        without = [label for label in known if _OPTION.search(label.problem) is None]
        remedy = "make a column of problems that lists them"
        say(without, "are letters of options, which the problem does not hold", certain=0.5, remedy=remedy)
    several = [label for label in known if len(label.references) > 2]
    counts = Counter(len(label.references) for label in several)
    same = counts.most_common(1)[0][1] if counts else 0
    # exact: the aliases of a name are many, and never equally many
    if len(several) > len(known) / 2 and (is_math or same > 0.8 * len(known)):
        findings.append(
            Finding(
                f"{where}: {len(several)} of {len(known)} rows accept {max(counts)} different answers ({answer_key}), as a list of "
                f"all options would, like {quoted(str(several[0].references))}; {use}",
                refuses=True,
            )
        )
    if 2 < num_texts <= MANY_TEXTS and len(known) >= FEW * num_texts and all(map(_WORDS.fullmatch, first)):
        in_problem = sum(label.references[0].casefold() in label.problem.casefold() for label in known)
        some = ", ".join(quoted(text, most=30) for text, _ in first.most_common(3))
        findings.append(
            Finding(
                f"{where}: {len(known)} answers ({answer_key}) are only {num_texts} words ({some} ...), as a level or a source "
                f"is; {use}" + (", or use data.task=exact if they are the answers" if is_math else ""),
                refuses=is_math and in_problem < CERTAIN * len(known),
            )
        )
    elif is_math and 2 < num_texts <= MANY_TEXTS and len(known) >= PER_ANSWER * num_texts and not letters:
        findings.append(
            Finding(
                f"{where}: {len(known)} answers ({answer_key}) are only {num_texts} different ones, like {quoted(text)}, as levels are; "
                "is it the column with the answer?"
            )
        )
    elif num_texts > MANY_TEXTS and most >= FREQUENT * len(known):
        findings.append(
            Finding(f"{where}: {most} of {len(known)} answers ({answer_key}) are {quoted(text)}; is it one?")
        )
    return findings


def check_prompts(labels: Sequence[Label], *, path: str, data: DataConfig) -> list[Finding]:
    """A template inside a template, and control characters that were typed as text."""
    findings = []
    marked = [(label, found[0]) for label in labels if (found := _TEMPLATE.search(label.problem))]
    if marked and data.chat_template:
        findings.append(
            Finding(
                f"data.path {path}: {len(marked)} of {len(labels)} problems are in a chat template already ({marked[0][1]}), and "
                "would be put into another; use data.chat_template=false, or a column with the bare problem",
                refuses=len(marked) >= CERTAIN * len(labels),
            )
        )
    for key, text in (("prompt_template", data.prompt_template), ("system_prompt", data.system_prompt or "")):
        if typed := re.search(r"\\n(?![a-zA-Z])|\\n\\n|\\t(?![a-zA-Z])", text):
            findings.append(
                Finding(
                    f"data.{key} holds {quoted(typed[0])} as two characters, a backslash and a letter; on the command line write a real "
                    "line break inside the quotes ($'...' in bash), or put the text into a YAML file"
                )
            )
    escaped = [label for label in labels if "\\n\\n" in label.problem and "\n" not in label.problem]
    if len(escaped) >= SUSPICIOUS * len(labels) and escaped:
        findings.append(
            Finding(
                f"data.path {path}: {len(escaped)} of {len(labels)} problems have line breaks as two characters, a backslash and "
                f"an n, like {quoted(escaped[0].problem)}; the model will read them so"
            )
        )
    return findings


def num_words(text: str) -> int:
    """Words of two letters or more that are no LaTeX commands."""
    return len(_WORD.findall(text))
