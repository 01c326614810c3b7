/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of nodes, as agents send them: the ranks that are behind, the message about them, and the verdict of the
 * page. */
#include "watch/hang.h"
#include "watch/verdict.h"

#include <stdlib.h>
#include <string.h>

#define NODES 4
#define RANKS 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A screen at most, of visible lines (common/visible.h): a stack may have tabs. */
static void check_text(const struct cdi_buf *text)
{
    int rows = 1;

    for (size_t i = 0; i < text->len; i++) {
        uint8_t c = cdi_buf_data(text)[i];

        rows += c == '\n';
        if ((c < ' ' && c != '\n' && c != '\t') || c == 0x7f)
            abort();
    }
    if (rows > HANG_ROWS)
        abort();
}

static void check_hang(const struct hang *h)
{
    size_t n_late = 0;
    struct cdi_buf text;

    for (size_t i = 0; i < h->n; i++)
        n_late += h->ranks[i].late;
    if (n_late != h->n_late || (h->kind == HANG_NONE && n_late > 0))
        abort();
    cdi_buf_init(&text, HANG_TEXT);
    if (h->kind != HANG_NONE && hang_text(h, &text) == CDDP_OK)
        check_text(&text);
    cdi_buf_release(&text);
}

static void check_page(struct view_node *nodes, size_t n, struct hang *h)
{
    static struct cdi_placed placed[NODES * RANKS];
    struct page_job job = {.run_id = "", .state = "running", .why = "", .stuck_ms = 30000, .hang = *h};
    struct verdict v;
    size_t n_placed = 0;

    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < nodes[i].report.n_ranks && k < RANKS; k++)
            placed[n_placed++] = (struct cdi_placed){&nodes[i].report.ranks[k], nodes[i].report.host, (int32_t)i};
    cdi_places_sum(placed, n_placed, &job.sum);
    job.n_groups = cdi_places_group(placed, n_placed, job.groups, PAGE_GROUPS);
    verdict_of(&job, &v);
    if (strlen(v.text) >= sizeof v.text || v.word == NULL || !(job.sum.steps_per_s >= 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *root = json_loadb((const char *)data, size, 0, NULL);
    struct view_node nodes[NODES] = {{.peer = 0}};
    struct hang h;
    size_t n = 0;

    for (size_t i = 0; i < json_array_size(root) && n < NODES; i++)
        n += cdi_node_report_decode(json_array_get(root, i), &nodes[n].report, NULL) == CDDP_OK;
    if (hang_judge(nodes, n, RANKS, 0, 30000, &h) == CDDP_OK) {
        check_hang(&h);
        check_page(nodes, n, &h);
        hang_release(&h);
    }
    for (size_t i = 0; i < n; i++)
        cdi_node_report_release(&nodes[i].report);
    json_decref(root);
    return 0;
}
