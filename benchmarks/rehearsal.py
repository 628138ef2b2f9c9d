"""A full-size training on a few cores: everything is real but the GPU arithmetic.

    python benchmarks/rehearsal.py --scale 64 --shorter 8 --steps 945 --kill-at 900 --output rehearsal.json
    python benchmarks/rehearsal.py --scale 1 --shorter 1 --steps 3 --output unscaled.json

Real: the controller (R3Trainer and upstream's loop), data loader, samples generator, rollout executor, reward service (a
process of its own, asked over HTTP), experience maker, history store, run directory, the bookkeeping of checkpoints, resume.
Simulated, by Ray actors in their places: the engines' model (token ids and log-probs come from a population of problems) and
the policy's (its log-probs are the engine's plus noise, its entropies are drawn, its update returns statistics). The
policy's checkpoint is a small file of the right names.

The population is that of history_coverage.py: pass rates of Beta(0.5, 0.5), log-odds that rise by 0.6 an epoch, log-normal
lengths, wrong responses 1.6 times as long, cut at the limit. `--scale` divides problems, prompts a step and history.max_bytes
(40,315, 128 and 20 GB); steps an epoch (315), checkpoints and lengths stay. `--shorter` divides lengths, and the history's bytes
once more. Stop it after any step with Ctrl-C: what was measured so far is in the run directory (rehearsal.jsonl).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).parent)]  # runs from a checkout that is not installed

PROBLEMS, PROMPTS, SAMPLES, TOKENS, EPOCHS = 40_315, 128, 16, 8192, 3
HISTORY_BYTES = 20e9
SAVE_STEPS, KEPT = 20, 3
LINES = "rehearsal.jsonl"
SUMS = (
    *(
        "groups/collapsed_before",
        "replay/hits",
        "replay/misses",
        "replay/recalled",
        "history/never_sampled",
        "history/evicted",
    ),
    *(
        "history/too_old",
        "reflection/groups",
        "reflection/hard_prompts",
        "reflection/without_error",
        "reflection/without_room",
    ),
    *("grading/ungraded", "ranking/rows"),
)


# ── the simulated part; these classes run inside Ray actors ──


class Population:
    """Pass rates and lengths, by the problem's number; the same in every process that has the seed."""

    def __init__(self, num: int, *, mean_tokens: float, longest: int, seed: int = 0) -> None:
        import numpy as np

        rng = np.random.default_rng(seed)
        rate = rng.beta(0.5, 0.5, num).clip(1e-4, 1 - 1e-4)
        self.log_odds = np.log(rate / (1 - rate))
        self.factor = np.exp(0.4 * rng.standard_normal(num))
        self.longest = longest
        draws = np.exp(0.5 * rng.standard_normal(200_000)) * self.factor[rng.integers(num, size=200_000)]
        draws *= np.where(rng.random(200_000) < rate[rng.integers(num, size=200_000)], 1.0, 1.6)
        low, high = 1.0, 20_000.0
        for _ in range(40):
            self.median = (low + high) / 2
            low, high = (
                (self.median, high)
                if (self.median * draws).clip(8, longest).mean() < mean_tokens
                else (low, self.median)
            )

    def draw(self, rng: Any, problem: int, *, epoch: int) -> tuple[int, bool]:
        """(tokens, right?) of one response. What is cut is wrong."""
        import math

        rate = 1 / (1 + math.exp(-self.log_odds[problem] - 0.6 * (epoch - 1)))
        right = rng.random() < rate
        length = self.median * self.factor[problem] * (1.0 if right else 1.6) * math.exp(0.5 * rng.standard_normal())
        length = max(16, int(length))
        return (length, right) if length < self.longest else (self.longest, False)


