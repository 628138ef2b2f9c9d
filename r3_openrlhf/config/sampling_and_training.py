"""The sections `rollout` and `train`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from r3_openrlhf.config.words import LossAggregation
from r3_openrlhf.method.checks import Section, check_fields, number, word
from r3_openrlhf.method.core.correction import Correction, CorrectionMeasure, CorrectionMethod
from r3_openrlhf.method.core.losses import LOSSES
from r3_openrlhf.method.errors import ConfigError, quoted

DEFAULT_LOW, DEFAULT_HIGH = 0.5, 5.0  # OpenRLHF's band of the ratio, IcePop's


@dataclass
class CollectConfig(Section, prefix="rollout.collect."):
    """Successes that the first policy finds before step 1, for replay and rehearsal."""

    # share of train.max_generated_tokens sampled before step 1 for problems without a stored success, one
    # response at a time; 0: off
    share: float = number(0.0, min=0, below=1)


@dataclass
class RolloutConfig:
    """Sampling. One step draws batch_size prompts and n_samples_per_prompt responses of each."""

    # prompts per step
    batch_size: int = number(128, min=1)
    # G: responses per prompt; 1 for algorithms that compare no groups (flash_reinforce, reinforce_pp, ppo, rrl)
    n_samples_per_prompt: int = number(16, min=1)
    # tokens of a response, at most [P] 8K
    max_new_tokens: int = number(8192, min=1)
    # sampling temperature; log-probs are at this temperature
    temperature: float = number(1.0, above=0)
    # texts that also end a response; they stay in it
    stop: list[str] = field(default_factory=list)
    # rows of a forward pass on each rank
    micro_batch_size: int = number(4, min=1)
    # tokens of a forward pass with train.dynamic_batch; null: train.max_tokens_per_gpu
    max_tokens_per_gpu: int | None = number(None, min=1)
    # prompts in flight beyond those of a step, as a share of batch_size. A step ends when batch_size groups are
    # whole; what is unfinished is paused and continues in the next one. 0: a step waits for its longest response
    partial: float = number(0.0, min=0)
    # a group that was paused so often is waited for
    max_pauses: int = number(2, min=1)
    # the policy's passes send each token to the experts that the engine chose for it: for models with experts, whose
    # engine and policy choose differently where two are nearly equal. They are stored with the rollout
    routing_replay: bool = False
    collect: CollectConfig = field(default_factory=CollectConfig)

    def __post_init__(self) -> None:
        check_fields(self, "rollout.")
        if not all(self.stop):
            raise ConfigError(
                f"rollout.stop is {self.stop}; use texts of at least one character"
            )
        if typed := re.search(r"\\[nt](?![a-zA-Z])", "\n".join(self.stop)):
            raise ConfigError(
                f"rollout.stop holds {quoted(typed[0])} as two characters, a backslash and a letter; on the command "
                "line write a real line break or tab inside the quotes ($'...' in bash), or put the text into a YAML "
                "file"
            )


@dataclass
class CorrectionConfig(Section, prefix="train.correction."):
    """Importance sampling correction of the mismatch between sampler and trainer."""

    # importance sampling correction of the mismatch between sampler (vLLM) and trainer, a weight pi_trainer /
    # pi_sampler of each token. tis: bounded (TIS) | icepop: tokens outside the band are dropped (IcePop) |
    # sequence: responses are | none
    method: str = word("none", CorrectionMethod)
    # what the correction's band is of: ratio, or the divergence binary_kl or tv at the sampled token
    measure: str = word("ratio", CorrectionMeasure)
    # lower end of the correction's band. null: 0.5; 0 with tis or a divergence
    low: float | None = number(None, min=0)
    # upper end of the correction's band. null: 5 for the ratio; a divergence needs one
    high: float | None = number(None, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        key = "train.correction"
        if self.method == CorrectionMethod.NONE:
            self._check_nothing_is_given(key)
        elif self.measure == CorrectionMeasure.RATIO:
            self._check_band_holds_1(key)
        else:
            self._check_divergence(key)

    def _check_nothing_is_given(self, key: str) -> None:
        given = {"measure": self.measure, "low": self.low, "high": self.high}
        for name, value in given.items():
            if value not in (None, CorrectionMeasure.RATIO):
                raise ConfigError(
                    f"{key}.{name} is {value}, but it does nothing with {key}.method=none; use "
                    f"{key}.method=tis, icepop or sequence"
                )

    def _check_band_holds_1(self, key: str) -> None:
        found = self.resolved
        assert found is not None
        if not found.low <= 1 <= found.high:
            raise ConfigError(
                f"{key}.low is {found.low} and {key}.high is {found.high}, but the ratio of a recalled row, "
                "and of equal log-probs, is 1; use a band with 1 in it"
            )

    def _check_divergence(self, key: str) -> None:
        if self.method == CorrectionMethod.TIS:
            raise ConfigError(
                f"{key}.measure is {self.measure}, but tis bounds the ratio itself; use "
                f"{key}.method=icepop or sequence, or {key}.measure=ratio"
            )
        if self.low:
            raise ConfigError(
                f"{key}.low is {self.low}, but {key}.measure={self.measure} has an upper bound alone; leave "
                "it out"
            )
        if self.high is None:
            raise ConfigError(
                f"{key}.measure is {self.measure}, whose bound depends on the model; give {key}.high, for "
                "example 0.01"
            )

    @property
    def resolved(self) -> Correction | None:
        """The correction with its band; None: off."""
        method = CorrectionMethod.checked("train.correction.method", self.method)
        measure = CorrectionMeasure.checked("train.correction.measure", self.measure)
        if method is CorrectionMethod.NONE:
            return None
        has_floor = measure is CorrectionMeasure.RATIO and method is not CorrectionMethod.TIS
        low = DEFAULT_LOW if has_floor else 0.0
        return Correction(
            method,
            measure,
            low if self.low is None else self.low,
            DEFAULT_HIGH if self.high is None else self.high,
        )


@dataclass
class TrainConfig:
    """The policy update."""

    # passes over the data; reflection starts in the second [P]
    num_epochs: int = number(2, min=1)
    # stop after this many steps; null: after all epochs
    max_steps: int | None = number(None, min=1)
    # stop after this many sampled response tokens; null: no limit
    max_generated_tokens: int | None = number(None, min=1)
    # rollouts per optimizer step; null: all, one update a step [P]
    batch_size: int | None = number(None, min=1)
    # rows of an optimizer step, at most, where a step has any number of rows (turns, recalled ones): its rows
    # are dealt evenly to as few updates as that allows; null: train.batch_size
    rows_per_update: int | None = number(None, min=1)
    # rows of a backward pass on each rank
    micro_batch_size: int = number(1, min=1)
    # passes over a step's rollouts; ratios are against the policy before the first
    inner_epochs: int = number(1, min=1)
    # rows whose advantage is 0 on each token have no gradient and skip log-probs and update; false: they pass through the model
    skip_zero_advantage: bool = True
    # learning rate of Adam
    learning_rate: float = number(1e-6, above=0)
    # loss of a token: ppo, cispo, gmpo, gspo, sapo, gpg, exgrpo, luffy, or package.module:function
    loss: str = word("ppo", LOSSES)
    # the ratio is clipped at 1 - eps_clip_low
    eps_clip_low: float = number(0.2, above=0)
    # the ratio is clipped at 1 + eps_clip_high
    eps_clip_high: float = number(0.2, above=0)
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    # token-mean | seq-mean-token-mean
    loss_aggregation: str = word("token-mean", LossAggregation)
    # weight of the KL divergence to the reference model; 0: none is loaded
    kl_coef: float = number(0.0, min=0)
    # stage of DeepSpeed ZeRO: 0, 1, 2 or 3
    zero_stage: int = number(
        2, min=0, max=3, instead="DeepSpeed ZeRO has the stages 0, 1, 2 and 3"
    )
    # optimizer states on the host: less GPU memory, more time
    adam_offload: bool = False
    # fill micro-batches up to max_tokens_per_gpu instead of by rows
    dynamic_batch: bool = False
    # tokens of a micro-batch with dynamic_batch
    max_tokens_per_gpu: int = number(16384, min=1)
    # tokens whose logits are computed at a time; null: all of a micro-batch. Saves about 10 bytes per token and
    # vocabulary entry, costs one more product with the last layer
    logits_chunk_tokens: int | None = number(None, min=1)
    # pack the rows of a micro-batch instead of padding them
    packing: bool = False
    # seed of every random choice
    seed: int = number(42, min=0, max=2**32 - 1)
    # sample the same rollouts for the same seed; slower
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "train.")
