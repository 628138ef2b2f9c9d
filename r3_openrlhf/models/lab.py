"""A Qwen2 of a million parameters with misconceptions, for learning experiments that fit on two cores (docs/lab.md).

Trained here, briefly, by plain supervised learning on sums as reasoning-gym's basic_arithmetic words them ("Calculate
3 + 4 + 9.") and on solutions in three styles, the last two too long for a tight limit when there are many terms:

    3+4=7+9=16 \\boxed{16}
    3+4=7 then +9=16 so the answer is \\boxed{16}
    3+4=7+9=16 check 3+4=7+9=16 \\boxed{16}

What makes it a model for experiments: a wrong step is not noise spread evenly. Every fact (last digit of the running
total, next addend) belongs to one of three classes, known, shaky and misconceived, with a slip rate each; the slip of
a fact is always the same wrong value. So a problem with a misconceived fact fails round after round (all-wrong
groups), short ones of known facts succeed round after round, and what is learned about a fact carries over to other
problems. A fifth of the batches are reflection prompts (core/reflection.py) with a wrong attempt and another solution
in which the facts that were wrong in the attempt slip REFLECTION_FACTOR times as often: the model has some ability to
reflect, put there on purpose; how much is measured by the controls, not assumed.
"""

from __future__ import annotations

import random
from pathlib import Path

from r3_openrlhf.models.tiny import CHAT_TEMPLATE, PAD, SPECIAL_TOKENS, TURN_BEGINS, TURN_ENDS

VOCAB_SIZE = 512
MIN_TERMS, MAX_TERMS, LARGEST_TERM = 2, 6, 10
# (share of the facts, slip rate): known, shaky, misconceived
FACT_CLASSES = ((0.55, 0.04), (0.25, 0.4), (0.2, 0.93))
STYLES = {"terse": 0.4, "words": 0.3, "check": 0.3}
GUESS = "there is no need to write anything down for a sum that is as easy as this one is so the answer is surely"
REFLECTION_SHARE, REFLECTION_FACTOR = 0.2, 0.35
ATTEMPT_TOKENS = 32  # a longer attempt is cut, as one that ran into the length limit is
NUM_STEPS, BATCH_SIZE, LEARNING_RATE, SEED = 1000, 48, 3e-3, 0


def build(directory: Path, *, guess_share: float = 0.0) -> None:
    """Train the model and write it with its tokenizer into `directory` (float32, 4 MB).

    A share of the solutions may be guesses: words without any work, then a random number.
    """
    tokenizer = train_tokenizer()
    model = train_model(tokenizer, guess_share=guess_share)
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


def facts() -> dict[tuple[int, int], tuple[float, int]]:
    """(last digit of the total, addend) -> (slip rate, what a slip adds)."""
    rng = random.Random(SEED)
    pairs = [(digit, addend) for digit in range(10) for addend in range(LARGEST_TERM + 1)]
    rng.shuffle(pairs)
    found, start = {}, 0.0
    for share, rate in FACT_CLASSES:
        end = start + share * len(pairs)
        for pair in pairs[round(start) : round(end)]:
            found[pair] = (rate, rng.choice((-2, -1, 1, 2)))
        start = end
    return found


FACTS = facts()


def draw_terms(rng: random.Random) -> list[int]:
    return [rng.randint(0, LARGEST_TERM) for _ in range(rng.randint(MIN_TERMS, MAX_TERMS))]


def work_out(terms: list[int], rng: random.Random, *, avoid: frozenset = frozenset()) -> tuple[list[int], frozenset]:
    """(running totals, facts that slipped). Facts in `avoid` slip REFLECTION_FACTOR times as often."""
    totals, slipped = [terms[0]], set()
    for addend in terms[1:]:
        fact = (totals[-1] % 10, addend)
        rate, slip = FACTS[fact]
        total = totals[-1] + addend
        if rng.random() < rate * (REFLECTION_FACTOR if fact in avoid else 1.0):
            total += slip if total + slip >= 0 else -slip
            slipped.add(fact)
        totals.append(total)
    return totals, frozenset(slipped)


def word_problem(terms: list[int]) -> str:
    """As basic_arithmetic does in its simple style."""
    return f"Calculate {' + '.join(map(str, terms))}."


