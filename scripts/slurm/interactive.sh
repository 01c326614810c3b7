#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Work on nodes by hand:   scripts/slurm/interactive.sh --nodes=2 --gres=gpu:8     then   train ./train --lr 0.1
# All flags are salloc's. The shell has the function train, which starts a program on all nodes as often as you like.
# One program and no shell:   scripts/slurm/interactive.sh --nodes=2 -- ./train --lr 0.1
CDDPRUN=${CDDPRUN:-$(command -v cddprun || echo "$PWD/build/launcher/cddprun")}
export CDDPRUN

train() {
    # srun passes Ctrl-C on if it is pressed twice within a second.
    srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
        "$CDDPRUN" --nproc_per_node="${NPROC_PER_NODE:-auto}" --shutdown_timeout="${SAVE_SECONDS:-25}" "$@"
}
export -f train

flags=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    flags+=("$1")
    shift
done
if [ $# -gt 1 ]; then
    shift
    exec salloc "${flags[@]}" bash -c 'train "$@"' train "$@"
fi
exec salloc "${flags[@]}" bash
