#!/usr/bin/env bash
# Keys and shape of verl's examples (github.com/volcengine/verl, examples/, Apache-2.0), shortened
set -xeuo pipefail
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-8B}
NGPUS=${NGPUS:-}
mini=64
EXTRA=()
case "${DEVICE}" in
    gpu | cuda)
        NGPUS=${NGPUS:-8}
        lr=${LR:-1e-6}
        ;;
    npu)
        NGPUS=16 mini=16 lr=9e-6
        EXTRA+=(actor_rollout_ref.actor.use_torch_compile=False)
        ;;
esac
DATA=(
    data.train_files="['/data/gsm8k/train.parquet', '/data/math/train.parquet']"
    data.val_files=/data/gsm8k/test.parquet
    data.train_batch_size=$((mini * 4))
    data.max_prompt_length=$((1024 * 2)) data.max_response_length=2048
    data.truncation='error'
)
ACTOR=(
    actor_rollout_ref.model.path="$MODEL_PATH" # of the hub
    actor_rollout_ref.actor.optim.lr=${lr}
    actor_rollout_ref.actor.ppo_mini_batch_size=$mini
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001
    actor_rollout_ref.rollout.n=5
    actor_rollout_ref.rollout.name=vllm
)
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "${DATA[@]}" "${ACTOR[@]}" \
    trainer.n_gpus_per_node=$NGPUS trainer.logger='["console","wandb"]' trainer.project_name=p_$(date +%Y) \
    trainer.test_freq=5 trainer.total_epochs=15 "${EXTRA[@]}" "$@"
