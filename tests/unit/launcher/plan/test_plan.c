/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/plan/plan.h"

#include <signal.h>
#include <string.h>

CDI_SUITE(plan);

static struct endpoint alone = {.min_nodes = 1, .max_nodes = 1, .n_nodes = 1, .node_rank = -1, .host = "127.0.0.1"};
static struct machine box = {.n_cores = 6, .n_gpus = 2, .host = "box"};

static char *train[] = {(char *)"./train", NULL};
/* What the plans of make() were made of; a test may change it before. */
static struct options asked = {.nproc_given = true,
                               .world_size = -1,
                               .min_nodes = 1,
                               .max_nodes = 1,
                               .max_restarts = 3,
                               .master_port = -1,
                               .role = "default",
                               .signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
                               .signals = 1 << (SIGTERM - 1) | 1 << (SIGINT - 1),
                               .stop_set = 1 << (SIGUSR1 - 1)};

static struct plan make(enum options_nproc kind, int64_t n)
{
    static char *command[] = {(char *)"./train", (char *)"--out=r${local_rank}.txt", (char *)"$${local_rank}",
                              (char *)"$HOME $$ ${rank}", NULL};
    struct options *o = &asked;
    struct plan p;
    struct cdi_error err;

    o->command = command;
    o->nproc_kind = kind;
    o->nproc = n;
    cr_assert_eq(plan_make(&p, o, &alone, &box, "0123abcd", &err), CDDP_OK);
    return p;
}

static const char *get(char **env, const char *name)
{
    size_t n = strlen(name);
    const char *found = NULL;

    for (; *env != NULL; env++) {
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=') {
            cr_assert_null(found, "%s is set twice", name);
            found = *env + n + 1;
        }
    }
    return found;
}

Test(plan, worker_count_is_from_flag_or_node)
{
    cr_assert_eq(make(OPTIONS_NPROC_COUNT, 5).n_procs, 5);
    cr_assert_eq(make(OPTIONS_NPROC_CPU, 1).n_procs, 6);
    cr_assert_eq(make(OPTIONS_NPROC_GPU, 1).n_procs, 2);
    cr_assert_eq(make(OPTIONS_NPROC_AUTO, 1).n_procs, 2);
}

Test(plan, auto_counts_cores_and_gpu_fails_without_gpu)
{
    struct machine bare = {.n_cores = 4, .host = "bare"};
    struct options o = {
        .nproc_kind = OPTIONS_NPROC_AUTO, .min_nodes = 1, .max_nodes = 1, .master_port = -1, .command = train};
    struct plan p;
    struct cdi_error err;

    cr_assert_eq(plan_make(&p, &o, &alone, &bare, "x", &err), CDDP_OK);
    cr_assert_eq(p.n_procs, 4);
    o.nproc_kind = OPTIONS_NPROC_GPU;
    cr_assert_eq(plan_make(&p, &o, &alone, &bare, "x", &err), CDDP_E_NOT_FOUND);
    cr_assert_not_null(strstr(err.msg, "has no NVIDIA GPU"), "%s", err.msg);
    o.cuda_visible_devices = "";
    cr_assert_eq(plan_make(&p, &o, &alone, &bare, "x", &err), CDDP_E_NOT_FOUND);
    cr_assert_not_null(strstr(err.msg, "CUDA_VISIBLE_DEVICES"), "%s", err.msg);
}

Test(plan, single_node_run_gets_random_name)
{
    struct options o = {.min_nodes = 2, .max_nodes = 2, .nproc = 1, .local_addr = "10.0.0.9", .command = train};
    struct endpoint two = {.min_nodes = 2,
                           .max_nodes = 2,
                           .n_nodes = 2,
                           .node_rank = 1,
                           .host = "10.0.0.1",
                           .port = 29500,
                           .role = ENDPOINT_JOIN};
    struct plan p = make(OPTIONS_NPROC_COUNT, 1);

    cr_assert_str_eq(p.run_id, "0123abcd");
    cr_assert_str_eq(p.host, "box");
    cr_assert_eq(plan_make(&p, &o, &two, &box, "x", NULL), CDDP_OK);
    cr_assert_str_eq(p.run_id, "none");
    cr_assert_str_eq(p.endpoint.host, "10.0.0.1");
    cr_assert_eq(p.endpoint.role, ENDPOINT_JOIN);
    cr_assert_str_eq(p.host, "10.0.0.9");
}

