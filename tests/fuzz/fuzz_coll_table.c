/* SPDX-License-Identifier: Apache-2.0 */
/* The table of CDDP_COLL_TABLE: an accepted one is usable, and any other text gives one printable error message. */
#include "worker/backend/cpu/coll/choose.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_choices(const struct cdi_choice_table *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        struct cdi_choice_of of = {.kind = t->row[i].kind, .nodes = t->row[i].nodes, .bytes = 1, .total = 2};
        enum cdi_algorithm how = cdi_choose(t, &of);

        if ((how == CDI_BY_ROUNDS) != (t->row[i].small_max >= 1))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cdi_choice_table t;
    struct cdi_error err = {.status = CDDP_OK};
    cddp_status st = cdi_choose_parse((const char *)data, size, &t, &err);

    if (st == CDDP_OK) {
        if (!cdi_choose_valid(&t))
            abort();
        check_choices(&t);
        return 0;
    }
    if (st != CDDP_E_INVALID || err.msg[0] == '\0')
        abort();
    for (const char *c = err.msg; *c != '\0'; c++)
        if (*c < ' ' || *c > '~')
            abort();
    return 0;
}
