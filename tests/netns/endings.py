#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node is cut off at the end of a job, after its last worker has ended: every cddprun returns 0.

    endings.py CDDPRUN [--slow] [--count=N]     N endings (20), eight jobs at a time
"""
import os
import pathlib
import random
import sys
import tempfile
import threading
import time

import hosts
import launch
from launch import wait_for

SIDE_BY_SIDE = 8
PORT = 29500
SHORTEST, LONGEST = 0.5, 12.0  # of a cut, in seconds
LIMIT = 60.0
count = 20


def ended(pid_file):
    """A worker ends as a process: until then a cut is one of a running job."""
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return False
    return not os.path.exists(f'/proc/{pid}')


def one(cddprun, host, seed):
    """Runs one job, with node 0 on host 1 and node 1 on `host`, and cuts that one off. Returns '' or the error."""
    rng = random.Random(seed)
    cut_s, later_s, before_cut_s = rng.uniform(SHORTEST, LONGEST), rng.uniform(0, 3), rng.choice([0, 0, rng.uniform(0, 0.2)])
    restarts = rng.choice([0, 1])
    with tempfile.TemporaryDirectory(prefix='cddp-test-') as folder:
        folder = pathlib.Path(folder)
        # Rank 1 ends at once; rank 0 ends up to 3 s after it.
        script = f'echo $$ > {folder}/pid.$RANK; [ $RANK = 1 ] || {{ while [ ! -e {folder}/go ]; do sleep 0.02; done; }}'
        jobs = [hosts.on(at, cddprun, '--nnodes=2', f'--node_rank={node}', f'--master_addr={hosts.address(1)}',
                         f'--master_port={PORT + host}', f'--max_restarts={restarts}', 'sh', '-c', script)
                for node, at in ((0, 1), (1, host))]
        try:
            wait_for('the end of rank 1', lambda: ended(folder / 'pid.1'), more=lambda: [job.err for job in jobs])
            time.sleep(before_cut_s)
            hosts.act('cut', host)
            cut = time.monotonic()
            time.sleep(min(later_s, cut_s))
            (folder / 'go').touch()
            time.sleep(max(0.0, cut + cut_s - time.monotonic()))
            hosts.act('heal', host)
            statuses = [job.finish(LIMIT) for job in jobs]
        finally:
            hosts.act('heal', host)
            for job in jobs:
                job.process.kill()
    if statuses == [0, 0]:
        return ''
    return (f'seed {seed}: cut for {cut_s:.1f} s, {before_cut_s:.2f} s after the end of rank 1; rank 0 ended {later_s:.1f} s later; '
            f'--max_restarts={restarts}: statuses {statuses}: {[job.err for job in jobs]}')


def test_a_node_that_is_cut_off_at_the_end_still_succeeds(cddprun):
    wrong, seeds, lock = [], list(range(count)), threading.Lock()

    def work(host):
        while True:
            with lock:
                if not seeds:
                    return
                seed = seeds.pop()
            try:
                said = one(cddprun, host, seed)
            except Exception as why:  # in a thread it would be lost
                said = f'seed {seed}: {type(why).__name__}: {why}'
            if said:
                wrong.append(said)

    workers = [threading.Thread(target=work, args=(host,)) for host in range(2, 2 + SIDE_BY_SIDE)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f'# {count - len(wrong)} of {count} jobs ended with status 0 on both nodes')
    assert not wrong, '\n'.join(wrong)


if __name__ == '__main__':
    hosts.enter(1 + SIDE_BY_SIDE)
    for word in [word for word in sys.argv if word.startswith('--count=')]:
        count = int(word.split('=')[1])
        sys.argv.remove(word)
    launch.main()