class SimulatedEngine:
    """In the place of OpenRLHF's vLLM actor: the real rollout executor on a model that is a random number generator."""

    def __init__(self, number: int, options: dict) -> None:
        import numpy as np

        sys.path[:0] = options["path"]
        from r3_openrlhf.machine.cpu import cpu_platform

        cpu_platform.install()
        from _host_work import token_pool, topk_logprobs

        from r3_openrlhf.stack.rollout_executor import AgentExecutor

        self.executor = AgentExecutor()
        self.population = Population(
            options["problems"], mean_tokens=options["mean_tokens"], longest=options["longest"]
        )
        self.rng = np.random.default_rng((number, options["steps_done"]))
        self.pool = token_pool(options["vocabulary"], 1_000_000, seed=7)
        self.logprobs = topk_logprobs(200_000, 1, seed=number)[:, 0].copy()
        self.steps_an_epoch = options["steps_an_epoch"]
        self.endings: dict[str, list[int]] = {}

    async def generate_responses(
        self, prompt, label, sampling_params, max_length, hf_tokenizer, num_samples=1, images=None
    ):
        """As upstream's (vllm_engine.py:178)."""
        import asyncio

        from r3_openrlhf.problems.training_file import Label

        record = Label.from_json(label)
        asked = SimpleNamespace(
            problem=int(record.references[0]) - 1, tokenizer=hf_tokenizer, generate=None, epoch=self.epoch
        )
        asked.generate = lambda prompt_ids, params: self._generate(asked, params)
        return await asyncio.gather(
            *[
                self.executor.execute(
                    prompt=prompt,
                    label=label,
                    sampling_params=sampling_params,
                    max_length=max_length,
                    hf_tokenizer=hf_tokenizer,
                    llm_engine=asked,
                )
                for _ in range(num_samples)
            ]
        )

    async def _generate(self, asked: SimpleNamespace, params: Any) -> SimpleNamespace:
        length, right = self.population.draw(self.rng, asked.problem, epoch=asked.epoch)
        answer = asked.problem + 1 if right else asked.problem + 100_000
        ending = asked.tokenizer(f" The answer is \\boxed{{{answer}}}.", add_special_tokens=False)["input_ids"]
        cut = length >= self.population.longest
        start = int(self.rng.integers(len(self.pool) - length))
        ids = self.pool[start : start + length].tolist()
        if not cut:
            ids[-len(ending) :] = ending
        at = int(self.rng.integers(len(self.logprobs) - length))
        flat = SimpleNamespace(logprobs=self.logprobs[at : at + length])
        output = SimpleNamespace(token_ids=ids, logprobs=flat, finish_reason="length" if cut else "stop")
        return SimpleNamespace(outputs=[output])

    epoch = 1

    def sampled_for(self, step: int) -> None:
        """The policy improves with the epochs."""
        self.epoch = 1 + step // self.steps_an_epoch

    def get_num_unfinished_requests(self) -> int:
        return 0

    def wake_up(self, tags=None) -> None: ...

    def sleep(self, level=1) -> None: ...


