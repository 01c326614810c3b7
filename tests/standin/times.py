# SPDX-License-Identifier: Apache-2.0
"""times.py CDDPRUN DEVICE_TIMES: slow collectives on a GPU show as communication: exposed if the compute stream waits for
them, hidden if it works meanwhile. The program, the trace and the file for Prometheus say so; without CDDP_TIMING nothing does."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

cddprun, program = sys.argv[1:]
BUCKETS, STEPS, SAMPLED, COLLECTIVE_MS, GRAD_MS, FORWARD_MS = 3, 12, 12, 4, 1, 3
NS = 1000000
failed = 0


def run(what, env=None, *flags):
    """Returns the sums that each rank prints, by rank."""
    done = subprocess.run([cddprun, '--standalone', '--nproc_per_node=2', *flags, program, what], capture_output=True, text=True,
                          check=False, stdin=subprocess.DEVNULL,
                          env=os.environ | {'CDDP_STANDIN_DELAY': 'none', 'CDDP_STANDIN_LEAKS': '1', 'CDDP_TIMING': 'all',
                                            'CDDP_STANDIN_COLLECTIVE_US': str(COLLECTIVE_MS * 1000)} | (env or {}))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line[line.index('{'):]) for line in done.stdout.splitlines() if '{' in line]
    assert len(lines) == 2, done.stdout + done.stderr
    return sorted(lines, key=lambda line: line['rank'])


def check_sums(line, steps, collectives):
    """Kernels take at least as long as they sleep, whatever the machine does; nothing is tighter."""
    assert line['steps'] == steps, line
    assert line['comm_ns'] == line['exposed_ns'] + line['hidden_ns'], line
    assert line['comm_ns'] >= steps * collectives * COLLECTIVE_MS * NS, line
    assert line['forward_ns'] >= steps * FORWARD_MS * NS, line
    assert line['backward_ns'] >= steps * (BUCKETS - 1) * GRAD_MS * NS, line
    assert line['forward_ns'] + line['backward_ns'] <= line['step_ns'] and line['exposed_ns'] <= line['step_ns'], line
    assert line['late_ns'] == 0 and line['slowest_rank'] == -1, line


def share(what, good, *checked):
    """A rank that gets no processor changes what is exposed, of its peer's, too. So each rank's share must be good in one of some runs."""
    bad = {0, 1}
    for _ in range(6):
        for line in run(what):
            check_sums(line, *checked)
            if good(line['exposed_ns'] / line['comm_ns']):
                bad.discard(line['rank'])
        if not bad:
            return
    assert False, (bad, line)


def exposed():
    # 12 of 13 ms follow the first gradient, and the last gradient is 2 ms after that.
    share('exposed', lambda of: of >= 0.5, STEPS - 1, BUCKETS)


def hidden():
    share('hidden', lambda of: of <= 0.25, STEPS - 1, BUCKETS)


def sampled():
    """By default the first ten steps are measured, and then each eighth; those have the figures of any other."""
    for line in run('sampled', {'CDDP_TIMING': 'on'}):
        check_sums(line, SAMPLED, BUCKETS)


def by_parameter():
    share('params', lambda of: of >= 0.5, STEPS - 1, BUCKETS)


def optimizer():
    """The exchange of parameters is communication, too, and nothing hides it."""
    share('optim', lambda of: of >= 0.5, STEPS - 1, 2 * BUCKETS)


def captured():
    """Replays do not count, and the steps before and after them do."""
    for line in run('captured'):
        check_sums(line, 2 * STEPS - 1, BUCKETS)


def ahead():
    """A step whose first gradient has no time is left out, so that the next one has no beginning, and is left out, too."""
    for line in run('ahead', {'CDDP_STANDIN_QUEUE': '100000', 'CDDP_STANDIN_COLLECTIVE_US': '0'}):
        assert line['steps'] == STEPS - 1, line


def delayed():
    """A slow device, and launches that NCCL leaves to a thread."""
    for line in run('exposed', {'CDDP_STANDIN_DELAY': 'both', 'CDDP_STANDIN_PROGRESS': '90', 'CDDP_NCCL_BLOCKING': '0'}):
        check_sums(line, STEPS - 1, BUCKETS)


def switched_off():
    for how in 'off', 'none':
        for line in run('exposed', {'CDDP_TIMING': how}):
            assert line['steps'] == line['step_ns'] == line['comm_ns'] == line['exposed_ns'] == 0, line


def metrics():
    with tempfile.TemporaryDirectory() as folder:
        lines = run('exposed', {'CDDP_METRICS_FILE': os.path.join(folder, '%r.prom')})
        texts = [(pathlib.Path(folder) / f'{rank}.prom').read_text(encoding='ascii') for rank in range(2)]
    for name in 'comm', 'exposed':
        word = {'comm': 'communication'}.get(name, name)
        found = [float(re.search(rf'^cddp_{word}_seconds_total\S* (\S+)$', text, re.M)[1]) for text in texts]
        assert found == [line[f'{name}_ns'] / 1e9 for line in lines], (found, lines)


def trace():
    """Buckets last as long as the GPU has worked on them; the host sees them a millisecond too early or too late."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'trace.json')
        lines = run('hidden', None, f'--trace={path}')
        events = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
    buckets = [e for e in events if e.get('cat') == 'collective' and 'bucket' in e['args']]
    steps = [e for e in events if e.get('cat') == 'step']
    assert len(buckets) == 2 * STEPS * BUCKETS and len(steps) == 2 * STEPS, (len(buckets), len(steps))
    for rank, line in enumerate(lines):
        ended = 0
        for e in sorted((e for e in buckets if e['args']['rank'] == rank), key=lambda e: e['ts']):
            assert e['dur'] >= COLLECTIVE_MS * 1000 and e['ts'] >= ended - 1, (e, ended)
            ended = e['ts'] + e['dur']
        mine = [e['args'] for e in steps if e['args']['rank'] == rank and e['name'] != 'step 0']
        assert round(1000 * sum(e['comm_us'] for e in mine)) == line['comm_ns'], (mine, line)
        assert round(1000 * sum(e['exposed_us'] for e in mine)) == line['exposed_ns'], (mine, line)


TESTS = exposed, hidden, sampled, by_parameter, optimizer, captured, ahead, delayed, switched_off, metrics, trace

print(f'1..{len(TESTS)}')
for test in TESTS:
    try:
        test()
        print(f'ok - {test.__name__}', flush=True)
    except (AssertionError, KeyError, ValueError) as why:
        failed += 1
        print(f'not ok - {test.__name__}\n# ' + str(why).replace('\n', '\n# '), flush=True)
sys.exit(failed != 0)