Test(plan, workers_get_auth_token_file)
{
    static char *base[] = {(char *)"CDDP_AUTH_TOKEN_FILE=relative", NULL};
    struct plan p = make(OPTIONS_NPROC_COUNT, 1);
    struct cdi_msg_assign a = {.world_size = 1};
    struct plan_rank r = {.assign = &a, .error_file = "e", .flight = "f"};
    char **env;

    p.auth_token_file = "/run/secret";
    env = plan_env(&p, &r, base);
    cr_assert_not_null(env);
    cr_assert_str_eq(get(env, "CDDP_AUTH_TOKEN_FILE"), "/run/secret");
    plan_free_strings(env);
}

Test(plan, sets_torchruns_variables_and_keeps_others)
{
    static char *base[] = {(char *)"HOME=/root", (char *)"RANK=77", (char *)"NOEQUALS", NULL};
    struct plan p = make(OPTIONS_NPROC_COUNT, 2);
    struct cdi_msg_assign a = {.round = 4,
                               .node_rank = 1,
                               .n_nodes = 3,
                               .rank_base = 4,
                               .world_size = 8,
                               .restart_count = 2,
                               .master_addr = "10.1.2.3",
                               .master_port = 4567};
    struct plan_rank r = {.assign = &a, .local_rank = 1, .error_file = "/t/e.json", .flight = "fd:3,/proc/1/fd/9,0"};
    static const char *const expect[][2] = {
        {"HOME", "/root"},
        {"RANK", "5"},
        {"LOCAL_RANK", "1"},
        {"WORLD_SIZE", "8"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"GROUP_RANK", "1"},
        {"GROUP_WORLD_SIZE", "3"},
        {"ROLE_NAME", "default"},
        {"ROLE_RANK", "5"},
        {"ROLE_WORLD_SIZE", "8"},
        {"MASTER_ADDR", "10.1.2.3"},
        {"MASTER_PORT", "4567"},
        {"TORCHELASTIC_RESTART_COUNT", "2"},
        {"TORCHELASTIC_MAX_RESTARTS", "3"},
        {"TORCHELASTIC_RUN_ID", "0123abcd"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
        {"OMP_NUM_THREADS", "1"},
        {"TORCHELASTIC_ERROR_FILE", "/t/e.json"},
        {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
        {"CDDP_STOP_SIGNALS", "INT,USR1,TERM"},
        {"CDDP_FLIGHT", "fd:3,/proc/1/fd/9,0"},
    };
    char **env = plan_env(&p, &r, base);
    size_t n = 0, n_expect = sizeof expect / sizeof expect[0];

    cr_assert_not_null(env);
    while (env[n] != NULL)
        n++;
    cr_assert_eq(n, n_expect + 1, "and NOEQUALS, but nothing more: %zu", n);
    for (size_t i = 0; i < n_expect; i++) {
        const char *value = get(env, expect[i][0]);

        cr_expect_not_null(value, "%s is missing", expect[i][0]);
        if (value != NULL)
            cr_expect_str_eq(value, expect[i][1], "%s=%s", expect[i][0], value);
    }
    plan_free_strings(env);
}

Test(plan, keeps_users_thread_count)
{
    static char *base[] = {(char *)"OMP_NUM_THREADS=8", (char *)"TORCH_NCCL_ASYNC_ERROR_HANDLING=3", NULL};
    static char *none[] = {NULL};
    struct plan p = make(OPTIONS_NPROC_COUNT, 2), alone = make(OPTIONS_NPROC_COUNT, 1);
    struct cdi_msg_assign a = {.world_size = 2};
    struct plan_rank r = {.assign = &a, .error_file = "", .flight = ""};
    char **env = plan_env(&p, &r, base);

    cr_assert_str_eq(get(env, "OMP_NUM_THREADS"), "8");
    cr_assert_str_eq(get(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
    plan_free_strings(env);
    env = plan_env(&alone, &r, none);
    cr_assert_null(get(env, "OMP_NUM_THREADS"), "one worker may use all threads");
    plan_free_strings(env);
}

Test(plan, a_cddprun_in_a_worker_does_not_write_to_our_files)
{
    static char *base[] = {(char *)"CDDP_TRACE=/t.json", (char *)"PET_REPORT=/r.html", (char *)"PET_STATUS_FD=7",
                           (char *)"PET_TEE=3",          (char *)"CDDP_TRACED=1",      NULL};
    const char *both[] = {"PET_REPORT", "CDDP_TRACE=/mine.json"};
    struct plan p = make(OPTIONS_NPROC_COUNT, 1);
    struct options o = *p.options;
    struct cdi_msg_assign a = {.world_size = 1};
    struct plan_rank r = {.assign = &a, .error_file = "", .flight = ""};
    char **env = plan_env(&p, &r, base);

    cr_assert(get(env, "CDDP_TRACE") == NULL && get(env, "PET_REPORT") == NULL && get(env, "PET_STATUS_FD") == NULL);
    cr_assert_str_eq(get(env, "PET_TEE"), "3", "as under torchrun");
    cr_assert_str_eq(get(env, "CDDP_TRACED"), "1");
    plan_free_strings(env);
    o.exports[0] = both[0];
    o.exports[1] = both[1];
    o.n_exports = 2;
    p.options = &o;
    env = plan_env(&p, &r, base);
    cr_assert_str_eq(get(env, "PET_REPORT"), "/r.html", "--export passes it on");
    cr_assert_str_eq(get(env, "CDDP_TRACE"), "/mine.json");
    cr_assert_null(get(env, "PET_STATUS_FD"));
    plan_free_strings(env);
}

Test(plan, python_prints_its_stack_when_it_crashes)
{
    static char *base[] = {(char *)"PYTHONFAULTHANDLER=", NULL}, *none[] = {NULL};
    struct plan p = make(OPTIONS_NPROC_COUNT, 1);
    struct cdi_msg_assign a = {.world_size = 1};
    struct plan_rank r = {.assign = &a, .error_file = "", .flight = ""};
    static char *commands[][2] = {{(char *)"/opt/venv/bin/python3.11", NULL}, {(char *)"./python_like/train", NULL}};
    char **env;

    p.interpreter[0] = "python3";
    env = plan_env(&p, &r, none);
    cr_assert_str_eq(get(env, "PYTHONFAULTHANDLER"), "1");
    plan_free_strings(env);
    env = plan_env(&p, &r, base);
    cr_assert_str_eq(get(env, "PYTHONFAULTHANDLER"), "", "the user's value stays");
    plan_free_strings(env);
    p.interpreter[0] = NULL;
    for (size_t i = 0; i < 2; i++) {
        p.command = commands[i];
        env = plan_env(&p, &r, none);
        cr_assert_eq(get(env, "PYTHONFAULTHANDLER") != NULL, i == 0);
        plan_free_strings(env);
    }
}

Test(plan, replaces_local_rank_in_arguments_only)
{
    struct plan p = make(OPTIONS_NPROC_COUNT, 2);
    char **args = plan_args(&p, 1);

    cr_assert_not_null(args);
    cr_assert_str_eq(args[0], "./train");
    cr_assert_str_eq(args[1], "--out=r1.txt");
    cr_assert_str_eq(args[2], "${local_rank}");
    cr_assert_str_eq(args[3], "$HOME $$ ${rank}");
    cr_assert_null(args[4]);
    plan_free_strings(args);
}

/* The words of worker `local_rank`'s command, with a blank between them. */
static const char *command_of(const struct plan *p, uint32_t local_rank)
{
    static char text[256];
    char **args = plan_args(p, local_rank);
    size_t n = 0;

    for (char **a = args; *a != NULL; a++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", a == args ? "" : " ", *a);
    plan_free_strings(args);
    return text;
}

Test(plan, runs_py_files_by_python)
{
    static char *script[] = {(char *)"train.py", (char *)"--lr=1", NULL}, *binary[] = {(char *)"./train.pyc", NULL};
    struct options o = asked;
    struct plan p;
    struct cdi_error err;

    o.nproc = 1;
    o.command = script;
    cr_assert_eq(plan_make(&p, &o, &alone, &box, "x", &err), CDDP_OK);
    cr_assert_str_eq(command_of(&p, 0), "python3 -u train.py --lr=1");
    cr_assert_str_eq(plan_program(&p), "python3");
    o.python_exec = "/env/bin/python";
    cr_assert_eq(plan_make(&p, &o, &alone, &box, "x", &err), CDDP_OK);
    cr_assert_str_eq(command_of(&p, 0), "/env/bin/python -u train.py --lr=1");
    o.module = true;
    cr_assert_eq(plan_make(&p, &o, &alone, &box, "x", &err), CDDP_OK);
    cr_assert_str_eq(command_of(&p, 0), "/env/bin/python -u -m train.py --lr=1");
    o.module = false;
    o.no_python = true;
    cr_assert_eq(plan_make(&p, &o, &alone, &box, "x", &err), CDDP_OK);
    cr_assert_str_eq(command_of(&p, 0), "train.py --lr=1");
    o.run_path = true;
    cr_assert_eq(plan_make(&p, &o, &alone, &box, "x", &err), CDDP_OK);
    cr_assert_str_eq(command_of(&p, 0), "/env/bin/python -u train.py --lr=1", "it wins over --no_python");
    o.run_path = false;
    o.no_python = false;
    o.command = binary;
    cr_assert_eq(plan_make(&p, &o, &alone, &box, "x", &err), CDDP_OK);
    cr_assert_str_eq(command_of(&p, 0), "./train.pyc");
    cr_assert_str_eq(plan_program(&p), "./train.pyc");
}

Test(plan, divides_world_size_evenly_among_nodes)
{
    struct options o = asked;
    struct endpoint three = {
        .min_nodes = 3, .max_nodes = 3, .n_nodes = 3, .node_rank = 0, .host = "10.0.0.1", .port = 29500};
    struct plan p;
    struct cdi_error err;

    o.command = train;
    o.nproc_given = false;
    o.world_size = 12;
    cr_assert_eq(plan_make(&p, &o, &three, &box, "x", &err), CDDP_OK);
    cr_assert_eq(p.n_procs, 4);
    o.world_size = 13;
    cr_assert_eq(plan_make(&p, &o, &three, &box, "x", &err), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "--world_size 13 cannot be divided evenly among 3 nodes; give --nproc_per_node instead");
}

/* One variable of a worker of a job of two. */
static void expect_env(const struct plan *p, uint32_t local_rank, const char *name, const char *value)
{
    struct cdi_msg_assign assign = {.world_size = 2, .n_nodes = 1, .master_addr = "127.0.0.1", .master_port = 1};
    struct plan_rank r = {.assign = &assign, .local_rank = local_rank, .error_file = "", .flight = ""};
    char *base[] = {(char *)"CUDA_VISIBLE_DEVICES=5,GPU-7", (char *)"A=old", NULL}, **env = plan_env(p, &r, base);

    cr_expect_str_eq(get(env, name), value, "%s", name);
    plan_free_strings(env);
}

Test(plan, exports_variables_and_virtual_local_rank)
{
    struct plan p;

    asked.exports[0] = "A=new";
    asked.exports[1] = "B=x=y";
    asked.exports[2] = "HOME";
    asked.n_exports = 3;
    p = make(OPTIONS_NPROC_COUNT, 2);
    expect_env(&p, 1, "A", "new");
    expect_env(&p, 1, "B", "x=y");
    expect_env(&p, 1, "LOCAL_RANK", "1");
    expect_env(&p, 1, "CUDA_VISIBLE_DEVICES", "5,GPU-7");
    expect_env(&p, 1, "TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
    asked.virtual_local_rank = true;
    asked.cuda_visible_devices = "5,GPU-7";
    expect_env(&p, 0, "CUDA_VISIBLE_DEVICES", "5");
    expect_env(&p, 1, "CUDA_VISIBLE_DEVICES", "GPU-7");
    expect_env(&p, 1, "LOCAL_RANK", "0");
    expect_env(&p, 1, "RANK", "1");
    asked.cuda_visible_devices = NULL;
    expect_env(&p, 1, "CUDA_VISIBLE_DEVICES", "1");
}

Test(plan, rejects_virtual_local_rank_with_too_few_gpus)
{
    struct options o = asked;
    struct plan p;
    struct cdi_error err;

    o.command = train;
    o.nproc = 3;
    o.virtual_local_rank = true;
    o.cuda_visible_devices = "5,7";
    cr_assert_eq(plan_make(&p, &o, &alone, &box, "x", &err), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "--virtual_local_rank gives each of the 3 workers one entry of "
                              "CUDA_VISIBLE_DEVICES='5,7', which has only 2");
    o.cuda_visible_devices = "";
    cr_assert_eq(plan_make(&p, &o, &alone, &box, "x", &err), CDDP_OK);
}

Test(plan, rejects_interactive_rank_out_of_range)
{
    struct endpoint two = {
        .min_nodes = 2, .max_nodes = 2, .n_nodes = 2, .node_rank = 0, .host = "10.0.0.1", .port = 29500};
    struct options o = asked;
    struct plan p;
    struct cdi_error err;

    o.command = train;
    o.nproc = 3;
    o.interactive = 2;
    cr_assert_eq(plan_make(&p, &o, &alone, &box, "x", &err), CDDP_OK);
    o.interactive = 3;
    cr_assert_eq(plan_make(&p, &o, &alone, &box, "x", &err), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "--interactive 3 is out of range for 3 ranks: 0 to 2");
    cr_assert_eq(plan_make(&p, &o, &two, &box, "x", &err), CDDP_OK);
}
