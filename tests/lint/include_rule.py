#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rooms stay rooms: which room may include which, and which calls belong to which files (see CONTRIBUTING.md).

include_rule.py ROOT         check the tree; one line per violation, exit 1 if there is any
include_rule.py --self-test  plant each kind of violation in a temporary tree; each must be found, alone
"""
import os
import re
import sys
import tempfile

# Room -> rooms whose headers it may include, in the order of a reader's way up. The longest prefix of a path is its room.
# A room may always include its own headers, the public ones, and libc's.
BASE = ['common', 'worker/base']
CPU = ['worker/backend/cpu/node', 'worker/backend/cpu/net', 'worker/backend/cpu/coll']
TRAINING = ['common', 'protocol', 'worker/base', 'worker/math', 'worker/backend', 'worker/comm', 'worker/checkpoint']
ALLOWED = {
    'include': [],
    'common': [],
    'protocol': ['common'],
    'store': ['protocol', 'common'],

    'worker/base': ['common'],
    'worker/math': BASE,
    'worker/store': [*BASE, 'protocol', 'store'],
    'worker/backend': [*BASE, 'protocol', 'worker/math'],
    'worker/backend/cpu/node': [*BASE, 'protocol', 'worker/backend'],
    'worker/backend/cpu/net': [*BASE, 'protocol', 'worker/backend', 'worker/backend/cpu/node'],
    'worker/backend/cpu/coll': [*BASE, 'worker/math', 'worker/backend', 'worker/backend/cpu/node', 'worker/backend/cpu/net'],
    'worker/backend/cpu': [*BASE, 'protocol', 'worker/math', 'worker/store', 'worker/backend', *CPU],
    'worker/backend/mpi': [*BASE, 'protocol', 'worker/math', 'worker/backend'],
    'worker/backend/nccl/kernels': [*BASE, 'worker/math', 'worker/backend'],
    'worker/backend/nccl/device': [*BASE, 'protocol', 'worker/math', 'worker/backend', 'worker/backend/nccl/kernels'],
    'worker/backend/nccl/state': [*BASE, 'protocol', 'worker/backend', 'worker/backend/nccl/kernels', 'worker/backend/nccl/device'],
    'worker/backend/nccl': [*BASE, 'protocol', 'worker/math', 'worker/backend', 'worker/backend/nccl/kernels', 'worker/backend/nccl/device',
                            'worker/backend/nccl/state'],
    'worker/comm': [*BASE, 'protocol', 'worker/store', 'worker/backend', 'worker/backend/cpu'],
    'worker/data': [*BASE, 'worker/math', 'worker/comm'],
    'worker/checkpoint': [*BASE, 'protocol', 'worker/backend', 'worker/comm', 'worker/data'],
    'worker/reducer/layout': [*BASE, 'worker/math'],
    'worker/reducer/state': [*TRAINING, 'worker/reducer/layout'],
    'worker/reducer/grads': [*TRAINING, 'worker/reducer/layout', 'worker/reducer/state'],
    'worker/reducer': [*TRAINING, 'worker/reducer/layout', 'worker/reducer/state', 'worker/reducer/grads'],
    'worker/optim': [*TRAINING, 'worker/reducer', 'worker/reducer/layout', 'worker/reducer/state', 'worker/reducer/grads'],
    'worker/fsdp': [*TRAINING, 'worker/reducer', 'worker/reducer/layout', 'worker/reducer/state', 'worker/optim'],

    'rendezvous/round': ['common', 'protocol', 'store'],
    'rendezvous/http': ['common', 'protocol', 'rendezvous/view'],
    'rendezvous/view': ['common', 'protocol', 'store', 'rendezvous/round'],
    'rendezvous/daemon': ['common', 'protocol', 'store', 'rendezvous', 'watch'],
    'rendezvous': ['common', 'protocol', 'store', 'rendezvous/round', 'rendezvous/http', 'rendezvous/view'],

    'launcher/cli': ['common'],
    'launcher/cluster': ['common', 'launcher/cli'],
    'launcher/plan': ['common', 'protocol', 'store', 'launcher/cli', 'launcher/cluster'],
    'launcher/process': ['common', 'protocol'],
    'launcher/etcd': ['common', 'protocol', 'store', 'launcher/cli', 'launcher/cluster', 'launcher/plan'],
    'launcher/output': ['common', 'protocol', 'launcher/cli', 'launcher/plan'],
    'launcher/agent': ['common', 'protocol', 'launcher/cli', 'launcher/plan', 'launcher/process', 'launcher/output', 'launcher/etcd'],
    'launcher/remote': ['common', 'protocol', 'launcher/cli', 'launcher/cluster', 'launcher/process'],
    'launcher': ['common', 'protocol', 'launcher/cli', 'launcher/cluster', 'launcher/plan', 'launcher/process', 'launcher/output', 'launcher/agent', 'launcher/remote', 'watch'],
    'watch/node': ['common', 'protocol', 'launcher/cli', 'launcher/plan', 'launcher/process', 'launcher/agent'],
    'watch/run': ['common', 'protocol', 'launcher/cli', 'launcher/plan', 'launcher/output', 'launcher/agent'],
    'watch/trace': ['common', 'protocol', 'launcher/output', 'launcher/agent'],
    'watch': ['common', 'protocol', 'store', 'rendezvous/round', 'rendezvous/view', 'rendezvous/http', 'rendezvous', 'launcher/cli', 'launcher/cluster', 'launcher/plan', 'launcher/process',
              'launcher/output', 'launcher/agent', 'watch/node', 'watch/run', 'watch/trace'],
    'preflight': ['common', 'protocol', 'worker/base', 'worker/store', 'launcher/process'],
    'examples': [],
}
# Within a large room, the floors from the ground up: a file includes headers of its floor and of those below. A file that is
# not listed stands above all of them.
FLOORS = {
    'worker/backend/cpu/coll': ['choose', 'step', 'chain', 'bruck', 'mesh', 'pairwise shards', 'exchange reduction', 'region'],
    'worker/backend/nccl/device': ['anchor library launch_shape mean reduction_support ticket', 'pinned_blocks', 'device', 'copy call_thread teardown'],
    'worker/backend/nccl/state': ['state', 'health', 'ring', 'failure gpu_timestamps', 'nccl_call completion'],
    'worker/backend/nccl': ['stage', 'issue', 'graph_capture', 'operation', 'wait', 'region communicator element_ops', 'peers', 'progress', 'watch'],
    'worker/reducer/state': ['verify state', 'arena used check overlap replicate', 'weight captured', 'debug'],
    'worker/reducer/grads': ['compress user_grads', 'in_place buffers tied'],
    'worker/reducer': ['stats stats_text', 'metrics', 'plan nan_check replicas', 'powersgd', 'hook', 'launch', 'unused uneven', 'step'],
}
# The one arrow between neighbours: cddprun hosts the rendezvous in its own loop.
SIDEWAYS = {('launcher/agent', 'rendezvous/server.h')}
# libcddp must not pull in jansson.
FORBIDDEN = [('worker/', 'protocol/message.h'), ('worker/', 'protocol/json_text.h')]

# Header of another project -> rooms or files that may include it.
EXTERNAL = {
    'uv.h': ['rendezvous/', 'launcher/', 'watch/'],
    'jansson.h': ['protocol/message.c', 'protocol/node_report.h', 'protocol/records.c', 'watch/', 'rendezvous/query.c', 'protocol/json_text.h', 'launcher/agent/report.c', 'launcher/agent/events.c', 'launcher/process/python_stack.c',
                  'launcher/plan/dry_run.c', 'watch/run/report_page.c', 'launcher/etcd/etcd_json.c', 'preflight/facts_json.c', 'preflight/spare.c'],
    'sodium.h': ['protocol/auth.c'],
    'dlfcn.h': ['launcher/plan/topology.c', 'launcher/process/libdw.c', 'launcher/process/nvml.c', 'watch/curses.c', 'launcher/etcd/libcurl.c', 'worker/backend/loader.c', 'worker/base/nvtx.c', 'worker/backend/nccl/device/library.c', 'examples/wine/gpu.c', 'examples/gpt/kernels_pick.c', 'examples/gpt/gpu.c', 'examples/gpt/cublas.c'],
    'cuda.h': ['worker/backend/nccl/', 'examples/wine/', 'examples/gpt/'],
    'nccl.h': ['worker/backend/nccl/'],
    'mpi.h': ['worker/backend/mpi/'],
    'hwloc.h': ['launcher/plan/topology.c'],
    'elfutils/libdwfl.h': ['launcher/process/libdw.h'],
    'dwarf.h': ['launcher/process/libdw.h'],
    'criterion/criterion.h': [],
}
# Call -> files that may make it.
PROCESS_FILES = ['launcher/process/spawn.c', 'launcher/process/py_spy.c', 'launcher/process/guard.c', 'launcher/process/shim.c', 'launcher/remote/ssh.c', 'launcher/remote/remote_end.c', 'launcher/main.c', 'rendezvous/daemon/main.c', 'preflight/main.c']
CALLS = [
    (r'(?:secure_)?getenv', ['common/env.c', 'launcher/cli/parse.c', 'examples/wine/gpu.c', 'examples/gpt/gpu.c', 'examples/gpt/cublas.c']),
    (r'v?fork|clone3?|exec[lv]p?e?|execvpe|fexecve|posix_spawnp?|system|popen|uv_spawn', PROCESS_FILES),
    (r'signal|sigaction|kill|killpg|pidfd_send_signal|uv_kill|uv_signal_start|uv_process_kill',
     [*PROCESS_FILES, 'worker/comm/crash.c', 'worker/comm/stop_signal.c']),  # an example is a user's program
    (r'json_string_(?:value|length)', ['protocol/json_text.c']),  # which makes text from outside visible
    (r'atoi|atol|atoll|atof|gets|strcpy|strcat|v?sprintf|strtok', []),
]

TOP = {room.split('/')[0] for room in ALLOWED}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.M)
NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(match):
    """Comments and strings go, lines stay, so that numbers in messages are right."""
    return re.sub(r'[^\n]', ' ', match.group(0))


def room_of(path):
    """The room of a file or header; None: it is not in the tree's rooms."""
    folder = os.path.dirname(path)
    while folder and folder not in ALLOWED:
        folder = os.path.dirname(folder)
    return folder or None


