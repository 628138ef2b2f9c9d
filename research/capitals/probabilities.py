"""How likely the untrained SmolLM2-135M-Instruct is to give each answer of train.jsonl: the criterion by which they were chosen
(0.001 to 0.5). Prints the least and the most likely answer, and the mean. Seconds on a CPU."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from r3_openrlhf.runs.models.locate import resolve_model

directory = resolve_model("smollm2")
model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(directory)
found = []
for line in Path(__file__).with_name("train.jsonl").read_text(encoding="utf-8").splitlines():
    row = json.loads(line)
    prompt, answer = (
        tokenizer(text)["input_ids"] for text in (row["problem"], " " + row["answer"])
    )
    with torch.inference_mode():
        logp_TV = (
            model(torch.tensor([prompt + answer]), use_cache=False).logits[0].log_softmax(-1)
        )
    logp = sum(logp_TV[len(prompt) + i - 1, token].item() for i, token in enumerate(answer))
    found.append((torch.tensor(logp).exp().item(), f"{row['problem']} {row['answer']}"))
for name, (probability, text) in (("least", min(found)), ("most", max(found))):
    print(f"{name} likely: {probability:.4f} {text}")
print(f"mean of {len(found)}: {sum(probability for probability, _ in found) / len(found):.4f}")
