#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record what PyTorch makes of the model of examples/gpt: losses and all gradients (torch 2.13.0, float64, CPU).

    record_gpt.py FILE     FILE is tests/data/gpt-gradients.f64; run it with a Python that has PyTorch

The file has little-endian float64: for each case of CASES the mean loss, then the gradients of all parameters, in the
order of examples/gpt/model.c. tests/unit/examples/test_gpt_model.c has the same cases, weights and tokens.
"""
import struct
import sys

import torch
from torch.nn import functional as F

# vocab, context, layers, heads, width, untied, sequences. The second has more tokens than the attention takes at a time.
CASES = [(11, 5, 2, 2, 8, False, 3), (7, 70, 1, 2, 6, True, 2)]
MASK = (1 << 64) - 1


def spread(n):
    """A number in [-1, 1], the same here and in the test."""
    z = (n + 1) * 0x9e3779b97f4a7c15 & MASK
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & MASK
    z = (z ^ z >> 27) * 0x94d049bb133111eb & MASK
    return float((z >> 33) % 2001) / 1000.0 - 1.0


def shapes(vocab, context, layers, width, untied):
    yield 'wte', (vocab, width)
    yield 'wpe', (context, width)
    for l in range(layers):
        for name, shape in [('ln1.w', (width,)), ('ln1.b', (width,)), ('qkv.w', (3 * width, width)), ('qkv.b', (3 * width,)),
                            ('proj.w', (width, width)), ('proj.b', (width,)), ('ln2.w', (width,)), ('ln2.b', (width,)),
                            ('fc.w', (4 * width, width)), ('fc.b', (4 * width,)), ('out.w', (width, 4 * width)),
                            ('out.b', (width,))]:
            yield f'{l}.{name}', shape
    yield 'lnf.w', (width,)
    yield 'lnf.b', (width,)
    if untied:
        yield 'head', (vocab, width)


def forward(p, tokens, layers, heads):
    seqs, time = tokens.shape
    x = p['wte'][tokens] + p['wpe'][:time]
    width = x.shape[-1]
    for l in range(layers):
        at = lambda name: p[f'{l}.{name}']
        q, k, v = (part.view(seqs, time, heads, width // heads).transpose(1, 2) for part in
                   F.linear(F.layer_norm(x, (width,), at('ln1.w'), at('ln1.b')), at('qkv.w'), at('qkv.b')).split(width, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(seqs, time, width)
        x = x + F.linear(mixed, at('proj.w'), at('proj.b'))
        h = F.linear(F.layer_norm(x, (width,), at('ln2.w'), at('ln2.b')), at('fc.w'), at('fc.b'))
        x = x + F.linear(F.gelu(h, approximate='tanh'), at('out.w'), at('out.b'))
    return F.linear(F.layer_norm(x, (width,), p['lnf.w'], p['lnf.b']), p.get('head', p['wte']))


def case(vocab, context, layers, heads, width, untied, seqs):
    params, n = {}, 0
    for name, shape in shapes(vocab, context, layers, width, untied):
        count = 1
        for size in shape:
            count *= size
        one = 1.0 if name.endswith(('ln1.w', 'ln2.w', 'lnf.w')) else 0.0
        values = [one + 0.3 * spread(n + j) for j in range(count)]
        params[name] = torch.tensor(values, dtype=torch.float64).view(shape).requires_grad_()
        n += count
    text = torch.tensor([i * i * 7 // 3 % vocab for i in range(seqs * context + 1)])
    logits = forward(params, text[:-1].view(seqs, context), layers, heads)
    loss = F.cross_entropy(logits.view(-1, vocab), text[1:])
    loss.backward()
    return [loss.item(), *(x for p in params.values() for x in p.grad.reshape(-1).tolist())]


if __name__ == '__main__':
    with open(sys.argv[1], 'wb') as f:
        for one in CASES:
            numbers = case(*one)
            f.write(struct.pack(f'<{len(numbers)}d', *numbers))
            print(one, 'loss', numbers[0], len(numbers) - 1, 'gradients')
