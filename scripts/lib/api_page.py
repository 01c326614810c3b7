#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/api.md: the public functions, each with the beginning of its comment in the headers, and what PyTorch's names are here.

    api_page.py ROOT            docs/api.md agrees with the headers; every function has a comment, and an example or a test
    api_page.py ROOT --write    write docs/api.md
    api_page.py ROOT --torch PYTHON   PyTorch's names in the table are names that PYTHON's torch knows
    api_page.py --self-test     headers with planted faults must be found
"""
import pathlib
import re
import subprocess
import sys

from public_headers import whole

TORCH = [  # PyTorch's; ours; what differs
    ('torch.distributed.init_process_group', '`cddp_init`', 'from the same variables; the backend by name or `CDDP_BACKEND`'),
    ('torch.distributed.destroy_process_group', '`cddp_finalize`', ''),
    ('torch.distributed.is_initialized', 'none', 'a communicator that `cddp_init` gave is one'),
    ('torch.distributed.get_rank', '`cddp_rank`', ''),
    ('torch.distributed.get_world_size', '`cddp_world_size`', ''),
    ('torch.distributed.get_node_local_rank', '`cddp_local_rank`', '`cddp_local_world_size` and `cddp_node_rank` beside it'),
    ('torch.distributed.get_backend', '`cddp_backend_name`', ''),
    ('torch.distributed.new_group', '`cddp_comm_create_group`', 'its members alone call it; `cddp_comm_split`, by color and key, is a collective of all'),
    ('torch.distributed.split_group', '`cddp_comm_split`', ''),
    ('torch.distributed.all_reduce', '`cddp_all_reduce`', ''),
    ('torch.distributed.broadcast', '`cddp_broadcast`', ''),
    ('torch.distributed.reduce', '`cddp_reduce`', ''),
    ('torch.distributed.all_gather', '`cddp_all_gather`', 'of uneven size: `cddp_all_gatherv`'),
    ('torch.distributed.all_gather_into_tensor', '`cddp_all_gather`', ''),
    ('torch.distributed.gather', '`cddp_coll_run`', 'with `CDDP_COLL_GATHER`'),
    ('torch.distributed.scatter', '`cddp_coll_run`', 'with `CDDP_COLL_SCATTER`'),
    ('torch.distributed.reduce_scatter', '`cddp_reduce_scatter`', ''),
    ('torch.distributed.reduce_scatter_tensor', '`cddp_reduce_scatter`', ''),
    ('torch.distributed.all_to_all_single', '`cddp_all_to_all`', 'of uneven sizes: `CDDP_COLL_ALL_TO_ALLV`'),
    ('torch.distributed.send', '`cddp_send`', ''),
    ('torch.distributed.recv', '`cddp_recv`', 'from a rank that is named'),
    ('torch.distributed.isend', '`cddp_coll_start`', 'with `CDDP_COLL_SEND`'),
    ('torch.distributed.irecv', '`cddp_coll_start`', 'with `CDDP_COLL_RECV`'),
    ('torch.distributed.batch_isend_irecv', '`cddp_coll_start`', 'with an array of sends and receives'),
    ('torch.distributed.barrier', '`cddp_barrier`', ''),
    ('torch.distributed.Work.wait', '`cddp_coll_wait`', 'of what `cddp_coll_start` began, which is `async_op=True`'),
    ('torch.distributed.Work.is_completed', '`cddp_coll_test`', ''),
    ('torch.distributed.ReduceOp.SUM', '`CDDP_SUM`', '`CDDP_PROD`, `CDDP_MIN`, `CDDP_MAX` likewise'),
    ('torch.distributed.ReduceOp.AVG', '`CDDP_AVG`', 'on the CPU too'),
    ('torch.distributed.TCPStore', '`cddp_store_open`', 'the same protocol; `cddp_comm_store` is the job\'s own'),
    ('torch.distributed.TCPStore.set', '`cddp_store_set`', ''),
    ('torch.distributed.TCPStore.get', '`cddp_store_get`', ''),
    ('torch.distributed.TCPStore.add', '`cddp_store_add`', ''),
    ('torch.distributed.TCPStore.compare_set', '`cddp_store_compare_set`', ''),
    ('torch.distributed.TCPStore.wait', '`cddp_store_wait`', ''),
    ('torch.distributed.TCPStore.check', '`cddp_store_check`', ''),
    ('torch.distributed.TCPStore.delete_key', '`cddp_store_delete`', ''),
    ('torch.nn.parallel.DistributedDataParallel', '`cddp_ddp_create`', 'option by option: [pytorch-ddp.md](pytorch-ddp.md)'),
    ('torch.nn.parallel.DistributedDataParallel.no_sync', '`cddp_ddp_grad_ready`', 'leave it out, and `cddp_ddp_wait`'),
    ('torch.nn.parallel.DistributedDataParallel.join', '`cddp_ddp_join`', 'with `CDDP_DDP_JOIN`'),
    ('torch.nn.parallel.DistributedDataParallel.register_comm_hook', '`cddp_ddp_set_hook`', ''),
    ('torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.powerSGD_hook', '`cddp_ddp_set_powersgd`', 'the same numbers'),
    ('torch.autograd.backward', '`cddp_ddp_grad_ready`', 'the backward pass is the program\'s; `cddp_ddp_wait` ends it'),
    ('torch.nn.utils.clip_grad_norm_', '`cddp_ddp_clip_grad_norm`', 'norms 2 and infinity; of shares too (`cddp_optim_create`)'),
    ('torch.distributed.optim.ZeroRedundancyOptimizer', '`cddp_optim_create`', 'SGD, Adam and AdamW'),
    ('torch.distributed.fsdp.fully_shard', '`cddp_fsdp_create`', 'units are given at once; forward and backward name them ([fsdp.md](fsdp.md))'),
    ('torch.distributed.fsdp.FSDPModule.unshard', '`cddp_fsdp_gather`', '`cddp_fsdp_wait_unit` is `UnshardHandle.wait`'),
    ('torch.distributed.fsdp.FSDPModule.reshard', '`cddp_fsdp_release`', 'the memory stays until another unit needs it'),
    ('torch.optim.Optimizer.add_param_group', '`cddp_optim_group`', 'learning rate and weight decay; given at creation'),
    ('torch.distributed.optim.ZeroRedundancyOptimizer.step', '`cddp_optim_step`', 'in place of `cddp_ddp_wait`'),
    ('torch.amp.GradScaler.step', '`cddp_optim_step_args`', 'scale, clip and `CDDP_OPTIM_SKIP_NONFINITE` in one call; `cddp_optim_skipped` counts'),
    ('torch.utils.data.distributed.DistributedSampler', '`cddp_sampler_create`', 'the same indices'),
    ('torch.utils.data.distributed.DistributedSampler.set_epoch', '`cddp_sampler_set_epoch`', ''),
    ('torch.save', '`cddp_checkpoint_save`', 'whole or not at all; in the background too'),
    ('torch.load', '`cddp_checkpoint_load`', 'the newest whole one, on every rank'),
    ('torch.distributed.run', '`cddprun`', 'flag by flag: [torchrun-compatibility.md](torchrun-compatibility.md)'),
    ('torch.distributed.elastic.multiprocessing.errors.record', 'none', 'libcddp\'s errors go to TORCHELASTIC_ERROR_FILE by themselves'),
]
TOKEN = re.compile(r'''(?P<comment>/\*.*?\*/)
    | (?P<type>typedef\s+(?:enum|struct)\s+(?P<type_name>\w+)(?:\s*\{.*?\})?\s*\w+;)
    | ^enum\ \{(?P<flags>.*?)^\};
    | (?P<function>CDDP_API\b[^;]*?\b(?P<function_name>cddp_\w+)\([^;]*;)(?P<beside>[ ]*/\*[^\n]*?\*/)?
    | \#define\ (?P<macro_name>CDDP_\w+)\ (?P<value>[^\n(/]+)(?P<macro_beside>/\*[^\n]*?\*/)?
    ''', re.S | re.X | re.M)
FLAG = re.compile(r'(?P<comment>/\*.*?\*/)\s*(?P<declaration>(?P<name>CDDP_\w+) = \w+)', re.S)


def plain(comment):
    """A comment's text: without its frame, and with its own indentation."""
    first, *rest = comment.strip()[2:-2].splitlines()
    lines = [first.strip()] + [re.sub(r'^ *\* ?', '', line) for line in rest]
    return '\n'.join(line.rstrip() for line in lines).strip('\n').strip(' ')


