#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of the rendezvous in a real browser, and --where, on jobs whose agents are planted. CDDP_RENDEZVOUS is the server's path.

CDDP_SCREENSHOTS: a folder that gets the pictures of docs/img.
"""
import contextlib
import json
import math
import os
import re
import signal
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from browser import Browser
from fake_agents import FakeAgents
from launch import Job, run

DAEMON = os.environ['CDDP_RENDEZVOUS']
PARAMETERS = 'layer3.conv2.weight, layer3.bn2.weight and 4 more'


class Daemon(Job):
    def __init__(self, *flags, **popen):
        super().__init__(DAEMON, '--bind=127.0.0.1', '--port=0', *flags, **popen)

    def __enter__(self):
        line = self.process.stdout.readline()
        assert line.startswith('listening 127.0.0.'), (line, self.process.stderr.read())
        self.port = int(line.rsplit(':', 1)[1])
        self.url = f'http://127.0.0.1:{self.port}/'
        return self

    def __exit__(self, *why):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        super().__exit__(*why)


class Training:
    """Planted ranks of a job: they make `rate` steps per second until stuck(), when rank `late` stays after its last collective."""

    def __init__(self, nproc, late=5, rate=40):
        self.nproc, self.late, self.rate, self.began, self.stuck_ms = nproc, late, rate, time.monotonic() - 100, None

    def stuck(self, ms):
        self.stuck_ms = ms

    def ranks_of(self, node_rank):
        passed = 100 if self.stuck_ms else time.monotonic() - self.began  # one moment: ranks of a node are in one step
        return [self.rank(node_rank * self.nproc + i, passed) for i in range(self.nproc)]

    def rank(self, rank, passed):
        step, behind = int(passed * self.rate), bool(self.stuck_ms) and rank == self.late
        wobble = 1 + 0.25 * math.sin(passed / 3)
        waits = int((0 if rank == self.late else 1500 + 170 * (rank * 7 % 11)) * wobble)
        return {'rank': rank, 'pid': 4000 + rank, 'place': 'after' if behind else 'in', 'op_number': 1, 'op': 'all_reduce',
                'seq': 2 * step + (not behind), 'step': step, 'bucket': 1, 'for_ms': self.stuck_ms or 2, 'names': PARAMETERS,
                'doing': ('stopped by a signal (SIGSTOP)' if behind else 'waiting, 2 % of a core') if self.stuck_ms else 'running, 98 % of a core',
                'n_steps': 32, 'step_us': int(1e6 / self.rate * wobble), 'comm_us': int(9000 * wobble), 'exposed_us': int(2600 * wobble),
                'late_us': waits, 'late_rank': 0 if rank == self.late else self.late, 'late_count': 28}


def screenshot(browser, name):
    folder = os.environ.get('CDDP_SCREENSHOTS')
    if folder:
        browser.screenshot(os.path.join(folder, name))


def until_samples(browser, n):
    """Waits until the charts have so many points: the page gets them by itself."""
    points = '(document.querySelector("path.line")?.getAttribute("d").match(/,/g) ?? []).length'
    launch.wait_for(f'{n} samples', lambda: browser.eval(points) >= n, more=lambda: browser.eval('document.body.innerText'))


def test_person_sees_that_all_is_well(cddprun):
    training = Training(8)
    with Browser() as browser, Daemon() as daemon, FakeAgents(daemon.port, 'resnet50', 2, 8, training.ranks_of):
        browser.show(1040, 760)
        browser.open(daemon.url)
        assert browser.text('.word') == 'Running' and browser.count('.state.good') == 1
        assert browser.text('.job') == 'resnet50' and '16 ranks' in browser.text('.state p')
        assert browser.eval('document.title') == 'Running: resnet50'
        before = browser.text('.state p')
        until_samples(browser, 4 if not os.environ.get('CDDP_SCREENSHOTS') else 14)
        assert browser.text('.state p') != before, 'the page is as it was'
        assert browser.count('figure') == 3 and browser.count('figure svg[role=img][aria-label]') == 3
        assert browser.count('rect.bar') == 16 and browser.count('rect.bar.slow') == 1
        assert 'rank 5' in browser.text('figure:nth-of-type(3) figcaption')
        heights = browser.eval('[...document.querySelectorAll("rect.bar")].map(b => +b.getAttribute("height"))')
        assert min(heights) == heights[5] and max(heights) == 68, heights
        rate = float(re.match(r'[\d.]+', browser.eval('document.querySelector("figure text").textContent')).group())
        assert 20 < rate < 80, f'{rate} steps per second; 40 are planted'
        assert browser.count('.where tbody tr') >= 1 and PARAMETERS in browser.text('.where')
        light = browser.eval('getComputedStyle(document.body).backgroundColor')
        screenshot(browser, 'page-light.png')
        browser.show(1040, 760, dark=True)
        dark = browser.eval('getComputedStyle(document.body).backgroundColor')
        assert light != dark and sum(map(int, re.findall(r'\d+', dark))) < 200, (light, dark)
        assert browser.overflow() == 0 and browser.errors == [], browser.errors


CONTRAST = '''(() => {
  const rgb = c => c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  const bright = c => { const [r, g, b] = rgb(c); return .2126 * r + .7152 * g + .0722 * b; };
  const word = getComputedStyle(document.querySelector('.word')).color;
  const [a, b] = [word, getComputedStyle(document.querySelector('.state')).backgroundColor].map(bright).sort((x, y) => y - x);
  return (a + .05) / (b + .05); })()'''


def test_stuck_job_is_readable_on_a_phone(cddprun):
    training = Training(8)
    with Browser() as browser, Daemon() as daemon, FakeAgents(daemon.port, 'resnet50', 2, 8, training.ranks_of):
        browser.show(360, 780, dark=True)
        browser.open(daemon.url)
        until_samples(browser, 3)
        training.stuck(95000)
        launch.wait_for('the news', lambda: browser.text('.word') == 'Stuck', more=lambda: browser.text('body'))
        text = browser.text('.state p')
        assert text == 'Rank 5 is late, stopped by a signal (SIGSTOP): 15 ranks have been in all_reduce #8001 ' \
                       f'(bucket 1: {PARAMETERS}) for 1 min 35 s.', text
        assert [browser.text(f'.where tbody tr:nth-child({i}) td') for i in (1, 2)] == ['5', '0-4, 6-15'], browser.text('.where')
        assert browser.count('.state.bad svg') == 1, 'a sign, not only a colour'
        for dark in True, False:
            browser.show(360, 780, dark=dark)
            assert browser.eval(CONTRAST) > 4.5, 'WCAG AA'
            assert browser.overflow() == 0, browser.overflow()
            wide = browser.eval('[...document.querySelectorAll("main *")].filter(e => e.getBoundingClientRect().right > 361).map(e => e.outerHTML)')
            assert wide == [], wide
        browser.show(360, 780, dark=True)
        screenshot(browser, 'page-dark-phone.png')
        assert browser.errors == [], browser.errors


def test_page_needs_no_script(cddprun):
    with Browser() as browser, Daemon() as daemon, FakeAgents(daemon.port, 'a<b>&"c', 1, 2, Training(2, late=1).ranks_of):
        browser.show(800, 600, scripts=False)
        browser.open(daemon.url)
        assert browser.text('.word') == 'Running' and browser.text('.job') == 'a<b>&"c' and browser.count('.where tbody tr') == 1
        assert browser.count('main b') == 1, 'only the ranks are bold: no markup came from the name'
        browser.show(800, 600)
        browser.open(daemon.url)
        until_samples(browser, 2)
        browser.eval('document.querySelector("details").open = false')
        time_of = browser.text('footer')
        launch.wait_for('another answer', lambda: browser.text('footer') != time_of)
        assert browser.eval('document.querySelector("details").open') is False, 'a refresh opens what the reader has closed'
        daemon.process.kill()
        launch.wait_for('the end', lambda: browser.eval('document.querySelector("#lost").hidden') is False)
        assert browser.text('.word') == 'Running', 'the last answer stays'


def where(cddprun, *args, **more):
    return run(cddprun, '--where', *args, **more)


def test_where_shows_a_thousand_ranks(cddprun):
    training = Training(8, late=7)
    training.stuck(42000)
    with Daemon() as daemon, FakeAgents(daemon.port, 'big', 125, 8, training.ranks_of) as agents:
        with open(f'/proc/{daemon.process.pid}/stat', encoding='ascii') as stat:
            begin = sum(map(int, stat.read().rsplit(')', 1)[1].split()[11:13]))
        status, out, err = where(cddprun, f'127.0.0.1:{daemon.port}')
        with open(f'/proc/{daemon.process.pid}/stat', encoding='ascii') as stat:
            spent = sum(map(int, stat.read().rsplit(')', 1)[1].split()[11:13])) - begin
        print(f'# the rendezvous spent {spent * 10} ms on one question about 1,000 ranks')
        lines = out.splitlines()
        assert status == 0 and err == '' and len(lines) == 5, (out, err)
        assert re.match(r'7 +after all_reduce #8000 \(bucket 1: layer3\..* 42 s +node0 +4000 +stopped by a signal', lines[2]), lines
        assert re.match(r'0-6, 8-999 +in all_reduce #8001 .* 42 s +125 nodes +4000 +waiting$', lines[3]), lines
        assert lines[4].startswith('1000 ranks, 4000 steps done; a step takes ') and lines[4].endswith('mostly for rank 7'), lines
        assert agents.asks == 125, 'one ASK for each agent'
        status, out, err = where(cddprun, 'big', f'--rdzv_endpoint=127.0.0.1:{daemon.port}')
        assert status == 0 and out.startswith("job 'big': running, round 0, 0 restarts, 125 nodes, 1000 ranks\n"), (out, err)
        jobs = json.loads(urllib.request.urlopen(daemon.url + 'status', timeout=10).read())['jobs']
        assert sum(len(node['rows']) for node in jobs[0]['where']['nodes']) == 1000 and jobs[0]['verdict']['word'] == 'Stuck', jobs[0]['verdict']
        metrics = urllib.request.urlopen(daemon.url + 'metrics', timeout=10).read().decode()
        assert 'cddp_job_ranks_at{run_id="big",place="in"} 999\n' in metrics and metrics.count('run_id="big"') < 100, 'few metrics for many ranks'


def test_one_ask_serves_all_who_look(cddprun):
    training = Training(4)
    with Daemon() as daemon, FakeAgents(daemon.port, 'busy', 2, 4, training.ranks_of) as agents:
        began = time.monotonic()
        threads = [threading.Thread(target=lambda: [urllib.request.urlopen(daemon.url + 'status', timeout=20).read() for _ in range(20)])
                   for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        passed = time.monotonic() - began
        assert agents.asks <= 2 * (passed / 0.25 + 1), f'{agents.asks} reports for 160 pages in {passed} s'
        asks = agents.asks
        time.sleep(1)  # nobody looks: the subject of the test
        assert agents.asks == asks, 'agents measure without need'


def test_history_is_kept_while_nobody_looks(cddprun):
    training = Training(4)
    with Daemon() as daemon, FakeAgents(daemon.port, 'quiet', 2, 4, training.ranks_of) as agents:
        launch.wait_for('brief questions', lambda: agents.briefs >= 2 * 5)
        assert agents.asks == 0, 'processes are measured while nobody looks'
        with urllib.request.urlopen(daemon.url + 'status', timeout=20) as status:
            history = json.loads(status.read())['jobs'][0]['history']
        assert len(history) >= 3 and all(0 < s['steps_per_s'] < 80 for s in history), history


def test_silent_node_is_named(cddprun):
    training, silent = Training(2, late=0), []
    with Daemon() as daemon, FakeAgents(daemon.port, 'job', 3, 2, lambda i: None if i in silent else training.ranks_of(i)):
        assert where(cddprun, f'127.0.0.1:{daemon.port}')[0] == 0
        silent.append(1)
        time.sleep(0.3)  # the last answers are news for a quarter of a second
        began = time.monotonic()
        status, out, err = where(cddprun, f'127.0.0.1:{daemon.port}')
        assert status == 0 and re.search(r'\nnode 1 \(node1\) did not answer; its ranks are shown as [\d.]+ m?s ago\n$', out), (out, err)
        assert 0.9 < time.monotonic() - began < launch.within(4), 'the server waits one second'
        assert 'did not answer' not in where(cddprun, 'job', f'--rdzv_endpoint=127.0.0.1:{daemon.port}')[2]


def test_where_explains_what_is_wrong(cddprun):
    with Daemon() as daemon:
        port = daemon.port
        for args, expected, words in (([f'127.0.0.1:{port}'], 0, None), (['nojob', f'--rdzv_endpoint=127.0.0.1:{port}'], 1, "has no job 'nojob'"),
                                      (['a b:3'], 2, 'is not HOST'), (['h:99999'], 2, 'is not HOST'), (['[::1'], 2, 'is not HOST'),
                                      (['nojob', '--rdzv_endpoint=h:x'], 2, "'h:x'"), ([f'127.0.0.1:{port}', 'true'], 2, 'remove the program'),
                                      (['nojob.invalid'], 1, "'nojob.invalid'; if it is a job, give its rendezvous, too: --rdzv_endpoint=HOST:PORT"),
                                      (['nojob.invalid:7'], 1, "the host 'nojob.invalid' is not known")):
            status, out, err = where(cddprun, *args)
            assert status == expected and (out == 'no jobs\n' if words is None else words in err and out == '' and err.count('\n') == 1), (args, status, out, err)
        status, out, err = run(cddprun, '--top=h:99999')
        assert status == 2 and "--top 'h:99999' is not HOST" in err and out == '', (status, out, err)
    status, out, err = where(cddprun, f'127.0.0.1:{port}')
    assert status == 1 and 'nothing answers' in err and err.count('\n') == 1, err


def test_where_proves_the_auth_token(cddprun):
    script = ['sh', '-c', f'{cddprun} --where 127.0.0.1:$MASTER_PORT; echo "status $?"; unset CDDP_AUTH_TOKEN_FILE; '
              f'{cddprun} --where 127.0.0.1:$MASTER_PORT; echo "status $?"']
    status, out, err = run(cddprun, '--standalone', '--rdzv_id=own', '--nproc_per_node=1', *script)
    assert status == 0 and "job 'own': running, round 0, 0 restarts, 1 node, 1 rank\n" in out and '1 rank, none of which uses libcddp' in out, (out, err)
    assert out.index('status 0') < out.index('status 1') and "requires the job's auth token; set --auth_token_file" in err, (out, err)


def test_load_of_the_ranks_gpus_is_shown(cddprun):
    """By a stand-in for NVIDIA's library (support/fake_nvml.c), whose first GPUs work for 80 % and 90 % of the time."""
    port = launch.free_port()
    flags = ['--master_addr=127.0.0.1', f'--master_port={port}', '--nnodes=1', '--nproc_per_node=3', '--rdzv_id=gpus']

    def known():
        text = urllib.request.urlopen(f'http://127.0.0.1:{port}/status', timeout=20).read()
        where_ = json.loads(text)['jobs'][0]['where']
        columns = where_['columns']
        return [[row[columns.index(name)] for name in ('gpu_permille', 'gpu_used_bytes', 'gpu_total_bytes')] for node in where_['nodes'] for row in node['rows']]

    with tempfile.TemporaryDirectory(prefix='cddp-test-') as folder, contextlib.ExitStack() as stack:
        os.symlink(os.path.abspath(os.environ['CDDP_FAKE_NVML']), os.path.join(folder, 'libnvidia-ml.so.1'))
        job = stack.enter_context(Job(cddprun, *flags, 'sleep', '60', env={'LD_LIBRARY_PATH': folder, 'CUDA_VISIBLE_DEVICES': '1,0,2'}))
        launch.wait_for('the rendezvous', lambda: launch.listens(port))
        gib = 1 << 30
        launch.wait_for('loads', lambda: known() == [[900, 12 * gib, 80 * gib], [800, 11 * gib, 80 * gib], [-1, 0, 0]], more=known)
        metrics = urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics', timeout=20).read().decode()
        assert 'cddp_job_gpu_load_ratio{run_id="gpus"} 0.85\n' in metrics and 'cddp_job_gpu_memory_used_ratio{run_id="gpus"} 0.15\n' in metrics, metrics
        assert '<dt>GPUs</dt><dd>85 % ' in urllib.request.urlopen(f'http://127.0.0.1:{port}/', timeout=20).read().decode()
        assert '; GPU load 85 %\n' in where(cddprun, f'127.0.0.1:{port}')[1]
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 128 + signal.SIGTERM


def test_node_that_is_stopped_does_not_stop_the_answer(cddprun):
    port = launch.free_port()
    flags = ['--nnodes=2', '--master_addr=127.0.0.1', f'--master_port={port}', '--nproc_per_node=1', '--rdzv_id=real']
    with Job(cddprun, *flags, '--node_rank=0', 'sleep', '60') as host, Job(cddprun, *flags, '--node_rank=1', 'sleep', '60') as other:
        launch.wait_for('both nodes', lambda: ' 2 nodes, 2 ranks' in where(cddprun, f'127.0.0.1:{port}')[1])
        pid = other.agent()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.3)  # the last answers are news for a quarter of a second
        status, out, err = where(cddprun, 'real', '--master_addr=127.0.0.1', f'--master_port={port}')
        os.kill(pid, signal.SIGCONT)
        assert status == 0 and 'node 1 (' in out and 'did not answer' in out, (out, err)
        host.process.send_signal(signal.SIGTERM)
        ends = [job.finish() for job in (host, other)]
        assert all(ends), (ends, host.err, other.err)


if __name__ == '__main__':
    launch.main()
