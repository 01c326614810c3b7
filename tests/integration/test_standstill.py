#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Python job in which one rank stops in a planted function, while the others wait: cddprun names it."""
import os
import re
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, Skip, wait_for

# Rank 2 is in a planted function; the others wait for it in a read of a pipe.
ONE_STOPS = '''
import os, sys, time
reader, writer = os.pipe()
def planted_sleep():
    time.sleep(1000)
def planted_spin():
    x = 0
    while True:
        x += 1
def wait_for_others():
    os.read(reader, 1)
def main():
    if os.environ["RANK"] == "2":
        globals()["planted_" + sys.argv[1]]()
    wait_for_others()
main()
'''
# The others wait for a key of the store, which rank 2 never sets: a WAIT in PyTorch's protocol.
KEY = '''
import os, socket, struct, time
def planted_sleep():
    time.sleep(1000)
def wait_for_key():
    s = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    text = lambda b: struct.pack("<Q", len(b)) + b
    s.sendall(struct.pack("<BI", 0, 0x3C85F7CE) + struct.pack("<BQ", 6, 2) + text(b"planted key") + text(b"other"))
    s.recv(1)
planted_sleep() if os.environ["RANK"] == "2" else wait_for_key()
'''
# Does what PyTorch's NCCL backend does: a byte in its pipe makes it write a dump. Rank 1 writes none.
RECORDER = '''
import os, threading, time
prefix, rank = os.environ["TORCH_FR_DUMP_TEMP_FILE"], os.environ["RANK"]
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
os.mkfifo(pipe)
def dump():
    fd = os.open(pipe, os.O_RDONLY)
    os.read(fd, 128)
    open(prefix + rank, "w").close()
if rank != "1":
    threading.Thread(target=dump, daemon=True).start()
time.sleep(1000)
'''
# All work for a while, then wait, for PAUSE seconds or for a file: twice; then all work and end.
TWICE = '''
import os, time
def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
def wait(i):
    if "GATE" in os.environ:
        return open(os.environ["GATE"] + str(i)).close()
    time.sleep(float(os.environ["PAUSE"]))
for i in range(2):
    work(0.2)
    wait(i)
work(2)
'''
# The worker waits for a process that it has started, and that works.
CHILD_WORKS = '''
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; end = time.monotonic() + 6\\nwhile time.monotonic() < end: pass"])
'''
# The same, and then it sleeps.
CHILD_WORKS_FIRST = CHILD_WORKS + 'import time; time.sleep(1000)'


NO_STACK = {'PATH': os.environ['PATH']}  # of a test without a message: it needs no py-spy


def stderr_of(job):
    with open(job.error_file, encoding='utf-8') as f:
        return f.read()


def start(cddprun, program, *args, n=4, warning='1', before=(), env=None):
    """The job; its stderr is in a file, so that it can be read while it runs."""
    env = env or {}
    if 'PATH' not in env:
        env = {'PATH': launch.path_with_py_spy(), **env}
    path = os.path.join(launch.tempfile.gettempdir(), f'cddp-test-standstill-{os.getpid()}-{time.monotonic_ns()}')
    with open(path, 'w', encoding='utf-8') as f:
        command = [*before, cddprun, f'--nproc_per_node={n}', f'--hang_warning={warning}', '--shutdown_timeout=0.1',
                   sys.executable, '-c', program, *args]
        job = Job(*command, stderr=f, env=env)
    job.error_file = path
    return job


def end(job):
    job.process.terminate()
    job.finish()
    text = stderr_of(job)
    os.unlink(job.error_file)
    return text


def check_named(text, how):
    name = re.search(rf'\n    rank 2 \(pid \d+ on \S+, (.*?)\): in planted_{how} \(<string>:\d+\), called from main \(<string>:\d+\), <module>', text)
    assert name, text
    assert name[1] == ('burning its processor' if how == 'spin' else 'asleep'), text
    assert re.search(r'\n    ranks 0, 1, 3: in wait_for_others \(<string>:\d+\), called from main \(<string>:\d+\)\n', text), text
    assert text.count('none has ended') == 1, text


