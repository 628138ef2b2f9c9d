"""The shared part of the small models made here: a tokenizer, and supervised training.

B rows, T tokens, A = T - 1 predicted positions, H hidden size."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

SPECIAL_TOKENS = PAD, TURN_BEGINS, TURN_ENDS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MAX_TOKENS = 512  # of a prompt and its response together
BATCH_SIZE = 32

Example = tuple[str, str]  # user turn, solution
Batch = tuple[list[list[int]], list[list[bool]]]  # token ids [B, T]; True: a solution's


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Size and training of one model. Every number is part of its weights. Default: 0.1M parameters."""

    vocab_size: int = 448  # 64 n: 256 bytes, special tokens, whole words
    hidden_size: int = 64
    intermediate_size: int = 128
    num_layers: int = 2
    num_attention_heads: int = 2  # heads of 32 entries: vLLM on a CPU takes few sizes
    num_key_value_heads: int = 1
    learning_rate: float = 5e-3  # at its highest; it falls to 0 in a straight line
    num_warmup_steps: int = 20
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """What a model learns: `solve` makes an example of what `draw` draws."""

    draw: Callable[[random.Random], Any]
    solve: Callable[[Any, random.Random], Example]
    num_steps: int = 500
    recipe: Recipe = Recipe()

    def build(self, directory: Path) -> None:
        """Train the model and write it with its tokenizer into `directory` (bfloat16, 0.3 MB)."""
        write(
            directory,
            self.train_tokenizer(),
            self.recipe,
            self.draw_examples,
            num_steps=self.num_steps,
        )

    def train_tokenizer(self) -> PreTrainedTokenizerFast:
        """Over the turns of 400 examples and their reflection prompts."""
        from r3_openrlhf.method.core.reflection import reflection_message

        rng = random.Random(self.recipe.seed)
        corpus: list[str] = []
        for problem, solution in (self.solve(self.draw(rng), rng) for _ in range(400)):
            corpus += [
                f"user\n{problem}",
                f"assistant\n{solution}",
                reflection_message(problem, solution),
            ]
        return train_tokenizer(corpus, vocab_size=self.recipe.vocab_size)

    def draw_examples(self, rng: random.Random) -> list[Example]:
        """BATCH_SIZE examples."""
        drawn = [self.draw(rng) for _ in range(BATCH_SIZE)]
        return [self.solve(one, rng) for one in drawn]


def write(
    directory: Path,
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    draw_examples: Callable[[random.Random], Sequence[Example]],
    *,
    num_steps: int,
) -> None:
    """Train a model and write it with its tokenizer (bfloat16). On one thread: more gain nothing
    here and crawl on a busy machine. torch's number of threads is as before afterwards."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = train_model(tokenizer, recipe, draw_examples, num_steps=num_steps)
    torch.set_num_threads(threads)
    tokenizer.save_pretrained(directory)
    model.to(torch.bfloat16).save_pretrained(directory)


def train_tokenizer(
    corpus: Sequence[str], *, vocab_size: int, lines: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Byte-level BPE of `vocab_size` tokens over `corpus`. Digits and `lines` are tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(lines),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(corpus, trainer)
    backend.add_tokens([AddedToken(line, normalized=False) for line in lines])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=TURN_BEGINS,
        eos_token=TURN_ENDS,
        pad_token=PAD,
        model_max_length=MAX_TOKENS,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def train_model(
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    draw_examples: Callable[[random.Random], Sequence[Example]],
    *,
    num_steps: int,
) -> Qwen2ForCausalLM:
    """Train a Qwen2 of random weights with next-token cross-entropy on the solutions, one
    `draw_examples` a step.

    torch's global random state is as before afterwards."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_attention_heads,
        num_key_value_heads=recipe.num_key_value_heads,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    rng = random.Random(recipe.seed)
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = (
                recipe.learning_rate
                * min(1.0, (step + 1) / recipe.num_warmup_steps)
                * (1 - step / num_steps)
            )
        ids_BT, is_solution_BT = (
            torch.tensor(rows) for rows in encode(tokenizer, draw_examples(rng))
        )
        hidden_BAH = model.model(ids_BT[:, :-1], use_cache=False).last_hidden_state
        predicts_BA = is_solution_BT[:, 1:]
        loss = cross_entropy(model.lm_head(hidden_BAH[predicts_BA]), ids_BT[:, 1:][predicts_BA])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def encode(tokenizer: PreTrainedTokenizerFast, examples: Sequence[Example]) -> Batch:
    """Encode each example as a row of prompt + solution, padded right, with the mask of the solution."""
    turns = [[{"role": "user", "content": message}] for message, _ in examples]
    prompts = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    prompt_ids = tokenizer(prompts)["input_ids"]
    solution_ids = tokenizer([solution + TURN_ENDS for _, solution in examples])["input_ids"]
    longest = max(
        len(prompt) + len(solution)
        for prompt, solution in zip(prompt_ids, solution_ids, strict=True)
    )
    ids, is_solution = [], []
    for prompt, solution in zip(prompt_ids, solution_ids, strict=True):
        padding = longest - len(prompt) - len(solution)
        ids.append([*prompt, *solution, *[tokenizer.pad_token_id] * padding])
        is_solution.append([False] * len(prompt) + [True] * len(solution) + [False] * padding)
    return ids, is_solution
