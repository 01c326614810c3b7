/* SPDX-License-Identifier: Apache-2.0 */
/* Which endpoint and which job the value of --where means. */
#include "watch/show.h"

#include "hygiene.h"

#include <string.h>

CDI_SUITE(show);

Test(show, value_is_an_endpoint_or_a_job)
{
    static const struct {
        struct options o;
        const char *endpoint, *job;
    } cases[] = {
        {{.where = "node0:29400", .master_port = -1}, "node0:29400", NULL},
        {{.where = "node0", .master_port = -1}, "node0", NULL},
        {{.where = "node0:1", .run_id = "mine", .master_port = -1}, "node0:1", "mine"},
        {{.where = "mine", .rdzv_endpoint = "h:5", .master_port = -1}, "h:5", "mine"},
        {{.where = "a:b", .rdzv_endpoint = "h", .master_port = -1}, "h", "a:b"},
        {{.where = "mine", .master_addr = "h", .master_port = 7}, "h:7", "mine"},
        {{.where = "mine", .master_addr = "fe80::1", .master_port = 7}, "[fe80::1]:7", "mine"},
        {{.where = "mine", .env_master_addr = "h", .env_master_port = "9", .master_port = -1}, "h:9", "mine"},
        {{.where = "mine", .env_master_addr = "h", .master_port = -1}, "h", "mine"},
        {{.where = "node0:29400", .env_master_addr = "h", .env_master_port = "9", .master_port = -1},
         "node0:29400",
         NULL},
    };
    char endpoint[300];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *job = show_target(&cases[i].o, endpoint);

        cr_assert_str_eq(endpoint, cases[i].endpoint, "case %zu", i);
        cr_assert((job == NULL) == (cases[i].job == NULL) && (job == NULL || strcmp(job, cases[i].job) == 0), "%zu", i);
    }
}
