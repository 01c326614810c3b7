/* SPDX-License-Identifier: Apache-2.0 */
#include "common/list.h"
#include "common/map.h"
#include "hygiene.h"

#include <string.h>

CDI_SUITE(map);

#define N 5000

static struct thing {
    char key[16];
    size_t len;
    bool in;
} things[N];

static void name_things(void)
{
    for (int i = 0; i < N; i++)
        things[i].len = (size_t)snprintf(things[i].key, sizeof things[i].key, "k%d", i);
}

Test(map, finds_only_keys_that_were_added)
{
    struct cdi_map m;

    cdi_map_init(&m);
    name_things();
    cr_assert_null(cdi_map_get(&m, "k1", 2));
    cr_assert_null(cdi_map_remove(&m, "k1", 2));
    for (int i = 0; i < N; i++)
        cr_assert_eq(cdi_map_add(&m, things[i].key, things[i].len, &things[i]), CDDP_OK);
    cr_assert_eq(m.count, N);
    for (int i = 0; i < N; i++)
        cr_assert_eq(cdi_map_get(&m, things[i].key, things[i].len), &things[i]);
    cr_assert_null(cdi_map_get(&m, "k", 1));
    cr_assert_null(cdi_map_get(&m, "k5000", 5));
    cdi_map_release(&m);
}

Test(map, accepts_any_bytes_as_a_key)
{
    struct cdi_map m;
    int empty, nul, nulnul;

    cdi_map_init(&m);
    cr_assert_eq(cdi_map_add(&m, "", 0, &empty), CDDP_OK);
    cr_assert_eq(cdi_map_add(&m, "\0", 1, &nul), CDDP_OK);
    cr_assert_eq(cdi_map_add(&m, "\0\0", 2, &nulnul), CDDP_OK);
    cr_assert_eq(cdi_map_get(&m, NULL, 0), &empty);
    cr_assert_eq(cdi_map_get(&m, "\0\0", 1), &nul);
    cr_assert_eq(cdi_map_get(&m, "\0\0", 2), &nulnul);
    cdi_map_release(&m);
}

Test(map, survives_random_changes_and_shrinks)
{
    struct cdi_map m;
    unsigned state = 1;
    size_t count = 0, at = 0, walked = 0;

    cdi_map_init(&m);
    name_things();
    for (int step = 0; step < 200000; step++) {
        struct thing *t;

        state = state * 1664525u + 1013904223u;
        t = &things[(state >> 8) % N];
        cr_assert_eq(cdi_map_get(&m, t->key, t->len), t->in ? t : NULL);
        if (t->in)
            cr_assert_eq(cdi_map_remove(&m, t->key, t->len), t);
        else
            cr_assert_eq(cdi_map_add(&m, t->key, t->len, t), CDDP_OK);
        count = t->in ? count - 1 : count + 1;
        t->in = !t->in;
        cr_assert_eq(m.count, count);
    }
    while (cdi_map_next(&m, &at) != NULL)
        walked++;
    cr_assert_eq(walked, count);
    for (int i = 0; i < N; i++)
        cr_assert_eq(cdi_map_remove(&m, things[i].key, things[i].len), things[i].in ? &things[i] : NULL);
    cr_assert_eq(m.count, 0);
    cr_assert_leq(m.cap, 64);
    cdi_map_release(&m);
}

Test(map, list_keeps_its_order_and_allows_double_removal)
{
    struct item {
        int n;
        struct cdi_list link;
    } items[4];
    struct cdi_list head, *node, *safe;
    int sum = 0;

    cdi_list_init(&head);
    cr_assert(cdi_list_empty(&head));
    for (int i = 0; i < 4; i++) {
        items[i].n = i;
        cdi_list_push_back(&head, &items[i].link);
    }
    cdi_list_remove(&items[1].link);
    cdi_list_remove(&items[1].link);
    cdi_list_for_each (node, safe, &head) {
        sum = sum * 10 + cdi_list_of(node, struct item, link)->n;
        cdi_list_remove(node);
    }
    cr_assert_eq(sum, 23);
    cr_assert(cdi_list_empty(&head));
}
