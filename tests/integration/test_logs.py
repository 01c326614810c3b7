#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the output of workers goes: files in torchrun's layout, whole lines, and nothing that stops the job."""
import glob
import os
import pty
import re
import resource
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, run

SAY = 'echo out $RANK; echo loss=$RANK,1; echo err $RANK >&2; echo bad $RANK >&2'


def log_dir():
    return tempfile.TemporaryDirectory(prefix='cddp-test-logs-')


def files(log_dir):
    """{path below the run's directory: text}"""
    runs = os.listdir(log_dir)
    assert len(runs) == 1, runs
    base, found = os.path.join(log_dir, runs[0]), {}
    for path in glob.glob(base + '/**', recursive=True):
        if os.path.isfile(path):
            with open(path, encoding='utf-8') as f:
                found[os.path.relpath(path, base)] = f.read()
    return found


def job(cddprun, flags, script, **more):
    return run(cddprun, '--standalone', '--rdzv_id=my/run', *flags, 'sh', '-c', script, **more)


def test_tee_shows_and_writes_in_torchruns_layout(cddprun):
    with log_dir() as name:
        status, out, err = job(cddprun, ['--nproc_per_node=2', f'--log_dir={name}', '--tee=3'], SAY)
        assert status == 0, err
        assert re.fullmatch(r'my_run_\w{6}', os.listdir(name)[0]), os.listdir(name)
        assert files(name) == {f'attempt_0/{r}/{s}.log': f'out {r}\nloss={r},1\n' if s == 'stdout' else f'err {r}\nbad {r}\n'
                                for r in (0, 1) for s in ('stdout', 'stderr')}
        assert sorted(out.splitlines()) == ['[0] loss=0,1', '[0] out 0', '[1] loss=1,1', '[1] out 1'], out


def test_redirected_streams_are_not_shown(cddprun):
    with log_dir() as name:
        status, out, err = job(cddprun, ['--nproc_per_node=12', f'--log_dir={name}', '-r', '0:3,11:1'], SAY)
        assert status == 0, err
        assert set(files(name)) == {'attempt_0/0/stdout.log', 'attempt_0/0/stderr.log', 'attempt_0/11/stdout.log'}
        assert len(out.splitlines()) == 20 and '[0]' not in out + err and '[11]' not in out, out
        assert '[11] err 11\n' in err


def test_rank_filter_affects_console_only(cddprun):
    with log_dir() as name:
        status, out, err = job(cddprun, ['--nproc_per_node=3', f'--log_dir={name}', '--tee=3', '--local_ranks_filter=1',
                                         '--duplicate_stdout_filters=nothing,loss', '--duplicate_stderr_filters=0,,1,bad 2'], SAY)
        assert (status, out, err) == (0, '[1] out 1\n[1] loss=1,1\n', '[1] err 1\n[1] bad 1\n'), (out, err)
        found = files(name)
        assert found['attempt_0/2/stdout.log'] == 'out 2\nloss=2,1\n'
        assert sorted(found['attempt_0/filtered_stdout.log'].splitlines()) == [f'[{r}] loss={r},1' for r in range(3)]
        assert found['attempt_0/filtered_stderr.log'] == '[2] bad 2\n'


def test_each_round_has_its_directory_with_error_files(cddprun):
    script = 'echo life $TORCHELASTIC_RESTART_COUNT; printf %s "{\\"message\\":\\"m$RANK\\"}" > "$TORCHELASTIC_ERROR_FILE"; exit 3'
    with log_dir() as name:
        status, out, err = job(cddprun, [f'--log_dir={name}', '--tee=1', '--max_restarts=1'], script)
        assert status == 3 and '| m0\n' in err, err
        assert files(name) == {'attempt_0/0/stdout.log': 'life 0\n', 'attempt_0/0/error.json': '{"message":"m0"}',
                                'attempt_1/0/stdout.log': 'life 1\n', 'attempt_1/0/error.json': '{"message":"m0"}'}


def test_tee_without_log_dir_creates_one(cddprun):
    with Job(cddprun, '--standalone', '--rdzv_id=my/run', '--nproc_per_node=2', '--tee=1', 'sh', '-c', 'echo shown $RANK; echo no >&2') as one:
        assert one.finish() == 0, one.err
        said = [line for line in one.err.splitlines() if not line.startswith('[')]
        assert len(said) == 1 and sorted(one.out.splitlines()) == ['[0] shown 0', '[1] shown 1'], (one.out, one.err)
        found = re.fullmatch(r'cddprun: --tee without --log_dir: its files are written to (/\S+), and are kept', said[0])
        assert found and re.fullmatch(re.escape(one.tmp) + r'/cddprun-logs-my_run_\w{6}', found[1]), one.err
        assert one.left_in_tmp() == [os.path.basename(found[1])], one.left_in_tmp()
        assert files(one.tmp) == {f'attempt_0/{r}/stdout.log': f'shown {r}\n' for r in (0, 1)}
        shutil.rmtree(found[1])


def test_rejects_redirects_without_log_dir(cddprun):
    status, out, err = job(cddprun, ['--redirects=3'], 'echo shown')
    assert status == 2 and err == 'cddprun: --redirects writes files, but no directory is given; add --log_dir\n', err
    assert job(cddprun, ['--redirects=3', '--log_dir=/dev/null'], 'echo gone; echo gone >&2') == (0, '', '')


