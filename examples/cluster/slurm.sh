#!/bin/bash
# Explains a folder of images on four machines of a SLURM cluster: sbatch slurm.sh
#
# The folder from which this is submitted must be on a file system that all machines share, with `photos` in it and an
# environment `venv` in which pathx is installed with Ray (2.49 or later has `ray symmetric-run`). The same job goes on where
# an earlier one was stopped.
#SBATCH --job-name=pathx
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=0
#SBATCH --time=12:00:00
set -euo pipefail

source venv/bin/activate
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(getent hosts "$head" | awk '{print $1; exit}'):6379

# Ray is started on every machine; the command runs on the first one, and joins it.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" \
    ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" --num-cpus "$SLURM_CPUS_PER_TASK" -- \
    pathx explain photos --out explained --ray auto --no-pictures
