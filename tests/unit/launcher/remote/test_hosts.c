/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/remote/hosts.h"

#include <stdlib.h>
#include <string.h>

CDI_SUITE(hosts);

static struct cdi_error err;
static struct hosts h;

static cddp_status parse(const char *list)
{
    struct options o = {.hosts = list, .node_rank = -1, .world_size = -1};

    return hosts_parse(&h, &o, NULL, &err);
}

Test(hosts, parses_names_and_numbers)
{
    cr_assert_eq(parse("a:8,user@b.cluster,[fe80::1]:2,fe80::2,10.0.0.1:1"), CDDP_OK);
    cr_assert_eq(h.n, 5);
    cr_assert_str_eq(h.v[0].name, "a");
    cr_assert_eq(h.v[0].n_procs, 8);
    cr_assert_str_eq(h.v[1].name, "user@b.cluster");
    cr_assert_str_eq(hosts_address(&h.v[1]), "b.cluster");
    cr_assert_eq(h.v[1].n_procs, 0);
    cr_assert_str_eq(h.v[2].name, "fe80::1");
    cr_assert_eq(h.v[2].n_procs, 2);
    cr_assert_str_eq(h.v[3].name, "fe80::2");
    cr_assert_str_eq(h.v[4].name, "10.0.0.1");
    free(h.v);
}

Test(hosts, error_names_invalid_host)
{
    static const char *const bad[] = {"",    ",",   "a,", ",a", "a:0", "a:", "a:x", "a:4097", ":8", "-oProxyCommand=x",
                                      "a b", "[]:1"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(parse(bad[i]), CDDP_E_INVALID, "'%s'", bad[i]);
        cr_expect_not_null(strstr(err.msg, "is not HOST or HOST:N"), "%s", err.msg);
    }
}

static cddp_status parse_file(const char *text, int64_t nproc)
{
    struct options o = {
        .hostfile = "F", .node_rank = -1, .world_size = -1, .nproc = nproc, .nproc_given = nproc > 0, .min_nodes = 1};

    return hosts_parse(&h, &o, text, &err);
}

Test(hosts, reads_a_hostfile_of_open_mpi)
{
    cr_assert_eq(
        parse_file("# nodes\n\nnode1 slots=4 # two GPUs\n  user@node2\tmax_slots=9 slots=2\r\nnode3\nfe80::1 slots=1",
                   0),
        CDDP_OK, "%s", err.msg);
    cr_assert_eq(h.n, 4);
    cr_assert_str_eq(h.v[0].name, "node1");
    cr_assert_eq(h.v[0].n_procs, 4);
    cr_assert_str_eq(h.v[1].name, "user@node2");
    cr_assert_eq(h.v[1].n_procs, 2);
    cr_assert_eq(h.v[2].n_procs, 0, "as --nproc_per_node says");
    cr_assert_str_eq(h.v[3].name, "fe80::1");
    free(h.v);
    cr_assert_eq(parse_file("a\nb\na\na\n", 0), CDDP_OK);
    cr_assert_eq(h.n, 2);
    cr_assert_eq(h.v[0].n_procs, 3, "a repeated line is one more worker");
    free(h.v);
}

/* The lexer of Open MPI (hostfile_lex.l) skips spaces around '='; max-slots is its other spelling. */
Test(hosts, reads_spaces_around_the_equals_sign)
{
    static const int64_t want[] = {2, 3, 5, 6};

    cr_assert_eq(
        parse_file("a slots = 2\nb slots= 3 max-slots\t=\t4\r\nc slots =5# five\n d max_slots = 9 slots = 6", 0),
        CDDP_OK, "%s", err.msg);
    cr_assert_eq(h.n, 4);
    for (uint32_t i = 0; i < h.n; i++) {
        cr_expect_eq(h.v[i].n_procs, want[i], "%s", h.v[i].name);
        cr_expect(h.v[i].has_slots);
    }
    free(h.v);
}

