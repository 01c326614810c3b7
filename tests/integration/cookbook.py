#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/cookbook.md, block by block: each compiles without a warning, and two ranks train with it.

    cookbook.py CDDPRUN LIBCDDP INCLUDE...
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TRAINED = ''.join(f'w[{d}] = {d + 1}.00\n' for d in range(8))


def main():
    cddprun, library, *includes = (os.path.abspath(path) for path in sys.argv[1:])
    page = (HERE.parents[1] / 'docs/cookbook.md').read_text(encoding='utf-8')
    blocks = re.findall(r'(?ms)^```c\n// (\w+) ?(\w*)\n(.*?)^```$', page)
    assert len(blocks) == page.count('```c\n') > 0, 'a block does not begin with its name'
    wrong = []
    with tempfile.TemporaryDirectory() as tmp:
        for name, flags, code in blocks:
            source = f'#include "cookbook.h"\n\nint main(void)\n{{\n    begin({flags or 0});\n#line 1 "{name} in docs/cookbook.md"\n{code}    end();\n}}\n'
            pathlib.Path(tmp, f'{name}.c').write_text(source, encoding='utf-8')
            done = subprocess.run([*os.environ.get('CC', 'cc').split(), '-std=gnu17', '-O2', '-Wall', '-Wextra', '-Werror', f'-I{HERE}',
                                   *(f'-I{path}' for path in includes), f'{name}.c', library, f'-Wl,-rpath,{os.path.dirname(library)}', '-o', name],
                                  cwd=tmp, capture_output=True, text=True, check=False)
            good = done.returncode == 0
            for _ in range(2 if good else 0):  # the second run of what saves finds the last step done
                done = subprocess.run([cddprun, '--standalone', '--nproc_per_node=2', '--local_ranks_filter=0', f'./{name}'], cwd=tmp,
                                      env={**os.environ, 'CDDP_BACKEND': 'cpu'}, capture_output=True, text=True, timeout=120, check=False)
                said = re.sub(r'(?m)^\[0\] ', '', done.stdout)
                good = good and done.returncode == 0 and (said == TRAINED or name == 'metric' and ' over 2048 samples\n' in said)
            print('ok    ' if good else 'FAILED', name)
            wrong += [] if good else [f'{name}: exit status {done.returncode}\n{done.stdout}{done.stderr}']
    print('\n'.join(wrong))
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
