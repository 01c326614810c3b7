#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The stack of a worker that crashes: in the report, or the reason why there is none; and nothing else changes."""
import contextlib
import ctypes
import glob
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, Skip, run

CRASHING = os.environ['CDDP_CRASHING']
ASAN = os.environ.get('CDDP_CRASHING_ASAN', '')
LIBRARIES = os.environ['CDDP_LIBRARIES']
SIGNALS = {'segv': signal.SIGSEGV, 'bus': signal.SIGBUS, 'fpe': signal.SIGFPE, 'ill': signal.SIGILL, 'abrt': signal.SIGABRT}
PTRACE_CONT, PTRACE_SEIZE = 7, 0x4206
SAYS = re.compile(r'^    (its stack \(|no stack:)', re.M)


def needs_stacks():
    """Skip where cddprun has no libdw, or a sanitizer has the signals."""
    if launch.SLOW:
        raise Skip('sanitizers handle these signals')
    if os.environ['CDDP_LIBDW'] != '1':
        raise Skip('built without libdw')


def crash(cddprun, *how, program=CRASHING, flags=(), env=None, **popen):
    """The exit status and the report of one worker that crashes."""
    env = {'CDDP_BACKEND': 'cpu', **(env or {})}
    status, _, err = run(cddprun, '--standalone', *flags, program, *how, env=env, **popen)
    return status, err


def frames(err):
    """The lines of the stack, without their numbers."""
    lines = err[err.index('cddprun: rank '):].splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("    its stack (thread '")]
    assert len(heads) == 1, err
    found = []
    for line in lines[heads[0] + 1:]:
        match = re.fullmatch(r'    \| (?:#\d+ (?:to #\d+ )?)?(.*)', line)
        if not match:
            break
        found.append(match.group(1))
    assert 0 < len(found) <= 10 and len(lines) <= 24, err
    return found


def test_each_kind_of_crash_shows_function_and_line(cddprun):
    needs_stacks()
    for name, number in SIGNALS.items():
        status, err = crash(cddprun, name)
        assert status == 128 + number, (name, status, err)
        stack = frames(err)
        places = [i for i, frame in enumerate(stack) if re.fullmatch(r'planted_crash\(\) at crashing\.c:\d+', frame)]
        assert len(places) == 1 and (name == 'abrt' or places == [0]), err
        assert any(frame.startswith('main() at crashing.c:') for frame in stack), err


def test_a_stripped_program_shows_offsets_for_addr2line(cddprun):
    needs_stacks()
    if not shutil.which('strip') or not shutil.which('addr2line'):
        raise Skip('no binutils')
    with tempfile.TemporaryDirectory() as folder:
        stripped = os.path.join(folder, 'stripped')
        subprocess.run(['strip', '--strip-all', '-o', stripped, CRASHING], check=True)
        for name, number in SIGNALS.items():
            status, err = crash(cddprun, name, program=stripped, env={'LD_LIBRARY_PATH': LIBRARIES})
            assert status == 128 + number, (name, status, err)
            offsets = re.findall(r'\| #\d+ 0x[0-9a-f]+ in stripped\+(0x[0-9a-f]+)', err)
            assert offsets, err
            where = subprocess.run(['addr2line', '-f', '-e', CRASHING, offsets[0]], stdout=subprocess.PIPE, text=True, check=True)
            assert where.stdout.startswith('planted_crash\n'), (where.stdout, err)


def test_a_crash_in_a_second_thread_shows_that_thread(cddprun):
    needs_stacks()
    for name, number in SIGNALS.items():
        status, err = crash(cddprun, name, 'thread')
        stack = frames(err)
        assert status == 128 + number and any(frame.startswith('planted_thread()') for frame in stack), (status, err)
        assert not any(frame.startswith('main()') for frame in stack), err


def test_two_threads_that_crash_at_once_give_one_stack(cddprun):
    needs_stacks()
    status, err = crash(cddprun, 'segv', 'two')
    assert status == 128 + signal.SIGSEGV and any(f.startswith('planted_thread()') for f in frames(err)), (status, err)


def test_another_thread_cannot_end_the_process_with_success(cddprun):
    needs_stacks()
    for size in ('1', '6'):
        status, err = crash(cddprun, 'segv', 'thread', 'leaves', 'all', flags=[f'--nproc_per_node={size}'])
        assert status == 128 + signal.SIGSEGV, (size, status, err)


