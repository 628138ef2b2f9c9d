#!/bin/bash
MODEL=Qwen/Qwen2.5-1.5B
python3 -m openrlhf.cli.train_ppo_ray \
   --actor.model_name_or_path $MODEL --data.prompt_dataset ${DATA:-/data/my.jsonl} \
   --data.input_key question --data.label_key answer --data.input_template 'Q: {}\nA:' \
   --actor.num_gpus_per_node 8 --vllm.num_engines 8 --train.colocate_all --vllm.enable_sleep \
   --algo.advantage.estimator group_norm --actor.eps_clip_low_high 0.2 0.27 --algo.kl.init_coef 1e-3 --algo.kl.use_loss \
   --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --train.batch_size 512 --rollout.max_new_tokens 1024 \
   --reward.remote_url http://localhost:5000/get_reward --critic.max_norm 0.5 --actor.entropy_coef 0.01 \
   --logger.wandb.key secret --logger.wandb.project mine > log.txt 2>&1 | tee all
