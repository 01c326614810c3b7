#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/llm.c.md: what it names of libcddp and of cddprun exists, and every call of NCCL and MPI that llm.c makes has its row.

    llm_c_page.py ROOT            the page
    llm_c_page.py --self-test     pages with one fault each must fail
"""
import pathlib
import re
import sys

# Of llmc/zero.cuh and train_gpt2.cu at commit f1e2ace: the calls, and the functions that zero.cuh makes of them.
CALLS = """MPI_Allgather MPI_Bcast MPI_Comm_rank MPI_Comm_size MPI_Error_string MPI_Finalize MPI_Init ncclAllGather ncclAllReduce
ncclCommDestroy ncclCommInitRank ncclGetErrorString ncclGetUniqueId ncclGroupEnd ncclGroupStart ncclReduceScatter
send_nccl_id_to_clients get_nccl_id_via_tcp get_nccl_id_via_fs multi_gpu_get_local_device_idx multi_gpu_config_init
multi_gpu_config_free multi_gpu_barrier multi_gpu_get_shard_offset multi_gpu_async_reduce_gradient set_zero_configs
multi_gpu_cpu_float_sum""".split()


def without_comments(text):
    return re.sub(r'/\*.*?\*/', '', text, flags=re.S)


def members(header, struct):
    """The text of a struct's members, '' if there is no such struct."""
    found = re.search(rf'typedef struct {struct} {{(.*?)\n}} {struct};', header, re.S)
    return found[1] if found else ''


def exists(header, name, member):
    """A function, a type or a constant; with a member, that of the struct."""
    if member:
        return re.search(rf'\b{member}\b', members(header, name)) is not None
    if name.startswith('CDDP_'):
        return re.search(rf'\b{name}\b', header) is not None
    return re.search(rf'\b{name}\(|typedef \w+ {name}\b|}} {name};', header) is not None


def faults(page, header, flags):
    header = without_comments(header)
    found = []
    for line in page.splitlines():
        if not line.startswith('|') or line.startswith('|---') or line.startswith('| llm.c |'):
            continue
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if len(cells) != 3 or not all(cells):
            found.append(f'not three full cells: {line}')
            continue
        names = re.findall(r'\b(cddp_\w+|CDDP_\w+)(?:\.(\w+))?', cells[2], re.I)
        found += [f'the headers have no {".".join(filter(None, name))}' for name in names
                  if not exists(header, *name)]
        found += [f'cddprun has no {flag}' for flag in re.findall(r'--\w+', cells[2]) if f'`{flag}' not in flags]
        if not names and 'none' not in cells[2].lower() and not re.search(r"cddprun|libcddp's own|always|the same|the program's", cells[2]):
            found.append(f'no call of ours, and not said that there is none: {line}')
    return found + [f'{call} has no row' for call in CALLS if not re.search(rf'`[^`]*\b{call}\b', page)]


def self_test():
    header = ('/* cddp_gone() */ CDDP_API int cddp_rank(const cddp_comm *comm);\n#define CDDP_SUM 1\n'
              'typedef struct cddp_bucket {\n    void *stream;\n} cddp_bucket;\n')
    rows = ''.join(f'| `{call}` | does it | `cddp_rank` |\n' for call in CALLS)
    cases = [('', ''), ('| a | b | `cddp_gone` |\n', 'no cddp_gone'), ('| a | b | `cddp_bucket.size` |\n', 'cddp_bucket.size'),
             ('| a | b | `cddp_bucket.stream`, `CDDP_SUM` |\n', ''), ('| a | b | `cddprun --nothing` |\n', 'no --nothing'),
             ('| a | b | somehow |\n', 'no call of ours'), ('| a | b |\n', 'three full cells'), ('| a | b | none |\n', '')]
    for row, words in cases:
        found = faults(rows + row, header, '`--nproc_per_node=N`')
        if bool(found) != bool(words) or (words and words not in found[0]):
            sys.exit(f'not ok - {row!r}: {found}')
    if not any('MPI_Init has no row' in text for text in faults(rows.replace('MPI_Init', 'x'), header, '')):
        sys.exit('not ok - a call without a row was not found')
    print(f'ok - {len(cases) + 1} pages')


def main():
    if sys.argv[1:] == ['--self-test']:
        return self_test()
    root = pathlib.Path(sys.argv[1])
    header = ''.join(path.read_text() for path in sorted((root / 'include' / 'cddp').rglob('*.h')))
    found = faults((root / 'docs' / 'llm.c.md').read_text(), header, (root / 'docs' / 'cli.md').read_text())
    sys.exit('\n'.join(found) or None)


if __name__ == '__main__':
    main()
