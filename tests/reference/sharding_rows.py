# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's fully_shard and DeepSpeed's stage 3 call their options, and ours: rows as in check_ddp_table.py."""
RANKS, PYTHON = "tests/integration/sharded_ranks.c", "tests/python/fsdp_ranks.py"
UNIT, POOL, OPTIM = "tests/unit/worker/fsdp/test_fsdp.c", "tests/unit/worker/fsdp/test_pool.c", "tests/unit/worker/optim/test_optim.c"
KEPT = ("`CDDP_FSDP_KEEP` of a unit, or `stage` 2 for all of them", RANKS, "kept units")
ORDER = ("by itself: the order of a step is the forecast for the next one, as far as `max_live_units` allow", POOL, "step_is_the_forecast_for_the_next_one")
SCALE = ("`grad_scale` of `cddp_optim_step_args`; the mean itself stays the mean", OPTIM, "clip_and_scale_match_separate_calls")
UNUSED = ("none: each unit with trained parameters reports gradients in every step; one that does not is named", UNIT,
          "unit_without_gradients_is_named_at_the_end_of_the_step")
WHOLE_UNIT = ("none: a message is a unit, or its parameters of one type", RANKS, "two types")
NORM = ("`cddp_fsdp_grad_norm`, or `max_norm` of `cddp_optim_step_args`", RANKS, "clipped")
FORECAST = ("none: a step of another order is correct, and only waits more", RANKS, "another order in each step")
REPLICAS = ("`replicas` divides everything within a group, parameters too, and each group has a model", RANKS, "replicas, clipped")
ALWAYS, INTERNAL, PROGRAM = ("always", None, None), ("none: an inner matter of the peer", None, None), ("none: the program's own matter", None, None)
OFFLOAD, QUANTIZED = ("none: nothing moves to the host or to a disk", None, None), ("none: nothing is quantized", None, None)

