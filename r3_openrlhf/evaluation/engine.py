"""vLLM, in the one file of the evaluation that imports it. All requests wait in the engine."""

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from r3_openrlhf.config import BenchmarkConfig
from r3_openrlhf.machine.cpu.cpu_platform import ENVIRONMENT, KV_CACHE_BYTES, is_needed
from r3_openrlhf.method.errors import ConfigError, R3Error
from r3_openrlhf.problems.stops import stop_at
from r3_openrlhf.runs.endings import Ending, ending_of
from r3_openrlhf.runs.models.finite_weights import check_weights
from r3_openrlhf.runs.models.model_config import read_config

# token ids of the prompt, a seed for each response
Request = tuple[Sequence[int], Sequence[int]]
Completion = tuple[Sequence[int], str]  # token ids with the end token, why it ended


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
        check_weights(model)
        self._on_cpu = is_needed()
        settings: dict[str, Any] = {}
        if self._on_cpu:
            os.environ.update(
                {key: value for key, value in ENVIRONMENT.items() if key not in os.environ}
            )
            settings = {"kv_cache_memory_bytes": KV_CACHE_BYTES, "enforce_eager": True}
        from vllm import LLM, SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        if self._on_cpu and options.tensor_parallel_size == 1:
            # By name vllm/platforms/cpu.py:271 replaces it: the worker would be one more process
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
            raise R3Error(
                f"vLLM cannot serve {model}: {lines[-1] if lines else type(error).__name__}"
            ) from error
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

    def sample(self, requests: Sequence[Request]) -> Iterator[tuple[int, list[Completion]]]:
        """Yield number and responses of each request, in the order in which they are finished.

        Every response is a request to vLLM, which is free to refill its batch with any of them.
        Raises R3Error when the engine is dead.
        """
        for number, (prompt_ids, seeds) in enumerate(requests):
            for index, seed in enumerate(seeds):
                params = self._params.clone()
                # vLLM 0.29 on a CPU dies of seeded requests in mixed batches
                params.seed = None if self._on_cpu else seed
                self._engine.add_request(
                    f"{number}/{index}", {"prompt_token_ids": list(prompt_ids)}, params
                )
        finished: dict[int, dict[int, Completion]] = {
            number: {} for number in range(len(requests))
        }
        while self._engine.has_unfinished_requests():
            for output in self._step():
                number, index = map(int, output.request_id.split("/"))
                response = output.outputs[0]
                if (
                    ending_of(response.finish_reason, num_tokens=len(response.token_ids))
                    is Ending.UNGRADED
                ):
                    raise R3Error(
                        f"the engine gave up a response ({response.finish_reason}); eval.log may say why"
                    )
                finished[number][index] = list(response.token_ids), response.finish_reason
                if len(finished[number]) == len(requests[number][1]):
                    yield (
                        number,
                        [completion for _, completion in sorted(finished.pop(number).items())],
                    )

    def _step(self) -> list[Any]:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return [output for output in self._engine.step() if output.finished]
        except EngineDeadError as error:
            raise R3Error(
                "the engine died while it sampled (eval.log says why); finished problems are kept and the same command "
                "continues with the others"
            ) from error

    def close(self) -> None:
        """End the engine's processes."""
        self._engine.engine_core.shutdown()


@contextlib.contextmanager
def _files_in(folder: str) -> Iterator[None]:
    """Remove the file by which vLLM's processes meet (vllm/utils/network_utils.py:136)."""
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        tempfile.tempdir = before[0]
        os.environ.pop("TMPDIR")
        if before[1] is not None:
            os.environ["TMPDIR"] = before[1]


def check_context(
    model: str, *, max_prompt_tokens: int, max_new_tokens: int, trusted: bool = False
) -> int:
    """Tokens of context for the engine. ConfigError: the model has fewer positions."""
    needed = max_prompt_tokens + max_new_tokens
    config = read_config(model, trusted=trusted).get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and needed > positions:
        raise ConfigError(
            f"--max-new-tokens is {max_new_tokens} and the longest prompt has {max_prompt_tokens} tokens, but {model} has "
            f"{positions} positions; use --max-new-tokens {positions - max_prompt_tokens} or fewer"
        )
    return needed
