#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cddp.DDP.attach() beside PyTorch's DistributedDataParallel, step by step: the cases of torch_ranks.py.

    test_torch_ddp.py CDDPRUN    with the environment of test_module.py
"""
import sys

from test_module import HERE, job, python_with

sys.path.insert(0, str(HERE.parent / 'support'))
import launch  # noqa: E402


def test_three_ranks_train_as_pytorchs(cddprun):
    status, out, err = job(cddprun, python_with('torch'), ranks=3, script='torch_ranks.py', deadline=230)
    wrong = [line for line in out.splitlines() if not line.endswith((': as PyTorch', ': done'))]
    assert status == 0 and not wrong, '\n'.join(wrong) + err
    for rank in range(3):
        assert out.count(f'rank {rank}: ') >= 15 and f'rank {rank}: done' in out, out


if __name__ == '__main__':
    launch.main()