def read(text):
    """(kind, name, declaration, comment) in the header's order; a section or a note has its text as its comment."""
    found, waiting, waiting_end = [], None, 0
    for token in TOKEN.finditer(text):
        attached = waiting is not None and '\n\n' not in text[waiting_end:token.start()]
        if waiting is not None and (not attached or token['comment']):
            found.append(('note', '', '', waiting))
            attached = False
        comment = waiting if attached else None
        waiting = None
        if token['comment']:
            rule = re.match(r'/\* -+ (.*?) -+ \*/', token['comment'])
            if rule:
                found.append(('section', '', '', rule[1]))
            else:
                waiting, waiting_end = plain(token['comment']), token.end()
        elif token['type']:
            found.append(('type', token['type_name'], token['type'], comment))
        elif token['flags']:
            if comment:
                found.append(('note', '', '', comment))
            found += [('flag', one['name'], one['declaration'], plain(one['comment'])) for one in FLAG.finditer(token['flags'])]
        elif token['function']:
            beside = plain(token['beside']) if token['beside'] else None
            after = found and found[-1][0] == 'function' and text[:token.start()].rstrip(' ').endswith('\n') \
                and not text[:token.start()].endswith('\n\n')
            # A function right below another shares its comment.
            shared = f'As {found[-1][1]}.' if after and not comment and found[-1][3] else None
            found.append(('function', token['function_name'], ' '.join(token['function'].split()), comment or shared))
            if beside:
                kind, name, declaration, above = found.pop()
                above = above if comment else None
                found.append((kind, name, declaration, f'{above}\n\n{beside}' if above else beside))
        else:
            beside = plain(token['macro_beside']) if token['macro_beside'] else None
            found.append(('macro', token['macro_name'], f'#define {token["macro_name"]} {token["value"].strip()}',
                          comment or beside))
    return found


