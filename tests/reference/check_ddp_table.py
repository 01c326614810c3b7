#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libcddp beside PyTorch 2.13's DistributedDataParallel, DistributedSampler and fully_shard, and DeepSpeed, option by option.

    check_ddp_table.py RECORD TABLE           every option of RECORD has its row, every check named in a row exists, and TABLE is
                                              the table that comes of it
    check_ddp_table.py RECORD TABLE --write   write TABLE
    check_ddp_table.py --record PYTHON RECORD [PYTHON2]
                                              ask PYTHON's torch, and PYTHON2's DeepSpeed, for their options, and write RECORD anew
"""
import json
import os
import pathlib
import subprocess
import sys

import sharding_rows

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEAD = """# libcddp beside DistributedDataParallel, fully_shard and DeepSpeed

Made by `tests/reference/check_ddp_table.py`: every option of PyTorch 2.13's `DistributedDataParallel`, of its methods, of
its PowerSGD hook, of `clip_grad_norm_`, of `DistributedSampler` and of `fully_shard`, and of DeepSpeed 0.19's `zero_optimization`, as the peers
themselves list them (`tests/data/ddp-2.13.json`). [fsdp.md](fsdp.md) explains the last ones. "Checked by" names the file of the check, and
what it looks at; those under `tests/reference` compare with numbers that PyTorch made.

