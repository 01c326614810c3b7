#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The structs and numbers of the Python module are those of the headers: a C program prints what the compiler has.

layout.py CC INCLUDE...    INCLUDE: folders of the headers
layout.py --self-test CC INCLUDE...    planted differences must be found
"""
import ctypes
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'python'))
from cddp import _abi  # noqa: E402

PREFIXES = {_abi.Status: 'CDDP_E_', _abi.Dtype: 'CDDP_', _abi.Redop: 'CDDP_', _abi.OptimKind: 'CDDP_OPTIM_'}


def of_python():
    """What the module has: an expression in C -> its value."""
    values = {}
    for name, struct in _abi.STRUCTS.items():
        values[f'sizeof({name})'] = ctypes.sizeof(struct)
        for member, kind in struct._fields_:
            values[f'offsetof({name}, {member})'] = getattr(struct, member).offset
            values[f'sizeof((({name} *)0)->{member})'] = ctypes.sizeof(kind)
    for enum, prefix in PREFIXES.items():
        for member in enum:
            success = member in (_abi.Status.OK, _abi.Status.IN_PROGRESS) and enum is _abi.Status
            values[('CDDP_' if success else prefix) + member.name] = int(member)
    for name in ('INIT_HOST_STORE', 'DDP_NO_BROADCAST', 'DDP_SUM', 'DDP_FIND_UNUSED', 'DDP_STATIC_GRAPH', 'DDP_JOIN', 'DDP_JOIN_ACTIVE',
                 'OPTIM_NESTEROV', 'OPTIM_GROUP_FROZEN', 'OPTIM_SKIP_NONFINITE', 'FSDP_KEEP'):
        values[f'CDDP_{name}'] = getattr(_abi, name)
    return values


def of_c(expressions, cc, includes):
    lines = ''.join(f'    printf("%lld\\n", (long long)({e}));\n' for e in expressions)
    source = f'#define CDDP_EXPERIMENTAL\n#include <cddp/cddp.h>\n#include <cddp/experimental/fsdp.h>\n#include <cddp/experimental/ddp.h>\n#include <stdio.h>\n#include <stddef.h>\nint main(void)\n{{\n{lines}}}\n'
    with tempfile.TemporaryDirectory() as tmp:
        program = os.path.join(tmp, 'layout')
        subprocess.run([*cc, '-x', 'c', '-', *(f'-I{i}' for i in includes), '-o', program], input=source, text=True, check=True)
        numbers = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(expressions, map(int, numbers)))


def members_of_c(includes):
    """How many members the headers' structs have: struct -> names, so that a new one is noticed."""
    import re
    found = {}
    for folder in [os.path.join(i, sub) for i in includes for sub in ('cddp', 'cddp/experimental')]:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if name.endswith('.h'):
                with open(os.path.join(folder, name), encoding='utf-8') as f:
                    text = re.sub(r'(?s)/\*.*?\*/|//[^\n]*', '', f.read())
                for struct, body in re.findall(r'typedef struct (\w+) \{(.*?)\n\}', text, re.S):
                    function = r'\(\*(\w+)\)\([^)]*\)'
                    found[struct] = [a or b for a, b in re.findall(function + r';|(\w+)(?:\[[^\]]*\])?[;,]', body)]
    return found


def faults(structs, values, cc, includes):
    declared = members_of_c(includes)
    for name, struct in structs.items():
        members = [member for member, _ in struct._fields_]
        if members != declared.get(name):
            yield f'{name} has the members {declared.get(name)}; in Python they are {members}'
    for expression, value in of_c(list(values), cc, includes).items():
        if value != values[expression]:
            yield f'{expression} is {value}; in Python it is {values[expression]}'


def self_test(cc, includes):
    values = {**of_python(), 'CDDP_FLOAT32': 9, 'offsetof(cddp_param, dtype)': 12}
    found = ' '.join(faults({'cddp_param': _abi.SplitOptions}, values, cc, includes))
    for expected in ('CDDP_FLOAT32 is 8', 'offsetof(cddp_param, dtype) is 32', 'cddp_param has the members'):
        assert expected in found, (expected, found)


def main():
    args = sys.argv[1:]
    planted = args[0] == '--self-test'
    cc, includes = [args[planted]], args[planted + 1:]
    if planted:
        return self_test(cc, includes)
    values = of_python()
    found = list(faults(_abi.STRUCTS, values, cc, includes))
    print(f'{len(values)} sizes, offsets and numbers compared')
    return '\n'.join(found) if found else 0


if __name__ == '__main__':
    sys.exit(main())
