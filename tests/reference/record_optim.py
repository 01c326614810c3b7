#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record what PyTorch's SGD, Adam and AdamW make of given parameters and gradients (torch 2.13.0, float64, CPU).

    record_optim.py FILE     FILE is tests/data/optim.json; run it with a Python that has PyTorch
"""
import json
import sys

import torch

STEPS, COUNT = 6, 11
CASES = [
    ('SGD', {'lr': 0.1}),
    ('SGD', {'lr': 0.05, 'weight_decay': 0.01}),
    ('SGD', {'lr': 0.1, 'momentum': 0.9}),
    ('SGD', {'lr': 0.1, 'momentum': 0.9, 'dampening': 0.25, 'weight_decay': 0.003}),
    ('SGD', {'lr': 0.02, 'momentum': 0.8, 'nesterov': True, 'weight_decay': 0.01}),
    ('Adam', {'lr': 0.001}),
    ('Adam', {'lr': 0.01, 'weight_decay': 0.1, 'betas': (0.8, 0.95), 'eps': 1e-6}),
    ('AdamW', {'lr': 0.001, 'weight_decay': 0.01}),
    ('AdamW', {'lr': 0.02, 'weight_decay': 0.3, 'betas': (0.7, 0.9), 'eps': 1e-3}),
]


def numbers(tensor):
    return [float(value) for value in tensor]


def main():
    generator = torch.Generator().manual_seed(2026)
    start = torch.randn(COUNT, generator=generator, dtype=torch.float64)
    gradients = torch.randn(STEPS, COUNT, generator=generator, dtype=torch.float64)
    gradients[:, 3] *= 1e-9  # below eps
    gradients[:, 4] = 0
    cases = []
    for name, options in CASES:
        parameter = torch.nn.Parameter(start.clone())
        optimizer = getattr(torch.optim, name)([parameter], foreach=False, **options)
        after = []
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
            after.append(numbers(parameter.detach()))
        cases.append({'kind': name, 'options': options, 'after': after})
    record = {'torch': torch.__version__, 'start': numbers(start), 'gradients': [numbers(one) for one in gradients],
              'cases': cases}
    with open(sys.argv[1], 'w', encoding='ascii') as out:
        json.dump(record, out, indent=0)
        out.write('\n')


if __name__ == '__main__':
    main()