def floor_of(room, path):
    """On which floor of its room a file is; None: the room has no floors."""
    stem = os.path.splitext(os.path.relpath(path, room))[0]
    floors = [i for i, stems in enumerate(FLOORS.get(room, ())) if stem in stems.split()]
    return floors[0] if floors else len(FLOORS[room]) if room in FLOORS else None


def above(room, path, header):
    """Within a room: only a header of the file's own floor or one below."""
    mine, other = floor_of(room, path), floor_of(room, header)
    return None if mine is None or other <= mine else f'{header} is above {path} in {room}'


def allows(path, other):
    """Whether a file may use another one, a header or a source, by their rooms and floors."""
    room, its = room_of(path), room_of(other)
    if room == its:
        return above(room, path, other) is None
    return its in ALLOWED[room] or (room, os.path.splitext(other)[0] + '.h') in SIDEWAYS


def check_include(path, quote, header):
    room = room_of(path)
    if header in EXTERNAL:
        if not any(path == allowed or (allowed.endswith('/') and path.startswith(allowed))
                   for allowed in EXTERNAL[header]):
            return f'<{header}> is not for {path}'
    if header.startswith('cddp/'):
        return None
    top = header.split('/')[0] in TOP and '/' in header
    if quote == '<':
        return f'write "{header}", with quotes: it is ours' if top else None
    if '/' not in header:
        return None if room == 'examples' else f'write "room/{header}": an include names its room'
    for start, refused in FORBIDDEN:
        if path.startswith(start) and header == refused:
            return f'{start} must not include {header}: libcddp needs libc only'
    if room_of(header) == room:
        return above(room, path, header)
    return None if allows(path, header) else f'{room} must not include {header}'


