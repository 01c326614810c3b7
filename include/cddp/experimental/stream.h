/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives in the order of a stream, and steps in a CUDA graph. */
#ifndef CDDP_EXPERIMENTAL_STREAM_H
#define CDDP_EXPERIMENTAL_STREAM_H

#ifndef CDDP_EXPERIMENTAL
#error "this may change in any version: define CDDP_EXPERIMENTAL to use it"
#endif

#include <cddp/coll.h>
#include <cddp/ddp.h>

#ifdef __cplusplus
extern "C" {
#endif

/* -------------------------------------------------------------------------------------- experimental streams ---- */

/*
 * A step of a reducer may become part of a CUDA graph. Where the streams that it is given are being captured (in any
 * mode, by any thread), cddp_ddp_grad_ready, cddp_ddp_grad_ready_on, cddp_ddp_wait_param and cddp_ddp_wait put all of
 * the step's communication into the graph, on a stream that is forked from theirs and joined again by cddp_ddp_wait.
 * Each launch then reduces what is in the gradients at that time, with the bits of a step that is not captured, and
 * without a call of libcddp. cddp_ddp_clip_grad_norm (with a norm of NULL and 0 for error_if_nonfinite, since the host
 * learns nothing), cddp_optim_step and cddp_optim_skip can be captured, too.
 * - The capture begins between two steps, and after the first two, which settle the order of the buckets
 *   (CDDP_DDP_TUNE: after those that cddp_ddp_bucket_cap() wants); it may hold several steps, and ends after a
 *   cddp_ddp_wait(). A step in it may wait for peers to capture theirs, while NCCL makes for the graph what it needs.
 * - All ranks capture the same, and a launch of the graph is a collective: all launch it as often, and in the same
 *   order among their other collectives (which NCCL_GRAPH_MIXING_SUPPORT=0 forbids, and NCCL_GRAPH_STREAM_ORDERING=0).
 * - Refused, with CDDP_E_UNSUPPORTED (or CDDP_E_STATE, where the time is wrong), are communication hooks, PowerSGD,
 *   cddp_ddp_grad_norm, cddp_ddp_sync_buffers, cddp_optim_set_lr, cddp_optim_set_grad_scale, cddp_ddp_join,
 *   cddp_ddp_set_frozen, steps with frozen parameters, and reducers with CDDP_DDP_FIND_UNUSED, CDDP_DDP_SKIP_UNUSED,
 *   CDDP_DDP_STATIC_GRAPH, CDDP_DDP_JOIN or CDDP_DDP_WEIGHTED. A refused call does nothing, and breaks neither the
 *   capture nor the reducer; nor does misuse within a capture. (But where a capture begins in the middle of a step that
 *   is not captured, cddp_ddp_grad_ready makes CDDP_E_UNSUPPORTED the sticky error.) If the capture fails, or is ended
 *   before the step is, the reducer goes on as if the step had not begun.
 * - If a rank dies or stays away, a launch that waits for it ends in the timeout; the gradients are lost, the next call
 *   of libcddp returns the error, and the graph cannot be used any more.
 * - A graph, and all that was instantiated of it, is destroyed before cddp_ddp_destroy(). NCCL's communicator cannot
 *   end before; where it has to, its memory stays.
 */

/*
 * Tells what launches of captured steps have met so far, which make no call of libcddp themselves. Call it now and
 * then, between launches. Waits for nothing: the last launches may not have come that far. On the host there is never
 * anything to tell. Any thread. Returns CDDP_OK; the error of a communicator that has failed, for example since a rank
 * died in a launch; or, with CDDP_NAN_CHECK=error, CDDP_E_NONFINITE: a launch had a gradient with NaN or an infinity.
 * The message names the launch (the first captured step of this reducer that ran is 1), the gradient and the lowest
 * rank that brought it. A captured cddp_optim_step has left that step out, on every rank, and nothing is broken. Of
 * several such launches since the last call only the last one is reported. With CDDP_NAN_CHECK=warn that rank logs it
 * here, or in cddp_ddp_destroy(). Also CDDP_E_INVALID, CDDP_E_STATE (as cddp_ddp_wait).
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_replay_status(cddp_ddp *ddp);

/*
 * Enqueues a group in the order of a stream: on a GPU it begins after the work that is on `stream` (a cudaStream_t;
 * NULL is CUDA's legacy stream), and later work on the stream finds the results. All its memory is the GPU's. Does not
 * wait for the GPU or for peers; cddp_comm_error and later calls tell what goes wrong. If the stream captures a graph,
 * the group becomes a part of it, and its memory must stay as long as the graph; only here NCCL may wait for peers, who
 * capture the same. On the host stream is not used, and the group is done on return. Any thread. Returns what
 * cddp_coll_start returns, on the host also what cddp_coll_wait does; CDDP_E_INVALID (memory of the host, on a GPU);
 * CDDP_E_UNSUPPORTED (that capture has failed; the legacy stream waits for one) and CDDP_E_STATE (another graph is
 * being captured with this communicator in it): nothing was begun.
 */
CDDP_API cddp_status cddp_coll_enqueue(cddp_comm *comm, const cddp_coll_args *args, size_t n, void *stream);

#ifdef __cplusplus
}
#endif

#endif
