#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/gpt on 1, 2 and 4 ranks: losses, checkpoints, restarts, what it prints. The model is small, the text the real one.

    test_gpt.py CDDPRUN [--slow] [TEST...]; gpt is taken from CDDPRUN's build folder.
"""
import contextlib
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, free_port, run, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / 'tests' / 'data' / 'gpt-curve.json').read_text(encoding='ascii'))
STEPS = 800  # of runs that something stops in the middle
SMALL = ['--layers', '2', '--heads', '2', '--width', '32', '--context', '32', '--batch', '8', '--lr', '0.0005',
         '--sample', '0', '--log-every', '1', '--eval-every', '0']


def gpt(cddprun):
    return os.path.join(os.path.dirname(cddprun), '..', 'examples', 'gpt', 'gpt')


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory(prefix='cddp-test-') as name:
        yield pathlib.Path(name)


def train(cddprun, flags, ranks=2, status=0, **popen):
    got, out, err = run(cddprun, '--standalone', f'--nproc_per_node={ranks}', gpt(cddprun), *flags, **popen)
    assert got == status, (got, end(out), end(err))
    return out, err


def lines(log):
    return [json.loads(line) for line in log.read_text(encoding='ascii').splitlines()]


def end(text):
    return text[-3000:]


def losses(log):
    return [line['loss'] for line in lines(log) if 'loss' in line]


def curve(cddprun, flags, ranks=2):
    with folder() as f:
        train(cddprun, [*SMALL, *flags, '--log', str(f / 'log')], ranks)
        return losses(f / 'log')


def apart(a, b):
    assert len(a) == len(b), (len(a), len(b))
    return max(abs(x - y) for x, y in zip(a, b))


class Run:
    """A folder for a run with a log, final weights and checkpoints."""

    def __init__(self, f, *flags):
        self.log, self.weights, self.dir = f / 'log', f / 'weights', f / 'checkpoints'
        self.flags = [*SMALL, *flags, '--log', str(self.log), '--weights-out', str(self.weights)]
        self.saving = ['--save', str(self.dir), '--resume', str(self.dir), '--save-every', '20']

    def checkpoints(self):
        return sorted(self.dir.glob('checkpoint-*.cddp'))

    def result(self):
        """All that must not depend on what happened on the way."""
        told = [{k: v for k, v in line.items() if k not in ('tokens_per_s', 'hidden')} for line in lines(self.log)]
        return told, self.weights.read_bytes()


def undisturbed(cddprun, *flags, ranks=2):
    with folder() as f:
        r = Run(f, *flags)
        train(cddprun, r.flags, ranks)
        return r.result()


def test_losses_of_any_number_of_ranks_agree_and_are_pytorchs(cddprun):
    want = None
    for ranks in 1, 2, 4:
        got = curve(cddprun, RECORD['flags'], ranks)
        want = want or got
        assert len(got) == 200
        assert apart(got, want) <= 1e-4, (ranks, apart(got, want))
        assert apart(got, RECORD['losses']) <= 1e-3, (ranks, apart(got, RECORD['losses']))


def test_divided_optimizer_has_the_same_bits(cddprun):
    for ranks in 2, 4:
        flags = ['--steps', '60', '--micro', '1', '--bucket-kib', '20', '--untied']
        assert undisturbed(cddprun, *flags, ranks=ranks) == undisturbed(cddprun, *flags, '--divided', ranks=ranks)


def test_killed_rank_leaves_no_trace_after_the_restart(cddprun):
    for victim, more in (0, []), (1, ['--divided']):
        flags = ['--steps', str(STEPS), *more]
        with folder() as f:
            r = Run(f, *flags)
            script = f'echo $$ > {f}/pid.$RANK.$TORCHELASTIC_RESTART_COUNT; exec "$@"'
            with Job(cddprun, '--standalone', '--nproc_per_node=2', '--max_restarts=1', 'sh', '-c', script, 'sh',
                     gpt(cddprun), *r.flags, *r.saving) as job:
                wait_for('a checkpoint', r.checkpoints)
                os.kill(int((f / f'pid.{victim}.0').read_text()), signal.SIGKILL)
                assert job.finish() == 0, (end(job.out), end(job.err))
                after = re.search(r'resumed from \S+ after step (\d+)', job.out)
                assert after and 20 <= int(after[1]) < STEPS, end(job.out)
            assert r.result() == undisturbed(cddprun, *flags)


def stops_and_goes_on(cddprun, f, flags):
    """Stops a run after some fifty steps, and goes on. Returns False if it was over before."""
    r = Run(f, *flags)
    saving = [*r.saving, '--save-every', '0']
    with Job(cddprun, '--standalone', '--nproc_per_node=2', gpt(cddprun), *r.flags, *saving) as job:
        wait_for('fifty steps', lambda: r.log.exists() and len(r.log.read_bytes().splitlines()) > 50)
        job.process.send_signal(signal.SIGTERM)
        status = job.finish()
    stopped = re.search(r'asked to stop; saved in \S+ after step (\d+)', job.out)
    if stopped is None and f'step {STEPS}/{STEPS}' in job.out:
        return False
    assert status == 0, (end(job.out), end(job.err))
    assert stopped and 50 <= int(stopped[1]) < STEPS, end(job.out)
    # A line that a killed run wrote after its last checkpoint goes.
    with open(r.log, 'a', encoding='ascii') as log:
        log.write('{"step":799,"loss":1}\n{"step":15')
    out, _ = train(cddprun, [*r.flags, *saving])
    assert f'after step {stopped[1]}\n' in out and 'an epoch is 42 steps' in out, end(out)
    assert r.result() == undisturbed(cddprun, *flags)
    return True


def test_stopped_run_goes_on_in_mid_epoch(cddprun):
    """With 37 windows of held-out text and few of the rest, an epoch is 42 steps, so the run crosses several."""
    with folder() as text:
        (text / 'text').write_bytes((ROOT / 'examples/gpt/data/kjv.txt').read_bytes()[:12000])
        flags = ['--steps', str(STEPS), '--text', str(text / 'text')]
        for _ in range(5):  # on a busy machine a run may be over before the signal comes
            with folder() as f:
                if stops_and_goes_on(cddprun, f, flags):
                    return
        raise AssertionError('each run was over before the signal came')


def kill_all(job):
    """As a machine that stops. Returns those that were still there."""
    left = job.alive()
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def test_job_that_loses_a_node_goes_on_with_fewer_ranks(cddprun):
    with folder() as f:
        r = Run(f, '--steps', str(STEPS))
        port = free_port()
        flags = ['--nnodes=1:2', '--nproc_per_node=2', f'--rdzv_endpoint=127.0.0.1:{port}',
                 '--rdzv_conf=last_call_timeout=1', '--max_restarts=1']
        with Job(cddprun, *flags, '--local_addr=n1', gpt(cddprun), *r.flags, *r.saving) as a:
            wait_for('the rendezvous', lambda: launch.listens(port))
            with Job(cddprun, *flags, '--local_addr=n2', gpt(cddprun), *r.flags, *r.saving) as b:
                wait_for('a checkpoint of four ranks', lambda: r.checkpoints() and len(b.workers()) == 2)
                wait_for('the end of the node', lambda: not kill_all(b))
                b.process.wait()
                shutil.rmtree(b.tmp)  # a killed node leaves its files
                os.mkdir(b.tmp)
            assert a.finish() == 0, (end(a.out), end(a.err))
            assert 'gpt: 2 ranks' in a.out and re.search(r'resumed from \S+ after step \d+', a.out), end(a.out)
        with folder() as g:
            other = Run(g, '--steps', str(STEPS))
            train(cddprun, other.flags, 4)
            resumed = int(re.findall(r'resumed from \S+ after step (\d+)', a.out)[-1])
            want, got = losses(other.log), losses(r.log)
            assert len(got) == STEPS
            # The samples are the same ones, in other shares; far later the roundings have grown.
            assert apart(got[:resumed + 50], want[:resumed + 50]) <= 1e-4, apart(got[:resumed + 50], want[:resumed + 50])
            assert got[-1] < 3.2


def test_checkpoint_of_another_run_is_rejected(cddprun):
    with folder() as f:
        r = Run(f, '--steps', '5')
        train(cddprun, [*r.flags, *r.saving])
        for other in ['--width', '64'], ['--divided'], ['--batch', '4'], ['--seed', '2']:
            _, err = train(cddprun, [*r.flags, *r.saving, *other], status=1)
            assert 'is of another run: the sizes of the model' in err, err
        out, _ = train(cddprun, [*r.flags, *r.saving])
        assert 'resumed from' in out and 'after step 5\n' in out and 'all of the 5 steps; nothing is left to train' in out, end(out)
        save = r.saving[r.saving.index('--save') + 1]
        for other in [], ['--resume', str(f / 'other')]:
            _, err = train(cddprun, [*r.flags, '--save', save, *other], status=1)
            assert f'{save} has a checkpoint of step 5: add --resume {save}, or save elsewhere' in err, err


def test_lines_on_a_terminal_and_in_a_file(cddprun):
    with folder() as f:
        r = Run(f)
        flags = [*r.flags, '--steps', '10', '--log-every', '4', '--eval-every', '6', '--sample', '20', '--prompt', 'And the ']
        out, _ = train(cddprun, flags)
        assert re.search(r'gpt: 2 ranks, 34688 weights, \w+, 340186 bytes of text, an epoch is 1195 steps', out), end(out)
        for step in 4, 8:
            assert re.search(rf'\[0\] step {step}/10  loss \d\.\d{{4}}  \d+ tokens/s(  \d+ % hidden)?  \d+:\d\d left\n', out), end(out)
        assert re.search(r'\[0\] step 6/10  held-out loss \d\.\d+, \d\.\d+ bits per byte\n', out), end(out)
        assert '[0] And the ' in out, end(out)
        told = lines(r.log)
        assert [line['step'] for line in told] == [4, 6, 8, 10, 10], told
        assert all({'loss', 'lr', 'norm', 'tokens_per_s', 'hidden'} <= line.keys() for line in told if 'loss' in line)
        assert [round(line['held_out']) for line in told if 'held_out' in line] == [6, 6] or \
            all(4 < line['held_out'] < 6 for line in told if 'held_out' in line), told
        ours, theirs = pty.openpty()
        with Job(cddprun, '--standalone', '--nproc_per_node=2', gpt(cddprun), *flags, stdout=theirs) as job:
            os.close(theirs)
            shown = b''
            with contextlib.suppress(OSError):  # EIO: the other side is closed
                while part := os.read(ours, 4096):
                    shown += part
            assert job.finish() == 0, job.err
        os.close(ours)
        assert re.search(rb'left\x1b\[K\r', shown) and b'step 10/10  held-out' in shown, shown


def test_ranks_that_do_not_agree_are_told_so(cddprun):
    """The ranks of two nodes get their options by two hands."""
    few = '--layers', '1', '--width', '16', '--heads', '2', '--context', '16', '--batch', '4', '--steps', '3', '--sample', '0', '--eval-every', '0'
    with folder() as f:
        text = (ROOT / 'examples/gpt/data/kjv.txt').read_bytes()[:20000]
        (f / 'one').write_bytes(text)
        (f / 'other').write_bytes(text[:-1] + b'?')
        for flag, of_rank_1 in [('--seed', '2'), ('--lr', '0.05'), ('--clip', '0'), ('--text', str(f / 'other'))]:
            script = 'if [ $RANK = 1 ]; then exec "$0" "$@" ' + f'{flag} {of_rank_1}; fi; exec "$0" "$@"'
            got, out, err = run(cddprun, '--nproc_per_node=2', 'sh', '-c', script, gpt(cddprun), *few, '--text', str(f / 'one'))
            assert got == 1 and re.search(f'{flag.replace("--text", "the text")} is not the same on all ranks', err), (flag, got, out, err)
        got, out, err = run(cddprun, '--nproc_per_node=2', gpt(cddprun), *few, '--text', str(f / 'one'))
        assert got == 0, (got, out, err)


def test_says_what_is_wrong(cddprun):
    alone = gpt(cddprun)
    for flags, says in [
        (['--steps', '-1'], r'--steps must be a whole number from 0 to 1e\+09, not .-1.'),
        (['--batch', '2.5'], r'--batch must be a whole number from 1 to 1e\+06, not .2\.5.'),
        (['--lr', 'nan'], r'--lr must be a number from'),
        (['--lr', '1x'], r'--lr must be a number from'),
        (['--size', '7B'], r'--size must be tiny, small, 124M.*not .7B.'),
        (['--heads', '3'], r'the width must be a multiple of the number of heads'),
        (['--kernels', 'abacus'], r'--kernels must be openblas, avx512, avx2 or plain'),
        (['--save-every', '5'], r'--save-every needs --save DIR'),
        (['--save', ''], r'--save must not be empty'),
        (['--log'], r'--log: needs a value'),
        (['--nosuch'], r'unknown flag'),
        (['--divided=1'], r'a value that it does not take'),
        (['extra'], r"unexpected argument 'extra'"),
    ]:
        got, out, err = run(alone, *flags)
        assert got == 2 and re.search(says, err) and err.count('\n') == 1, (flags, got, out, err)
    with folder() as f:
        (f / 'short').write_text('In the beginning')
        for flags, says in [(['--text', str(f / 'none')], r'none: No such file or directory'), (['--text', str(f)], r'Is a directory'),
                            (['--text', str(f / 'short')], r'short: 16 bytes are too few for steps of 8 sequences of 128 bytes'),
                            (['--save', str(f / 'no' / 'dir')], r'cannot make \S+dir to save there: No such file'),
                            (['--save', str(f / 'short')], r'cannot save in \S+short: Not a directory'),
                            (['--save', '/proc'], r'cannot save in /proc: '),
                            (['--log', str(f / 'no' / 'log')], r'cannot write \S+log: No such file'),
                            (['--steps', '0', '--sample', '0', '--weights-out', '/dev/full'], r'cannot write /dev/full: No space')]:
            got, out, err = run(alone, *flags)
            assert got == 1 and re.search('gpt: rank 0: .*' + says, err), (flags, got, out, err)
        # All ranks end, before the first step.
        for flag, says in ('--save', 'cannot make'), ('--weights-out', 'cannot write'):
            out, err = train(cddprun, [*SMALL, '--steps', '20', flag, str(f / 'no' / 'dir')], status=1)
            assert f'rank 0: {says}' in err and 'step 1/' not in out, (end(out), end(err))
        out, _ = train(cddprun, [*SMALL, '--steps', '2', '--save', str(f / 'new')])
        assert [path.name for path in (f / 'new').iterdir()] == ['checkpoint-00000000000000000002.cddp'], list((f / 'new').iterdir())
    for flag in ['--divided'], ['--save', 'x']:
        got, out, err = run(alone, '--apart-every', '2', *flag)
        assert got == 2 and '--apart-every cannot be combined with --divided, --fsdp or --save' in err, (got, out, err)
    _, err = train(cddprun, ['--batch', '16'], ranks=3, status=1)
    assert '--batch 16 cannot be divided evenly among 3 ranks' in err, err
    got, out, _ = run(alone, '--help')
    assert got == 0 and '--resume DIR' in out and max(map(len, out.splitlines())) <= 110, end(out)


if __name__ == '__main__':
    launch.main()
