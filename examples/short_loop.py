"""R³ in a loop of your own: no trainer, no engine.

    python examples/short_loop.py HuggingFaceTB/SmolLM2-135M-Instruct 100       # steps

With a file as history, a run that continues calls r3.roll_back."""

import sys
from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from r3_openrlhf import R3, ChatPrompts, Rollout, Verdict


def logprobs_and_entropy(model, prompt_ids, response_ids):
    """Of one response, [tokens] each."""
    ids = torch.as_tensor([*prompt_ids, *response_ids], device=model.device)[None]
    logits = (
        model(ids, use_cache=False).logits[0, len(prompt_ids) - 1 : -1].float().log_softmax(-1)
    )
    return logits.gather(1, ids[0, len(prompt_ids) :, None])[:, 0], -(
        logits.exp() * logits
    ).sum(1)


def train(
    path: str,
    *,
    steps: int,
    problems_per_step: int = 4,
    limit: int = 32,
    group: int = 8,
    clip: float = 0.2,
):
    tokenizer, model = (
        AutoTokenizer.from_pretrained(path),
        AutoModelForCausalLM.from_pretrained(path),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    problems = [
        SimpleNamespace(uid=str(n), problem=f"{n}+{n}=", answer=str(2 * n)) for n in range(64)
    ]
    r3, render = R3(history=":memory:"), ChatPrompts(tokenizer, max_prompt_tokens=1024)
    for step in range(steps):
        epoch, place = divmod(step * problems_per_step, len(problems))
        due, rollouts, groups, entropies = (
            problems[place : place + problems_per_step],
            [],
            [],
            [],
        )
        # reflection
        for number, one in enumerate(
            r3.prompts(due, step=step, epoch=epoch + 1, render=render)
        ):
            prompt = tokenizer(one.prompt, return_tensors="pt", add_special_tokens=False)
            output = model.generate(
                **prompt, do_sample=True, max_new_tokens=limit, num_return_sequences=group
            )
            for ids in output[:, prompt["input_ids"].size(1) :].tolist():
                ended = tokenizer.eos_token_id in ids
                ids = ids[: ids.index(tokenizer.eos_token_id) + 1] if ended else ids
                right = (
                    tokenizer.decode(ids, skip_special_tokens=True).strip()
                    == one.problem.answer
                )
                logprobs, entropy = (
                    x.detach() for x in logprobs_and_entropy(model, prompt["input_ids"][0], ids)
                )
                rollouts.append(
                    Rollout(
                        uid=one.problem.uid,
                        context=one.context,
                        prompt_ids=prompt["input_ids"][0].int(),
                        response_ids=ids,
                        response_logprobs=logprobs,
                        verdict=Verdict.CORRECT if right else Verdict.WRONG,
                        reward=float(right),
                        truncated=not ended,
                        finish_reason="stop" if ended else "length",
                        policy_step=step,
                        epoch=epoch + 1,
                    )
                )
                groups.append(number), entropies.append(entropy.numpy())
        # replay, ranking, advantages
        batch, gains = (
            r3.mix(rollouts, step=step, entropy=entropies, groups=groups),
            [],
        )
        for row in batch.trained:
            now, _ = logprobs_and_entropy(
                model, batch.prompt_ids_of(row), row.rollout.response_ids
            )
            ratio = (
                now
                - (
                    now.detach()
                    if row.old_logprobs is None
                    else torch.as_tensor(row.old_logprobs)
                )
            ).exp()
            gain = torch.minimum(
                ratio * row.advantage, ratio.clamp(1 - clip, 1 + clip) * row.advantage
            )
            # binds where A < 0
            gains.append(gain.clamp(min=-r3.settings.replay.dual_clip * abs(row.advantage)))
        optimizer.zero_grad()
        torch.cat(gains).mean().neg().backward()
        optimizer.step()
        r3.remember(rollouts, step=step, epoch=epoch + 1)
        yield r3.metrics(batch, step=step)


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].isdecimal() or int(sys.argv[2]) < 1:
        sys.exit(f"{__doc__}\nGive a model and a number of steps of 1 or more.")
    for line in train(sys.argv[1], steps=int(sys.argv[2])):
        print(line["accuracy"], line["r3/replay/recalled"])
