/* SPDX-License-Identifier: Apache-2.0 */
/* Slurm's list of hosts, as SLURM_STEP_NODELIST holds it. */
#include "launcher/cluster/slurm.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool check(void *arg, const char *name)
{
    size_t *n = arg;

    if (name[0] == '\0' || strlen(name) > 255 || strchr(name, '[') != NULL || ++*n > CLUSTER_NODES_MAX)
        abort();
    return *n < 1000;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    struct cdi_error err = {.status = CDDP_OK};
    size_t n = 0;

    if (text == NULL)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    if (slurm_hosts(text, check, &n, &err) == CDDP_OK ? n == 0 : err.msg[0] == '\0')
        abort();
    free(text);
    return 0;
}
