#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--report, in a browser, and --progress, on a pseudo-terminal: test_report.py CDDPRUN

The picture of the documents: CDDP_SCREENSHOTS=docs/img.
"""
import base64
import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
import launch  # noqa: E402
from browser import Browser  # noqa: E402

PLANTED = os.environ.get('CDDP_REPORT_PLANTED', '')
WINE = os.environ.get('CDDP_WINE', '')


class Folder:
    """A directory for reports, which must hold nothing else at the end."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix='cddp-report-')
        self.file = os.path.join(self.path, 'run.html')
        return self

    def data(self):
        with open(self.file, encoding='utf-8') as f:
            return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', f.read(), re.S)[1])

    def __exit__(self, kind, value, trace):
        left = os.listdir(self.path)
        shutil.rmtree(self.path)
        if kind is None:
            assert left in ([], ['run.html']), left


def section(b, title):
    """The text of a section of the page."""
    return b.eval(f'[...document.querySelectorAll("section")].filter(s => s.querySelector("h2").textContent === {json.dumps(title)})'
                 '.map(s => s.innerText).join("")')


def open_planted(b, folder):
    subprocess.run([PLANTED, folder.file], check=True, timeout=launch.DEADLINE)
    b.open('file://' + folder.file)


# ------------------------------------------------------------------------------------------------- in a browser ----

