"""A Qwen2 of 0.1M parameters that adds badly enough to be interesting, for runs that must end in a minute or two.

Trained here, in seconds, by plain supervised learning on problems as reasoning-gym's basic_arithmetic words them
("Calculate 3 + 4 + 9.") and on solutions of two kinds, four in five of the second:

    3+4=7 7+9=16 \\boxed{16}
    Step by step: 3+4=7 then 7+9=16 so the answer is \\boxed{16}

One addition in ten has a slip. So at temperature 1 and with 24 new tokens, sums of two numbers are right most of the
time; three numbers fit in the terse form only, most of those responses are truncated and wrong. Groups come out all
correct, mixed and none correct, and there is something to learn: no slips, and few words.
"""

from __future__ import annotations

import random
from pathlib import Path

VOCAB_SIZE = 448  # a multiple of 64: 256 bytes, so that any text can be encoded, the special tokens, and whole words
SPECIAL_TOKENS = PAD, TURN_BEGINS, TURN_ENDS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SLIP_RATE, TERSE_RATE = 0.1, 0.2
NUM_STEPS, BATCH_SIZE, LEARNING_RATE, SEED = 500, 32, 5e-3, 0


def build(directory: Path) -> None:
    """Train the model and write it with its tokenizer into `directory` (bfloat16, 0.3 MB)."""
    import torch

    tokenizer = train_tokenizer()
    model = train_model(tokenizer)
    tokenizer.save_pretrained(directory)
    model.to(torch.bfloat16).save_pretrained(directory)


def draw_sum(rng: random.Random) -> str:
    """Two or three numbers from 0 to 10, which is what basic_arithmetic makes of "one digit": "3 + 4 + 9"."""
    return " + ".join(str(rng.randint(0, 10)) for _ in range(rng.choice((2, 3))))


def word_problem(sum_: str) -> str:
    """As basic_arithmetic does in its simple style."""
    return f"Calculate {sum_}."


def word_solution(sum_: str, rng: random.Random) -> str:
    """The sum worked out term by term, tersely or in words, now and then with a slip that is carried to the end."""
    first, *others = map(int, sum_.split(" + "))
    total, steps = first, []
    for number in others:
        slip = rng.choice((1, -1)) if rng.random() < SLIP_RATE else 0
        steps.append(f"{total}+{number}={total + number + slip}")
        total += number + slip
    if rng.random() < TERSE_RATE:
        return f"{' '.join(steps)} \\boxed{{{total}}}"
    return f"Step by step: {' then '.join(steps)} so the answer is \\boxed{{{total}}}"


def train_tokenizer():
    """Byte-level BPE over the words of the task and of the reflection prompt; every digit is its own token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from r3_openrlhf.core.reflection import reflection_message

    rng = random.Random(SEED)
    corpus = []
    for _ in range(400):
        sum_ = draw_sum(rng)
        problem, solution = word_problem(sum_), word_solution(sum_, rng)
        corpus += [f"user\n{problem}", f"assistant\n{solution}", reflection_message(problem, solution)]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(corpus, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=TURN_BEGINS, eos_token=TURN_ENDS, pad_token=PAD, model_max_length=512
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def train_model(tokenizer, *, num_steps: int = NUM_STEPS):
    """Next-token cross-entropy on the solutions, on one thread: more gain nothing here and crawl on a busy machine.

    torch's number of threads and global random state are as before afterwards.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # heads of 32 entries: vLLM's attention on a CPU does not take every size
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Qwen2ForCausalLM(config)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
    rng = random.Random(SEED)
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 20) * (1 - step / num_steps)
        ids_BT, is_solution_BT = (torch.tensor(rows) for rows in draw_batch(tokenizer, rng))
        hidden_BAH = model.model(ids_BT[:, :-1]).last_hidden_state
        predicts = is_solution_BT[:, 1:]
        loss = cross_entropy(model.lm_head(hidden_BAH[predicts]), ids_BT[:, 1:][predicts])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    torch.set_num_threads(threads)
    return model.eval()


def draw_batch(tokenizer, rng: random.Random) -> tuple[list[list[int]], list[list[bool]]]:
    """BATCH_SIZE rows of prompt + solution, padded on the right, and which of the tokens are the solution's."""
    sums = [draw_sum(rng) for _ in range(BATCH_SIZE)]
    turns = [[{"role": "user", "content": word_problem(sum_)}] for sum_ in sums]
    prompts = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    prompt_ids = tokenizer(prompts)["input_ids"]
    solution_ids = tokenizer([word_solution(sum_, rng) + TURN_ENDS for sum_ in sums])["input_ids"]
    longest = max(len(prompt) + len(solution) for prompt, solution in zip(prompt_ids, solution_ids, strict=True))
    ids, is_solution = [], []
    for prompt, solution in zip(prompt_ids, solution_ids, strict=True):
        padding = longest - len(prompt) - len(solution)
        ids.append([*prompt, *solution, *[tokenizer.pad_token_id] * padding])
        is_solution.append([False] * len(prompt) + [True] * len(solution) + [False] * padding)
    return ids, is_solution
