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
# Three parameters of these sizes; the second and the third are in separate groups, and the learning rate changes.
SIZES = [4, 5, 2]
GROUPS = [{'params': [1]}, {'params': [2], 'lr_factor': 0.1, 'weight_decay': 0.2}]
SCHEDULE = [0, 0.5, 1, 0.75, 0.1, 0.01]
GROUP_CASES = [
    ('SGD', {'lr': 0.1, 'momentum': 0.9, 'weight_decay': 0.01}),
    ('Adam', {'lr': 0.01, 'weight_decay': 0.1}),
    ('AdamW', {'lr': 0.02, 'weight_decay': 0.3, 'betas': (0.7, 0.9)}),
]

# Gradients of a loss that is multiplied, one of which overflows; unscaled, clipped, and made a step of.
MAX_NORM, OVERFLOWS, SCALE = 1.5, 2, 1024.0
SCALED_CASES = [
    ('SGD', {'lr': 0.1, 'momentum': 0.9}),
    ('Adam', {'lr': 0.01, 'betas': (0.0, 0.99)}),
    ('AdamW', {'lr': 0.02}),
]


def numbers(tensor):
    return [float(value) for value in tensor]


def with_groups(name, options, start, gradients):
    """The parameters after each step, one after another."""
    parts = [torch.nn.Parameter(part.clone()) for part in start.split(SIZES)]
    groups = [{'params': [parts[i] for i in group['params']], 'lr': options['lr'] * group.get('lr_factor', 1),
               'weight_decay': group.get('weight_decay', 0)} for group in GROUPS]
    alone = set(range(len(SIZES))).difference(*(group['params'] for group in GROUPS))
    groups.append({'params': [parts[i] for i in sorted(alone)]})
    optimizer = getattr(torch.optim, name)(groups, foreach=False, **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: SCHEDULE[min(step, STEPS - 1)])
    after = []
    for gradient in gradients:
        for part, its in zip(parts, gradient.split(SIZES)):
            part.grad = its.clone()
        optimizer.step()
        schedule.step()
        after.append(numbers(torch.cat([part.detach() for part in parts])))
    return {'kind': name, 'options': options, 'after': after}


def scaled(name, options, start, gradients):
    """The parameters after each step of torch.amp.GradScaler, and the scale of each."""
    weights = torch.nn.Parameter(start.clone())
    optimizer = getattr(torch.optim, name)([weights], foreach=False, **options)
    scaler = torch.amp.GradScaler('cpu', init_scale=SCALE)
    after, scales = [], []
    for step, gradient in enumerate(gradients):
        scales.append(scaler.get_scale())
        scaler.scale((weights * gradient).sum()).backward()
        if step == OVERFLOWS:
            weights.grad[3] = float('inf')
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([weights], MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        after.append(numbers(weights.detach()))
    return {'kind': name, 'options': options, 'max_norm': MAX_NORM, 'overflows': OVERFLOWS, 'scales': scales, 'after': after}


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
              'cases': cases, 'sizes': SIZES, 'groups': GROUPS, 'schedule': SCHEDULE,
              'group_cases': [with_groups(name, options, start, gradients) for name, options in GROUP_CASES],
              'scaled_cases': [scaled(name, options, start, gradients) for name, options in SCALED_CASES]}
    with open(sys.argv[1], 'w', encoding='ascii') as out:
        json.dump(record, out, indent=0)
        out.write('\n')


if __name__ == '__main__':
    main()
