#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What flags do to a job that runs: Python programs, variables for the workers, refusals."""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, Skip, run

PRINTER = os.environ['CDDP_PRINTER']
SAY = 'import os, sys; print(__name__, sys.argv[1:], os.environ["RANK"], "-u" in sys.orig_argv)'


def script(folder, name, text=SAY, mode=0o644):
    path = os.path.join(folder, name)
    with open(path, 'w', encoding='utf-8') as f:
        f.write(text)
    os.chmod(path, mode)
    return path


def test_a_python_program_runs_by_python_unbuffered(cddprun):
    with tempfile.TemporaryDirectory() as folder:
        status, out, err = run(cddprun, '-ppn', '2', script(folder, 'train.py'), '--lr', '${local_rank}')
        assert status == 0, err
        assert sorted(out.splitlines()) == ["[0] __main__ ['--lr', '0'] 0 True", "[1] __main__ ['--lr', '1'] 1 True"], out


def test_a_module_and_a_script_of_any_name_run_by_python(cddprun):
    with tempfile.TemporaryDirectory() as folder:
        path = script(folder, 'train.py')
        env = {'PYTHONPATH': folder}
        status, out, err = run(cddprun, '-m', 'train', 'x', env=env)
        assert (status, out) == (0, "[0] __main__ ['x'] 0 True\n"), err
        odd = os.path.join(folder, 'odd')
        os.rename(path, odd)
        status, out, err = run(cddprun, '--run-path', odd)
        assert (status, out) == (0, '[0] __main__ [] 0 True\n'), err


def test_python_exec_names_another_python_and_no_python_none(cddprun):
    with tempfile.TemporaryDirectory() as folder:
        path = script(folder, 'train.py')
        mine = script(folder, 'mypython', '#!/bin/sh\necho mine "$@"\n', 0o755)
        status, out, err = run(cddprun, path, 'x', env={'PYTHON_EXEC': mine})
        assert (status, out) == (0, f'[0] mine -u {path} x\n'), err
        shell = script(folder, 'shell.py', '#!/bin/sh\necho shell "$@"\n', 0o755)
        status, out, err = run(cddprun, '--no_python', shell, 'x')
        assert (status, out) == (0, '[0] shell x\n'), err
        status, out, err = run(cddprun, path, env={'PYTHON_EXEC': '/no/python'})
        assert status == 127 and "'/no/python'" in err, (status, err)


def test_reports_missing_interpreter(cddprun):
    with tempfile.TemporaryDirectory() as folder:
        for text, words in (('#!/no/such -x\n', "cannot run script '{}': the file exists, but its interpreter does not: '/no/such'"),
                            ('#!/bin/sh\r\necho\r\n', "cannot run script '{}': its first line ends in a carriage return")):
            path = script(folder, 'job', text, 0o755)
            status, _, err = run(cddprun, '--standalone', path)
            assert status == 127 and f'cddprun: rank 0: {words.format(path)}' in err, err
            assert ' after 0.' not in err, err
        with open(PRINTER, 'rb') as f:
            binary = f.read()
        loader = re.search(rb'/[^\0]*/ld-?[^\0]*\.so[^\0]*', binary).group()
        path = os.path.join(folder, 'binary')
        with open(path, 'wb') as f:
            f.write(binary.replace(loader, b'/x' + loader[2:], 1))
        os.chmod(path, 0o755)
        status, _, err = run(cddprun, '--standalone', path)
        assert status == 127 and "its dynamic loader does not: '/x" in err, err


def test_warns_about_mpi_program(cddprun):
    with tempfile.TemporaryDirectory() as folder:
        with open(PRINTER, 'rb') as f:
            binary = f.read()
        path = os.path.join(folder, 'ring')
        with open(path, 'wb') as f:  # it cannot run, but needs an MPI
            f.write(binary.replace(b'\0libc.so.6\0', b'\0libmpi.so\0'))
        os.chmod(path, 0o755)
        words = f"'{path}' is an MPI program (it needs libmpi.so), but cddprun does not set up MPI: each worker will be rank 0 of 1"
        assert words in run(cddprun, '-n', '2', path)[2]
        assert words in run(cddprun, '-n', '2', 'env', 'A=1', path)[2]
        for quiet in (['-n', '1', path], ['-n', '2', PRINTER, 'tty'], ['-n', '2', sys.executable, '-c', 'pass', path + '.none']):
            assert 'MPI' not in run(cddprun, *quiet)[2], quiet
        assert 'is an MPI program' not in run(cddprun, '-n', '2', path, env={'PMI_RANK': '0'})[2]


