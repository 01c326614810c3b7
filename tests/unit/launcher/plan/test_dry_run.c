/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/plan/dry_run.h"

#include <jansson.h>
#include <string.h>

CDI_SUITE(dry_run);

static char *train[] = {(char *)"train.py", (char *)"--r=${local_rank}", NULL};
static struct options o = {.role = "default",
                           .signals_to_handle = "SIGTERM",
                           .nproc = 2,
                           .nproc_given = true,
                           .world_size = -1,
                           .max_restarts = 3,
                           .command = train};

/* The plan as JSON; the caller's to release. */
static json_t *read_plan(const struct endpoint *endpoint, struct bind_worker *bind)
{
    static struct machine box = {
        .n_cores = 6, .n_gpus = 1, .host = "box", .gpus = {{.uuid = "GPU-1", .pci = "0000:3b:00.0", .numa_node = 1}}};
    char *base[] = {(char *)"PATH=/bin", (char *)"OMP_NUM_THREADS=4", NULL}, *text;
    struct plan p;
    struct cdi_error err;
    json_t *all;

    cr_assert_eq(plan_make(&p, &o, endpoint, &box, "0123abcd", &err), CDDP_OK);
    p.bind = bind;
    text = dry_run_text(&p, &box, base);
    cr_assert_not_null(text);
    all = json_loads(text, 0, NULL);
    cr_assert_not_null(all, "%s", text);
    free(text);
    return all;
}

static const char *text_at(json_t *object, const char *name)
{
    json_t *v = json_object_get(object, name);

    cr_assert_not_null(v, "%s", name);
    return json_is_null(v) ? "null" : json_string_value(v);
}

Test(dry_run, one_node_has_ranks_devices_and_cores)
{
    struct endpoint alone = {.min_nodes = 1, .max_nodes = 1, .n_nodes = 1, .node_rank = -1, .host = "127.0.0.1"};
    struct bind_worker bind[] = {{.cpus = (char *)"0-2", .node = 1, .gpu = 0}, {.node = -1, .gpu = 0}};
    json_t *all = read_plan(&alone, bind), *workers = json_object_get(all, "workers"), *w = json_array_get(workers, 1),
           *env;

    cr_expect_eq(json_array_size(workers), 2);
    cr_expect_eq(json_integer_value(json_object_get(all, "world_size")), 2);
    cr_expect_eq(json_integer_value(json_object_get(w, "rank")), 1);
    cr_expect_str_eq(text_at(w, "cores"), "null");
    cr_expect_str_eq(text_at(json_array_get(workers, 0), "cores"), "0-2");
    cr_expect_str_eq(text_at(json_object_get(w, "device"), "uuid"), "GPU-1");
    cr_expect_str_eq(json_string_value(json_array_get(json_object_get(w, "command"), 3)), "--r=1");
    env = json_object_get(w, "environment");
    cr_expect_str_eq(text_at(env, "RANK"), "1");
    cr_expect_str_eq(text_at(env, "MASTER_PORT"), "null");
    cr_expect_str_eq(text_at(env, "CDDP_FLIGHT"), "null");
    cr_expect_null(json_object_get(env, "PATH"), "it is not changed");
    cr_expect_null(json_object_get(env, "OMP_NUM_THREADS"));
    json_decref(all);
}

Test(dry_run, several_nodes_have_ranks_if_node_rank_known)
{
    struct endpoint any = {.min_nodes = 3,
                           .max_nodes = 3,
                           .n_nodes = 3,
                           .node_rank = -1,
                           .host = "node1",
                           .port = 29500,
                           .role = ENDPOINT_TRY},
                    second = any;
    json_t *all = read_plan(&any, NULL), *w = json_array_get(json_object_get(all, "workers"), 0);

    cr_expect(json_is_null(json_object_get(w, "rank")));
    cr_expect_str_eq(text_at(json_object_get(w, "environment"), "RANK"), "null");
    cr_expect_str_eq(text_at(json_object_get(w, "environment"), "LOCAL_RANK"), "0");
    cr_expect_str_eq(text_at(json_object_get(w, "environment"), "MASTER_PORT"), "29500");
    json_decref(all);
    second.node_rank = 2;
    all = read_plan(&second, NULL);
    w = json_array_get(json_object_get(all, "workers"), 1);
    cr_expect_eq(json_integer_value(json_object_get(w, "rank")), 5);
    cr_expect_str_eq(text_at(json_object_get(w, "environment"), "WORLD_SIZE"), "6");
    json_decref(all);
}
