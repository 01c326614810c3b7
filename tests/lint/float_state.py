#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Results of libcddp do not depend on the caller's floating-point state (common/float_state.h).

Each public function begins with CDI_DEFAULT_FLOAT_STATE, or is listed here as one that computes nothing; doubles that it takes
or returns have a fence; functions of the program are called with CDI_CALLERS_FLOAT_STATE; threads start in cdi_thread_create().

float_state.py ROOT         check the tree; one line per fault, exit 1 if there is any
float_state.py --self-test  plant each kind of fault; each must be found
"""
import pathlib
import re
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / 'scripts' / 'lib'))
from public_headers import whole  # noqa: E402

SCOPE = 'CDI_DEFAULT_FLOAT_STATE;'
# They read or set a word, or call another public function, which has the scope.
EXEMPT = set('''cddp_backend_name cddp_comm_store cddp_ddp_bucket_bytes cddp_ddp_bucket_cap cddp_ddp_bucket_count cddp_ddp_grad
cddp_ddp_grad_ready cddp_ddp_user cddp_dtype_size cddp_fsdp_bytes cddp_fsdp_param cddp_last_error cddp_last_error_info cddp_local_rank cddp_local_world_size cddp_node_rank
cddp_optim_defaults cddp_optim_state_bytes cddp_rank cddp_request_stop cddp_restart_count cddp_set_log_callback
cddp_status_name cddp_stop_requested cddp_strerror cddp_unique_id_create cddp_version cddp_world_rank cddp_world_size'''.split())
# They have integers only; the store computes nothing, and the files of the sampler may not contain a double.
FAMILIES = {'cddp_store_': (), 'cddp_sampler_': ('worker/data/', 'worker/math/mt19937.c')}
CALLBACKS = {'fill': r'opt\.fill\(', 'begin': r'hook\.begin\(', 'end': r'hook\.end\(', 'cddp_log_fn': r'->fn\(to->arg', 'interrupted': r'->interrupted\('}
ROOMS = ('common', 'protocol', 'store', 'worker')


def code(text):
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', lambda m: '\n' * m[0].count('\n'), text, flags=re.S)


def functions(text):
    """(name, type and name and parameters, body) of each function."""
    return re.findall(r'^(?!\s)([^\n;{}#]*?\b(\w+)\([^;{}]*\))\n\{\n(.*?)^\}', text, re.S | re.M)


def check_public(path, head, name, body):
    begins = body.lstrip().startswith(SCOPE)
    exempt = name in EXEMPT or name.startswith(tuple(FAMILIES))
    if begins and exempt:
        yield f'{path}: {name} has {SCOPE[:-1]}: take it off the list of this check'
    if exempt:
        return
    if not begins:
        yield f'{path}: {name} does not begin with {SCOPE[:-1]}'
    for arg in re.findall(r'\bdouble (\w+)', head.partition('(')[2]):
        if f'CDI_FLOAT_FENCE({arg});' not in body:
            yield f'{path}: {name} has no CDI_FLOAT_FENCE({arg})'
    if head.startswith('double '):
        for result in re.findall(r'return\s+([^;]*);', body):
            if f'CDI_FLOAT_FENCE({result});\n    return' not in body:
                yield f'{path}: {name} has no CDI_FLOAT_FENCE() before it returns {result}'


def faults(headers, public, sources):
    """headers: their text. public: names of functions. sources: texts by path."""
    found = set()
    for name in sorted(set(re.findall(r'\(\*(\w+)\)\(', code(headers))) - set(CALLBACKS)):
        yield f'{name} is a function of the program: add how libcddp calls it to this check'
    for path, text in sorted(sources.items()):
        text = code(text)
        for head, name, body in functions(text) if path.startswith('worker/') else []:
            if name in public and not head.startswith('static'):
                found.add(name)
                yield from check_public(path, head, name, body)
            for what, call in CALLBACKS.items():
                if re.search(call, body) and 'CDI_CALLERS_FLOAT_STATE;' not in body:
                    yield f'{path}: {name} calls {what} of the program without CDI_CALLERS_FLOAT_STATE'
        if 'pthread_create(' in text and path != 'common/thread.h':
            yield f'{path}: pthread_create(): a thread of libcddp starts in cdi_thread_create()'
        if 'long double' in text:
            yield f'{path}: a long double is computed by the x87 unit, whose state nobody sets'
        if path.startswith(FAMILIES['cddp_sampler_']) and re.search(r'\b(float|double)\b', text):
            yield f'{path}: a floating-point number where functions do not set the state'
    for name in sorted(public - found):
        yield f'{name}: no definition was found'


def self_test():
    good = ('double cddp_one(cddp_ddp *ddp, double x)\n{\n    CDI_DEFAULT_FLOAT_STATE;\n\n    CDI_FLOAT_FENCE(x);\n'
            '    x += d->hook.end(d);\n    CDI_FLOAT_FENCE(x);\n    return x;\n}\n')
    called = good.replace('    x += ', '    {\n        CDI_CALLERS_FLOAT_STATE;\n\n    x += ')
    planted = {
        'does not begin with': called.replace('    CDI_DEFAULT_FLOAT_STATE;\n', ''),
        'has no CDI_FLOAT_FENCE(y)': called.replace('double x)', 'double x, double y)'),
        'before it returns': called.replace('    CDI_FLOAT_FENCE(x);\n    return', '    return'),
        'calls end of the program': good,
        'starts in cdi_thread_create': called + 'static void f(void)\n{\n    pthread_create(0, 0, 0, 0);\n}\n',
        'x87 unit': called + 'static long double y;\n',
        'no definition was found': called.replace('cddp_one', 'cddp_two'),
    }
    assert not list(faults('', {'cddp_one'}, {'worker/a.c': called})), list(faults('', {'cddp_one'}, {'worker/a.c': called}))
    for message, text in planted.items():
        got = list(faults('', {'cddp_one'}, {'worker/a.c': text}))
        assert len(got) == 1 and message in got[0], (message, got)
    got = list(faults('int (*more)(void);', {'cddp_rank'}, {'worker/a.c': 'int cddp_rank(void)\n{\n    CDI_DEFAULT_FLOAT_STATE;\n\n    return 1;\n}\n',
                                                            'worker/data/a.c': 'static double x;\n'}))
    assert len(got) == 3, got


def main():
    if sys.argv[1] == '--self-test':
        self_test()
        return 0
    root = pathlib.Path(sys.argv[1])
    public = set(re.findall(r'^\s+(cddp_\w+);', (root / 'worker/libcddp.map').read_text(encoding='utf-8'), re.M))
    sources = {str(p.relative_to(root)): p.read_text(encoding='utf-8')
               for room in ROOMS for p in (root / room).rglob('*') if p.suffix in ('.c', '.h')}
    found = list(faults(whole(root), public, sources))
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