def test_a_stack_overflow_is_shown_as_a_recursion(cddprun):
    needs_stacks()
    status, err = crash(cddprun, 'overflow')
    stack = frames(err)
    assert status == 128 + signal.SIGSEGV and stack[0].startswith('planted_recursion()'), (status, err)
    assert re.search(r'\| #\d to #\d+ planted_recursion\(\)', err) and 'outer frames are left out' in stack[-1], err


def test_a_call_of_address_0_shows_the_caller(cddprun):
    needs_stacks()
    status, err = crash(cddprun, 'null')
    stack = frames(err)
    assert status == 128 + signal.SIGSEGV and stack[0] == '0x0' and stack[1].startswith('planted_crash() at '), (status, err)


def test_a_signal_from_kill_shows_where_it_came(cddprun):
    needs_stacks()
    for name, number in SIGNALS.items():
        status, err = crash(cddprun, name, 'kill')
        assert status == 128 + number and any(f.startswith('planted_crash()') for f in frames(err)), (status, err)


def test_the_programs_own_handler_stays_alone(cddprun):
    needs_stacks()
    for name, number in SIGNALS.items():
        status, err = crash(cddprun, name, 'own')
        assert status == 128 + number and f'    no stack: the program handles SIG{name.upper()} itself\n' in err, (status, err)
        assert err.count("[0] the program's own handler\n") == 1, err
        status, err = crash(cddprun, name, 'later')
        assert status == 128 + number and f'no stack: the program handles or blocks SIG{name.upper()} since cddp_init' in err, (status, err)
        status, err = crash(cddprun, name, 'chain')
        assert status == 128 + number and any(f.startswith('planted_crash()') for f in frames(err)), (status, err)
        assert err.count("[0] the program's own handler\n") == 1, err


def test_a_forked_child_does_not_write_into_its_parents_page(cddprun):
    if launch.SLOW:
        raise Skip('sanitizers handle these signals')
    status, err = crash(cddprun, 'segv', 'child')
    assert status == 7 and not SAYS.search(err), (status, err)


def test_a_crash_after_the_job_has_its_stack(cddprun):
    needs_stacks()
    for how in ('after', 'twice', 'exit', 'failed'):
        status, err = crash(cddprun, 'segv', how)
        assert status == 128 + signal.SIGSEGV and frames(err)[0].startswith('planted_crash() at '), (how, status, err)


def test_a_crash_before_cddp_init_is_said_where_it_is_known(cddprun):
    if launch.SLOW:
        raise Skip('sanitizers handle these signals')
    status, err = crash(cddprun, 'segv', 'before', flags=['-ppn', '3'])
    assert status == 128 + signal.SIGSEGV and '    no stack: the worker crashed before its cddp_init()\n' in err, (status, err)
    # All that is known is that nobody has called cddp_init: this may be any program.
    for program in ([CRASHING, 'segv', 'before'], ['sh', '-c', 'kill -SEGV $$']):
        status, err = crash(cddprun, *program[1:], program=program[0])
        assert status == 128 + signal.SIGSEGV and not SAYS.search(err), (status, err)
    status, err = crash(cddprun, 'segv', 'before', flags=['-ppn', '3', '--crash_stack=off'])
    assert status == 128 + signal.SIGSEGV and not SAYS.search(err), (status, err)


def test_an_unloaded_libcddp_leaves_no_handler(cddprun):
    if launch.SLOW:
        raise Skip('sanitizers handle these signals')
    for name, number in SIGNALS.items():
        status, err = crash(cddprun, name, 'unload', os.environ['CDDP_CRASHING_LIBRARY'])
        assert status == 128 + number and '    no stack: the worker crashed after libcddp was unloaded\n' in err, (status, err)


def test_the_others_of_the_job_end_as_always(cddprun):
    needs_stacks()
    status, err = crash(cddprun, 'segv', flags=['-ppn', '3'])
    assert status == 128 + signal.SIGSEGV and err.startswith('cddprun: rank 2 (pid '), (status, err)
    assert any(f.startswith('planted_crash()') for f in frames(err)), err


def test_of_many_that_crash_at_once_one_stack_is_shown(cddprun):
    needs_stacks()
    status, err = crash(cddprun, 'abrt', 'all', flags=['-ppn', '9'])
    assert status == 128 + signal.SIGABRT and any(f.startswith('planted_crash()') for f in frames(err)), (status, err)