"""
WINE = "tests/reference/check_wine.py"
POWER, POWER_CASES = "tests/unit/worker/reducer/test_powersgd.c", "matches_torch_on_all_ranks"
CLIP, CLIP_CASES = "tests/unit/worker/reducer/test_norm.c", "norm_and_clipping_match_torch"
ROWS = {  # option: (ours, the check's file, what in it)
    "DistributedDataParallel": {
        "module": ("the array of `cddp_param`, in forward order", WINE, "w2_shuf0"),
        "device_ids": ("`cddp_init_options.device`, else by LOCAL_RANK", None, None),
        "output_device": ("none: a program's outputs stay where it puts them", None, None),
        "dim": ("none: the sampler divides samples among ranks", None, None),
        "broadcast_buffers": ("`cddp_ddp_options.buffers`, and `cddp_ddp_sync_buffers` at the start of a step; leave it out for `False`",
                              "tests/unit/worker/reducer/test_buffers.c",
                              "copied_from_rank_0_at_creation_and_per_step"),
        "forward_sync_buffers": ("the same; with `join` they are those of the highest rank that trains, as in PyTorch",
                                 "tests/unit/worker/reducer/test_buffers.c", "uneven_ranks_use_highest_training_rank"),
        "init_sync": ("`CDDP_DDP_NO_BROADCAST` is `init_sync=False`; shapes are compared either way",
                      "tests/unit/worker/reducer/test_step.c", "broadcasts_parameters_unless_disabled"),
        "process_group": ("the communicator; a part of it by `cddp_comm_split`", "tests/unit/worker/comm/test_collectives.c",
                          "parts_have_their_own_ranks_reducers_and_errors"),
        "bucket_cap_mb": ("`bucket_bytes`, `first_bucket_bytes`; 25 MiB and 1 MiB, too. A small last one (`DDP_SET_LAST_BUCKET_CAP`): "
                          "`last_bucket_bytes`; a gradient in several buckets: `CDDP_DDP_SPLIT`; found by trying: `CDDP_DDP_TUNE`", "tests/unit/worker/reducer/test_bucket.c",
                          "closes_bucket_at_or_above_cap"),
        "bucket_cap_mb_list": ("three caps: of the first bucket, of the last, of the others", "tests/unit/worker/reducer/test_bucket.c",
                               "makes_small_last_bucket"),
        "find_unused_parameters": ("`CDDP_DDP_FIND_UNUSED`; `cddp_ddp_was_used` tells whether any rank used a parameter", "tests/unit/worker/reducer/test_unused.c",
                                   "unused_keeps_value_and_partly_used_is_mean"),
        "check_reduction": ("none: without effect in PyTorch, too. A step that was not finished is always an error",
                            "tests/unit/worker/reducer/test_unused.c", "missing_without_flag_is_error_everywhere"),
        "gradient_as_bucket_view": ("always; `cddp_param.grad` in memory of all ranks (`CDDP_MEM_COLLECTIVE`) is reduced where it lies, too; other memory of the user's own is copied ([from one to many](from-one-to-many.md))",
                                    "tests/unit/worker/reducer/test_in_place.c", "matches_arena_bits"),
        "static_graph": ("`CDDP_DDP_STATIC_GRAPH`", "tests/unit/worker/reducer/test_unused.c",
                         "static_graph_learns_from_first_step"),
        "delay_all_reduce_named_params": ("leave them out of `params`, and make a second reducer of them on the same communicator. The same, "
                                          "without a second one, for what PyTorch ignores (`_ddp_params_and_buffers_to_ignore`)",
                                          "tests/unit/worker/reducer/test_unused.c",
                                          "second_reducer_with_later_gradients"),
        "param_to_hook_all_reduce": ("call `cddp_ddp_grad_ready` of the second reducer where that parameter's gradient is ready",
                                     "tests/unit/worker/reducer/test_unused.c",
                                     "second_reducer_with_later_gradients"),
        "mixed_precision": ("none: a program chooses its types, also those of gradients (`grad_dtype`), which may be sent in 16 bits (`comm_dtype`)",
                            "tests/unit/worker/reducer/test_compress.c", "mean_of_16_bits_sums_in_float32"),
        "device_mesh": ("none: parts of a world by `cddp_comm_split`", None, None),
        "skip_all_reduce_unused_params": ("`CDDP_DDP_SKIP_UNUSED`; ranks may differ in what they use, and steps, too", "tests/unit/worker/reducer/test_unused.c",
                                          "skipping_matches_torch"),
        "batched_grad_copy": ("none: gradients that lie in the arena are not copied", None, None),
    },
    "DistributedDataParallel.no_sync": {
        "(method)": ("add to the gradients, and leave out `cddp_ddp_grad_ready` and `cddp_ddp_wait`", WINE, "w4_accumulate"),
    },
    "DistributedDataParallel.join": {
        "divide_by_initial_world_size": ("`CDDP_DDP_JOIN` and `cddp_ddp_join`; `False`: with `CDDP_DDP_JOIN_ACTIVE`", WINE,
                                         "w4_uneven"),
        "enable": ("the flag itself", "tests/unit/worker/reducer/test_uneven.c", "rejects_incompatible_flags"),
        "throw_on_early_termination": ("`CDDP_DDP_JOIN_STRICT`", "tests/unit/worker/reducer/test_uneven.c",
                                       "strict_names_early_rank_everywhere"),
    },
    "DistributedDataParallel.register_comm_hook": {
        "state": ("`cddp_hook.arg`", "tests/unit/worker/reducer/test_hook.c", "called_per_bucket_in_order"),
        "hook": ("`comm_dtype` for fp16_compress_hook and bf16_compress_hook; `cddp_ddp_set_powersgd` for powerSGD_hook; `cddp_ddp_set_hook` for one's own",
                 WINE, "w2_fp16"),
    },
    "PowerSGDState": {
        "process_group": ("the reducer's communicator", POWER, POWER_CASES),
        "matrix_approximation_rank": ("`matrix_rank`", POWER, POWER_CASES),
        "start_powerSGD_iter": ("`start_step`", POWER, POWER_CASES),
        "min_compression_rate": ("`min_compression_rate`", POWER, POWER_CASES),
        "use_error_feedback": ("`CDDP_POWERSGD_NO_ERROR_FEEDBACK`, the other way round", POWER, POWER_CASES),
        "warm_start": ("`CDDP_POWERSGD_NO_WARM_START`, the other way round", POWER, POWER_CASES),
        "orthogonalization_epsilon": ("`orthogonalization_epsilon`", POWER, POWER_CASES),
        "random_seed": ("`seed`", POWER, POWER_CASES),
        "compression_stats_logging_frequency": ("none: the library prints nothing", None, None),
        "batch_tensors_with_same_shape": ("none: how PyTorch computes it", None, None),
    },
    "torch.nn.utils.clip_grad_norm_": {
        "parameters": ("all of the reducer's", CLIP, CLIP_CASES),
        "max_norm": ("`max_norm` of `cddp_ddp_clip_grad_norm`, or of `cddp_optim_step_args`; `cddp_ddp_grad_norm` only measures", CLIP, CLIP_CASES),
        "norm_type": ("`norm_type`: 2 or INFINITY", CLIP, CLIP_CASES),
        "error_if_nonfinite": ("`error_if_nonfinite`", CLIP, CLIP_CASES),
        "foreach": ("none: how PyTorch computes it", None, None),
    },
    "DistributedSampler": {
        "dataset": ("`cddp_sampler_options.n`, its length", "tests/unit/worker/data/test_sampler.c", "matches_distributed_sampler"),
        "num_replicas": ("`world_size`", "tests/unit/worker/data/test_sampler.c", "matches_distributed_sampler"),
        "rank": ("`rank`", "tests/unit/worker/data/test_sampler.c", "matches_distributed_sampler"),
        "shuffle": ("`no_shuffle`, the other way round", "tests/unit/worker/data/test_sampler.c", "matches_distributed_sampler"),
        "seed": ("`seed`", "tests/unit/worker/data/test_sampler.c", "matches_distributed_sampler"),
        "drop_last": ("`drop_last`", "tests/unit/worker/data/test_sampler.c", "matches_distributed_sampler"),
    },
    "DistributedSampler.set_epoch": {
        "epoch": ("`cddp_sampler_set_epoch`", "tests/unit/worker/data/test_sampler.c", "matches_distributed_sampler"),
    },
    **sharding_rows.ROWS,
}
ASK = """
import inspect, json
from torch.distributed import fsdp
from torch.nn.parallel import DistributedDataParallel as D
from torch.utils.data.distributed import DistributedSampler as S
from torch.nn.utils import clip_grad_norm_ as clip
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState as power
asked = {"DistributedDataParallel": D.__init__, "DistributedDataParallel.no_sync": D.no_sync,
         "DistributedDataParallel.join": D.join, "DistributedDataParallel.register_comm_hook": D.register_comm_hook,
         "PowerSGDState": power.__init__, "torch.nn.utils.clip_grad_norm_": clip, "DistributedSampler": S.__init__, "DistributedSampler.set_epoch": S.set_epoch,
         "fully_shard": fsdp.fully_shard, "MixedPrecisionPolicy": fsdp.MixedPrecisionPolicy, "CPUOffloadPolicy": fsdp.CPUOffloadPolicy}