def test_warns_about_mpi_behind_a_script(cddprun):
    maps = ('import mmap, os, sys, time\n'
            'maps = [mmap.mmap(os.open(path, os.O_RDONLY), 1, prot=mmap.PROT_READ) for path in sys.argv[2:]]\n'
            'while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n')
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        mpi, module, go = (os.path.join(folder, name) for name in ('libmpi.so.40', 'cddp_mpi.so', 'go'))
        for path in mpi, module:
            script(folder, path, 'x')
        python = ['sh', '-c', '"$@"; exit $?', 'wrapper', sys.executable, '-c', maps, go]

        def begin(*args):
            err = stack.enter_context(tempfile.TemporaryFile('w+'))
            return stack.enter_context(Job(cddprun, *args, stderr=err)), err

        def said(err):
            err.seek(0)
            return err.read()

        quiet = [begin('-n', '1', *python, mpi), begin('-n', '2', *python, mpi, module), begin('-n', '2', *python),
                 begin('-n', '2', 'env', 'PMIX_RANK=0', *python, mpi)]
        loud, err = begin('-n', '2', *python, mpi)
        launch.wait_for('the warning', lambda: re.search(r"'sh' runs an MPI program \(process \d+ has loaded libmpi\.so\.40\), but "
                                                         r'cddprun does not set up MPI: each worker will be rank 0 of 1', said(err)),
                        more=lambda: said(err))
        script(folder, go)
        for job, words in [*quiet, (loud, err)]:
            assert job.finish() == 0 and said(words).count('MPI program') == (job is loud), said(words)


def test_uses_ipv6_loopback_without_127_0_0_1(cddprun):
    def alone(setup):
        return run('unshare', '-n', 'sh', '-c', setup + ' && exec "$@"', 'sh', cddprun, '--standalone', '-n', '2', 'sh', '-c',
                   'echo $MASTER_ADDR')
    if subprocess.run(['unshare', '-n', 'true'], capture_output=True, check=False).returncode != 0 or not shutil.which('ip'):
        raise Skip('network namespaces are not allowed here, or there is no ip')
    if os.path.exists('/proc/net/if_inet6'):
        status, out, err = alone('ip link set lo up && ip addr del 127.0.0.1/8 dev lo')
        assert status == 0 and sorted(out.splitlines()) == ['[0] ::1', '[1] ::1'], err
    status, out, err = alone('true')  # lo is down
    assert (status, out) == (1, '') and 'cannot reach its own address 127.0.0.1' in err and 'ip link set lo up' in err, err


def test_x_exports_a_variable(cddprun):
    status, out, err = run(cddprun, '-n', '2', '-x', 'A=b c', '-x', 'PATH', 'sh', '-c', 'echo $A $RANK of $WORLD_SIZE')
    assert status == 0 and sorted(out.splitlines()) == ['[0] b c 0 of 2', '[1] b c 1 of 2'], (out, err)


def test_reports_contradictions_before_start(cddprun):
    for flags, says in [
            (['-n', '3', '-ppn', '2'], 'cannot be divided into nodes'),
            (['--nnodes=3:2'], 'has a MIN larger than its MAX'),
            (['--standalone', '--nnodes=2'], '--standalone is for one node'),
            (['--nnodes=2', '--node_rank=2', '--master_addr=h'], '--node_rank 2 is out of range for 2 nodes'),
            (['--node_rank=1'], '--node_rank 1, but --nnodes is 1'),
            (['--interactive=2', '-n', '2'], '--interactive 2 is out of range for 2 ranks: 0 to 1'),
            (['--hostfile', 'h'], "cannot read 'h'"),
            (['--machinefile', 'h'], "unknown flag '--machinefile': use --hostfile"),
            (['--use-env'], 'workers always find LOCAL_RANK'),
            (['-m', '--no_python'], 'remove one of them'),
            (['--tee', '0:5'], "--tee '0:5' is neither"),
            (['--nproc_per_nodes=2'], 'did you mean --nproc_per_node?')]:
        status, out, err = run(cddprun, *flags, 'echo', 'ran')
        assert status == 2 and says in err and not out and err.count('\n') == 1, (flags, status, out, err)


