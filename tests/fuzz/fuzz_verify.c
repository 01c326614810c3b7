/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks' lists of parameters from a peer: no read beyond them, and the same result on both sides. */
#include "worker/reducer/state/verify.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An allocation of exactly this length, so that a read beyond it is detected. */
static void fill(struct cdi_buf *b, const uint8_t *data, size_t size)
{
    *b = (struct cdi_buf){.mem = malloc(size > 0 ? size : 1), .len = size, .cap = size};
    if (b->mem == NULL)
        abort();
    if (size > 0)
        memcpy(b->mem, data, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t cut = size > 0 ? data[0] * (size - 1) / 255 : 0;
    struct cdi_buf a, b;
    struct cdi_error ab, ba;
    cddp_status st;

    fill(&a, data + (size > 0), cut);
    fill(&b, data + (size > 0) + cut, size > 0 ? size - 1 - cut : 0);
    st = cdi_verify_compare(&a, "rank 0", &b, "rank 1", &ab);
    if (cdi_verify_compare(&b, "rank 1", &a, "rank 0", &ba) != st ||
        cdi_verify_compare(&a, "rank 0", &a, "rank 1", NULL) != CDDP_OK)
        abort();
    if (st != CDDP_OK &&
        (st != CDDP_E_MISMATCH || strstr(ab.msg, "rank 0") == NULL || strstr(ab.msg, "rank 1") == NULL))
        abort();
    cdi_buf_release(&a);
    cdi_buf_release(&b);
    return 0;
}