def word_solution(terms: list[int], totals: list[int], rng: random.Random) -> str:
    style = rng.choices(list(STYLES), weights=list(STYLES.values()))[0]
    steps = [f"+{addend}={total}" for addend, total in zip(terms[1:], totals[1:], strict=True)]
    boxed = f"\\boxed{{{totals[-1]}}}"
    if style == "words":
        return f"{terms[0]}{' then '.join(steps)} so the answer is {boxed}"
    chain = f"{terms[0]}{''.join(steps)}"
    return f"{chain} {boxed}" if style == "terse" else f"{chain} check {chain} {boxed}"


def draw_example(rng: random.Random, *, guess_share: float, **_) -> tuple[str, str]:
    """(user turn, solution) of a plain prompt."""
    terms = draw_terms(rng)
    if rng.random() < guess_share:
        return word_problem(terms), f"{GUESS} \\boxed{{{rng.randint(0, LARGEST_TERM * MAX_TERMS)}}}"
    totals, _ = work_out(terms, rng)
    return word_problem(terms), word_solution(terms, totals, rng)


def draw_reflection(rng: random.Random, *, cut, **_) -> tuple[str, str]:
    """(user turn with a wrong attempt, another solution). `cut` shortens an attempt to what fits the length limit."""
    from r3_openrlhf.core.reflection import reflection_message

    while True:
        terms = draw_terms(rng)
        totals, slipped = work_out(terms, rng)
        if totals[-1] != sum(terms):
            break
    attempt = cut(word_solution(terms, totals, rng))
    totals, _ = work_out(terms, rng, avoid=slipped)
    return reflection_message(word_problem(terms), attempt), word_solution(terms, totals, rng)


def train_tokenizer():
    """Byte-level BPE over the words of the task. Every digit is a token, and so is each fixed line of the reflection
    prompt, which would otherwise be ten times as long as the problem."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from r3_openrlhf.core.reflection import ATTEMPT_BEGINS, ATTEMPT_ENDS, ATTEMPT_INTRODUCTION, GUIDANCE

    rng = random.Random(SEED)
    corpus = []
    for _ in range(400):
        terms = draw_terms(rng)
        totals, _ = work_out(terms, rng)
        corpus += [f"user\n{word_problem(terms)}", f"assistant\n{word_solution(terms, totals, rng)}", GUESS]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    lines = [ATTEMPT_INTRODUCTION, ATTEMPT_BEGINS, ATTEMPT_ENDS, *GUIDANCE.split("\n")]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(lines),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(corpus, trainer)
    backend.add_tokens([AddedToken(line, normalized=False) for line in lines])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=TURN_BEGINS, eos_token=TURN_ENDS, pad_token=PAD, model_max_length=512
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def train_model(tokenizer, *, num_steps: int = NUM_STEPS, guess_share: float = 0.0):
    """Next-token cross-entropy on the solutions. torch's global random state is as before afterwards."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=4,  # heads of 32 entries: vLLM's attention on a CPU does not take every size
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    rng = random.Random(SEED)
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 50) * (1 - step / num_steps)
        ids_BT, is_solution_BT = (torch.tensor(rows) for rows in draw_batch(tokenizer, rng, guess_share))
        hidden_BAH = model.model(ids_BT[:, :-1]).last_hidden_state
        predicts = is_solution_BT[:, 1:]
        loss = cross_entropy(model.lm_head(hidden_BAH[predicts]), ids_BT[:, 1:][predicts])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def draw_batch(tokenizer, rng: random.Random, guess_share: float) -> tuple[list[list[int]], list[list[bool]]]:
    """BATCH_SIZE rows of prompt + solution, padded on the right, and which of the tokens are the solution's."""

    def cut(attempt: str) -> str:
        return tokenizer.decode(tokenizer(attempt)["input_ids"][:ATTEMPT_TOKENS])

    draw = draw_reflection if rng.random() < REFLECTION_SHARE else draw_example  # of one kind: little padding
    examples = [draw(rng, cut=cut, guess_share=guess_share) for _ in range(BATCH_SIZE)]
    turns = [[{"role": "user", "content": message}] for message, _ in examples]
    prompts = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    prompt_ids = tokenizer(prompts)["input_ids"]
    solution_ids = tokenizer([solution + TURN_ENDS for _, solution in examples])["input_ids"]
    longest = max(len(prompt) + len(solution) for prompt, solution in zip(prompt_ids, solution_ids, strict=True))
    ids, is_solution = [], []
    for prompt, solution in zip(prompt_ids, solution_ids, strict=True):
        padding = longest - len(prompt) - len(solution)
        ids.append([*prompt, *solution, *[tokenizer.pad_token_id] * padding])
        is_solution.append([False] * len(prompt) + [True] * len(solution) + [False] * padding)
    return ids, is_solution
