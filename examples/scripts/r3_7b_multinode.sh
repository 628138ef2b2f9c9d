#!/bin/bash
#SBATCH --job-name=r3_7b_deepscaler_multinode
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --time=72:00:00
# R³ on DeepSeek-R1-Distill-Qwen-7B and DeepScaleR, four nodes of eight 80 GB GPUs.
# Usage, from the repository on a file system that all nodes share: sbatch examples/scripts/r3_7b_multinode.sh [key=value ...]
# The same command goes on from the newest checkpoint. With --dry-run it needs no Slurm: bash examples/scripts/r3_7b_multinode.sh --dry-run
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")/../..}"
PATH="$PWD/.venv/bin:$PATH"
if [[ " $* " != *" --dry-run "* ]]; then
    source examples/scripts/slurm_ray.sh
    start_ray
fi
r3 train experiment=r3_7b_deepscaler_multinode cluster.num_nodes="${SLURM_NNODES:-4}" "$@"