class SimulatedPolicy:
    """In the place of one rank of the policy: right shapes, no model."""

    def __init__(self, rank: int, options: dict) -> None:
        import numpy as np

        sys.path[:0] = options["path"]
        from r3_openrlhf.machine.cpu import cpu_platform

        cpu_platform.install()  # importing OpenRLHF's records needs flash-attn's helpers
        self.rank, self.options = rank, options
        self.rng = np.random.default_rng((rank, 1))
        self.wanted: list[list[bool]] = []
        self.entropy: list = []
        self.rows = 0

    def execute_batch(self, method_name, all_data, start_idx, end_idx):
        """As upstream's (launcher.py)."""
        kwargs = {key: value[start_idx:end_idx] for key, value in all_data.items()}
        return [
            getattr(self, method_name)(**{key: value[i] for key, value in kwargs.items()})
            for i in range(end_idx - start_idx)
        ]

    def expect_entropy(self, rows) -> None:
        self.wanted.append(rows)

    def forward(self, sequences, action_mask=None, attention_mask=None, **others):
        """Log-probs as an engine's would be: most tokens nearly certain. The gap to the engine's is not simulated; the
        run's stop.max_abs_logprob_gap is set accordingly."""
        import torch

        if self.wanted:
            rows = self.wanted.pop(0)
            drawn = torch.tensor(self.rng.uniform((1.0, 0.0), (2.0, 1.0), (len(rows), 2)), dtype=torch.float32)
            drawn[~torch.tensor(rows)] = float("nan")
            self.entropy.append(SimpleNamespace(statistics_B2=drawn, seconds=0.0, tokens={}))
        return -0.1 * action_mask.float()

    def pop_entropy(self):
        found, self.entropy = self.entropy, []
        return found

    def append(self, experience) -> None:
        self.rows += len(experience.sequences)

    def fit(self, kl_ctl: float = 0) -> dict:
        rows, self.rows = self.rows, 0
        return {"policy_loss": 0.0, "actor_grad_norm": 1.0, "actor_lr": 1e-6, "rows": float(rows)}

    def empty_cache(self) -> None: ...

    def reload_states(self) -> None: ...

    def offload_states(self) -> None: ...

    def broadcast_to_vllm(self) -> None: ...

    def save_checkpoint(self, tag, client_states=None, metric_value=None, metric_key=None) -> None:
        """DeepSpeed's directory names: the newest KEPT of them, `latest` written last."""
        import shutil

        import torch

        if self.rank:
            return
        folder = Path(self.options["checkpoints"]) / "_actor"
        (folder / tag).mkdir(parents=True, exist_ok=True)
        torch.save(client_states, folder / tag / "client_states.pt")
        (folder / "latest").write_text(tag)
        old = sorted(folder.glob("global_step*"), key=lambda path: int(path.name.removeprefix("global_step")))
        for path in old[:-KEPT]:
            shutil.rmtree(path)

    def get_checkpoint_states(self) -> dict:
        import torch

        folder = Path(self.options["checkpoints"]) / "_actor"
        tag = (folder / "latest").read_text()
        return torch.load(folder / tag / "client_states.pt", weights_only=False)


# ── the run: one process, the controller ──