def test_planted_run_is_drawn(_):
    with Folder() as folder, Browser() as b:
        open_planted(b, folder)
        assert 'Ended with status 143 after 5 min 0 s: ended by signal 15' in b.eval('document.getElementById("verdict").textContent')
        assert b.count('rect.bar') == 3 and b.count('rect.bar.failed') == 1, 'three rounds, of which one failed'
        assert b.count('path.fail') == 1 and b.count('line.mark') == 3
        bars = b.eval('[...document.querySelectorAll("rect.bar")].map(r => [+r.getAttribute("x"), +r.getAttribute("width")])')
        for (x, width), (next_x, _width) in zip(bars, bars[1:]):
            assert width > 100 and x + width < next_x, f'rounds follow one another: {bars}'
        # 12 steps/s in the slow round, 14 later, none between.
        points = [[float(v) for v in p.split(',')] for p in b.eval('document.querySelector("polyline.rate").getAttribute("points")').split()]
        assert len(points) > 100 and all(y <= 150.01 for _x, y in points), points
        heights = [sorted(150 - y for x, y in points if low < x < low + width)[len(points) // 20:][-20:-5] for low, width in bars]
        middles = [h[len(h) // 2] for h in heights]
        assert middles[0] < middles[1] * 0.9 and abs(middles[1] - middles[2]) < middles[1] * 0.1, middles
        assert sum(150 - y < 1 for _x, y in points) >= 3, 'no steps between rounds'
        for kind in ('exposed', 'hidden', 'compute'):
            assert b.count(f'rect.{kind}.share') > 100, kind
        rows = b.eval('[...document.querySelectorAll("g.late-row")].map(g => g.querySelector("text").textContent)')
        assert len(rows) == 10 and rows[0] == 'rank 5', rows
        assert b.eval('[...document.querySelectorAll(".tile")].map(t => t.innerText.replace("\\n", " ")).join("|")').startswith('24 ranks on 3 nodes|')
        assert 'rank 11 (pid 4711 on node2) was killed by signal 9 (SIGKILL)' in section(b, 'Failures')
        tables = b.eval('[...document.querySelectorAll("details")].map(d => [d.querySelector("summary").textContent, d.querySelectorAll("tbody tr").length])')
        assert dict(tables) == {'Rounds': 3, 'Events': 3, 'Ranks': 16, 'Command': 5, 'Machine and versions': 8}, tables
        assert not b.errors, b.errors


def test_text_of_a_rank_is_only_text(_):
    with Folder() as folder, Browser() as b:
        open_planted(b, folder)
        failures = section(b, 'Failures')
        assert "</script><script>document.title='broken'</script>" in failures, failures
        assert '3 <b>shards</b> are missing' in failures and '\ufffd[31mloss 0.41\ufffdx' in failures, failures
        assert b.eval('document.title') == 'cddprun report: train'
        assert b.count('script') == 2 and b.count('b') == b.count('.tile b') + 1
        assert '--epochs=<3>' in b.eval('document.querySelector("h1").textContent')
        # Even a script that got into the page would not run: the page allows only its own.
        b.eval('(() => { const s = document.createElement("script"); s.textContent = "document.title = 1"; document.body.append(s); })()')
        assert b.eval('document.title') == 'cddprun report: train'
        assert len(b.errors) == 1 and 'Content Security Policy' in str(b.errors[0]), b.errors


def test_phone_dark_and_paper(_):
    folder_of_pictures = os.environ.get('CDDP_SCREENSHOTS')
    with Folder() as folder, Browser() as b:
        b.show(1000, 1240)
        open_planted(b, folder)
        light = b.eval('getComputedStyle(document.body).backgroundColor')
        if folder_of_pictures:
            b.screenshot(os.path.join(folder_of_pictures, 'report.png'))
        b.show(1000, 1240, dark=True)
        dark = b.eval('getComputedStyle(document.body).backgroundColor')
        ink = b.eval('getComputedStyle(document.querySelector("svg .name")).fill')
        assert light != dark and ink == 'rgb(230, 237, 243)', (light, dark, ink)
        b.show(375, 700)
        b.open('file://' + folder.file)
        assert b.overflow() <= 0, 'no scrolling sideways on a phone'
        assert b.eval('[...document.querySelectorAll("svg, svg text")].every(s => s.getBoundingClientRect().right <= 375)')
        b.show(1000, 800)
        launch.wait_for('a drawing for the new width', lambda: b.eval('document.querySelector("svg").viewBox.baseVal.width') > 700)
        assert base64.b64decode(b.call('Page.printToPDF', printBackground=True)['data']).startswith(b'%PDF')
        assert b.count('details:not([open])') == 0, 'paper has all tables'
        assert not b.errors, b.errors


# ------------------------------------------------------------------------------------------------- of real runs ----

def test_report_of_a_restart(cddprun):
    """Two rounds, a failure with its stderr, and steps of a reducer."""
    script = 'if [ $TORCHELASTIC_RESTART_COUNT = 0 ] && [ $RANK = 1 ]; then echo "<img src=x> bad luck" >&2; sleep 0.3; exit 3; fi; exec $WINE'
    with Folder() as folder:
        status, _, err = launch.run(cddprun, '--standalone', '--nproc_per_node=2', '--max_restarts=1', f'--report={folder.file}', 'sh', '-c', script,
                                    env={'WINE': WINE})
        assert status == 0, err
        d = folder.data()
        assert [r['round'] for r in d['rounds']] == [0, 1] and d['restarts'] == 1, d['rounds']
        assert d['rounds'][0]['failed'] and not d['rounds'][1]['failed'] and d['status'] == 0
        assert 'rank 1' in d['failures'][0]['headline'] and '<img src=x> bad luck' in d['failures'][0]['details'], d['failures']
        assert d['rounds'][0]['began_ms'] < d['rounds'][0]['ended_ms'] <= d['rounds'][1]['began_ms'] <= d['ended_ms']
        assert d['n_steps'] == 300, d['n_steps']
        assert abs(sum(d['spans']['steps']) - 300) < 0.1
        assert [e['kind'] for e in d['events']] == ['restart']
        with Browser() as b:
            b.open('file://' + folder.file)
            assert 'Finished after' in b.eval('document.getElementById("verdict").textContent')
            assert b.count('rect.bar') == 2 and b.count('polyline.rate') == 1 and b.count('img') == 0
            assert not b.errors, b.errors


def test_report_of_a_signal_and_of_a_program_without_steps(cddprun):
    with Folder() as folder:
        with launch.Job(cddprun, '--standalone', '--nproc_per_node=1', f'--report={folder.file}', 'sh', '-c', 'echo up; sleep 600') as job:
            assert job.process.stdout.readline() == '[0] up\n'
            assert not os.path.exists(folder.file), 'not before the end'
            job.process.send_signal(signal.SIGTERM)
            assert job.finish() == 128 + signal.SIGTERM
        d = folder.data()
        assert d['status'] == 128 + signal.SIGTERM and d['why'] == 'ended by signal 15' and d['events'][0]['text'] == 'SIGTERM', d
        assert stat.S_IMODE(os.stat(folder.file).st_mode) == 0o666 & ~current_umask()
        with Browser() as b:
            b.open('file://' + folder.file)
            assert 'No steps were recorded' in section(b, 'Steps per second') and b.count('rect.bar') == 1
            assert not b.errors, b.errors


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_only_node_rank_0_writes(cddprun):
    with Folder() as folder, Folder() as other:
        port = launch.free_port()
        common = ['--nnodes=2', '--nproc_per_node=1', '--master_addr=127.0.0.1', f'--master_port={port}']
        with launch.Job(cddprun, *common, '--node_rank=0', f'--report={folder.file}', 'true') as first, \
                launch.Job(cddprun, *common, '--node_rank=1', f'--report={other.file}', 'true') as second:
            assert first.finish() == 0 and second.finish() == 0, first.err + second.err
        assert folder.data()['rounds'][0]['n_nodes'] == 2 and os.listdir(other.path) == []


def test_steps_of_other_nodes_are_in_it(cddprun):
    with Folder() as folder, Folder() as other:
        port = launch.free_port()
        common = ['--nnodes=2', '--nproc_per_node=2', '--master_addr=127.0.0.1', f'--master_port={port}']
        with launch.Job(cddprun, *common, '--node_rank=0', f'--report={folder.file}', WINE) as first, \
                launch.Job(cddprun, *common, '--node_rank=1', f'--report={other.file}', WINE) as second:
            assert first.finish() == 0 and second.finish() == 0, first.err + second.err
        ranks = folder.data()['ranks']
        # Steps as short as these may pass between two readings of the flight page, which keeps 64.
        assert len(ranks) == 4 and all(64 <= r['n'] <= 300 for r in ranks), ranks


def test_bad_path_is_found_before_the_run(cddprun):
    for path in ('/no/such/directory/run.html', '/dev/null', '/'):
        status, out, err = launch.run(cddprun, '--standalone', f'--report={path}', 'echo', 'ran')
        assert status == 1 and "--report '" in err and 'ran' not in out, (path, status, err)


def test_report_that_cannot_be_written_leaves_the_status(cddprun):
    if os.geteuid() == 0 and shutil.which('chattr') is None:
        raise launch.Skip('root writes everywhere')
    folder = tempfile.mkdtemp(prefix='cddp-report-')
    try:
        path = os.path.join(folder, 'gone', 'run.html')
        os.mkdir(os.path.dirname(path))
        status, _, err = launch.run(cddprun, '--standalone', f'--report={path}', 'rmdir', os.path.dirname(path))
        assert status == 0 and 'cannot write the report' in err, (status, err)
    finally:
        shutil.rmtree(folder)


# ------------------------------------------------------------------------------------------------ --progress ----

class Terminal:
    """cddprun with a pseudo-terminal as its controlling one; `text` is all that it has written."""

    def __init__(self, cddprun, *args, columns=100, redirect='', env=None):
        self.text = b''
        self.dir = tempfile.mkdtemp(prefix='cddp-test-')
        words = shlex.join((cddprun, *args))
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            clean = {k: v for k, v in os.environ.items() if not k.startswith(('PET_', 'TORCHELASTIC_', 'CDDP_', 'OMP_', 'MASTER_'))}
            clean.update({'TERM': 'xterm', 'TMPDIR': self.dir, 'NO_COLOR': '1', **(env or {})})
            os.execve('/bin/sh', ['sh', '-c', f'exec {words} {redirect}'], clean)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))

    def read(self):
        if not select.select([self.fd], [], [], 0.05)[0]:
            return True
        try:
            more = os.read(self.fd, 65536)
        except OSError:
            more = b''
        self.text += more
        return more != b''

    def wait_for(self, pattern):
        deadline = time.monotonic() + launch.DEADLINE
        while not re.search(pattern, self.text):
            assert self.read() and time.monotonic() < deadline, f'no {pattern!r} in {self.text[-2000:]!r}'

    def finish(self):
        deadline = time.monotonic() + launch.DEADLINE
        while self.read():
            assert time.monotonic() < deadline, self.text[-2000:]
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def screen(self):
        """The lines that a terminal shows of it: carriage returns and "erase to the end of the line" only."""
        lines, at = [''], 0
        for piece in re.findall(r'\r|\n|\x1b\[K|[^\r\n\x1b]+|\x1b', self.text.decode()):
            if piece == '\n':
                lines.append('')
                at = 0
            elif piece == '\r':
                at = 0
            elif piece == '\x1b[K':
                lines[-1] = lines[-1][:at]
            else:
                lines[-1] = lines[-1][:at].ljust(at) + piece + lines[-1][at + len(piece):]
                at += len(piece)
        return lines

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)
            os.close(self.fd)
            os.waitpid(self.pid, 0)
        else:
            os.close(self.fd)
        shutil.rmtree(self.dir, ignore_errors=True)


LINE = rb'\r(step \d+|\d+ ranks?), [^\r\n]*\d\d:\d\d:\d\d\x1b\[K\r'


def test_progress_is_below_the_output_and_leaves_it_whole(cddprun):
    script = 'for i in $(seq 30); do echo "line $i of stdout, and a long one, so that a rest of the progress line would show after it: no"; ' \
             'echo "short $i" >&2; sleep 0.05; done; [ -e $TMPDIR/go ] || sleep 1; echo last'
    with Terminal(cddprun, '--standalone', '--nproc_per_node=2', '--progress', 'sh', '-c', script) as t:
        t.wait_for(LINE)
        assert t.finish() == 0
        screen = t.screen()
        want = sorted([f'[{r}] {kind}' for r in (0, 1) for i in range(1, 31)
                       for kind in (f'line {i} of stdout, and a long one, so that a rest of the progress line would show after it: no', f'short {i}')] +
                      ['[0] last', '[1] last', ''])
        assert sorted(screen) == want, '\n'.join(screen)
        assert len(re.findall(LINE, t.text)) >= 3, t.text


def test_progress_counts_steps(cddprun):
    with Terminal(cddprun, '--standalone', '--nproc_per_node=2', '--progress', WINE, '--epochs', '1000000', redirect='> /dev/null') as t:
        t.wait_for(rb'\rstep (\d+), [\d.]+ steps/s, [^\r]*00:00:\d\d\x1b\[K\r')
        seen = len(t.text)
        t.wait_for(rb'(?s).{%d}.*\rstep \d+, [\d.]+ steps/s' % seen)
        steps = [int(n) for n in re.findall(rb'\rstep (\d+),', t.text)]
        rates = [float(n) for n in re.findall(rb', ([\d.]+) steps/s', t.text)]
        assert steps == sorted(steps) and steps[0] < steps[-1] and min(rates) > 0, t.text
        os.kill(t.pid, signal.SIGTERM)
        assert t.finish() == 128 + signal.SIGTERM
        assert t.screen()[0].startswith('cddprun: ended by signal 15'), t.screen()


def test_progress_fits_into_the_window(cddprun):
    with Terminal(cddprun, '--standalone', '--nproc_per_node=1', '--progress', 'sleep', '2', columns=8) as t:
        t.wait_for(rb'\r1 rank\x1b\[K\r')
        fcntl.ioctl(t.fd, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 40, 0, 0))
        t.wait_for(rb'\r1 rank, 00:00:0\d\x1b\[K\r')
        assert t.finish() == 0


