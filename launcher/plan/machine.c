/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/machine.h"

#include "common/cpus.h"

#include <stdio.h>
#include <unistd.h>

void machine_read(struct machine *m, const char *root, const char *cuda_visible_devices)
{
    struct cdi_gpu gpus[CDI_GPUS_MAX];
    int shown[CDI_GPUS_MAX];
    size_t n = cdi_gpus_read(root, gpus, CDI_GPUS_MAX);

    *m = (struct machine){.n_cores = (uint32_t)cdi_usable_cpus()};
    m->n_gpus = (uint32_t)cdi_gpus_visible(cuda_visible_devices, gpus, n, shown, CDI_GPUS_MAX);
    for (uint32_t i = 0; i < m->n_gpus; i++)
        m->gpus[i] = shown[i] >= 0 ? gpus[shown[i]] : (struct cdi_gpu){.numa_node = -1};
    if (gethostname(m->host, sizeof m->host) != 0 || m->host[0] == '\0')
        (void)snprintf(m->host, sizeof m->host, "localhost");
    m->host[sizeof m->host - 1] = '\0';
}