/* MPICH's Hydra (HYDU_process_mfile_token). */
Test(hosts, reads_a_hostfile_of_mpich)
{
    static const int64_t want[] = {2, 3, 1, 4, 0, 0};

    cr_assert_eq(parse_file("a:2\n  user@b:3 # three\n10.0.0.1:1\r\n[fe80::1]:4\nfe80::2\nc", 0), CDDP_OK, "%s",
                 err.msg);
    cr_assert_eq(h.n, 6);
    cr_assert_str_eq(h.v[0].name, "a");
    cr_assert_str_eq(h.v[1].name, "user@b");
    cr_assert_str_eq(h.v[3].name, "fe80::1");
    cr_assert_str_eq(h.v[4].name, "fe80::2");
    for (uint32_t i = 0; i < h.n; i++) {
        cr_expect_eq(h.v[i].n_procs, want[i], "%s", h.v[i].name);
        cr_expect_eq(h.v[i].has_slots, i < 4);
    }
    free(h.v);
    cr_assert_eq(parse_file("a:4\n", 5), CDDP_E_INVALID, "--nproc_per_node is at most that");
}

Test(hosts, nproc_per_node_is_at_most_the_slots)
{
    cr_assert_eq(parse_file("a slots=4\nb slots=8\n", 4), CDDP_OK);
    cr_assert_eq(h.v[1].n_procs, 0, "the flag, which every host gets");
    free(h.v);
    cr_assert_eq(parse_file("a slots=4\nb slots=8\n", 5), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "--hostfile 'F': 'a' has 4 slots, fewer than --nproc_per_node 5; change one of them");
}

Test(hosts, error_names_the_line_of_a_hostfile)
{
    static const char *const bad[][2] = {
        {"a slots=0", "line 1: 'a slots=0' is not HOST"},
        {"a\nb slots=x # c", "line 2: 'b slots=x ' is not HOST"},
        {"a slots=1 slots=2", "line 1"},
        {"a slots", "line 1: 'a slots' is not HOST"},
        {"a slots =", "line 1"},
        {"a slots = = 2", "line 1"},
        {"a slots\n= 2", "line 1"},
        {"a = 2", "line 1"},
        {"a slotsmax=2", "line 1"},
        {"a slots=2x", "line 1"},
        {"a:0", "line 1: 'a:0' is not HOST"},
        {"a:x", "line 1"},
        {"a:2 slots=2", "line 1"},
        {"a:1\na:2", "'a' has slots in more than one line"},
        {"a cores=2", "line 1"},
        {"-oX=y", "line 1"},
        {"# none\n", "has no host"},
        {"a slots=1\na slots=2", "'a' has slots in more than one line"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(parse_file(bad[i][0], 0), CDDP_E_INVALID, "'%s'", bad[i][0]);
        cr_expect_not_null(strstr(err.msg, bad[i][1]), "%s", err.msg);
    }
}

Test(hosts, script_is_one_quoted_line_for_sh)
{
    char *flags[] = {(char *)"--hosts", (char *)"a:2,b"}, *command[] = {(char *)"./it's", (char *)"$x", NULL};
    char *env[] = {(char *)"PET_ROLE=a b", NULL};
    struct hosts_job job = {.hosts = &h,
                            .flags = flags,
                            .n_flags = 2,
                            .command = command,
                            .env = env,
                            .program = "/usr/bin/cddprun",
                            .directory = "/my dir",
                            .master_addr = "a",
                            .master_port = 7};
    struct cdi_buf line;

    cr_assert_eq(parse("a:2,b"), CDDP_OK);
    cdi_buf_init(&line, 0);
    cr_assert_eq(hosts_script(&line, &job, 0), CDDP_OK);
    cr_assert_eq(cdi_buf_append(&line, "", 1), CDDP_OK);
    cr_assert_str_eq((const char *)cdi_buf_data(&line),
                     "cd '/my dir' && exec env CDDP_REMOTE=1 'PET_ROLE=a b' '/usr/bin/cddprun' '--hosts' 'a:2,b' "
                     "'--nnodes=2' '--node_rank=0' '--nproc_per_node=2' '--master_addr=a' '--master_port=7' "
                     "'--local_addr=a' '--' './it'\\''s' '$x'; exit\n");
    cdi_buf_consume(&line, line.len);
    cr_assert_eq(hosts_script(&line, &job, 1), CDDP_OK);
    cr_assert_eq(cdi_buf_append(&line, "", 1), CDDP_OK);
    cr_assert_null(strstr((const char *)cdi_buf_data(&line), "--nproc_per_node"), "as the user's flag says");
    cdi_buf_release(&line);
    free(h.v);
}