def calls(root):
    """The public functions that each example and test calls, those first that are easiest to read."""
    here = []
    for folder, suffixes in ('examples', ('.c', '.h', '.cpp', '.py')), ('tests', ('.c', '.h', '.cpp')):
        for path in sorted((root / folder).rglob('*')):
            if path.suffix in suffixes:
                code = re.sub(r'/\*.*?\*/', '', path.read_text(encoding='utf-8'), flags=re.S)
                here.append((path.relative_to(root).as_posix(), set(re.findall(r'\b(cddp_\w+)\(', code))))
    return sorted(here, key=lambda p: (not p[0].startswith('examples'), not p[0].startswith('tests/unit')))


def first_sentence(text):
    """Without its full stop; one in parentheses ends nothing."""
    text, depth = ' '.join(text.split()), 0
    for i, char in enumerate(text):
        depth += (char == '(') - (char == ')')
        if char in '.;' and depth == 0 and text[i + 1:i + 2] in ('', ' ') and text[i - 1] != '.':
            return text[:i]
    return text


def statuses(text):
    rows = re.findall(r'(CDDP_\w+) = (-?\d+), +/\* (.*?) \*/', text)
    return '| status | number | |\n|---|---|---|\n' + ''.join(f'| `{n}` | {v} | {t} |\n' for n, v, t in rows)


def headers(root):
    """The header that declares each public function."""
    return {name: path.relative_to(root).as_posix() for path in sorted((root / 'include').rglob('*.h'))
            for name in re.findall(r'^CDDP_API\s[^;]*?\b(cddp_\w+)\(', path.read_text(encoding='utf-8'), re.M)}


def cell(text):
    """Text of a comment in a table."""
    text = text.replace('|', r'\|').replace('*', r'\*').replace('<', '&lt;')
    return re.sub(r'(?<![`\w])(cddp_\w+(\(\))?|CDDP_[A-Z0-9_]+\w)', r'`\1`', text)


