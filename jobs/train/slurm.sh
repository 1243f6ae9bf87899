#!/bin/bash
# Train on 2 machines of 8 GPUs under Slurm: sbatch jobs/train/slurm.sh jobs/train/hycoclip.yaml shards=... output=...
# Slurm sends SIGUSR1 five to six minutes before the time limit: the run saves a checkpoint, and is queued again to resume.
#SBATCH --job-name=hypergrit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=10
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # srun does not take it from the job since Slurm 22.05
# A lost or failed process ends the others within a minute, which name it; --wait ends one that hangs.
srun --kill-on-bad-exit=0 --wait=300 python -m trainer.train "$@"
code=$?
[ "$code" -eq 138 ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
