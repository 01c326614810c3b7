#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cddprun --top in tmux: test_top.py TOP_PLANTED

top_planted is the view with answers from a file. Each test drives it by keys and reads the screen that tmux has drawn.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
import launch  # noqa: E402

ENDED = 'ended with'


class Terminal:
    """A private tmux with one pane, in which a shell runs top_planted and then says how it ended."""

    def __init__(self, top, answer, columns, lines, command=None):
        if shutil.which('tmux') is None:
            raise launch.Skip('tmux is not installed')
        if not any(os.path.exists(f'{folder}/libncursesw.so.6') for folder in library_folders()):
            raise launch.Skip('libncursesw.so.6 is not installed')
        self.dir = tempfile.mkdtemp(prefix='cddp-top-')
        self.file = os.path.join(self.dir, 'answer')
        if answer is not None:
            self.answer(answer)
        shell = command or f'trap : INT QUIT; stty -a > {self.dir}/before; {top} {self.file}; echo "{ENDED} $?"; stty -a > {self.dir}/after; exec sleep 240'
        self.tmux('-f', '/dev/null', 'new-session', '-d', '-x', str(columns), '-y', str(lines), shell)
        self.tmux('set', '-g', 'status', 'off')
        self.tmux('set', '-g', 'window-size', 'manual')
        self.resize(columns, lines)

    def tmux(self, *words):
        done = subprocess.run(['tmux', '-S', os.path.join(self.dir, 'socket'), *words], capture_output=True, text=True,
                              timeout=launch.DEADLINE, env={**os.environ, 'LC_ALL': 'C.UTF-8', 'SHELL': '/bin/sh'}, check=False)
        assert done.returncode == 0, f'tmux {words}: {done.stderr}'
        return done.stdout

    def answer(self, value):
        """Replaces the answer at once: the view never reads half of it."""
        with open(self.file + '.new', 'w', encoding='utf-8') as f:
            json.dump(value, f)
        os.rename(self.file + '.new', self.file)

    def resize(self, columns, lines):
        self.tmux('resize-window', '-x', str(columns), '-y', str(lines))

    def keys(self, *names):
        self.tmux('send-keys', *names)

    def screen(self):
        time.sleep(0.05)  # a question to tmux is a process
        return self.tmux('capture-pane', '-p').rstrip('\n').split('\n')

    def shows(self, text, line=None):
        """Waits until the screen, or its n-th line, has this text. Returns the screen."""
        def look():
            screen = self.screen()
            return screen if any(text in row for row in (screen if line is None else screen[line:][:1])) else None
        return launch.wait_for(repr(text), look, more=lambda: '\n' + '\n'.join(self.screen()))

    def pid(self):
        shell = int(self.tmux('display-message', '-p', '#{pane_pid}'))
        for name in os.listdir('/proc'):
            if name.isdigit() and launch.parent(int(name)) == shell:
                return int(name)
        raise AssertionError('the view does not run')

    def restored(self):
        """The view has ended: the shell's screen is there again, with a cursor and the old modes of the terminal."""
        launch.wait_for('the modes after the view', lambda: os.path.exists(self.dir + '/after') and os.path.getsize(self.dir + '/after') > 0)
        modes = [open(f'{self.dir}/{name}', encoding='utf-8').read().split(';', 3)[3] for name in ('before', 'after')]
        assert modes[0] == modes[1], modes
        assert self.tmux('display-message', '-p', '#{alternate_on} #{cursor_flag}').strip() == '0 1'

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.tmux('kill-server')
        except AssertionError:
            pass
        shutil.rmtree(self.dir, ignore_errors=True)


def library_folders():
    return ['/lib', '/lib64', '/usr/lib', '/usr/lib64', *[f'{root}/{arch}-linux-gnu' for root in ('/lib', '/usr/lib') for arch in ('x86_64', 'aarch64')]]