def check_text(path, text):
    for match in INCLUDE.finditer(text):
        why = check_include(path, match.group(1), match.group(2))
        if why:
            yield f'{path}:{text.count(chr(10), 0, match.start(2)) + 1}: {why}'
    code = NOT_CODE.sub(blank, text)
    for name, files in CALLS:
        for match in re.finditer(rf'(?<![\w.>])({name})\s*\(', code):
            if path not in files and not path.startswith('include/'):
                line = code.count('\n', 0, match.start()) + 1
                yield f'{path}:{line}: {match.group(1)}() is not for this file, only for {", ".join(files) or "nobody"}'


def check_tree(root):
    found = []
    for top in sorted(TOP):
        for folder, _, names in sorted(os.walk(os.path.join(root, top))):
            for name in sorted(names):
                if name.endswith(('.c', '.h', '.h.in', '.cu')):
                    path = os.path.join(folder, name)
                    with open(path, encoding='utf-8') as source:
                        found += check_text(os.path.relpath(path, root), source.read())
    return found


PLANTED = {
    'worker/backend/a.c': '#include "protocol/message.h"\n',
    'worker/comm/b.c': '#include "worker/nowhere/a.h"\n',
    'worker/backend/c.c': '#include <dlfcn.h>\n',
    'worker/base/d.c': '#include <uv.h>\n',
    'worker/comm/e.c': '#include <sodium.h>\n',
    'launcher/cli/b.c': '#include <jansson.h>\n',
    'watch/b.c': 'const char *f(json_t *v)\n{\n    return json_string_value(v);\n}\n',
    'launcher/plan/c.c': 'int f(void)\n{\n    return fork();\n}\n',
    'launcher/agent/d.c': 'void f(void)\n{\n    kill(1, 9);\n}\n',
    'common/b.c': 'char *f(void)\n{\n    return getenv("HOME");\n}\n',
    'common/e.c': 'int f(const char *s)\n{\n    return atoi(s);\n}\n',
    'common/c.h': '#include "buf.h"\n',
    'common/d.c': '#include <common/buf.h>\n',
}
CLEAN = {
    'common/ok.c': '/* fork() and "protocol/flight.h" */\n#include "common/buf.h"\nstatic const char *s = "getenv(";\n',
    'launcher/agent/ok.c': '#include "rendezvous/server.h"\n#include <uv.h>\nvoid f(struct x *y)\n{\n    y->kill(1);\n}\n',
    'launcher/process/spawn.c': '#include <signal.h>\nint f(void)\n{\n    return fork();\n}\n',
    'worker/store/ok.c': '#include "store/kv.h"\n#include <cddp/cddp.h>\n',
    'examples/wine/ok.c': '#include "model.h"\n#include <cddp/cddp.h>\n',
}