def test_warns_about_flags_without_effect(cddprun):
    for flags, env, says in [
            (['--standalone', '--master_port=5'], {}, '--master_port is ignored: --standalone means'),
            (['--standalone', '--rdzv_endpoint=h:5'], {}, '--rdzv_endpoint is ignored: --standalone means'),
            ([], {'LOGLEVEL': 'loud'}, "LOGLEVEL 'loud' is not debug, info, warning or error"),
            (['--local_ranks_filter=5'], {}, "no output will be shown: --local_ranks_filter '5' selects none of this node's")]:
        status, out, err = run(cddprun, *flags, 'echo', 'ran', env=env)
        shown = '' if 'no output' in says else '[0] ran\n'
        assert status == 0 and says in err and out == shown and err.count('\n') == 1, (flags, status, out, err)
    for env in {'LOGLEVEL': 'CRITICAL'}, {'LOGLEVEL': ''}, {'PET_LOCAL_RANKS_FILTER': ''}:
        assert run(cddprun, 'echo', 'ran', env=env) == (0, '[0] ran\n', ''), env


def test_reports_missing_python_and_its_variable(cddprun):
    for env, says in [
            ({'PYTHON_EXEC': '/no/python'}, "cannot run program '/no/python': No such file or directory"),
            ({'PATH': '/nowhere'}, "program 'python3' is not in PATH")]:
        said = f"cddprun: 'train.py' is run by Python, but {says}; set PYTHON_EXEC to use another Python\n"
        assert run(cddprun, 'train.py', env=env) == (127, '', said)


def test_rank_order_file_ranks_hosts(cddprun):
    with tempfile.TemporaryDirectory() as folder:
        port = launch.free_port()
        order = script(folder, 'order', '\ufeff# ranks\n127.0.0.1 slots=8\nhost-b.cluster\n')
        flags = ['--rank_order', order, '--master_port', str(port), '-ppn', '1', 'sh', '-c', 'echo $GROUP_RANK of $GROUP_WORLD_SIZE']
        with Job(cddprun, '--local_addr=host-b', *flags) as b, Job(cddprun, '--local_addr=127.0.0.1', *flags) as a:
            assert (a.finish(), b.finish()) == (0, 0), (a.err, b.err)
            assert (a.out, b.out) == ('[0] 0 of 2\n', '[1] 1 of 2\n'), (a.out, b.out)
            assert f'2 nodes, this is node 0; rendezvous at 127.0.0.1, port {port}' in a.err, a.err
        status, out, err = run(cddprun, '--local_addr=host-c', *flags)
        assert status == 2 and "does not list this host, 'host-c'" in err, err
        status, out, err = run(cddprun, '--nnodes=3', '--local_addr=host-b', *flags)
        assert status == 2 and 'has 2 hosts, but --nnodes is 3' in err, err


def test_open_mpi_starts_one_cddprun_on_each_node(cddprun):
    mpirun = shutil.which('mpirun.openmpi')
    if mpirun is None:
        raise Skip('no Open MPI')
    command = [mpirun, '--allow-run-as-root', '--oversubscribe', '-np']
    with tempfile.TemporaryDirectory() as tmp:
        env = {k: v for k, v in os.environ.items() if not k.startswith(('PET_', 'SLURM_'))} | {'TMPDIR': tmp}
        one = subprocess.run([*command, '1', cddprun, '-ppn', '2', 'sh', '-c', 'echo $RANK of $WORLD_SIZE'], env=env, text=True,
                             capture_output=True, timeout=60)
        assert one.returncode == 0 and sorted(one.stdout.splitlines()) == ['[0] 0 of 2', '[1] 1 of 2'], one
        two = subprocess.run([*command, '2', cddprun, 'true'], env=env, text=True, capture_output=True, timeout=60)
        assert two.returncode != 0 and 'Open MPI job starts more than one cddprun on a node' in two.stderr, two.stderr


