/* SPDX-License-Identifier: Apache-2.0 */
/* The facts of two nodes, as the store gives them, through to the table; and the rendezvous's /status. */
#include "preflight/spare.h"
#include "preflight/table.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct preflight_facts nodes[2];
    struct preflight_finding found[8];
    struct cdi_buf table;
    size_t n;

    for (int i = 0; i < 2; i++)
        if (preflight_facts_parse(&nodes[i], (const char *)data, size, NULL) == CDDP_OK) {
            char *text = preflight_facts_text(&nodes[i]);
            struct preflight_facts again;

            if (text == NULL || preflight_facts_parse(&again, text, strlen(text), NULL) != CDDP_OK)
                abort(); /* our own text */
            free(text);
        }
    n = preflight_judge(nodes, 2, found, 8);
    cdi_buf_init(&table, 0);
    if (preflight_table(&table, nodes, 2, found, n, 1) != CDDP_OK)
        abort();
    cdi_buf_release(&table);
    (void)spare_enough((const char *)data, size, 29400, 1);
    return 0;
}
