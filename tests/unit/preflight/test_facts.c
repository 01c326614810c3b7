/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "preflight/facts.h"
#include "preflight/spare.h"

#include <stdio.h>
#include <stdlib.h>

CDI_SUITE(facts);

static struct preflight_facts f, back;

static cddp_status parse(const char *text)
{
    return preflight_facts_parse(&back, text, strlen(text), NULL);
}

Test(facts, reads_this_machine)
{
    char *text;

    preflight_facts_read(&f, "node1", 3);
    cr_assert(f.known && f.workers == 3 && f.cpus > 0 && strcmp(f.host, "node1") == 0);
    cr_assert(f.memory > 0 && f.memory_free > 0 && f.memory_free <= f.memory);
    cr_assert(f.files > 0 && f.n_disks > 0 && f.disk[0].total >= f.disk[0].free);
    text = preflight_facts_text(&f);
    cr_assert_not_null(text);
    cr_assert_eq(parse(text), CDDP_OK);
    cr_assert(back.memory == f.memory && back.files == f.files && strcmp(back.disk[0].path, f.disk[0].path) == 0);
    free(text);
}

Test(facts, survive_the_way_through_the_store)
{
    char *text, *again;

    f = (struct preflight_facts){.known = true,
                                 .host = "n\"1",
                                 .workers = 1,
                                 .cpus = 2,
                                 .gpus = 3,
                                 .gpus_bad = 4,
                                 .gpus_slow = 5,
                                 .memory = 6,
                                 .memory_free = 7,
                                 .files = UINT64_MAX,
                                 .shm = 9,
                                 .shm_free = 10,
                                 .clock_known = true,
                                 .clock_us = -11,
                                 .clock_error = 12,
                                 .n_disks = 1,
                                 .disk[0] = {.path = "/a b", .total = 13, .free = 14, .free_files = UINT64_MAX}};
    *preflight_link_to(&f, 7) = (struct preflight_link){.to = 7, .mib_s = 0.25, .why = "Connection refused"};
    text = preflight_facts_text(&f);
    cr_assert_eq(parse(text), CDDP_OK);
    again = preflight_facts_text(&back);
    cr_assert_str_eq(text, again);
    cr_assert(back.files == UINT64_MAX && back.clock_us == -11 && back.link[0].mib_s == 0.25 && back.gpus_slow == 5);
    free(again);
    free(text);
}

Test(facts, rejects_any_other_text)
{
    static const char *const lies[][2] = {{"\"host\":\"h\"", "\"host\":5"},
                                          {"\"workers\":1", "\"workers\":-1"},
                                          {"\"workers\":1", "\"workers\":4294967296"},
                                          {"\"memory\":0", "\"memory\":1.5"},
                                          {"\"clock_known\":false", "\"clock_known\":1"},
                                          {"\"links\":[]", "\"links\":{}"},
                                          {"\"links\":[]", "\"links\":[{}]"},
                                          {"\"disks\":[]", "\"disks\":[1,2,3]"}};
    char *text, changed[2000];

    f = (struct preflight_facts){.known = true, .host = "h", .workers = 1};
    text = preflight_facts_text(&f);
    cr_assert_eq(parse(text), CDDP_OK);
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        const char *at = strstr(text, lies[i][0]);

        cr_assert_not_null(at, "%s is not in %s", lies[i][0], text);
        (void)snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, lies[i][1],
                       at + strlen(lies[i][0]));
        cr_assert_eq(parse(changed), CDDP_E_PROTOCOL, "%s", lies[i][1]);
        cr_assert(!back.known);
    }
    free(text);
    f = (struct preflight_facts){.known = true, .host = "h\x1b[2J\n", .workers = 1};
    text = preflight_facts_text(&f);
    cr_assert_eq(parse(text), CDDP_OK);
    cr_assert_str_eq(back.host, "h\\x1b[2J\\x0a", "the terminal shows it");
    free(text);
    cr_assert_eq(parse(""), CDDP_E_PROTOCOL);
    cr_assert_eq(parse("[]"), CDDP_E_PROTOCOL);
}

Test(facts, has_room_for_so_many_links)
{
    f = (struct preflight_facts){.known = true};
    for (uint32_t i = 0; i < PREFLIGHT_LINKS_MAX; i++)
        cr_assert_eq(preflight_link_to(&f, i)->to, i);
    cr_assert_null(preflight_link_to(&f, PREFLIGHT_LINKS_MAX));
    cr_assert_eq(preflight_link_to(&f, 5), &f.link[5]);
}

static bool enough(const char *json, uint32_t leaving)
{
    return spare_enough(json, strlen(json), 29400, leaving);
}

Test(facts, spare_is_there_if_enough_nodes_remain)
{
    static const char job[] = "{\"jobs\":[{\"port\":1,\"nodes\":{\"present\":99,\"min\":1}},"
                              "{\"port\":29400,\"nodes\":{\"present\":4,\"min\":3,\"needed\":3}}]}";

    cr_assert(enough(job, 1));
    cr_assert(!enough(job, 2));
    cr_assert(!enough(job, UINT32_MAX));
    cr_assert(!enough("{}", 0));
    cr_assert(!enough("{\"jobs\":[{\"port\":29400}]}", 0));
    cr_assert(!enough("no JSON", 0));
}
