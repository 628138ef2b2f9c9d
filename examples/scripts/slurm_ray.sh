# start_ray: a Ray cluster on the nodes of this Slurm job, complete when it returns, gone when the job's script ends.
# To be sourced. Needs srun, scontrol, and ray in the PATH of every node. Exports RAY_ADDRESS.
# RAY_PORT (6379) and RAY_START_TIMEOUT_S (600) may be set.

start_ray() {
    local nodes head
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    head=${nodes[0]}
    RAY_ADDRESS=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}'):${RAY_PORT:-6379}
    export RAY_ADDRESS
    trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
        ray start --head --node-ip-address="${RAY_ADDRESS%:*}" --port="${RAY_ADDRESS##*:}" --block >&2 &
    _wait_for_nodes 1 $!
    if [ "${#nodes[@]}" -gt 1 ]; then
        srun --overlap --nodes=$((${#nodes[@]} - 1)) --ntasks-per-node=1 --exclude="$head" \
            ray start --address="$RAY_ADDRESS" --block >&2 &
        _wait_for_nodes "${#nodes[@]}" $!
    fi
}

# _wait_for_nodes COUNT PID: until Ray itself reports COUNT living nodes; PID is the srun that starts them.
_wait_for_nodes() {
    local joined deadline=$((SECONDS + ${RAY_START_TIMEOUT_S:-600}))
    until joined=$(_living_nodes) && [ "$joined" -ge "$1" ]; do
        if ! kill -0 "$2" 2>/dev/null; then
            echo "Ray ended on a node before $1 nodes had joined; the lines above say why" >&2
            exit 1
        fi
        if [ "$SECONDS" -ge "$deadline" ]; then
            echo "${joined:-0} of $1 nodes joined Ray at $RAY_ADDRESS within ${RAY_START_TIMEOUT_S:-600} s; is the port open between the nodes?" >&2
            exit 1
        fi
        sleep 1 # only the pace of asking
    done
    echo "Ray has $joined of $1 nodes at $RAY_ADDRESS" >&2
}

_living_nodes() {
    (: <"/dev/tcp/${RAY_ADDRESS%:*}/${RAY_ADDRESS##*:}") 2>/dev/null || return 1
    python - 2>/dev/null <<'PYTHON'
import os
import ray

ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
print(sum(node["Alive"] for node in ray.nodes()))
PYTHON
}