def rank_of(number, step, place='in', seq=812):
    return {'rank': number, 'pid': 100 + number, 'step': step, 'place': place, 'op': 'all_reduce', 'op_number': 1, 'seq': seq, 'bucket': 3,
            'for_ms': 4200, 'cpu_permille': 990, 'resident_bytes': 1288490188, 'step_us': 80000, 'comm_us': 10000, 'exposed_us': 2000,
            'late_us': 1600, 'late_rank': 2, 'late_count': 40}


def answer_of(nodes, each, late=2, step=390):
    """A running job; one rank is 2 steps late."""
    ranks = [rank_of(i, step - 2, 'after', 811) if i == late else rank_of(i, step) for i in range(nodes * each)]
    return {'version': '1', 'jobs': [{
        'name': 'train', 'state': 'running', 'round': 2, 'restarts': 1, 'world_size': nodes * each,
        'nodes': [{'round': 2, 'asked': 1, 'node_rank': n, 'host': f'host{n}', 'ranks': ranks[n * each:(n + 1) * each]} for n in range(nodes)]}]}


def test_80x24_shows_the_late_rank_first(top):
    with Terminal(top, answer_of(2, 4), 80, 24) as t:
        screen = t.shows('train: running')
        assert screen[1] == 'train: running, round 2, 1 restart, 8 ranks, 2 nodes, step 388, 12.5 steps/s', screen[1]
        assert screen[3].split() == ['RANK', 'STEP', 'LATE', 'STEPS/S', 'WAITS', 'MEMORY', 'CORES', 'WHERE'], screen[3]
        assert screen[4].split()[:3] == ['2', '388', '2'] and 'after all_reduce #811' in screen[4], screen[4]
        assert [row.split()[0] for row in screen[5:12]] == ['0', '1', '3', '4', '5', '6', '7'], screen
        assert len(screen) == 24 and 'q quits' in screen[23] and 'rows 1 to 8 of 8' in screen[23], screen
        t.answer(answer_of(2, 4, late=6, step=500))
        screen = t.shows('step 498')
        assert screen[4].split()[:3] == ['6', '498', '2'], screen[4]
        t.keys('q')
        t.shows(f'{ENDED} 0')
        t.restored()


def test_200x60_has_all_columns_and_follows_the_size(top):
    with Terminal(top, answer_of(2, 4), 200, 60) as t:
        screen = t.shows('train: running')
        assert 'NODE' in screen[3] and 'HIDDEN' in screen[3], screen[3]
        assert '0 host0' in screen[4] and 'after all_reduce #811, 4 s ago' in screen[4], screen[4]
        assert len(screen) == 60 and 'rows 1 to 8 of 8' in screen[59], screen
        t.resize(80, 24)
        launch.wait_for('24 lines', lambda: 'rows 1 to 8' in (t.screen()[23:24] or [''])[0] and 'NODE' not in t.screen()[3], more=t.screen)
        t.resize(20, 5)
        launch.wait_for('a tiny screen', lambda: any(row.split()[:2] == ['2', '388'] for row in t.screen()), more=t.screen)
        t.resize(200, 60)
        t.shows('HIDDEN', 3)
        t.keys('q')
        t.shows(f'{ENDED} 0')
        t.restored()


def test_1000_ranks_scroll(top):
    with Terminal(top, answer_of(125, 8), 80, 24) as t:
        t.shows('rows 1 to 19 of 1000', 23)
        t.keys('Down')
        t.shows('rows 2 to 20 of 1000', 23)
        t.keys('NPage')
        t.shows('rows 20 to 38 of 1000', 23)
        t.keys('End')
        screen = t.shows('rows 982 to 1000 of 1000', 23)
        assert screen[22].split()[0] == '999', screen
        assert 'train: running' in screen[1], 'the head stays'
        t.keys('PPage')
        t.shows('rows 964 to 982 of 1000', 23)
        t.keys('Home')
        t.shows('rows 1 to 19 of 1000', 23)
        t.keys('Up')
        t.keys('q')
        t.shows(f'{ENDED} 0')