def test_every_node_of_the_job_shows_the_stack(cddprun):
    needs_stacks()
    port = launch.free_port()
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(Job(cddprun, '--nnodes=2', f'--node_rank={i}', '--master_addr=127.0.0.1', f'--master_port={port}',
                                        '-ppn', '2', CRASHING, 'segv', env={'CDDP_BACKEND': 'cpu'})) for i in range(2)]
        for job in jobs:
            assert job.finish() == 128 + signal.SIGSEGV, job.err
            assert 'cddprun: rank 3 (pid ' in job.err and any(f.startswith('planted_crash()') for f in frames(job.err)), job.err


def test_a_shell_around_the_worker_changes_nothing(cddprun):
    needs_stacks()
    status, err = crash(cddprun, '-c', f'{CRASHING} segv; exit $?', program='/bin/sh')
    assert status == 128 + signal.SIGSEGV and any(f.startswith('planted_crash()') for f in frames(err)), (status, err)


def test_a_site_can_switch_it_off(cddprun):
    if launch.SLOW:
        raise Skip('sanitizers handle these signals')
    for flags, env in ((['--crash_stack=off'], {}), ([], {'CDDP_CRASH_STACK': 'off'}), (['-x', 'CDDP_CRASH_STACK=off'], {})):
        status, err = crash(cddprun, 'segv', flags=flags, env=env)
        assert status == 128 + signal.SIGSEGV and not SAYS.search(err), (status, err)
    if os.environ['CDDP_LIBDW'] == '1':
        frames(crash(cddprun, 'segv', flags=['--crash-stack', 'on'], env={'CDDP_CRASH_STACK': 'off'})[1])
    status, err = crash(cddprun, 'segv', flags=['--crash_stack=maybe'])
    assert status == 2 and '--crash_stack' in err, (status, err)
    status, err = crash(cddprun, 'segv', flags=['-x', 'CDDP_CRASH_STACK=maybe'])
    assert status == 3 and "CDDP_CRASH_STACK='maybe' is neither on nor off" in err, (status, err)


def test_a_stopped_agent_delays_a_crash_for_two_seconds_and_a_pending_signal_does_not_replace_it(cddprun):
    needs_stacks()
    for how in ([], ['kill']):
        with Job(cddprun, '--standalone', CRASHING, 'segv', 'file', *how, env={'CDDP_BACKEND': 'cpu'}) as job:
            assert job.process.stdout.readline() == '[0] waiting\n'
            worker, = job.workers()
            agent = job.agent()
            os.kill(agent, signal.SIGSTOP)
            go = os.path.join(job.tmp, 'go')
            with open(go, 'w', encoding='ascii'):
                pass
            launch.wait_for('the handler', lambda: blocked(worker, signal.SIGTERM) or launch.state(worker) == 'Z')
            os.kill(worker, signal.SIGTERM)
            launch.wait_for('the end of the worker', lambda: launch.state(worker) == 'Z')
            os.unlink(go)
            os.kill(agent, signal.SIGCONT)
            assert job.finish() == 128 + signal.SIGSEGV, job.err
            assert '    no stack: cddprun did not read it in time\n' in job.err, job.err


def blocked(pid, number):
    """Whether the main thread of a process blocks a signal, as it does in the handler."""
    with open(f'/proc/{pid}/status', encoding='ascii', errors='replace') as f:
        mask = re.search(r'^SigBlk:\s*([0-9a-f]+)', f.read(), re.M)
    return mask is not None and int(mask.group(1), 16) >> (number - 1) & 1 == 1


def test_a_missing_libdw_is_named(cddprun):
    needs_stacks()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, 'libdw.so.1'), 'w', encoding='ascii'):
            pass
        status, err = crash(cddprun, 'segv', env={'LD_LIBRARY_PATH': folder})
        assert status == 128 + signal.SIGSEGV, (status, err)
        assert "    no stack: libdw.so.1 is missing: install elfutils' library (Debian: libdw1, Fedora: elfutils-libs)\n" in err, err


def test_a_worker_that_may_not_be_traced_is_named(cddprun):
    needs_stacks()
    if os.geteuid() != 0:
        raise Skip('needs root, to become a user without rights')

    def become_nobody():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        try:
            status, err = crash(cddprun, 'segv', 'hidden', env={'TMPDIR': folder}, preexec_fn=become_nobody)
        except PermissionError:
            raise Skip('the build is not readable for all') from None
    if status in (126, 127):
        raise Skip('the build is not readable for all')
    assert status == 128 + signal.SIGSEGV, (status, err)
    assert re.search(r'    no stack: process \d+ may not be traced, so its stacks cannot be read: see kernel\.yama\.ptrace_scope', err), err


