/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/placement.h"

#include "common/cleanup.h"
#include "common/crc64.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A number that stands for the running kernel. */
static uint64_t kernel_id(void)
{
    CDI_AUTOCLOSE int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    char text[256] = "";
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text);

    if (n <= 0) {
        (void)gethostname(text, sizeof text - 1);
        n = (ssize_t)strlen(text);
    }
    return cdi_crc64(0, text, (size_t)n);
}

void cdi_host_id(uint8_t id[CDI_HOST_ID])
{
    uint64_t parts[3] = {kernel_id(), 0, 0};
    struct stat st;

    if (stat("/proc/self/ns/net", &st) == 0) {
        parts[1] = (uint64_t)st.st_dev;
        parts[2] = (uint64_t)st.st_ino;
    }
    memcpy(id, parts, CDI_HOST_ID);
}

static bool same(const uint8_t *ids, int a, int b)
{
    return memcmp(ids + (size_t)a * CDI_HOST_ID, ids + (size_t)b * CDI_HOST_ID, CDI_HOST_ID) == 0;
}

static void find_hosts(const uint8_t *ids, int size, int rank, struct cdi_node_layout *p)
{
    *p = (struct cdi_node_layout){0};
    for (int r = 0; r < size; r++) {
        bool first = true;

        if (same(ids, r, rank)) {
            p->local_size++;
            p->local_rank += r < rank;
        }
        for (int q = r - 1; q >= 0 && first; q--) /* neighbours are mostly on one host, so this ends at once */
            first = !same(ids, q, r);
        if (first && same(ids, r, rank))
            p->node_rank = p->n_nodes;
        p->n_nodes += first;
    }
}

static void find_runs(const uint8_t *ids, int size, int rank, struct cdi_node_layout *p)
{
    *p = (struct cdi_node_layout){0};
    for (int r = 0, start = 0; r < size; r++) {
        if (r + 1 < size && same(ids, r, r + 1))
            continue;
        if (start <= rank && rank <= r)
            *p = (struct cdi_node_layout){rank - start, r + 1 - start, p->n_nodes, p->n_nodes};
        start = r + 1;
        p->n_nodes++;
    }
}

void cdi_node_layout_of(const uint8_t *ids, int size, int rank, struct cdi_node_layout *hosts,
                        struct cdi_node_layout *runs)
{
    find_hosts(ids, size, rank, hosts);
    find_runs(ids, size, rank, runs);
}