ROWS = {
    "fully_shard": {
        "module": ("the array of `cddp_fsdp_unit`, in forward order", RANKS, "stage 3"),
        "mesh": ("the communicator; for two dimensions `replicas` beside it", RANKS, "replicas, clipped"),
        "reshard_after_forward": KEPT,
        "shard_placement_fn": ("none: a unit is divided into equal parts, whatever its parameters' shapes are", None, None),
        "mp_policy": ("the types of `cddp_param`, below", RANKS, "bfloat16, AdamW"),
        "offload_policy": OFFLOAD,
        "ignored_params": ("leave them out of the units", None, None),
        "dp_mesh_dims": ("none: parts of a world by `cddp_comm_split`", None, None),
    },
    "MixedPrecisionPolicy": {
        "param_dtype": ("`cddp_param.dtype`; the optimizer keeps float32 copies of shares of 16 bits", RANKS, "bfloat16, AdamW"),
        "reduce_dtype": ("`cddp_param.grad_dtype`: `CDDP_FLOAT32`", RANKS, "gradients of float32"),
        "output_dtype": PROGRAM,
        "cast_forward_inputs": PROGRAM,
    },
    "CPUOffloadPolicy": {"pin_memory": OFFLOAD},
    "FSDPModule": {
        "reset_iter_state": ("`cddp_optim_skip` ends a step that was left", PYTHON, "FailsInForward"),
        "reshard": ("`cddp_fsdp_release`", UNIT, "cddp_fsdp_release"),
        "set_all_reduce_hook": ("none: hooks see whole gradients only (`cddp_ddp_set_hook`)", None, None),
        "set_allocate_memory_from_process_group_for_comm": ("always: pools are memory of the backend", None, None),
        "set_custom_all_gather": ("none", None, None),
        "set_custom_reduce_scatter": ("none", None, None),
        "set_force_sum_reduction_for_comms": ("none: libcddp knows where NCCL's mean is right", None, None),
        "set_gradient_divide_factor": SCALE,
        "set_is_last_backward": ("`cddp_optim_step` or `cddp_fsdp_end_step` ends a step", RANKS, "an optimizer of the program"),
        "set_modules_to_backward_prefetch": ORDER,
        "set_modules_to_forward_prefetch": ORDER,
        "set_post_optim_event": ("none: libcddp orders the optimizer and the gathers", None, None),
        "set_reduce_scatter_divide_factor": SCALE,
        "set_reduce_scatter_max_input_buffers": ("`max_live_gradients`", RANKS, "one live unit"),
        "set_reduce_scatter_unused_params": UNUSED,
        "set_requires_all_reduce": ("none: with `replicas`, the means over the groups follow each reduce-scatter", RANKS, "replicas, clipped"),
        "set_requires_gradient_sync": ("`max_live_gradients` for all units, and `cddp_fsdp_grads_ready` after the last pass; in Python `no_sync()`",
                                       PYTHON, "Accumulation"),
        "set_reshard_after_backward": ("none: after the backward pass parameters change", None, None),
        "set_reshard_after_forward": KEPT,
        "set_separate_reduce_scatter_group": ("none: a GPU has one order of collectives", None, None),
        "set_symm_mem_for_comm": ("by itself, where NCCL has symmetric windows", None, None),
        "set_unshard_in_backward": ("leave out `cddp_fsdp_gather` where the backward pass needs no parameters", None, None),
        "unshard": ("`cddp_fsdp_gather`, which begins, and `cddp_fsdp_wait_unit`", UNIT, "cddp_fsdp_wait_unit"),
    },
    "DeepSpeed's zero_optimization": {
        "stage": ("1: `cddp_optim_create`; 2 and 3: `cddp_fsdp_options.stage`", RANKS, "stage 2"),
        "contiguous_gradients": ALWAYS,
        "reduce_scatter": ALWAYS,
        "reduce_bucket_size": WHOLE_UNIT,
        "use_multi_rank_bucket_allreduce": INTERNAL,
        "allgather_partitions": ALWAYS,
        "allgather_bucket_size": WHOLE_UNIT,
        "overlap_comm": ALWAYS,
        "compute_grad_norm": NORM,
        "load_from_fp32_weights": ("always: checkpoints have the float32 copies", OPTIM, "loads_checkpoint_in_other_world"),
        "elastic_checkpoint": ("always: any number of ranks loads a checkpoint", "tests/integration/sharded_checkpoint.py", "test_any_ranks_and_stage_load_it"),
        "offload_param": OFFLOAD,
        "offload_optimizer": OFFLOAD,
        "zenflow": OFFLOAD,
        "sub_group_size": INTERNAL,
        "stage3_prefetch_bucket_size": ORDER,
        "stage3_param_persistence_threshold": KEPT,
        "stage3_model_persistence_threshold": KEPT,
        "stage3_max_live_parameters": ("`max_live_units`, in units; allocated once", RANKS, "one live unit"),
        "stage3_max_reuse_distance": ("none: a unit stays until another one needs its slot", POOL, "unit_that_is_wanted_last_goes_first"),
        "stage3_gather_16bit_weights_on_model_save": ("none: programs with whole parameters load the same checkpoint",
                                                      "tests/integration/sharded_checkpoint.py", "test_any_ranks_and_stage_load_it"),
        "stage3_module_granularity_threshold": ("units are what the program makes them", None, None),
        "stage3_use_all_reduce_for_fetch_params": INTERNAL,
        "stage3_allgather_sequential": INTERNAL,
        "ignore_unused_parameters": UNUSED,
        "legacy_stage1": INTERNAL,
        "round_robin_gradients": INTERNAL,
        "parameter_alignment": ("parts are aligned to 64 bytes", None, None),
        "zero_hpz_partition_size": REPLICAS,
        "zero_quantized_weights": QUANTIZED,
        "zero_quantized_nontrainable_weights": QUANTIZED,
        "zero_quantized_gradients": QUANTIZED,
        "memory_efficient_linear": PROGRAM,
        "pipeline_loading_checkpoint": ("none: all ranks load their parts at once", None, None),
        "override_module_apply": PROGRAM,
        "log_trace_cache_warnings": FORECAST,
        "enable_sanity_checks": ("always: calls in the wrong order are named", UNIT, "calls_in_wrong_order_are_named_and_break_nothing"),
        "save_muon_momentum_buffer_in_memory": INTERNAL,
        "leaf_module": ("a unit is one: nothing within it is gathered apart", None, None),
    },
}
