# SPDX-License-Identifier: Apache-2.0
"""captured_end.py CDDPRUN DEVICE_CAPTURE DEVICE_WHOLE DEVICE_SHARDED: if a rank does not start a replay, the other one ends with an error that names
the rank and the replay, and cddprun's report names the captured collective."""
import os
import subprocess
import sys

cddprun, program, whole, sharded = sys.argv[1:]
failed = 0


def run(what, flags, environment, program=program):
    done = subprocess.run([cddprun, '--standalone', '--nproc_per_node=2', *flags, program, what], capture_output=True, text=True,
                          check=False, stdin=subprocess.DEVNULL, env=os.environ | environment)
    return done.returncode, done.stdout + done.stderr


def check(name, said, *wanted):
    global failed
    missing = [word for word in wanted if word not in said]
    failed += bool(missing)
    print(f'{"not ok" if missing else "ok"} - {name}')
    if missing:
        print(f'# missing: {missing}\n# ' + said.replace('\n', '\n# '))


print('1..5')
status, text = run('dies', ['--on_failure=wait'], {})
check('a death within a replay', f'{text}status {status != 0}', 'rank 0: the replay ended: CDDP_E_PEER: rank 1 (pid',
      'replay 5 of its graph', 'rank 0 in captured all_reduce (bucket ', 'replay 5', 'status True')
status, text = run('stops', [], {'CDDP_TIMEOUT': '8'})
check('a rank that stays away', f'{text}status {status != 0}', 'CDDP_E_TIMEOUT: all_reduce', 'replay 5 of its graph',
      'rank 1 did not ', 'within 8 s', 'rank 1 after ', 'rank 0 in captured all_reduce (bucket ', 'status True')
status, text = run('dies', ['--on_failure=wait'], {}, whole)
check('a death within a replay of a whole step', f'{text}status {status != 0}', 'rank 0: the replay ended: CDDP_E_PEER: rank 1 (pid',
      'replay 2 of its graph', 'rank 0 in captured ', 'replay 2', 'status True')
status, text = run('dies', ['--on_failure=wait'], {}, sharded)
check('a death within a replay of a step with divided parameters', f'{text}status {status != 0}',
      'rank 0: the replay ended: CDDP_E_PEER: rank 1 (pid', 'replay 2 of its graph', 'rank 0 in captured all_gather (bucket ', 'status True')
status, text = run('outlives', ['--on_failure=wait'], {})
check('a capture beside a death', f'{text}status {status != 0}', 'rank 0: the peer is gone: CDDP_E_PEER: rank 1 (pid',
      'rank 0: the capture has ended well', 'status True')
sys.exit(failed != 0)