def test_the_report_names_the_files_of_the_failed_rank(cddprun):
    script = '[ $RANK = 1 ] || exec sleep 60; echo out; echo why >&2; exit 3'
    for flag, found in ('--tee=3', 'its logs: {}/stderr.log and stdout.log'), ('--redirects=2', 'its log: {}/stderr.log'), \
            ('--redirects=1:1', 'its log: {}/stdout.log'), ('--redirects=0:3', None):
        with log_dir() as name:
            status, _, err = job(cddprun, ['--nproc_per_node=2', f'--log_dir={name}', flag], script)
            assert status == 3 and '    the last of its stderr:\n    | why\n' in err, err
            where = os.path.join(os.path.realpath(name), os.listdir(name)[0], 'attempt_0', '1')
            assert [line for line in err.splitlines() if 'its log' in line] == ([f'    {found.format(where)}'] if found else []), err
            assert not found or os.path.exists(found.format(where).split(': ')[1].split(' and ')[0]), err


def test_reports_bad_log_dir_before_start(cddprun):
    with tempfile.NamedTemporaryFile() as file:
        for path in file.name, f'{file.name}/logs', '/proc/logs':
            why = 'No such file or directory' if path == '/proc/logs' else 'Not a directory'
            for flag in '--redirects=3', '--tee=3':
                result = job(cddprun, ['--nproc_per_node=4', f'--log_dir={path}', flag], 'echo $RANK')
                assert result == (1, '', f"cddprun: --log_dir '{path}': cannot create a directory there: {why}\n"), result


def test_lost_log_dir_warns_once(cddprun):
    # The first round removes it; the second one cannot write there.
    with log_dir() as name:
        script = f'[ $TORCHELASTIC_RESTART_COUNT = 1 ] && {{ echo $RANK; exit 0; }}; [ $RANK = 0 ] || exec sleep 60; rm -r {name}/*; exit 3'
        status, out, err = job(cddprun, ['--nproc_per_node=2', '--max_restarts=1', f'--log_dir={name}', '--redirects=3'], script)
        assert status == 0 and sorted(out.splitlines()) == ['[0] 0', '[1] 1'], (status, out, err)
        assert err.count('cannot write logs to') == 1 and 'the job continues, and the output for these files is shown instead\n' in err, err


def test_full_log_disk_warns_once_and_fails_at_end(cddprun):
    # A limit of file sizes is what a test can fill without being root; the worker sees none of it.
    script = 'head -c 300000 /dev/zero | tr "\\0" x; echo; echo done >&2'

    def small():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
    for flag in '--redirects=1', '--tee=1':
        with log_dir() as name:
            status, _, err = job(cddprun, ['--nproc_per_node=3', f'--log_dir={name}', flag], script, preexec_fn=small)
            assert status == 1, err
            assert err.count('cannot write logs') == 1 and err.count('exit status will not be 0') == 1, err
            assert 'File too large; the job continues' in err, err
            assert sorted(line for line in err.splitlines() if line[0] == '[') == ['[0] done', '[1] done', '[2] done'], err


def test_the_prefix_follows_torchruns_template(cddprun):
    status, out, err = job(cddprun, ['--nproc_per_node=2', '--role=trainer'], 'echo hi',
                           env={'TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE': '[${role_name}${local_rank}/${rank}]:'})
    assert sorted(out.splitlines()) == ['[trainer0/0]:hi', '[trainer1/1]:hi'], (out, err)


def test_colour_on_a_terminal_only(cddprun):
    ours = ('import fcntl, os, sys, termios; fcntl.ioctl(1, termios.TIOCSCTTY, 0); '
            'os.execv(sys.argv[1], sys.argv[1:])')

    def shown(own=True, **env):
        master, slave = pty.openpty()
        command = [sys.executable, '-c', ours] if own else []
        with Job(*command, cddprun, '--standalone', 'echo', 'hi', stdout=slave, env={'TERM': 'xterm', **env},
                 start_new_session=own) as one:
            os.close(slave)
            assert one.process.wait(launch.DEADLINE) == 0
            text = os.read(master, 100)
        os.close(master)
        return text
    assert shown() == b'\x1b[31m[0] \x1b[0mhi\r\n'
    assert shown(NO_COLOR='1') == shown(TERM='dumb') == b'[0] hi\r\n'
    assert shown(own=False) == b'[0] hi\r\n', 'a pseudo-terminal of somebody in between'
    assert job(cddprun, [], 'echo hi', env={'TERM': 'xterm'})[1] == '[0] hi\n'


def test_lines_of_ranks_that_print_much_at_once_are_whole_and_in_order(cddprun):
    with log_dir() as name:
        status, out, err = job(cddprun, ['--nproc_per_node=3', f'--log_dir={name}', '--tee=1'],
                               'exec seq -f "$RANK and some more words after it %.0f" 1 20000')
        assert status == 0, err
        lines = out.splitlines()
        for rank in range(3):
            said = [f'{rank} and some more words after it {i}' for i in range(1, 20001)]
            assert files(name)[f'attempt_0/{rank}/stdout.log'].splitlines() == said
            assert [line[4:] for line in lines if line.startswith(f'[{rank}] ')] == said
        assert len(lines) == 60000


def test_endless_output_stalls_neither_others_nor_agent(cddprun):
    # Rank 0 fills its queue, since its output is not read; the others continue, and signals are handled.
    script = ('if [ $RANK = 0 ]; then exec yes 0123456789012345678901234567890123456789; fi; '
              'i=0; while [ $i -lt 200 ]; do echo line $i >&2; i=$((i + 1)); done; echo through >&2; exec sleep 1000')
    with log_dir() as name:
        with Job(cddprun, '--standalone', '--nproc_per_node=3', '--tee=2', f'--log_dir={name}', 'sh', '-c', script) as one:

            def through():
                return os.listdir(name) and [text[-8:] for path, text in files(name).items()
                                             if re.search('/[12]/stderr', path)] == ['through\n'] * 2
            launch.wait_for('the others are through', through)
            one.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert one.process.wait(launch.DEADLINE) == 143
            assert time.monotonic() - began < launch.within(6)


launch.main()
