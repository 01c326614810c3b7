# SPDX-License-Identifier: Apache-2.0
"""gpt_graph.py CDDPRUN GPT [--quick]: the GPT's steps as launches of a CUDA graph, on the stand-in: the weights have the bits of
steps that are not captured, on 1 and 2 ranks, plain and divided, with gradients that add up, in both types, under random delays."""
import os
import pathlib
import subprocess
import sys
import tempfile

cddprun, gpt = sys.argv[1:3]
quick = '--quick' in sys.argv
SMALL = ['--layers', '1', '--heads', '2', '--width', '16', '--context', '16', '--batch', '4', '--sample', '0', '--eval-every', '0',
         '--bucket-kib', '4', '--steps', '16', '--log-every', '8']
WAYS = {
    'plain': [],
    'divided': ['--divided'],
    'added': ['--micro', '1'],
    'divided, added': ['--divided', '--micro', '1'],
    'bf16': ['--dtype', 'bf16'],
    'divided, bf16': ['--divided', '--dtype', 'bf16'],
}
failed = 0
TEXT = tempfile.NamedTemporaryFile(prefix='cddp-test-')  # a short one: little is held out
TEXT.write(bytes(32 + (7 * k * k + 3 * k) % 90 for k in range(3000)))
TEXT.flush()


def run(ranks, flags, **settings):
    env = os.environ | {'CDDP_STANDIN_CAPTURE': 'fault'} | {f'CDDP_STANDIN_{key}': value for key, value in settings.items()}
    done = subprocess.run([cddprun, '--standalone', f'--nproc_per_node={ranks}', gpt, *SMALL, '--text', TEXT.name, *flags], capture_output=True, text=True,
                          check=False, stdin=subprocess.DEVNULL, env=env)
    return done.returncode, done.stdout + done.stderr


def check(name, good, said):
    global failed
    failed += not good
    print(f'{"ok" if good else "not ok"} - {name}')
    if not good:
        print('# ' + said[-3000:].replace('\n', '\n# '), flush=True)


def weights(ranks, flags, folder, name, **settings):
    path = pathlib.Path(folder) / name
    status, said = run(ranks, [*flags, '--weights-out', str(path)], **settings)
    return (path.read_bytes() if status == 0 else None), said


ways = {name: flags for name, flags in WAYS.items() if not quick or name in ('plain', 'divided, added')}
print(f'1..{2 * len(ways) + 2 + (0 if quick else 1)}')
with tempfile.TemporaryDirectory(prefix='cddp-test-') as scratch:
    for world in 1, 2:
        for way, words in ways.items():
            plain, text = weights(world, words, scratch, 'plain', DELAY='none')
            captured, more = weights(world, [*words, '--graph'], scratch, 'captured', DELAY='both')
            check(f'{world} ranks, {way}: the same bits', plain is not None and plain == captured, text + more)
    # Saved in the middle and resumed: the state that launches have made is in the checkpoint.
    if not quick:
        saved, words = os.path.join(scratch, 'saved'), ['--divided', '--graph']
        whole, text = weights(2, words, scratch, 'whole')
        status, more = run(2, [*words, '--save', saved, '--save-every', '13'])
        part, again = weights(2, [*words, '--resume', saved], scratch, 'part')
        check('saved and resumed: the same bits', whole is not None and status == 0 and whole == part, text + more + again)
# Controls: steps are launches of a graph, and only where that is asked for.
status, text = run(1, ['--graph'], FAIL='cuGraphLaunch:1:999')
check('a launch that fails ends the program with its name', status != 0 and 'cuGraphLaunch' in text, text)
status, text = run(1, [], FAIL='cuStreamBeginCapture:1:999')
check('nothing is captured without --graph', status == 0, text)
sys.exit(failed != 0)
