#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training over two hosts: the same bits as on one.

    train.py CDDPRUN [--slow] [TEST...]; wine is taken from CDDPRUN's build folder.
"""
import contextlib
import os
import pathlib
import tempfile

import hosts
import launch
from launch import run

PORT = 29400


def wine(cddprun):
    return os.path.join(os.path.dirname(cddprun), '..', 'examples', 'wine', 'wine')


def results(folder):
    """Losses of every epoch and final weights, all digits."""
    return [(folder / name).read_text() for name in ('metrics', 'weights')]


def flags(folder, dtype):
    return ['--dtype', dtype, '--metrics', str(folder / 'metrics'), '--weights-out', str(folder / 'weights')]


def over_nodes(cddprun, sizes, *program):
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(hosts.on(i + 1, cddprun, f'--nnodes={len(sizes)}', f'--node_rank={i}',
                                             f'--master_addr={hosts.address(1)}', f'--master_port={PORT}',
                                             f'--nproc_per_node={n}', *program)) for i, n in enumerate(sizes)]
        status = [job.finish() for job in jobs]
        assert status == [0] * len(sizes), (status, [job.err for job in jobs])
        return jobs


def check(cddprun, sizes, dtype):
    with tempfile.TemporaryDirectory(prefix='cddp-test-') as tmp:
        one, several = pathlib.Path(tmp, 'one'), pathlib.Path(tmp, 'several')
        one.mkdir()
        several.mkdir()
        status, _, err = run(cddprun, '--standalone', f'--nproc_per_node={sum(sizes)}', wine(cddprun), *flags(one, dtype))
        assert status == 0, err
        jobs = over_nodes(cddprun, sizes, wine(cddprun), *flags(several, dtype))
        assert f'wine: {sum(sizes)} ranks' in jobs[0].out and jobs[1].out == '', [job.out for job in jobs]
        assert results(one) == results(several), 'the losses or weights differ'
        assert results(one)[0].count('\n') == 100 and results(one)[1].count('\n') == 1091


def test_two_hosts_of_two_ranks_train_to_the_bits_of_four_ranks_on_one(cddprun):
    for dtype in 'f32', 'f64':
        check(cddprun, [2, 2], dtype)


def test_hosts_of_different_size_too(cddprun):
    check(cddprun, [3, 1], 'f32')
    check(cddprun, [1, 2], 'f64')


if __name__ == '__main__':
    hosts.enter(2)
    launch.main()