def test_progress_leaves_a_bar_of_a_worker_alone(cddprun):
    """A program that draws with carriage returns has the line."""
    script = 'i=0; while [ $i -lt 20 ]; do printf "bar %d\\r" $i; sleep 0.1; i=$((i + 1)); done; echo done'
    with Terminal(cddprun, '--standalone', '--nproc_per_node=1', '--progress', 'sh', '-c', script) as t:
        t.wait_for(rb'bar 3')
        before = len(re.findall(LINE, t.text))
        assert t.finish() == 0
        assert len(re.findall(LINE, t.text)) <= before + 1 and t.screen() == ['[0] done', ''], t.text


def test_progress_is_off_elsewhere(cddprun):
    status, out, err = launch.run(cddprun, '--standalone', '--progress', 'sh', '-c', 'sleep 1.2; echo x')
    assert (status, out, err) == (0, '[0] x\n', ''), (out, err)
    # A reader of stdout would not know of the line.
    with Terminal(cddprun, '--standalone', '--progress', 'sh', '-c', 'sleep 1.2; echo x', redirect='| cat') as t:
        t.finish()
        assert b'draws no line: stdout is a pipe' in t.text and not re.search(LINE, t.text), t.text
    with Terminal(cddprun, '--standalone', '--progress', 'sh', '-c', 'sleep 1.2; echo x', redirect='> /dev/null') as t:
        t.wait_for(LINE)
        t.finish()
    with Terminal(cddprun, '--standalone', '--progress', '--interactive=0', 'sh', '-c', 'sleep 1.2; echo x') as t:
        t.finish()
        assert not re.search(LINE, t.text), t.text
    with Terminal(cddprun, '--standalone', '--progress', 'sh', '-c', 'sleep 1.2; echo x', env={'TERM': 'dumb'}) as t:
        t.finish()
        assert not re.search(LINE, t.text), t.text


def test_progress_and_the_message_of_a_failure(cddprun):
    with Terminal(cddprun, '--standalone', '--nproc_per_node=2', '--progress', 'sh', '-c', 'sleep 1.3; exit $((RANK + 4))') as t:
        t.wait_for(LINE)
        assert t.finish() in (4, 5)
        screen = t.screen()
        assert screen[0].startswith('cddprun: rank ') and not any('00:00' in row and 'rank' in row and 'local' not in row for row in screen[1:]), screen


if __name__ == '__main__':
    launch.main()
