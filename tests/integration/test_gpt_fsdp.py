#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/gpt with --fsdp, beside the same training without: losses and weights have the same bits, on the CPU.

    test_gpt_fsdp.py CDDPRUN [--full] [TEST...]; --full: 200 steps of every combination, a minute or two.
"""
import contextlib
import os
import re
import shutil
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, free_port, run, wait_for
from test_gpt import ROOT, SMALL, Run, apart, end, folder, gpt, losses, train

FULL = '--full' in sys.argv
STEPS = '200' if FULL else '8'
# Weights are learned fast, gradients are clipped in most steps, and there are evaluations in between.
FLAGS = [*SMALL, '--steps', STEPS, '--batch', '12', '--lr', '0.002', '--warmup', '4', '--clip', '0.7', '--eval-every', '3']


@contextlib.contextmanager
def short_run(*flags):
    """A text that is evaluated soon, of as many windows that not every rank has one in the last pass."""
    with folder() as f:
        (f / 'text').write_bytes((ROOT / 'examples/gpt/data/kjv.txt').read_bytes()[:12000])
        yield Run(f, *FLAGS, '--text', str(f / 'text'), *flags)


def told(r):
    """Everything but the norm, which the optimizer of a divided model keeps to itself."""
    log, weights = r.result()
    return [{k: v for k, v in line.items() if k != 'norm'} for line in log], weights


def result(cddprun, *flags, ranks):
    with short_run(*flags) as r:
        train(cddprun, r.flags, ranks)
        return told(r)


def result_of_nodes(cddprun, *flags):
    """Two nodes of two ranks."""
    with short_run(*flags) as r:
        nodes = ['--nnodes=2', '--nproc_per_node=2', f'--rdzv_endpoint=127.0.0.1:{free_port()}', '--rdzv_id=fsdp']
        with Job(cddprun, *nodes, '--local_addr=n1', gpt(cddprun), *r.flags) as a, \
                Job(cddprun, *nodes, '--local_addr=n2', gpt(cddprun), *r.flags) as b:
            assert (a.finish(), b.finish()) == (0, 0), (end(a.err), end(b.err))
        return told(r)


def test_divided_model_has_the_same_bits(cddprun):
    """Stages 1, 2 and 3; one pass or several; the output layer tied to the embedding or not."""
    every = [(ranks, more) for ranks in (1, 2, 3, 4) for more in ([], ['--micro', '1', '--untied'])]
    for ranks, more in every if FULL else [(1, []), (3, ['--micro', '1', '--untied']), (4, [])]:
        want = result(cddprun, *more, ranks=ranks)
        assert len([line for line in want[0] if 'loss' in line]) == int(STEPS)
        for stage in ['--divided', '--fsdp=2', '--fsdp'] if FULL else ['--fsdp=2', '--fsdp']:
            assert result(cddprun, *more, stage, ranks=ranks) == want, (ranks, more, stage)
            if FULL:
                print(f'# {ranks} ranks {" ".join([*more, stage])}: {STEPS} steps, the same bits', flush=True)


def test_divided_model_of_two_nodes_has_the_same_bits(cddprun):
    want = result_of_nodes(cddprun)
    assert want == result(cddprun, ranks=4)
    for stage in ['--divided', '--fsdp=2', '--fsdp'] if FULL else ['--fsdp']:
        assert result_of_nodes(cddprun, stage) == want, stage
        if FULL:
            print(f'# 2 x 2 nodes {stage}: {STEPS} steps, the same bits', flush=True)


def test_model_that_each_node_has_learns_the_same(cddprun):
    """With --hsdp sums have another order, which is that of no stage."""
    (want, _), (got, weights) = result(cddprun, ranks=4), result_of_nodes(cddprun, '--fsdp', '--hsdp')
    assert (got, weights) == result_of_nodes(cddprun, '--fsdp=2', '--hsdp')
    of = [[line['loss'] for line in lines if 'loss' in line] for lines in (want, got)]
    assert apart(*of) <= 1e-4, of
    assert result(cddprun, '--fsdp', '--hsdp', ranks=3) == result(cddprun, ranks=3)  # one node


def drop_newest(r):
    newest = r.checkpoints()[-1]
    if newest.is_dir():
        shutil.rmtree(newest)
    else:
        newest.unlink()


def test_checkpoint_goes_on_in_other_stages_and_with_other_ranks(cddprun):
    """The last step but one is loaded by a run of another stage, and by fewer ranks."""
    want = result(cddprun, ranks=3)
    for saver, loader in ('--fsdp', '--fsdp=2'), ('--fsdp=2', '--divided'), ('--divided', '--fsdp'):
        with short_run() as r:
            flags = [*r.flags, *r.saving, '--save-every', '1']
            train(cddprun, [*flags, saver], 3)
            assert all(path.is_dir() == (saver != '--divided') for path in r.checkpoints()), r.checkpoints()
            for ranks in 3, 2:
                drop_newest(r)
                out, _ = train(cddprun, [*flags, loader], ranks)
                assert f'after step {int(STEPS) - 1}\n' in out, (saver, loader, end(out))
                if ranks == 3:
                    assert told(r) == want, (saver, loader)
            steps = [line['loss'] for line in want[0] if 'loss' in line]
            assert apart(losses(r.log), steps) <= 1e-4, (saver, loader)
    with short_run() as r:
        flags = [*r.flags, *r.saving]
        train(cddprun, [*flags, '--fsdp'], 2)
        _, err = train(cddprun, [*flags, '--fsdp', '--seed', '2'], 3, status=1)
        assert 'is of another run: the sizes of the model' in err, end(err)


def test_stopped_run_goes_on(cddprun):
    flags = ['--steps', '150', '--eval-every', '0']
    want = result(cddprun, *flags, ranks=2)
    with short_run(*flags) as r:
        saving = [*r.saving, '--save-every', '0']
        with Job(cddprun, '--standalone', '--nproc_per_node=2', gpt(cddprun), *r.flags, *saving, '--fsdp') as job:
            wait_for('ten steps', lambda: r.log.exists() and len(r.log.read_bytes().splitlines()) > 10)
            job.process.send_signal(signal.SIGTERM)
            assert job.finish() == 0, (end(job.out), end(job.err))
            assert job.out.count('asked to stop; saved in') == 1, end(job.out)
        out, _ = train(cddprun, [*r.flags, *saving, '--fsdp=2'])
        assert 'gpt: resumed from' in out and told(r) == want, end(out)


def test_writes_the_same_text(cddprun):
    """All ranks compute it together, and rank 0 writes it."""
    texts = []
    for more in [], ['--fsdp']:
        with short_run('--steps', '3', '--sample', '20', *more) as r:
            out, _ = train(cddprun, [*r.flags, '--sample', '20'])
            texts.append(out[out.index('\n[0] And '):])
    assert texts[0] == texts[1] and '[1] And' not in texts[1], texts


def test_death_of_a_rank_is_told(cddprun):
    with short_run('--steps', '100000', '--eval-every', '0', '--fsdp') as r:
        script = f'echo $$ > {r.log}.$RANK; exec "$@"'
        with Job(cddprun, '--standalone', '--nproc_per_node=3', 'sh', '-c', script, 'sh', gpt(cddprun), *r.flags) as job:
            wait_for('five steps', lambda: r.log.exists() and len(r.log.read_bytes().splitlines()) > 5)
            with open(f'{r.log}.1', encoding='ascii') as f:
                os.kill(int(f.read()), signal.SIGKILL)
            assert job.finish() not in (0, None), (end(job.out), end(job.err))
            assert re.search(r'rank 1\b.*SIGKILL', job.err), end(job.err)
            for line in job.err.splitlines():
                assert 'SIGSEGV' not in line and ('gpt: rank' not in line or 'rank 1' in line), line


def test_ranks_that_do_not_agree_are_told_so(cddprun):
    with short_run() as r:
        for flag, name in ('--fsdp=2', '--fsdp'), ('--micro=1', '--micro'), ('--weights-out=/dev/null', '--weights-out'):
            mine = [word for word in r.flags if word not in ('--weights-out', str(r.weights))]
            script = f'if [ $RANK = 1 ]; then exec "$0" "$@" {flag}; fi; exec "$0" "$@"'
            got, out, err = run(cddprun, '--nproc_per_node=2', 'sh', '-c', script, gpt(cddprun), *mine, '--fsdp')
            assert got == 1 and f'{name} is not the same on all ranks' in err, (flag, got, end(out), end(err))


def test_says_what_is_wrong(cddprun):
    for flags, says in [(['--fsdp=1'], "--fsdp must be a whole number from 2 to 3, not '1'"),
                        (['--fsdp=x'], "--fsdp must be a whole number from 2 to 3, not 'x'"),
                        (['--fsdp', '2'], "unexpected argument '2'"),
                        (['--hsdp'], '--hsdp needs --fsdp'),
                        (['--fsdp', '--hsdp', '--save', 'x'], '--save and --resume cannot be combined with --hsdp'),
                        (['--fsdp', '--graph'], '--graph cannot be combined with --fsdp'),
                        (['--fsdp', '--apart-every', '2'], '--apart-every cannot be combined with --divided, --fsdp or --save')]:
        got, out, err = run(gpt(cddprun), *flags)
        assert got == 2 and says in err and err.count('\n') == 1, (flags, got, out, err)


if __name__ == '__main__':
    if FULL:
        sys.argv.remove('--full')
    launch.main()
