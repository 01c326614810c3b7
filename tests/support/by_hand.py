# SPDX-License-Identifier: Apache-2.0
"""Ranks of one node, started by hand, without cddprun.

    by_hand.py RANKS COMMAND...
"""
import os
import subprocess
import sys

from ports import free_port


def run(words, ranks):
    """Run this command once for each rank, to its end. Exits with the output of the first rank that fails."""
    where = {'WORLD_SIZE': str(ranks), 'LOCAL_WORLD_SIZE': str(ranks), 'MASTER_ADDR': '127.0.0.1',
             'MASTER_PORT': str(free_port()), 'CDDP_TIMEOUT': '60'}
    started = [subprocess.Popen(words, env=os.environ | where | {'RANK': str(rank), 'LOCAL_RANK': str(rank)},
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                errors='replace') for rank in range(ranks)]
    try:
        said = [one.communicate(timeout=120)[0] for one in started]
    finally:
        for one in started:
            one.kill()
    for rank, one in enumerate(started):
        if one.returncode != 0:
            sys.exit(f'rank {rank}: exit status {one.returncode}\n{said[rank]}')


if __name__ == '__main__':
    run(sys.argv[2:], int(sys.argv[1]))
