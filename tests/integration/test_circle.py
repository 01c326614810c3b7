#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for messages of each other (circle.c): what the message, --where, /status and /metrics say about them."""
import json
import os
import re
import signal
import sys
import tempfile
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, run, wait_for

CIRCLE = os.environ['CDDP_CIRCLE']
WHO = '3 ranks wait for each other in messages: rank 0 for rank 1, rank 1 for rank 2, rank 2 for rank 0'


class Circle(Job):
    """Five ranks on two nodes; the first node hosts."""

    def __init__(self, cddprun, warning):
        self.port = launch.free_port()
        flags = ['--nnodes=2', '--master_addr=127.0.0.1', f'--master_port={self.port}', f'--hang_warning={warning}', '--shutdown_timeout=1',
                 '--rdzv_id=circle']
        env = {'CDDP_BACKEND': 'cpu', 'CUDA_VISIBLE_DEVICES': ''}  # no load of a GPU in the texts
        self.errors = tempfile.TemporaryFile('w+')
        super().__init__(cddprun, *flags, '--node_rank=0', '--nproc_per_node=2', CIRCLE, env=env, stderr=self.errors)
        self.other = Job(cddprun, *flags, '--node_rank=1', '--nproc_per_node=3', CIRCLE, env=env)

    def page(self, name):
        try:
            with urllib.request.urlopen(f'http://127.0.0.1:{self.port}/{name}', timeout=20) as answer:
                return answer.read().decode()
        except OSError:
            return ''

    def verdict(self):
        jobs = json.loads(self.page('status') or '{"jobs": []}')['jobs']
        return jobs[0]['verdict'] if jobs else {'word': '', 'text': ''}

    def said(self):
        return os.pread(self.errors.fileno(), 1 << 20, 0).decode()  # the job shares the file's offset

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.other.finish()
        status = self.finish()
        self.err = self.said()
        return status

    def __enter__(self):
        self.other.__enter__()
        return super().__enter__()

    def __exit__(self, *why):
        super().__exit__(*why)
        self.errors.close()
        self.other.__exit__(*why)


def test_message_says_who_waits_for_whom(cddprun):
    with Circle(cddprun, 3) as job:
        verdict = wait_for('the verdict', lambda: (lambda v: v if v['word'] == 'Stuck' else None)(job.verdict()), more=job.verdict)
        assert verdict['level'] == 'bad' and verdict['text'].startswith(WHO + ', for '), verdict
        wait_for('the stop of all figures', lambda: 'no step has ended for' in run(cddprun, '--where', f'127.0.0.1:{job.port}')[1])
        status, out, err = run(cddprun, '--where', f'127.0.0.1:{job.port}')
        assert status == 0 and re.search(r'^[\d, -]+ in recv #\d+ from ranks? [12]', out, re.M) and re.search(r'^3(, 4)? +in barrier #', out, re.M), (out, err)
        assert re.search(r'^5 ranks, 20 steps done; no step has ended for [\d.]+ s$', out.split(', mostly')[0], re.M), out
        assert 'per second' not in out, out
        metrics = job.page('metrics')
        assert 0 < float(re.search(r'^cddp_job_steps_per_second\{.*\} (.*)$', metrics, re.M)[1]) < 1, metrics
        assert float(re.search(r'^cddp_job_last_step_age_seconds\{.*\} (.*)$', metrics, re.M)[1]) > 1, metrics
        where = json.loads(job.page('status'))['jobs'][0]['where']
        late = where['columns'].index('late')
        assert [row[late] for node in where['nodes'] for row in node['rows']] == [True, True, True, False, False], where
        wait_for('the message', lambda: ' wait in barrier' in job.said(), more=job.said)
        assert job.stop() == 128 + signal.SIGTERM, (job.err, job.other.err)
    lines = job.err[job.err.index('cddprun: no progress'):].splitlines()
    assert re.fullmatch(rf'cddprun: no progress for \d+ s: {WHO}', lines[0]), job.err
    assert re.match(r'    rank 0 \(pid \d+ on .*\): in recv #\d+ of 4 B float32 from rank 1 \(step 20\), (for \d+ s, )?', lines[1]), job.err
    assert re.match(r'    ranks 3, 4 wait in barrier #\d+ \(step 20\)(, for \d+ s)?$', lines[4]), job.err
    assert 'one collective' not in job.err, job.err


def test_a_wait_is_an_error_after_the_jobs_own_time(cddprun):
    with Circle(cddprun, 3600) as job:
        wait_for('the end of the steps', lambda: 'no step has ended' in run(cddprun, '--where', f'127.0.0.1:{job.port}')[1])
        verdict = job.verdict()
        assert verdict['word'] == 'Running' and verdict['level'] == 'good', verdict
        assert job.stop() == 128 + signal.SIGTERM, (job.err, job.other.err)
    assert 'no progress' not in job.err, job.err


if __name__ == '__main__':
    launch.main()