def planted_arrows():
    """One forbidden arrow for each room and each room that it must not include, and for each floor."""
    for room in ALLOWED:
        folder = 'include/cddp' if room == 'include' else room
        for other in ALLOWED:
            if other not in (room, 'include', *ALLOWED[room]) and (room, f'{other}/planted.h') not in SIDEWAYS:
                yield f'{folder}/planted.c', f'#include "{other}/planted.h"\n'
        floors = FLOORS.get(room, ())
        for i, stems in enumerate(floors):
            higher = floors[i + 1].split()[0] if i + 1 < len(floors) else 'on_top'
            yield f'{room}/{stems.split()[0]}.c', f'#include "{room}/{higher}.h"\n'


def plant(root, files):
    for path, text in files.items():
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        with open(os.path.join(root, path), 'w', encoding='utf-8') as out:
            out.write(text)


def self_test():
    wrong = []
    with tempfile.TemporaryDirectory() as root:
        plant(root, CLEAN)
        wrong += [f'taken for a violation: {one}' for one in check_tree(root)]
        plant(root, PLANTED)
        found = check_tree(root)
        wrong += [f'planted in {path}, not found' for path in PLANTED if not any(one.startswith(path + ':') for one in found)]
        if len(found) != len(PLANTED):
            wrong.append(f'{len(PLANTED)} faults planted, found {found}')
    for path, text in planted_arrows():
        if len(list(check_text(path, text))) != 1:
            wrong.append(f'planted in {path}, not found: {text.strip()}')
    return wrong


def main():
    found = self_test() if sys.argv[1] == '--self-test' else check_tree(sys.argv[1])
    for line in found:
        print(line)
    sys.exit(1 if found else 0)


if __name__ == '__main__':
    main()
