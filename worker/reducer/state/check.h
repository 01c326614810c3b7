/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of what a program passes to cddp_ddp_create. Each error message names the member. */
#ifndef CDI_REDUCER_CHECK_H
#define CDI_REDUCER_CHECK_H

#include "worker/reducer/state/state.h"

/* The program's arguments in this library's structs, with defaults. */
struct cdi_ddp_input {
    cddp_ddp_options opt; /* its buffers are those below */
    cddp_param *params, *buffers;
};

/*
 * Reads the arguments; opt may be NULL. Release *in also after a failure, when it has only the options. Returns
 * CDDP_OK, CDDP_E_INVALID, CDDP_E_UNSUPPORTED or CDDP_E_NOMEM.
 */
cddp_status cdi_ddp_read_input(struct cdi_ddp_input *in, const cddp_param *params, size_t n,
                               const cddp_ddp_options *opt, struct cdi_error *err);
void cdi_ddp_release_input(struct cdi_ddp_input *in);
/* Returns CDDP_OK or CDDP_E_INVALID, as do those below. divided: parameters need no memory. */
cddp_status cdi_ddp_check_input(const cddp_param *params, size_t n, const cddp_ddp_options *opt, bool divided,
                                struct cdi_error *err);
/* Checks, on a device, that `stream` means the same stream in every thread. */
cddp_status cdi_ddp_check_stream(const cddp_ddp *d, const void *stream, struct cdi_error *err);
/* Checks that each parameter and buffer is in memory of the backend. */
cddp_status cdi_ddp_check_memory(const cddp_ddp *d, const cddp_param *params, const cddp_param *buffers,
                                 struct cdi_error *err);

#endif