def configuration(options: argparse.Namespace, url: str):
    """The full-size experiment with its sizes divided."""
    from r3_openrlhf.config.loading import load_config
    from r3_openrlhf.runs.models.locate import resolve_model

    prompts, longest = max(1, PROMPTS // options.scale), TOKENS // options.shorter
    return load_config(
        "r3_1p5b_deepscaler_8gpu",
        [
            f"run_dir={options.directory}/run",
            f"model.path={resolve_model('smollm2')}",  # its tokenizer
            f"data.path={options.directory}/problems.jsonl",
            f"data.max_len={longest + 4096 // options.shorter + 512}",
            f"rollout.batch_size={prompts}",
            f"rollout.max_new_tokens={longest}",
            f"reflection.max_attempt_tokens={2048 // options.shorter}",
            f"history.max_bytes={max(5_000_000, int(HISTORY_BYTES / options.scale / options.shorter))}",
            f"cluster.gpus_per_node={options.ranks}",
            f"train.num_epochs={EPOCHS}",
            f"train.max_steps={options.steps}",
            f"checkpoint.save_steps={SAVE_STEPS}",
            f"checkpoint.max_num={KEPT}",
            "checkpoint.save_hf=false",
            "reward.max_ungraded_rate=0.1",
            "stop.max_abs_logprob_gap=1000",  # the policy is no model
            "stop.max_p99_logprob_gap=1000",
            f"reward.urls=[{url}]",
        ],
    )


def problems_file(path: Path, num: int) -> None:
    """Problem i has the answer i + 1: the engine knows it by its reference."""
    text = "Find the number of integer solutions, and explain each step. " * 5
    with path.open("w") as file:
        for i in range(num):
            file.write(json.dumps({"problem": f"Problem {i}. {text}", "answer": str(i + 1)}) + "\n")


class Handles:
    """Upstream's group of model actors, around actors that are there."""

    def __new__(cls, actors):
        from openrlhf.trainer.ray.launcher import RayActorGroup

        group = RayActorGroup.__new__(RayActorGroup)
        group._actor_handlers, group.duplicate_actors = actors, 1
        return group


def run(options: argparse.Namespace) -> None:
    """The controller's process: a run from its newest checkpoint to --steps."""
    began = time.time()
    from r3_openrlhf.machine.cpu import cpu_platform

    cpu_platform.install()
    import ray
    from openrlhf.utils import get_strategy
    from transformers import AutoTokenizer

    from r3_openrlhf.machine.ray_start import patient_raylet
    from r3_openrlhf.problems.training_file import prepare
    from r3_openrlhf.runs.directory import RunDirectory
    from r3_openrlhf.stack.arguments import openrlhf_arguments
    from r3_openrlhf.stack.environment import environment_of
    from r3_openrlhf.stack.upstream_parser import check_arguments

    config = configuration(options, options.url)
    os.environ |= environment_of(config, "cuda")
    directory = RunDirectory(config.run_dir)
    num = max(1, PROBLEMS // options.scale)
    problems_file(Path(config.data.path), num)
    directory.create(config)
    tokenizer = AutoTokenizer.from_pretrained(config.model.path)
    prepare(config, tokenizer, directory.data)
    latest = directory.checkpoints / "_actor" / "latest"
    done = int(latest.read_text().removeprefix("global_step")) if latest.is_file() else 0
    arguments = openrlhf_arguments(config, directory, model_dir=config.model.path, platform="cuda", resume=bool(done))
    args = check_arguments(arguments)
    given = {
        "path": [str(REPOSITORY), str(Path(__file__).parent)],
        "problems": num,
        "mean_tokens": options.mean_tokens / options.shorter,
        "longest": config.rollout.max_new_tokens,
        "vocabulary": len(tokenizer),
        "steps_an_epoch": -(-num // config.rollout.batch_size),
        "steps_done": done,
        "checkpoints": str(directory.checkpoints),
    }
    with patient_raylet():
        ray.init(
            address="local",
            num_cpus=options.engines + options.ranks + 2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=int(options.object_store),
            runtime_env={"env_vars": environment_of(config, "cuda") | {"OMP_NUM_THREADS": "1"}},
            _system_config={"worker_niceness": 0},
        )
    try:
        engines = [ray.remote(SimulatedEngine).remote(i, given) for i in range(options.engines)]
        policy = Handles([ray.remote(SimulatedPolicy).remote(i, given) for i in range(options.ranks)])
        trainer = measured_trainer()(
            config.model.path,
            get_strategy(args),
            policy,
            None,
            None,
            None,
            engines,
            do_sample=True,
            max_len=config.data.max_len,
            max_new_tokens=config.rollout.max_new_tokens,
            temperature=config.rollout.temperature,
            top_p=config.rollout.top_p,
        )
        trainer.began = began
        trainer.fit()
    finally:
        ray.shutdown()


def measured_trainer():
    """R3Trainer, with a clock around each of its parts."""
    import ray

    from r3_openrlhf import method
    from r3_openrlhf.stack import samples_generator
    from r3_openrlhf.stack.trainer import R3Trainer

    class Measured(R3Trainer):
        began = 0.0

        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            self.cpu = self.wall = 0.0
            self.own = [0.0, 0.0]  # wall and CPU seconds of R³'s own parts in this step
            for owner, names in (
                (self.samples_generator, "_reflections"),
                (samples_generator, "rollout_from_response"),
                (method, "recall coverage_metrics assign_advantages"),
                (self.experience_maker, "_batch _samples _set_old_logprobs _set_advantages _report"),
                (self.history, "commit_step set_rollback_floor"),
                (self.run, "write_rollouts append_metrics"),
            ):
                for name in names.split():
                    setattr(owner, name, self._clocked(getattr(owner, name)))
            before = self.samples_generator.before_sampling

            def next_step() -> None:
                before()
                epoch_of = self.samples_generator.step
                ray.get([engine.sampled_for.remote(epoch_of) for engine in self.vllm_engines])
                self.cpu, self.wall, self.own = time.process_time(), time.perf_counter(), [0.0, 0.0]

            self.samples_generator.before_sampling = next_step

        def _clocked(self, function):
            def call(*args, **kwargs):
                wall, cpu = time.perf_counter(), time.thread_time()
                try:
                    return function(*args, **kwargs)
                finally:
                    self.own[0] += time.perf_counter() - wall
                    self.own[1] += time.thread_time() - cpu

            return call

        def save_logs_and_checkpoints(self, global_step, logs_dict=None, client_states=None) -> None:
            started = time.perf_counter()
            try:
                super().save_logs_and_checkpoints(global_step, logs_dict, client_states)
            finally:
                self._measure(global_step, logs_dict or {}, time.perf_counter() - started)

        def _measure(self, step: int, status: dict, written_s: float) -> None:
            import psutil

            numbers = {key: value for key, value in status.items() if isinstance(value, (int, float))}
            waiting = ("timing/generation", "timing/ppo_train", "timing/broadcast")
            line = {
                "step": step,
                "epoch": numbers["epoch"],
                "since_start_s": time.time() - self.began,
                "wall_s": time.perf_counter() - self.wall,
                "controller_cpu_s": time.process_time() - self.cpu,
                "own_wall_s": self.own[0],
                "own_cpu_s": self.own[1],
                "written_s": written_s,
                "rss": psutil.Process().memory_info().rss,
                "object_store": _object_store_bytes(),
                "disk": _disk_bytes(self.run.path),
                "history": sum(path.stat().st_size for path in self.run.path.glob("history.sqlite*")),
                **{key: numbers.get(key, 0.0) for key in waiting},
                **{key: value for key, value in numbers.items() if key.startswith("r3/")},
                "generated_tokens": numbers.get("generated_tokens", 0.0),
            }
            with (self.run.path.parent / LINES).open("a") as file:
                file.write(json.dumps(line) + "\n")

    return Measured


def _object_store_bytes() -> int:
    """Of the object store, the pages that were ever touched: its memory is shared by the raylet and never given back."""
    import psutil

    raylets = [child for child in psutil.Process().children(recursive=True) if child.name() == "raylet"]
    return sum(raylet.memory_info().shared for raylet in raylets)


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# ── around the run ──


def rehearse(options: argparse.Namespace) -> dict:
    """Starts the reward service and the run, kills and resumes it, and reports."""
    folder = Path(options.directory)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "service.log").open("w") as log:
        code = "from r3_openrlhf.cli import main; main()"
        service = subprocess.Popen(
            [sys.executable, "-c", code, "serve-rewards", "--port", "0", "--workers", "2", "--no-length-reward"],
            stdout=log,
            stderr=log,
        )
        resumed_s = None
        try:
            options.url = _address(service, folder / "service.log")
            if options.kill_at:
                _run(options, until=options.kill_at)
                resumed_s = _resumed(options)
            else:
                _run(options, until=None)
        finally:
            service.terminate()
            service.wait()
    lines = [json.loads(line) for line in (folder / LINES).read_text().splitlines()]
    return {
        "options": {k: v for k, v in vars(options).items() if k != "url"},
        **report(lines, resumed_s),
        "steps": lines,
    }


def _address(service: subprocess.Popen, log: Path) -> str:
    """The service says where it listens."""
    while service.poll() is None:
        if found := re.search(r"http://[\w.]+:\d+", log.read_text()):
            return found.group()
        try:
            service.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            continue
    raise SystemExit(f"the reward service did not start; see {log}")


def _child(options: argparse.Namespace) -> subprocess.Popen:
    given = [
        f"--{key.replace('_', '-')}={value}"
        for key, value in vars(options).items()
        if value is not None and key != "child"
    ]
    log = (Path(options.directory) / "controller.log").open("a")
    return subprocess.Popen(
        [sys.executable, __file__, *given, "--child"], stdout=log, stderr=log, start_new_session=True
    )


def _last(options: argparse.Namespace) -> dict:
    file = Path(options.directory) / LINES
    lines = file.read_text().splitlines() if file.is_file() else []
    return json.loads(lines[-1]) if lines else {"step": 0}


def _run(options: argparse.Namespace, *, until: int | None) -> None:
    """To the end, or until a step is done, where the process and what it started are killed."""
    child = _child(options)
    try:
        while child.poll() is None and not (until and _last(options)["step"] >= until):
            try:
                child.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
        if child.poll() not in (None, 0):
            raise SystemExit(f"the run failed; see {options.directory}/controller.log")
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _resumed(options: argparse.Namespace) -> float:
    """Seconds from the command to the end of its first step, less that step."""
    file = Path(options.directory) / LINES
    known = len(file.read_text().splitlines())
    _run(options, until=None)
    first = json.loads(file.read_text().splitlines()[known])
    return first["since_start_s"] - first["wall_s"]


def report(lines: list[dict], resumed_s: float | None) -> dict:
    """Means and medians of what was asked for, by epoch where it changes."""
    import statistics

    def median(key: str, of: list[dict]) -> float:
        return statistics.median(line.get(key, 0.0) for line in of) if of else 0.0

    late = [line for line in lines if line["step"] >= 50] or lines
    found: dict[str, Any] = {
        "num_steps": len(lines),
        "wall_s": median("wall_s", lines),
        "controller_cpu_s": median("controller_cpu_s", lines),
        "own_wall_s": median("own_wall_s", lines),
        "own_cpu_s": median("own_cpu_s", lines),
        "parts_s": {
            key: median(key, lines) for key in sorted(lines[-1]) if key.startswith(("r3/time/", "timing/", "written"))
        },
        "rss_at_50": late[0]["rss"],
        "rss_at_end": lines[-1]["rss"],
        "rss_max": max(line["rss"] for line in lines),
        "object_store_max": max(line["object_store"] for line in lines),
        "disk_at_end": lines[-1]["disk"],
        "history_at_end": lines[-1]["history"],
        "tokens_a_step": statistics.fmean(line["generated_tokens"] for line in lines),
        "resumed_s": resumed_s,
    }
    found["epochs"] = [
        _epoch(int(epoch), [line for line in lines if line["epoch"] == epoch]) for epoch in _epochs(lines)
    ]
    return found


def _epochs(lines: list[dict]) -> list[float]:
    return sorted({line["epoch"] for line in lines})


def _epoch(epoch: int, lines: list[dict]) -> dict:
    """Sums over an epoch. coverage: of the collapsed groups whose other verdict was ever sampled, those with something to
    recall."""
    total = {key: sum(line.get(f"r3/{key}", 0.0) for line in lines) for key in SUMS}
    hits, misses, never = (total[key] for key in ("replay/hits", "replay/misses", "history/never_sampled"))
    known = hits + misses - never
    return {"epoch": epoch, "steps": len(lines), "coverage": hits / known if known else None, **total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--scale", type=int, default=64, help="divides problems, prompts a step and the history's bytes"
    )
    parser.add_argument("--shorter", type=int, default=1, help="divides lengths")
    parser.add_argument("--steps", type=int, default=945)
    parser.add_argument("--kill-at", type=int, help="kill the run behind this step, and resume it")
    parser.add_argument("--mean-tokens", type=float, default=4096.0, help="of a full-length response in epoch 1")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--object-store", type=float, default=2e9)
    parser.add_argument("--directory", help="the run directory; default: a temporary one")
    parser.add_argument("--output")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run(options)
        return
    with tempfile.TemporaryDirectory() as temporary:
        options.directory = options.directory or temporary
        found = rehearse(options)
    print(json.dumps({key: value for key, value in found.items() if key != "steps"}, indent=1))
    if options.output:
        Path(options.output).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
