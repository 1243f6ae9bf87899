#!/bin/bash
# Run a job on a Ray cluster of 4 machines under Slurm:
#     sbatch jobs/pipeline/slurm.sh jobs/pipeline/coyo.yaml input=/data/coyo output=/data/coyo_grit
# Submit it with the environment active (source .venv/bin/activate), on paths that all machines share. Slurm sends SIGUSR1
# two to three minutes before the time limit: the job is queued again, and skips its finished shards. Workers get variables of
# the job, such as credentials, by 'ray.env={AWS_ACCESS_KEY_ID: null, AWS_SECRET_ACCESS_KEY: null}'.
#SBATCH --job-name=hypergrit
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

# Other users of the machines do not know the token, without which Ray refuses them.
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_idle_worker_killing_time_threshold_ms=600000
# Without it, Ray waits for an answer of the DNS also for machines that only /etc/hosts names.
export GRPC_DNS_RESOLVER=native
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1

# Each machine starts Ray, which may use all its cores; the first also runs the job. The others end about a minute after
# it, with an error of Ray that does not count.
srun --no-kill --cpu-bind=none ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" -- \
    hypergrit run ray.address=auto "$@" &
step=$!
while kill -0 "$step" 2> /dev/null; do wait "$step"; code=$?; done # a signal ends `wait`, not the step
exit "$code"