def test_variables_as_kubeflow_sets_them_are_enough(cddprun):
    port = str(launch.free_port())
    env = {'PET_NNODES': '2', 'PET_NPROC_PER_NODE': '1', 'PET_MASTER_ADDR': '127.0.0.1', 'PET_MASTER_PORT': port}
    command = ['sh', '-c', 'echo $RANK of $WORLD_SIZE']
    with Job(cddprun, *command, env=env | {'PET_NODE_RANK': '1'}) as b, Job(cddprun, *command, env=env | {'PET_NODE_RANK': '0'}) as a:
        assert (a.finish(), b.finish()) == (0, 0), (a.err, b.err)
        assert (a.out, b.out) == ('[0] 0 of 2\n', '[1] 1 of 2\n'), (a.out, b.out)
        assert a.err == (f'cddprun: from the environment: PET_NNODES=2 PET_NODE_RANK=0 PET_MASTER_ADDR=127.0.0.1 '
                         f'PET_MASTER_PORT={port}\n'), a.err
        assert not b.err, b.err


def test_binds_and_reports_cores(cddprun):
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        raise Skip('one core')
    script = ['sh', '-c', 'sed -n "s/Cpus_allowed_list:[^0-9]*//p" /proc/self/status']
    status, out, err = run(cddprun, '-ppn', '2', '--numa_binding=exclusive', '--report-bindings', *script)
    if 'without hwloc' in err or 'cannot use hwloc' in err:
        raise Skip(err)
    assert status == 0, err
    said = dict(re.findall(r'cddprun: rank (\d) runs on cores (\S+) \(NUMA node \d+', err))
    seen = dict(re.findall(r'\[(\d)\] (\S+)', out))
    assert said == seen and len(set(seen.values())) == 2, (out, err)
    status, out, err = run(cddprun, '--numa_binding=none', '--report_bindings', *script)
    assert status == 0 and err == 'cddprun: rank 0 is not bound to cores\n', (status, err)


def test_reports_missing_cores(cddprun):
    env = {'HWLOC_SYNTHETIC': 'numa:2 core:600 pu:1'}
    status, out, err = run(cddprun, '-ppn', '2', '--numa_binding=node', 'echo', 'ran', env=env)
    if 'without hwloc' in err or 'cannot use hwloc' in err:
        raise Skip(err)
    assert status == 126 and 'rank 1: cannot be bound to cores 600-1199: Invalid argument' in err, (status, err)


def test_a_dry_run_prints_the_plan_and_starts_nothing(cddprun):
    with tempfile.TemporaryDirectory() as folder:
        mark = os.path.join(folder, 'ran')
        status, out, err = run(cddprun, '--dry-run', '-ppn', '2', '-x', 'A=b', 'touch', mark)
        plan = json.loads(out)
        assert (status, err) == (0, '') and not os.path.exists(mark), err
        assert [w['environment']['RANK'] for w in plan['workers']] == ['0', '1'] and plan['world_size'] == 2, plan
        assert plan['workers'][1]['environment']['A'] == 'b' and plan['workers'][0]['command'] == ['touch', mark], plan
        # What a worker really has is what the plan said.
        status, out, err = run(cddprun, '-ppn', '2', 'env')
        real = dict(line[4:].partition('=')[::2] for line in out.splitlines() if line.startswith('[1] '))
        for name, value in plan['workers'][1]['environment'].items():
            if value is not None and name not in ('A', 'TORCHELASTIC_RUN_ID'):
                assert real[name] == value, (name, value, real.get(name))
            assert name in real or name == 'A', name
        status, out, err = run(cddprun, '--dry_run', '--nnodes=2', 'x')
        assert status == 2 and 'needs a rendezvous endpoint' in err and not out, (status, out, err)


def test_a_dry_run_says_what_the_start_would_say(cddprun):
    for args in (['no-such-program'], ['./no/such/program'], ['/'], ['--master_addr=no-such-host.invalid', '--nnodes=2', '--node_rank=1', 'true'],
                 ['--master_addr=no-such-host.invalid', 'true']):
        status, out, err = run(cddprun, '--dry_run', *args)
        if '--nnodes=2' in args: # the start itself tries again for half a minute
            assert status == 1 and 'does not resolve on this node' in err, (args, status, err)
        else:
            assert (status, err) == run(cddprun, *args)[::2], (args, status, err)
        assert json.loads(out)['workers'], out
    status, out, err = run(cddprun, '--dry_run', 'no-such-script.py')
    assert (status, err) == (2, "cddprun: cannot read script 'no-such-script.py': No such file or directory\n"), (status, err)
    status, out, err = run(cddprun, '--dry_run', '-m', 'no_such_module')  # only Python knows
    assert (status, err) == (0, ''), (status, err)


if __name__ == '__main__':
    launch.main()