def test_lost_connection_is_shown_and_comes_back(top):
    with Terminal(top, None, 80, 24) as t:
        screen = t.shows('connection lost, trying again', 0)
        assert 'waiting for the first answer' in screen[1], screen
        t.answer(answer_of(1, 2, late=0))
        t.shows('train: running')
        assert 'connection lost' not in t.screen()[0]
        os.unlink(t.file)
        screen = t.shows('connection lost, trying again', 0)
        assert 'train: running' in screen[1], 'the last answer stays'
        t.answer(answer_of(1, 2, late=1, step=777))
        t.shows('step 775')
        assert 'connection lost' not in t.screen()[0]


def test_keys_work_while_the_server_is_silent(top):
    with Terminal(top, answer_of(125, 8), 80, 24) as t:
        t.shows('rows 1 to 19 of 1000', 23)
        t.answer({'hang': 1})
        t.keys('Down')
        t.shows('rows 2 to 20 of 1000', 23)
        t.keys('q')
        t.shows(f'{ENDED} 0')


def test_every_signal_restores_the_terminal(top):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        with Terminal(top, answer_of(2, 4), 80, 24) as t:
            t.shows('train: running')
            os.kill(t.pid(), number)
            t.shows(f'{ENDED} {128 + number}')
            t.restored()
    with Terminal(top, answer_of(2, 4), 80, 24) as t:
        t.shows('train: running')
        t.keys('C-c')
        t.shows(f'{ENDED} {128 + signal.SIGINT}')
        t.restored()


def test_an_ignored_signal_stays_ignored(top):
    with Terminal(f"""sh -c 'trap "" HUP; exec "$0" "$1"' {top}""", answer_of(2, 4), 80, 24) as t:
        t.shows('train: running')
        pid = t.pid()
        for number in signal.SIGHUP, signal.SIGTERM:
            os.kill(pid, number)
        t.shows(f'{ENDED} {128 + signal.SIGTERM}')


def test_a_real_job_and_its_end(top):
    """cddprun --top at the endpoint of two ranks of which one is stopped, until the job ends."""
    cddprun, port = os.environ.get('CDDP_CDDPRUN'), launch.free_port()
    with launch.Job(cddprun, '--nproc_per_node=2', '--nnodes=1', f'--master_port={port}', '--master_addr=127.0.0.1', '--rdzv_id=train',
                    os.environ['CDDP_PROBE'], 'loop') as job:
        launch.wait_for('the rendezvous', lambda: launch.listens(port))
        launch.wait_for('two workers', lambda: len(job.workers()) == 2)
        with Terminal(top, None, 80, 24, command=f'{cddprun} --top=127.0.0.1:{port}; echo "{ENDED} $?"; exec sleep 240') as t:
            screen = t.shows('train: running, round 0, 0 restarts, 2 ranks, 1 node')
            assert f'127.0.0.1:{port}' in screen[0], screen
            t.shows('all_reduce #')
            os.kill(job.workers()[0], signal.SIGSTOP)
            # The other one waits in the collective, for longer with each answer.
            launch.wait_for('the waiting rank', lambda: any(re.search(r'in all_reduce #\d+, for [1-9]', row) for row in t.screen()[4:6]), more=t.screen)
            job.process.send_signal(signal.SIGTERM)
            assert job.finish() == 128 + signal.SIGTERM
            t.shows('connection lost, trying again', 0)
            t.keys('q')
            t.shows(f'{ENDED} 0')


def test_needs_a_terminal(top):
    done = subprocess.run([top, '/none'], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=launch.DEADLINE, check=False)
    assert done.returncode == 1 and '--top needs a terminal' in done.stderr, done


def test_unknown_terminal_is_an_error_message(top):
    with Terminal(top, answer_of(1, 1, late=9), 80, 24, command=f'TERM=no-such {top} /none 2>&1; echo "{ENDED} $?"; exec sleep 240') as t:
        t.shows(f'{ENDED} 1')
        t.shows('TERM')


if __name__ == '__main__':
    launch.main()