def test_a_debugger_that_has_attached_is_left_alone(cddprun):
    needs_stacks()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    signals = []
    with Job(cddprun, '--standalone', CRASHING, 'segv', 'traced', env={'CDDP_BACKEND': 'cpu'}) as job:
        assert job.process.stdout.readline() == '[0] waiting\n'
        pid = next(p for p in job.workers() if launch.exe(p) == os.path.realpath(CRASHING))
        if libc.ptrace(PTRACE_SEIZE, pid, None, None) != 0:
            job.process.kill()
            raise Skip('the kernel allows no tracing')
        while True:
            status = os.waitpid(pid, 0x40000000)[1]
            if not os.WIFSTOPPED(status):
                break
            signals.append(os.WSTOPSIG(status))
            libc.ptrace(PTRACE_CONT, pid, None, os.WSTOPSIG(status))
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV, status
        assert job.finish() == 128 + signal.SIGSEGV, job.err
        assert '    no stack: a debugger had the process\n' in job.err, job.err
    assert set(signals) == {signal.SIGSEGV}, signals


def test_under_gdb_the_crash_is_gdbs(cddprun):
    if launch.SLOW:
        raise Skip('sanitizers handle these signals')
    if not shutil.which('gdb'):
        raise Skip('no gdb')
    for name, number in SIGNALS.items():
        command = ['gdb', '-q', '-nx', '-batch', '-ex', 'set debuginfod enabled off', '-ex', 'run', '-ex', 'bt', '-ex', 'continue',
                   '--args', CRASHING, name]
        _, out, err = run(cddprun, '--standalone', *command, env={'CDDP_BACKEND': 'cpu'})
        text = f'SIG{signal.Signals(number).name[3:]}'
        if 'ptrace: Operation not permitted' in out + err:
            raise Skip('the kernel allows no tracing')
        assert out.count(f'received signal {text}') == 1 and f'terminated with signal {text}' in out, (out, err)
        assert re.search(r'#\d+ .*planted_crash \(\) at ', out), out
        assert not SAYS.search(err), err


def test_a_sanitizer_reports_its_own_way(cddprun):
    program = CRASHING if launch.SLOW else ASAN
    if not program:
        raise Skip('the compiler has no AddressSanitizer')
    # The variables of UBSan hold for all of a program that has both: they may send reports to a file.
    status, err = crash(cddprun, 'segv', program=program, env={'ASAN_OPTIONS': 'detect_leaks=0', 'UBSAN_OPTIONS': '', 'LD_LIBRARY_PATH': LIBRARIES})
    assert status not in (0, 3) and 'Sanitizer' in err and 'SEGV' in err and not SAYS.search(err), (status, err)
    status, err = crash(cddprun, 'segv', program=program,
                        env={'ASAN_OPTIONS': 'detect_leaks=0:abort_on_error=1', 'UBSAN_OPTIONS': '', 'LD_LIBRARY_PATH': LIBRARIES})
    if status == 128 + signal.SIGABRT and not launch.SLOW and os.environ['CDDP_LIBDW'] == '1':
        assert any(f.startswith('abort() ') for f in frames(err)), err


def core_of(cddprun, flag, folder, name):
    """The report, and what gdb reads in the core file: signal, its code, its address, and the place."""
    def unlimited():
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    status, err = crash(cddprun, name, flags=[flag], cwd=folder, preexec_fn=unlimited)
    cores = glob.glob(os.path.join(folder, 'core*'))
    facts = None
    if cores and name in ('segv', 'abrt') and shutil.which('gdb'):
        asked = subprocess.run(['gdb', '-q', '-nx', '-batch', '-ex', 'p $_siginfo.si_signo', '-ex', 'p $_siginfo.si_code',
                                '-ex', 'p $_siginfo._sifields._sigfault.si_addr', '-ex', 'info symbol $pc', CRASHING, cores[0]],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
        facts = re.findall(r'^\$.*|^\w+ \+ \d+ in section .*', asked, re.M)
    for core in cores:
        os.unlink(core)
    return status, 'core dumped' in err, len(cores), facts


def test_status_and_core_are_the_same_with_and_without_it(cddprun):
    needs_stacks()
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
        raise Skip('no core files here')
    for name in SIGNALS:
        with tempfile.TemporaryDirectory() as folder:
            off, on = (core_of(cddprun, f'--crash_stack={flag}', folder, name) for flag in ('off', 'on'))
        for facts in (off[3], on[3]):  # of an address, the place in its page; abort() has its sender there
            if facts:
                facts[2] = '' if name == 'abrt' else facts[2][-3:]
        assert on == off, (name, off, on)


if __name__ == '__main__':
    launch.main()
