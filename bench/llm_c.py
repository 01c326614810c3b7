#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llm.c's train_gpt2.c, as it is and with libcddp: changed lines, losses, time of a step.

    llm_c.py LLM_C_DIR --build BUILD [--size small|medium] [--runs N]

LLM_C_DIR is a checkout of github.com/karpathy/llm.c. Nothing of it is changed: both programs are compiled in a separate
folder, on a model and on tokens made here. The losses of 1, 2 and 4 ranks, and of two nodes of two, must be those of
the unmodified program to 1e-5; then the time of a step is compared.
"""
import argparse
import array
import difflib
import os
import pathlib
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile

import common

EOT, VOCABULARY, MAX_T = 0, 256, 64
SIZES = {'small': (4, 4, 128), 'medium': (6, 6, 384)}  # layers, heads, channels
TOLERANCE = 1e-5

# Text to insert after a line of llm.c's that contains the first text ('+'), or to replace it ('=').
HEAD = '''
#include <cddp/cddp.h>
static cddp_comm *comm;
static cddp_ddp *ddp;
static void check(cddp_status st) { if (st != CDDP_OK) { fprintf(stderr, "%s\\n", cddp_last_error()); exit(1); } }
'''
REDUCER = '''
// one parameter per tensor and layer, tensor by tensor as they lie in memory: so each can be reduced when its layer is done
static size_t param_of(int i, int l, int L) { return i < 2 ? i : i < 14 ? 2 + (i - 2) * L + l : 2 + 12 * L + i - 14; }
static void make_reducer(GPT2 *model) {
    size_t L = model->config.num_layers, at = 0;
    cddp_param params[12 * L + 4];
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        size_t layers = i < 2 || i >= 14 ? 1 : L, count = model->param_sizes[i] / layers;
        for (size_t l = 0; l < layers; l++, at += count)
            params[param_of(i, l, L)] = (cddp_param){.size = sizeof(cddp_param), .name = "gpt2", .count = count,
                .data = model->params_memory + at, .grad = model->grads_memory + at, .dtype = CDDP_FLOAT32};
    }
    check(cddp_ddp_create(&ddp, comm, params, 12 * L + 4, NULL));
}
static void ready(int i, int l, size_t L) { check(cddp_ddp_grad_ready(ddp, param_of(i, l, L))); }
'''
EDITS = [
    ('+', '#include "llmc/dataloader.h"', HEAD),
    ('=', 'float* params_memory = (float*)mallocCheck(num_parameters * sizeof(float));',
     '    float* params_memory;\n'
     '    check(cddp_alloc(comm, num_parameters * sizeof(float), CDDP_MEM_COLLECTIVE, (void **)&params_memory));\n'),
    ('^', 'void gpt2_backward(GPT2 *model) {', REDUCER),
    ('+', 'model->grads_acts_memory = malloc_and_point_activations(&model->grads_acts, model->act_sizes);',
     '        make_reducer(model);\n'),
    ('+', 'layernorm_backward(dresidual, grads.lnfw, grads.lnfb,', '    ready(14, 0, L);\n    ready(15, 0, L);\n'),
    ('+', 'layernorm_backward(dresidual, dl_ln1w, dl_ln1b,', '        for (int i = 2; i < 14; i++) { ready(i, l, L); }\n'),
    ('+', 'encoder_backward(grads.wte, grads.wpe,',
     '    ready(0, 0, L);\n    ready(1, 0, L);\n    check(cddp_ddp_wait(ddp));\n'),
    ('=', 'free(model->params_memory);', '    cddp_ddp_destroy(ddp);\n    cddp_free(comm, model->params_memory);\n'),
    ('=', 'free(model->grads_memory);', '    cddp_free(comm, model->grads_memory);\n'),
    ('+', 'int main() {', '    check(cddp_init(&comm, NULL));\n'
     '    int rank = cddp_rank(comm), n_ranks = cddp_world_size(comm);\n'
     '    if (rank != 0) { freopen("/dev/null", "w", stdout); }\n'),
    ('=', 'int B = 4;', '    int B = 4 / n_ranks;\n'),
    ('=', 'dataloader_init(&train_loader, train_tokens, B, T, 0, 1, 1);',
     '    dataloader_init(&train_loader, train_tokens, B, T, 0, n_ranks, 1); // shuffled alike on all ranks\n'
     '    train_loader.local_batch_offset_bytes = rank * B * T * sizeof(uint16_t);\n'),
    ('=', 'dataloader_init(&val_loader, val_tokens, B, T, 0, 1, 0);',
     '    dataloader_init(&val_loader, val_tokens, B, T, rank, n_ranks, 0);\n'),
    ('+', 'val_loss /= val_num_batches;',
     '            check(cddp_all_reduce(comm, &val_loss, &val_loss, 1, CDDP_FLOAT32, CDDP_AVG));\n'),
    ('^', 'printf("step %d: train loss',
     '        check(cddp_all_reduce(comm, &model.mean_loss, &model.mean_loss, 1, CDDP_FLOAT32, CDDP_AVG));\n'),
    ('+', 'free(gen_tokens);', '    check(cddp_finalize(comm));\n'),
]


def port(text):
    lines = text.splitlines(True)
    for how, anchor, new in EDITS:
        found = [i for i, line in enumerate(lines) if anchor in line]
        if len(found) != 1:
            sys.exit(f'{len(found)} lines of train_gpt2.c hold {anchor!r}: it is another version')
        at = found[0] + (how == '+')
        lines[at:at + (how == '=')] = new.lstrip('\n').splitlines(True)
    return ''.join(lines)


def changed_lines(old, new):
    diff = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm='', n=0))[2:]
    return sum(line.startswith('+') for line in diff), sum(line.startswith('-') for line in diff)


def make_model(path, size, max_t=MAX_T):
    n_layers, n_heads, c = SIZES[size]
    header = struct.pack('256i', 20240326, 3, max_t, VOCABULARY, n_layers, n_heads, c, VOCABULARY, *[0] * 248)
    rng = random.Random(1)
    with open(path, 'wb') as out:
        out.write(header)

        def put(count, value=None):
            array.array('f', [value] * count if value is not None else [rng.gauss(0, 0.05) for _ in range(count)]).tofile(out)

        put(VOCABULARY * c), put(max_t * c)
        for count, value in ((c, 1.0), (c, 0.0), (3 * c * c, None), (3 * c, 0.0), (c * c, None), (c, 0.0), (c, 1.0), (c, 0.0),
                             (4 * c * c, None), (4 * c, 0.0), (4 * c * c, None), (c, 0.0)):
            put(n_layers * count, value)
        put(c, 1.0), put(c, 0.0)


def make_tokens(path, n, seed):
    rng, tokens = random.Random(seed), array.array('H')
    while len(tokens) < n:  # words that come again, so that there is something to learn
        tokens.extend(b'the quick brown fox jumps over the lazy dog '[rng.randrange(0, 40, 4):])
    with open(path, 'wb') as out:
        out.write(struct.pack('256i', 20240520, 1, n, *[0] * 253))
        tokens[:n].tofile(out)


def compile_both(llm_c, build, folder):
    old = (llm_c / 'train_gpt2.c').read_text()
    new = port(old)
    flags = ['-Ofast', '-fopenmp', '-Wno-unused-result', '-I', str(llm_c)]
    link = [f'-L{build}/worker', '-lcddp', f'-Wl,-rpath,{build}/worker']
    headers = ['-I', str(pathlib.Path(__file__).resolve().parents[1] / 'include'), '-I', f'{build}/include']
    for name, text, more in (('alone', old, []), ('together', new, [*headers, *link])):
        (folder / f'{name}.c').write_text(text)
        subprocess.run(['gcc', *flags, str(folder / f'{name}.c'), '-o', str(folder / name), *more, '-lm'], check=True)
    return changed_lines(old, new)


ENV = {**os.environ, 'OMP_NUM_THREADS': '1'}


def losses_and_times(out):
    losses = [(kind, float(x)) for kind, x in re.findall(r'(val loss|train loss) ([0-9.]+)', out)]
    times = [float(x) for x in re.findall(r'took ([0-9.]+) ms', out)]
    return losses, times


def launch(cddprun, folder, ranks, program):
    return subprocess.run([cddprun, '--standalone', f'--nproc_per_node={ranks}', program], cwd=folder,
                          env=ENV, stdout=subprocess.PIPE, text=True, check=True).stdout


def two_nodes(cddprun, folder, program, port_number):
    words = [cddprun, '--nnodes=2', '--nproc_per_node=2', '--master_addr=127.0.0.1', f'--master_port={port_number}']
    nodes = [subprocess.Popen([*words, f'--node_rank={i}', program], cwd=folder, env=ENV, stdout=subprocess.PIPE, text=True)
             for i in range(2)]
    outs = [node.communicate()[0] for node in nodes]
    if any(node.returncode for node in nodes):
        sys.exit('two nodes: failed')
    return outs[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('llm_c', type=pathlib.Path)
    parser.add_argument('--build', type=pathlib.Path, required=True)
    parser.add_argument('--size', choices=SIZES, default='small')
    parser.add_argument('--runs', type=int, default=3)
    args = parser.parse_args()
    build, cddprun = args.build.resolve(), str(args.build.resolve() / 'launcher' / 'cddprun')
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        added, removed = compile_both(args.llm_c.resolve(), build, folder)
        print(f'changed lines: {added} added, {removed} removed')
        data = folder / 'dev/data/tinyshakespeare'
        data.mkdir(parents=True)
        make_model(folder / 'gpt2_124M.bin', args.size)
        make_tokens(data / 'tiny_shakespeare_train.bin', 60000, 1)
        make_tokens(data / 'tiny_shakespeare_val.bin', 20000, 2)
        alone = subprocess.run([str(folder / 'alone')], cwd=folder, env=ENV, stdout=subprocess.PIPE, text=True, check=True).stdout
        want, _ = losses_and_times(alone)
        worst = 0.0
        for name, run in [(f'{n} ranks', lambda n=n: launch(cddprun, folder, n, str(folder / 'together'))) for n in (1, 2, 4)] + [
                ('2 nodes of 2', lambda: two_nodes(cddprun, folder, str(folder / 'together'), common.free_port()))]:
            got, _ = losses_and_times(run())
            if [kind for kind, _ in got] != [kind for kind, _ in want]:
                sys.exit(f'{name}: {len(got)} losses, not {len(want)}')
            off = max(abs(a - b) for (_, a), (_, b) in zip(got, want))
            worst = max(worst, off)
            print(f'{name}: {len(got)} losses, {want[-1][1]:.6f} at the end, {off:.6f} off at most')
        if args.runs:
            steps = {'alone, 1 process': [], 'together, 2 ranks': []}
            for _ in range(args.runs):
                steps['alone, 1 process'] += losses_and_times(subprocess.run(
                    [str(folder / 'alone')], cwd=folder, env=ENV, stdout=subprocess.PIPE, text=True, check=True).stdout)[1][1:]
                steps['together, 2 ranks'] += losses_and_times(launch(cddprun, folder, 2, str(folder / 'together')))[1][1:]
            for name, times in steps.items():
                print(f'{name}: {statistics.median(times):.2f} ms a step (median of {len(times)})')
    if worst > TOLERANCE:
        sys.exit(f'the losses are {worst} off')
    if added > 50:
        sys.exit('too many lines')


if __name__ == '__main__':
    main()
