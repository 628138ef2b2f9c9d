#!/bin/bash
#SBATCH --job-name=grpo_7b_deepscaler_multinode
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --time=72:00:00
# The GRPO baseline of r3_7b_multinode.sh.
# Usage, from the repository on a file system that all nodes share: sbatch examples/scripts/grpo_7b_multinode.sh [key=value ...]
# The same command goes on from the newest checkpoint. With --dry-run it needs no Slurm: bash examples/scripts/grpo_7b_multinode.sh --dry-run
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")/../..}"
PATH="$PWD/.venv/bin:$PATH"
if [[ " $* " != *" --dry-run "* ]]; then
    source examples/scripts/slurm_ray.sh
    start_ray
fi
r3 train experiment=grpo_7b_deepscaler_multinode cluster.num_nodes="${SLURM_NNODES:-4}" "$@"