def test_names_rank_that_sleeps(cddprun):
    with start(cddprun, ONE_STOPS, 'sleep') as job:
        wait_for('the message', lambda: 'ranks 0, 1, 3' in stderr_of(job), more=lambda: stderr_of(job))
        text = end(job)
    check_named(text, 'sleep')
    assert 'cddprun: no worker of this node has used its processor for ' in text, text


def test_names_rank_that_spins(cddprun):
    with start(cddprun, ONE_STOPS, 'spin') as job:
        wait_for('the message', lambda: 'ranks 0, 1, 3' in stderr_of(job), more=lambda: stderr_of(job))
        text = end(job)
    check_named(text, 'spin')
    assert 'cddprun: 3 of the 4 workers of this node have not used their processors for ' in text, text


def test_needs_no_privileges(cddprun):
    if os.getuid() != 0:
        raise Skip('this user has none anyway')
    setpriv = shutil.which('setpriv')
    if setpriv is None:
        raise Skip('there is no setpriv')
    with start(cddprun, ONE_STOPS, 'sleep', before=(setpriv, '--bounding-set=-all', '--inh-caps=-all', '--')) as job:
        wait_for('the message', lambda: 'ranks 0, 1, 3' in stderr_of(job) or job.process.poll() is not None,
                 more=lambda: stderr_of(job))
        text = end(job)
    if 'setpriv:' in text:
        raise Skip(text.strip())
    check_named(text, 'sleep')


def test_names_key_of_the_store(cddprun):
    with start(cddprun, KEY) as job:
        wait_for('the message', lambda: 'ranks 0, 1, 3' in stderr_of(job), more=lambda: stderr_of(job))
        text = end(job)
    assert re.search(r'\n    rank 2 \(pid \d+ on \S+, asleep\): in planted_sleep \(<string>:4\), called from <module>', text), text
    assert re.search(r"\n    ranks 0, 1, 3: in wait_for_key .*; waiting for the store's key 'planted key' for [0-9.]+ s\n", text), text


def test_names_dumps_of_pytorchs_recorder(cddprun):
    with launch.tempfile.TemporaryDirectory() as folder:
        env = {'TORCH_FR_DUMP_TEMP_FILE': folder + '/trace_', 'TORCH_NCCL_DEBUG_INFO_PIPE_FILE': folder + '/pipe_'}
        with start(cddprun, RECORDER, n=3, env=env) as job:
            wait_for('the message', lambda: 'none has ended' in stderr_of(job), more=lambda: stderr_of(job))
            text = end(job)
    assert f"\n    ranks 0, 1, 2: in <module> (<string>:12)\n    dumps of PyTorch's flight recorder: {folder}/trace_RANK, RANK is 0, 2\n" in text, text


def test_a_missing_py_spy_is_named(cddprun):
    path = os.pathsep.join(p for p in os.environ['PATH'].split(os.pathsep) if not os.path.exists(os.path.join(p, 'py-spy')))
    with start(cddprun, ONE_STOPS, 'sleep', env={'PATH': path}) as job:
        wait_for('the message', lambda: 'ranks 0, 1, 2, 3: ' in stderr_of(job), more=lambda: stderr_of(job))
        text = end(job)
    said = 'its Python stack cannot be read: py-spy is missing: install it with `pip install py-spy`'
    assert f'none has ended:\n    ranks 0, 1, 2, 3: {said}\n' in text and text.count('py-spy') == 2, text


def test_py_spy_beside_cddprun_is_found(cddprun):
    """As pip installs both. What it prints is a thread of no program."""
    with launch.tempfile.TemporaryDirectory() as folder:
        os.makedirs(f'{folder}/bin')
        os.makedirs(f'{folder}/libexec/cddp')
        shutil.copy(cddprun, f'{folder}/bin')
        shutil.copy(os.path.join(os.path.dirname(cddprun), 'cddprun-shim'), f'{folder}/libexec/cddp')
        with open(f'{folder}/bin/py-spy', 'w', encoding='ascii') as f:
            f.write('#!/bin/sh\necho \'[{"frames": [{"name": "beside", "short_filename": "x.py", "line": 7}]}]\'\n')
        os.chmod(f'{folder}/bin/py-spy', 0o755)
        with start(f'{folder}/bin/cddprun', ONE_STOPS, 'sleep', env=NO_STACK) as job:
            wait_for('the message', lambda: 'ranks 0, 1, 2, 3: ' in stderr_of(job), more=lambda: stderr_of(job))
            text = end(job)
    assert 'ranks 0, 1, 2, 3: in beside (x.py:7)\n' in text, text


