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

# Room -> rooms whose headers it may include. A room may always include its own, the public ones, and libc's.
ALLOWED = {
    'include': [],
    'common': [],
    'protocol': ['common'],
    'store': ['protocol', 'common'],
    'worker': ['store', 'protocol', 'common'],
    'rendezvous': ['store', 'protocol', 'common'],
    'launcher': ['store', 'protocol', 'common'],
    'examples': [],
}
# The one arrow between neighbours: cddprun hosts the rendezvous in its own loop.
SIDEWAYS = {('launcher', 'rendezvous/server.h')}
# libcddp must not pull in jansson.
FORBIDDEN = {('worker', 'protocol/message.h')}

# Header of another project -> rooms or files that may include it.
EXTERNAL = {
    'uv.h': ['rendezvous/', 'launcher/'],
    'jansson.h': ['protocol/message.c', 'rendezvous/http/pages.c', 'protocol/json_text.h', 'launcher/agent/report.c', 'launcher/agent/events.c',
                  'launcher/plan/dry_run.c'],
    'sodium.h': ['protocol/auth.c'],
    'dlfcn.h': ['launcher/plan/topology.c', 'worker/backend/loader.c', 'worker/backend/nccl/library.c', 'examples/wine/gpu.c'],
    'cuda.h': ['worker/backend/nccl/', 'examples/wine/'],
    'nccl.h': ['worker/backend/nccl/'],
    'mpi.h': ['worker/backend/mpi/'],
    'hwloc.h': ['launcher/plan/topology.c'],
    'criterion/criterion.h': [],
}
# Call -> files that may make it.
PROCESS_FILES = ['launcher/process/spawn.c', 'launcher/process/guard.c', 'launcher/process/shim.c', 'launcher/remote/ssh.c', 'launcher/remote/remote_end.c', 'launcher/main.c', 'rendezvous/daemon/main.c']
CALLS = [
    (r'(?:secure_)?getenv', ['common/env.c', 'launcher/cli/parse.c', 'examples/wine/gpu.c']),
    (r'v?fork|clone3?|exec[lv]p?e?|execvpe|fexecve|posix_spawnp?|system|popen|uv_spawn', PROCESS_FILES),
    (r'signal|sigaction|kill|killpg|pidfd_send_signal|uv_kill|uv_signal_start|uv_process_kill',
     [*PROCESS_FILES, 'examples/wine/state.c', 'examples/line/lasting.c']),  # an example is a user's program
    (r'atoi|atol|atoll|atof|gets|strcpy|strcat|v?sprintf|strtok', []),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.M)
NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(match):
    """Comments and strings go, lines stay, so that numbers in messages are right."""
    return re.sub(r'[^\n]', ' ', match.group(0))


def check_include(path, quote, header):
    room = path.split('/')[0]
    if header in EXTERNAL:
        if not any(path == allowed or (allowed.endswith('/') and path.startswith(allowed))
                   for allowed in EXTERNAL[header]):
            return f'<{header}> is not for {path}'
    if header.startswith('cddp/'):
        return None
    if quote == '<':
        first = header.split('/')[0]
        return f'write "{header}", with quotes: it is ours' if first in ALLOWED and '/' in header else None
    first = header.split('/')[0]
    if '/' not in header and room != 'examples':
        return f'write "room/{header}": an include names its room'
    if room == 'examples' and '/' not in header:
        return None
    if (room, header) in FORBIDDEN:
        return f'{room} must not include {header}: libcddp needs libc only'
    if first == room or first in ALLOWED[room] or (room, header) in SIDEWAYS:
        return None
    return f'{room} must not include {header}'


def check_file(root, path):
    with open(os.path.join(root, path), encoding='utf-8') as source:
        text = source.read()
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
    for room in ALLOWED:
        for folder, _, names in sorted(os.walk(os.path.join(root, room))):
            for name in sorted(names):
                if name.endswith(('.c', '.h', '.h.in')):
                    found += check_file(root, os.path.relpath(os.path.join(folder, name), root))
    return found


PLANTED = {
    'common/a.c': '#include "protocol/flight.h"\n',
    'protocol/a.h': '#include "store/kv.h"\n',
    'store/a.c': '#include "rendezvous/server.h"\n',
    'worker/a.c': '#include "launcher/plan/plan.h"\n',
    'worker/b.c': '#include "protocol/message.h"\n',
    'worker/backend/c.c': '#include <dlfcn.h>\n',
    'worker/d.c': '#include <uv.h>\n',
    'worker/e.c': '#include <sodium.h>\n',
    'rendezvous/a.c': '#include "launcher/plan/plan.h"\n',
    'launcher/a.c': '#include "rendezvous/conn.h"\n',
    'launcher/b.c': '#include <jansson.h>\n',
    'launcher/c.c': 'int f(void)\n{\n    return fork();\n}\n',
    'launcher/d.c': 'void f(void)\n{\n    kill(1, 9);\n}\n',
    'common/b.c': 'char *f(void)\n{\n    return getenv("HOME");\n}\n',
    'common/e.c': 'int f(const char *s)\n{\n    return atoi(s);\n}\n',
    'common/c.h': '#include "buf.h"\n',
    'common/d.c': '#include <common/buf.h>\n',
    'include/cddp/a.h': '#include "common/buf.h"\n',
    'examples/a.c': '#include "worker/comm/comm.h"\n',
}
CLEAN = {
    'common/ok.c': '/* fork() and "protocol/flight.h" */\n#include "common/buf.h"\nstatic const char *s = "getenv(";\n',
    'launcher/ok.c': '#include "rendezvous/server.h"\n#include <uv.h>\nvoid f(struct x *y)\n{\n    y->kill(1);\n}\n',
    'launcher/process/spawn.c': '#include <signal.h>\nint f(void)\n{\n    return fork();\n}\n',
    'worker/ok.c': '#include "store/kv.h"\n#include <cddp/cddp.h>\n',
    'examples/wine/ok.c': '#include "model.h"\n#include <cddp/cddp.h>\n',
}


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
    for path, text in PLANTED.items():
        with tempfile.TemporaryDirectory() as root:
            plant(root, CLEAN | {path: text})
            found = check_tree(root)
            if len(found) != 1 or not found[0].startswith(path + ':'):
                wrong.append(f'planted in {path}, found {found}')
    return wrong


def main():
    found = self_test() if sys.argv[1] == '--self-test' else check_tree(sys.argv[1])
    for line in found:
        print(line)
    sys.exit(1 if found else 0)


if __name__ == '__main__':
    main()
