"""vLLM, in the one file of the evaluation that imports it. All requests wait in the engine from the beginning.

Requests are single responses, not groups: the engine is free to refill its batch with any of them, and each has a seed of its
own where the platform can take one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from r3_openrlhf.config import BenchmarkConfig
from r3_openrlhf.machine.cpu.cpu_platform import ENVIRONMENT, KV_CACHE_BYTES, is_needed
from r3_openrlhf.method.errors import ConfigError, R3Error
from r3_openrlhf.problems.stops import stop_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled response, still as token ids."""

    key: str
    token_ids: Sequence[int]  # with the end token
    finish_reason: str


class Engine:
    """An offline vLLM engine. Its processes end with `close`.

    Raises R3Error where vLLM cannot load the model (a directory or hub name).
    """

    def __init__(
        self,
        model: str,
        *,
        max_model_len: int,
        options: BenchmarkConfig,
        trusted: bool = False,
        stops: tuple[Sequence[int], Sequence[str]] = ((), ()),
    ) -> None:
        self._on_cpu = is_needed()
        settings: dict[str, Any] = {}
        if self._on_cpu:
            os.environ.update({key: value for key, value in ENVIRONMENT.items() if key not in os.environ})
            settings = {"kv_cache_memory_bytes": KV_CACHE_BYTES, "enforce_eager": True}
        from vllm import LLM, SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        if self._on_cpu and options.tensor_parallel_size == 1:
            # By its name vllm/platforms/cpu.py:271 replaces it: the worker would be one more process that imports everything
            settings["distributed_executor_backend"] = UniProcExecutor

        temporary = tempfile.mkdtemp(prefix="r3-")
        weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
        try:
            with _files_in(temporary):
                self.llm = LLM(
                    model=model,
                    trust_remote_code=trusted,
                    max_model_len=max_model_len,
                    seed=options.seed,
                    tensor_parallel_size=options.tensor_parallel_size,
                    gpu_memory_utilization=options.gpu_memory_utilization,
                    disable_log_stats=True,
                    **settings,
                )
        except (RuntimeError, ValueError, OSError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise R3Error(f"vLLM cannot serve {model}: {lines[-1] if lines else type(error).__name__}") from error
        self._engine = self.llm.llm_engine
        # As in training: no detokenization in the engine, the text is decoded once from all tokens.
        self._params = SamplingParams(
            temperature=options.temperature,
            top_p=options.top_p,
            max_tokens=options.max_new_tokens,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        stop_at(self._params, *stops)

    def submit(self, key: str, prompt_ids: Sequence[int], *, seed: int) -> None:
        """Queue one response. Returns at once; `finished` hands it out under `key`."""
        params = self._params.clone()
        # vLLM 0.29 on a CPU dies of seeded requests ("CPU Generator does not use offset") in mixed batches
        params.seed = None if self._on_cpu else seed
        self._engine.add_request(key, {"prompt_token_ids": list(prompt_ids)}, params)

    @property
    def is_busy(self) -> bool:
        """True if a response is unfinished."""
        return self._engine.has_unfinished_requests()

    def finished(self) -> list[Completion]:
        """The responses that ended in the next step of the engine, often none. Raises R3Error when the engine is dead."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            outputs = self._engine.step()
        except EngineDeadError as error:
            raise R3Error(
                "the engine died while it sampled (eval.log says why); finished problems are kept and the same command "
                "continues with the others"
            ) from error
        return [_completion(output) for output in outputs if output.finished]

    def close(self) -> None:
        """Ends the engine's processes."""
        self._engine.engine_core.shutdown()


@contextlib.contextmanager
def _files_in(folder: str) -> Iterator[None]:
    """vLLM leaves the file by which its processes meet where temporary files are (vllm/utils/network_utils.py:136)."""
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        tempfile.tempdir = before[0]
        os.environ.pop("TMPDIR")
        if before[1] is not None:
            os.environ["TMPDIR"] = before[1]


def _completion(output) -> Completion:
    response = output.outputs[0]
    if response.finish_reason not in ("stop", "length"):  # "abort", "error": no response of the model
        raise R3Error(f"the engine gave up a response ({response.finish_reason}); eval.log may say why")
    return Completion(key=output.request_id, token_ids=list(response.token_ids), finish_reason=response.finish_reason)


def check_context(model: str, *, max_prompt_tokens: int, max_new_tokens: int, trusted: bool = False) -> int:
    """Tokens of context that the engine needs. Raises ConfigError when the model has fewer positions."""
    from transformers import AutoConfig

    needed = max_prompt_tokens + max_new_tokens
    found = AutoConfig.from_pretrained(model, trust_remote_code=trusted).get_text_config()
    positions = getattr(found, "max_position_embeddings", None)
    if positions is not None and needed > positions:
        raise ConfigError(
            f"--max-new-tokens is {max_new_tokens} and the longest prompt has {max_prompt_tokens} tokens, but {model} has "
            f"{positions} positions; use --max-new-tokens {positions - max_prompt_tokens} or fewer"
        )
    return needed