def test_says_it_once_for_each_standstill(cddprun):
    with launch.tempfile.TemporaryDirectory() as folder:
        gates = [f'{folder}/{i}' for i in range(2)]
        for gate in gates:
            os.mkfifo(gate)
        with start(cddprun, TWICE, n=3, warning='2', env={'GATE': folder + '/'}) as job:
            for i, gate in enumerate(gates):
                wait_for('the message', lambda n=i + 1: stderr_of(job).count('    ranks 0, 1, 2: in ') == n, more=lambda: stderr_of(job))
                with open(gate, 'w', encoding='ascii'):  # all are in open(), which returns now
                    wait_for('the end of it', lambda n=i + 1: stderr_of(job).count('again') == n, more=lambda: stderr_of(job))
            assert job.finish() == 0
            text = stderr_of(job)
            os.unlink(job.error_file)
    assert text.count('no worker of this node has used its processor') == 2, text
    again = [float(s) for s in re.findall(r'\ncddprun: the workers of this node use their processors again, after ([0-9.]+) s\n', text)]
    assert len(again) == 2 and all(2 <= s < 90 for s in again), text
    assert [line.split()[1] for line in text.splitlines() if line.startswith('cddprun: ')] == ['no', 'the', 'no', 'the'], text
    assert text.count('    ranks 0, 1, 2: in wait (<string>:8), called from <module> (<string>:') == 2, text


def test_a_short_warning_has_a_tenth_of_a_second(cddprun):
    with start(cddprun, ONE_STOPS, 'sleep', warning='0.4') as job:
        wait_for('the message', lambda: 'ranks 0, 1, 3' in stderr_of(job), more=lambda: stderr_of(job))
        text = end(job)
    seconds = re.search(r'has used its processor for (\d+\.\d) s, and none has ended', text)
    assert seconds and 0.4 <= float(seconds[1]) < 10, text


def test_work_for_a_dump_does_not_count(cddprun):
    """Its workers use a processor for it: this neither ends the standstill nor begins another one."""
    program = RECORDER.replace('open(prefix', 'end = time.thread_time() + 0.4\n    while time.thread_time() < end: pass\n    open(prefix')
    with launch.tempfile.TemporaryDirectory() as folder:
        env = {'TORCH_FR_DUMP_TEMP_FILE': folder + '/trace_', 'TORCH_NCCL_DEBUG_INFO_PIPE_FILE': folder + '/pipe_'}
        with start(cddprun, program, n=3, env=env) as job:
            wait_for('the message', lambda: 'none has ended' in stderr_of(job), more=lambda: stderr_of(job))
            time.sleep(4)  # nothing more is to come
            text = end(job)
    assert text.count('none has ended') == 1 and 'again' not in text, text


def test_is_silent_when_all_is_well(cddprun):
    with start(cddprun, TWICE, n=2, warning='0', env={'PAUSE': '2', **NO_STACK}) as job:
        assert job.finish() == 0
        assert stderr_of(job) == ''
        os.unlink(job.error_file)
    with start(cddprun, TWICE, n=2, warning='60', env={'PAUSE': '1', **NO_STACK}) as job:
        assert job.finish() == 0
        assert stderr_of(job) == ''
        os.unlink(job.error_file)


def test_is_silent_while_children_work(cddprun):
    with start(cddprun, CHILD_WORKS, n=2, env=NO_STACK) as job:
        assert job.finish() == 0
        assert stderr_of(job) == ''
        os.unlink(job.error_file)


def test_names_worker_that_sleeps_after_its_child_has_worked(cddprun):
    with start(cddprun, CHILD_WORKS_FIRST, n=2) as job:
        wait_for('the message', lambda: 'none has ended' in stderr_of(job), more=lambda: stderr_of(job))
        text = end(job)
    assert '    ranks 0, 1: in <module> (<string>:4)' in text, text


def test_is_silent_about_programs_that_are_not_python(cddprun):
    status, out, err = launch.run(cddprun, '--nproc_per_node=2', '--hang_warning=1', 'sleep', '4')
    assert (status, out, err) == (0, '', '')


if __name__ == '__main__':
    launch.main()
