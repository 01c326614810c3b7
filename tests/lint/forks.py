#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each public function that takes a communicator, or an object made from one, is called in a forked child by fork_ranks.c.

forks.py ROOT         names those that are not
forks.py --self-test  a function that nobody calls must be found
"""
import pathlib
import re
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / 'scripts' / 'lib'))
from public_headers import whole  # noqa: E402

HANDLES = ('cddp_comm', 'cddp_ddp', 'cddp_optim', 'cddp_fsdp', 'cddp_store')
# They read the child's own memory, or the launcher's word, and disturb nobody.
HARMLESS = {'cddp_rank', 'cddp_world_size', 'cddp_local_rank', 'cddp_local_world_size', 'cddp_node_rank',
            'cddp_backend_name', 'cddp_restart_count', 'cddp_stop_requested', 'cddp_comm_store', 'cddp_ddp_grad_scale',
            'cddp_ddp_bucket_cap', 'cddp_ddp_bucket_count', 'cddp_ddp_bucket_bytes', 'cddp_ddp_user', 'cddp_optim_state_bytes', 'cddp_fsdp_bytes', 'cddp_fsdp_param'}
# They make something of nothing, which then belongs to the child.
MAKERS = {'cddp_init', 'cddp_store_open'}


def functions(header):
    """Names of those that take a handle."""
    text = re.sub(r'/\*.*?\*/', '', header, flags=re.S)
    found = re.findall(r'CDDP_API\b[^;(]*?\b(cddp_\w+)\(([^;]*)\);', text)
    return {name for name, args in found if any(re.search(rf'\b{h} \*', args) for h in HANDLES)}


def missing(header, program):
    return sorted(functions(header) - HARMLESS - MAKERS - set(re.findall(r'\bcddp_\w+', program)))


def self_test():
    header = """
/* CDDP_API void cddp_comment(cddp_comm *comm); */
CDDP_API CDDP_NODISCARD cddp_status cddp_one(cddp_comm **out,
                                             const cddp_ddp *ddp);
CDDP_API cddp_status cddp_two(cddp_store *store, const char *const *keys);
CDDP_API int cddp_rank(const cddp_comm *comm);
CDDP_API size_t cddp_three(cddp_dtype dtype);
"""
    assert functions(header) == {'cddp_one', 'cddp_two', 'cddp_rank'}, functions(header)
    assert missing(header, 'REFUSED(cddp_two, store)') == ['cddp_one']


def main():
    if sys.argv[1] == '--self-test':
        self_test()
        return 0
    header = whole(pathlib.Path(sys.argv[1]))
    with open(f'{sys.argv[1]}/tests/integration/fork_ranks.c', encoding='utf-8') as f:
        names = missing(header, f.read())
    if len(functions(header)) < 50:
        names.append('(too few functions were found in the header)')
    for name in names:
        print(f'{name}: tests/integration/fork_ranks.c does not call it in a child')
    return 1 if names else 0


if __name__ == '__main__':
    sys.exit(main())
