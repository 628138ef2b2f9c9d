"""The sampler: a Ray actor that holds the model in Transformers and draws token by token."""

import asyncio

import ray
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "transformers_server"


@ray.remote
class Server:
    """One response at a time; asleep it does nothing, because the model is small. Its weights are random until the actor
    sends its own."""

    def __init__(self, path, limit):
        config = AutoConfig.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        self.end = AutoTokenizer.from_pretrained(path).eos_token_id
        self.limit = limit
        self.generator = torch.Generator().manual_seed(0)
        self.global_steps = None

    async def generate(self, *, prompt_ids, sampling_params, request_id, **_):
        temperature = sampling_params.get("temperature", 1.0)
        ids, logprobs = self.sampled(prompt_ids, temperature)
        return TokenOutput(
            token_ids=ids,
            log_probs=logprobs,
            stop_reason="completed",
            extra_fields={"global_steps": self.global_steps},
        )

    @torch.no_grad()
    def sampled(self, prompt_ids, temperature):
        """The ids [T] and log-probs [T] of a response. Temperature 0 takes the likeliest token."""
        ids, logprobs = [], []
        while len(ids) < self.limit and self.end not in ids:
            logits_V = self.model(torch.tensor([[*prompt_ids, *ids]])).logits[0, -1]
            logprobs_V = (logits_V / (temperature or 1.0)).log_softmax(-1)
            drawn = torch.multinomial(logprobs_V.exp(), 1, generator=self.generator)
            token = drawn if temperature else logprobs_V.argmax()
            ids.append(int(token))
            logprobs.append(float(logprobs_V[ids[-1]]))
        return ids, logprobs

    def load(self, weights, global_steps):
        found = self.model.load_state_dict(weights, strict=False)
        assert not found.unexpected_keys, found
        self.global_steps = global_steps

    def sleep(self):
        pass

    wake_up = sleep


class Replica(RolloutReplica):
    """Starts the server; requests reach it by its handle."""

    async def launch_servers(self):
        server = Server.options(name=NAME, num_cpus=0).remote(
            self.model_config.path, self.config.response_length
        )
        await server.__ray_ready__.remote()
        self.servers = [server]
        self._server_handle, self._server_address = server, "no address"


class Weights(BaseRollout):
    """In the worker: hands the actor's weights to the server."""

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, wire_format="named_tensors", **options):
        tensors = {name: tensor.detach().float().cpu() for name, tensor in weights}
        step = options.get("global_steps")
        await asyncio.wrap_future(ray.get_actor(NAME).load.remote(tensors, step).future())


_ROLLOUT_REGISTRY[("transformers", "async")] = f"{__name__}.{Weights.__name__}"
RolloutReplicaRegistry.register("transformers", lambda: Replica)
