#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cddp.FSDP of PyTorch modules beside training in one process: the cases of fsdp_ranks.py. And beside PyTorch's fully_shard.

    test_torch_fsdp.py CDDPRUN [--full] [TEST...]    with the environment of test_module.py; --full: also 200 steps
"""
import sys

from test_module import HERE, job, python_with

sys.path.insert(0, str(HERE.parent / 'support'))
import launch  # noqa: E402


FULL = '--full' in sys.argv
FEW = 'TransformerOfBlocks', 'Twice', 'Mlp', 'Accumulation', 'wrong_use', 'same_bits'


def as_alone(cddprun, ranks, *cases):
    status, out, err = job(cddprun, python_with('torch'), *cases, ranks=ranks, script='fsdp_ranks.py', deadline=230)
    wrong = [line for line in out.splitlines() if not line.endswith((': as alone', ': done'))]
    assert status == 0 and not wrong, '\n'.join(wrong) + err
    for rank in range(ranks):
        assert out.count(f'rank {rank}: ') >= (25 if not cases else min(5, len(cases) + 1)) and f'rank {rank}: done' in out, out


def test_one_rank(cddprun):
    as_alone(cddprun, 1, *FEW)


def test_two_ranks(cddprun):
    as_alone(cddprun, 2)


def test_three_ranks(cddprun):
    as_alone(cddprun, 3, *FEW)


def test_fully_shard_has_the_same_weights_and_losses(cddprun):
    for ranks in 2, 4:
        as_alone(cddprun, ranks, 'FullyShard', 'FullyShardFloat32', *(['FullyShard200'] if FULL else []))


if __name__ == '__main__':
    if FULL:
        sys.argv.remove('--full')
    launch.main()
