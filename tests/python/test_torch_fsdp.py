#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cddp.FSDP of PyTorch modules beside training in one process: the cases of fsdp_ranks.py.

    test_torch_fsdp.py CDDPRUN    with the environment of test_module.py
"""
import sys

from test_module import HERE, job, python_with

sys.path.insert(0, str(HERE.parent / 'support'))
import launch  # noqa: E402


FEW = 'TransformerOfBlocks', 'Twice', 'Mlp', 'Accumulation', 'wrong_use', 'same_bits'


def as_alone(cddprun, ranks, *cases):
    status, out, err = job(cddprun, python_with('torch'), *cases, ranks=ranks, script='fsdp_ranks.py', deadline=230)
    wrong = [line for line in out.splitlines() if not line.endswith((': as alone', ': done'))]
    assert status == 0 and not wrong, '\n'.join(wrong) + err
    for rank in range(ranks):
        assert out.count(f'rank {rank}: ') >= (25 if not cases else 5) and f'rank {rank}: done' in out, out


def test_one_rank(cddprun):
    as_alone(cddprun, 1, *FEW)


def test_two_ranks(cddprun):
    as_alone(cddprun, 2)


def test_three_ranks(cddprun):
    as_alone(cddprun, 3, *FEW)


if __name__ == '__main__':
    launch.main()
