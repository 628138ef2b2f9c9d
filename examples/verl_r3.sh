#!/bin/bash
# R³ in verl 0.9.1, on eight GPUs: verl's own command line with a trainer of another name.
#   pip install 'r3_openrlhf[verl]'
#   examples/verl_r3.sh train.parquet test.parquet Qwen/Qwen2.5-1.5B-Instruct
set -euo pipefail
export VERL_USE_EXTERNAL_MODULES=${VERL_USE_EXTERNAL_MODULES:-r3_openrlhf.verl} # verl imports it, and it registers the trainer r3

python3 -m verl.trainer.main_ppo \
    trainer.v1.trainer_mode=r3 \
    algorithm.adv_estimator=r3 \
    +r3.replay.mode=replace \
    +r3.replay.k=2 \
    +r3.correct_from=1.0 \
    data.train_files="$1" \
    data.val_files="$2" \
    data.train_batch_size=256 \
    data.max_prompt_length=4096 \
    data.max_response_length=8192 \
    actor_rollout_ref.model.path="$3" \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.calculate_log_probs=True \
    trainer.n_gpus_per_node=8 \
    trainer.save_freq=20 \
    "${@:4}"
