#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record what torch.nn.utils.clip_grad_norm_ makes of gradients (torch 2.13.0, CPU).

    record_clip.py FILE     run by a Python that has torch; FILE is tests/data/clip_vectors.json. Numbers are hexadecimal.
"""
import json
import math
import sys

import torch

SIZES = [1, 7, 24, 50]
CASES = [  # name, type, scale of the gradients, norm type, max_norm, error_if_nonfinite, the value at [2][5]
    ("below", "f64", 0.01, 2.0, 1.0, False, None),
    ("above", "f64", 3.0, 2.0, 1.0, False, None),
    ("to nothing", "f64", 3.0, 2.0, 0.0, False, None),
    ("no limit", "f64", 3.0, 2.0, math.inf, True, None),
    ("zeros", "f64", 0.0, 2.0, 1.0, True, None),
    ("largest", "f64", 3.0, math.inf, 0.5, False, None),
    ("largest below", "f64", 0.01, math.inf, 0.5, True, None),
    ("float32", "f32", 3.0, 2.0, 1.0, False, None),
    ("float32 largest", "f32", 3.0, math.inf, 1.0, False, None),
    ("nan", "f64", 3.0, 2.0, 1.0, False, math.nan),
    ("nan largest", "f64", 3.0, math.inf, 1.0, False, math.nan),
    ("infinity", "f64", 3.0, 2.0, 1.0, False, math.inf),
    ("infinity largest", "f64", 3.0, math.inf, 1.0, False, -math.inf),
    ("nan refused", "f64", 3.0, 2.0, 1.0, True, math.nan),
    ("infinity refused", "f64", 3.0, math.inf, 1.0, True, math.inf),
    ("float32 nan", "f32", 3.0, 2.0, 1.0, False, math.nan),
]


def texts(tensors):
    return [[float(v).hex() for v in t.flatten().tolist()] for t in tensors]


def run(name, kind, scale, norm_type, max_norm, refuse, special):
    torch.manual_seed(len(name))
    dtype = torch.float64 if kind == "f64" else torch.float32
    params = [torch.nn.Parameter(torch.zeros(n, dtype=dtype)) for n in SIZES]
    for p in params:
        p.grad = torch.randn(p.numel(), dtype=dtype) * scale
    if special is not None:
        params[2].grad[5] = special
    case = {"name": name, "type": kind, "norm_type": norm_type.hex(), "max_norm": max_norm.hex(), "refuse": refuse,
            "before": texts(p.grad for p in params)}
    try:
        case["norm"] = torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type, error_if_nonfinite=refuse).item().hex()
    except RuntimeError:
        case["norm"] = None
    case["after"] = texts(p.grad for p in params)
    return case


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="ascii") as out:
        json.dump([run(*case) for case in CASES], out, indent=0)
        out.write("\n")