def make(root, old):
    """The page, and the faults of the headers."""
    status = (root / 'include/cddp/status.h').read_text(encoding='utf-8')
    body = whole(root).split('#ifndef CDDP_H', 1)[1]
    items = [('section', '', '', 'basics')] + read(body)
    # An example that the page names stays as long as it is one: a new test elsewhere makes no page stale.
    kept = dict(re.findall(r'^\| `(\w+)` \|.*\| \[\S+\]\(\.\./(\S+)\) \|$', old, re.M))
    where, callers, wrong, page, types = headers(root), calls(root), [], [], []
    for kind, name, _, comment in items + [('section', '', '', 'statuses')]:
        if kind == 'section':
            page += [f'\nTypes: {", ".join(types)}.\n'] if types else []
            page.append(f'\n## {comment[0].upper()}{comment[1:]}\n')
            types, header = [], None
        elif kind == 'type':
            types.append(f'`{name}`')
        elif kind == 'function':
            use = [path for path, called in callers if name in called]
            wrong += [f'{name} has no comment in the header'] if not comment else []
            wrong += [f'{name} is used by no example and no test'] if not use else []
            if where[name] != header:
                header = where[name]
                page.append(f'\n[<{header.removeprefix("include/")}>](../{header})\n\n| function | | used in |\n|---|---|---|\n')
            path = kept[name] if kept.get(name) in use else use[0] if use else ''
            page.append(f'| `{name}` | {cell(first_sentence(comment or ""))} | [{path.split("/")[-1]}](../{path}) |\n')
    names = {name for _, name, _, _ in items if name}
    wrong += torch_faults(root, names, status + body)
    rows = ''.join(f'| `{theirs}` | {ours} | {note} |\n' for theirs, ours, note in TORCH)
    text = ('''# libcddp

The headers describe what each function does, its units, ownership, threads, and every error. [<cddp/cddp.h>](../include/cddp/cddp.h) includes
the others, those of experimental/ if CDDP_EXPERIMENTAL is defined. It begins with an overview and the rules for all functions: errors,
signals, fork(), floating-point state. <cddp/coll.h> begins with what a collective may return.

`scripts/lib/api_page.py` makes this page from them; `--write` brings it up to date.
'''
            + ''.join(page) + '\n' + statuses(status) + '\n## PyTorch\'s names\n\n| PyTorch | here | |\n|---|---|---|\n' + rows)
    return text, wrong


def torch_faults(root, names, headers):
    """Names of ours in the table that do not exist."""
    known = names | set(re.findall(r'\bCDDP_\w+', headers)) | {'cddprun'}
    known |= set(re.findall(r'`(CDDP_\w+)`', (root / 'docs/environment.md').read_text(encoding='utf-8')))
    for theirs, ours, note in TORCH:
        for name in re.findall(r'`(cddp\w+|CDDP_\w+)`', ours + note):
            if name not in known:
                yield f'{theirs}: there is no {name}'


def ask_torch(python):
    asks = '\n'.join(f'pydoc.locate("{theirs}") is None and print("PyTorch has no {theirs}")' for theirs, _, _ in TORCH)
    return subprocess.run([python, '-c', 'import pydoc, torch.distributed.run\n' + asks], capture_output=True, text=True,
                          check=True).stdout.splitlines()


def self_test():
    text = ('#define CDDP_X 1u\n/* ---- part one ---- */\n\n/* A note. */\n\n/* Does it.\n *\n *     code(); */\nCDDP_API int cddp_a(int\n x);\n'
            'CDDP_API int cddp_b(void); /* beside */\nCDDP_API int cddp_c(void);\n\nCDDP_API int cddp_bare(void);\n'
            '/* A type. */\ntypedef struct cddp_t {\n    int x; /* of it */\n} cddp_t;\n'
            '/* Its flags. */\nenum {\n    /* One. */\n    CDDP_F = 1,\n    /*\n     * Two.\n     *\n     *     code();\n     */\n'
            '    CDDP_G = 2\n};\n')
    want = [('macro', 'CDDP_X', None), ('section', '', 'part one'), ('note', '', 'A note.'),
            ('function', 'cddp_a', 'Does it.\n\n    code();'), ('function', 'cddp_b', 'beside'),
            ('function', 'cddp_c', 'As cddp_b.'), ('function', 'cddp_bare', None), ('type', 'cddp_t', 'A type.'),
            ('note', '', 'Its flags.'), ('flag', 'CDDP_F', 'One.'), ('flag', 'CDDP_G', 'Two.\n\n    code();')]
    got = [(kind, name, comment) for kind, name, _, comment in read(text)]
    return [f'{g} is not {w}' for g, w in zip(got + [None] * 12, want) if g != w]


def main():
    if sys.argv[1] == '--self-test':
        wrong = self_test()
    elif sys.argv[2:3] == ['--torch']:
        wrong = ask_torch(sys.argv[3])
    else:
        root = pathlib.Path(sys.argv[1])
        path = root / 'docs/api.md'
        old = path.read_text(encoding='utf-8') if path.exists() else ''
        new, wrong = make(root, old)
        if sys.argv[2:] == ['--write']:
            path.write_text(new, encoding='utf-8')
        elif new != old:
            wrong.append(f'docs/api.md is not what the headers say: run scripts/lib/api_page.py {sys.argv[1]} --write')
    print('\n'.join(wrong))
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