def options(f):
    found = {p.name: "" if p.default is p.empty else repr(p.default) for p in inspect.signature(f).parameters.values()}
    found.pop("self", None)
    return found or {"(method)": ""}
found = {name: options(f) for name, f in asked.items()}
found["FSDPModule"] = {name: "" for name, _ in inspect.getmembers(fsdp.FSDPModule, inspect.isfunction) if name[0] != "_"}
print(json.dumps(found))
"""
ASK_DEEPSPEED = """
import json
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
print(json.dumps({f.alias or name: "" if f.is_required() or "Undefined" in repr(f.default) else str(f.default).replace(",", "")
                  for name, f in DeepSpeedZeroConfig.model_fields.items() if not (f.json_schema_extra or {}).get("deprecated")}))
"""


def ask(python, what):
    done = subprocess.run([python, "-c", what], capture_output=True, text=True, check=True, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    return json.loads(done.stdout.splitlines()[-1])


def check(recorded):
    """The faults of ROWS."""
    wrong = []
    for name, options in recorded.items():
        rows = ROWS.get(name, {})
        wrong += [f"{name}: no row for {option}" for option in options if option not in rows]
        wrong += [f"{name}: the peer has no {option}" for option in rows if option not in options]
        for option, (_, file, what) in rows.items():
            if file and what not in (ROOT / file).read_text(encoding="utf-8"):
                wrong.append(f"{name}: {option}: there is no {what} in {file}")
    return wrong


def table(recorded):
    text = HEAD
    for name, options in recorded.items():
        text += f"## {name}\n\n| option | default | libcddp | checked by |\n|---|---|---|---|\n"
        for option, default in options.items():
            ours, file, what = ROWS[name][option]
            text += f"| {option} | {default} | {ours} | {f'`{file}`: {what}' if file else ''} |\n"
        text += "\n"
    return text.rstrip() + "\n"


def main():
    if sys.argv[1] == "--record":
        found, path = ask(sys.argv[2], ASK), pathlib.Path(sys.argv[3])
        name = "DeepSpeed's zero_optimization"
        found[name] = ask(sys.argv[4], ASK_DEEPSPEED) if sys.argv[4:] else json.loads(path.read_text(encoding="utf-8"))[name]
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return 0
    recorded, path = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")), pathlib.Path(sys.argv[2])
    wrong = check(recorded)
    if not wrong and sys.argv[3:] == ["--write"]:
        path.write_text(table(recorded), encoding="utf-8")
    elif not wrong and path.read_text(encoding="utf-8") != table(recorded):
        wrong = [f"{path} is not the table that comes of it: write it anew with --write"]
    print(*(wrong or [f"{sum(map(len, recorded.values()))} options, each with its row"]), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
