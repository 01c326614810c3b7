/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend, with everything that it gets from outside given by the caller: for tests. */
#ifndef CDI_CPU_H
#define CDI_CPU_H

#include "worker/backend/backend.h"
#include "worker/backend/cpu/coll/choose.h"
#include "worker/backend/cpu/node/shm_bootstrap.h"
#include "worker/base/interfaces.h"

/*
 * As cdi_cpu_backend.create, but maps memory through `mapper`, which is copied and may be NULL, and takes the address
 * of this host on the way to the job's endpoint from the caller. net: NULL, or what to assume about the nodes.
 */
cddp_status cdi_cpu_create_at(struct cdi_backend **out, const struct cdi_world *world, const struct cdi_mapper *mapper,
                              const struct cdi_address *reached, const struct cdi_choice_net *net,
                              struct cdi_error *err);

#endif
