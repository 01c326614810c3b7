/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/cli/help.h"
#include "launcher/cli/parse.h"

#include <string.h>

CDI_SUITE(options);

/* A fake environment: "NAME=value" strings up to NULL. */
static const char *fake_env(const char *name, void *arg)
{
    size_t n = strlen(name);

    for (const char *const *e = arg; e != NULL && *e != NULL; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
            return *e + n + 1;
    return NULL;
}

static cddp_status parse_env(struct options *o, struct cdi_error *err, const char **env, const char **words)
{
    static char *argv[32];
    int argc = 0;

    argv[argc++] = (char *)"cddprun";
    for (; *words != NULL; words++)
        argv[argc++] = (char *)*words;
    argv[argc] = NULL;
    return options_parse(o, argc, argv, fake_env, env, err);
}

#define PARSE(o, err, ...) parse_env(o, err, NULL, (const char *[]){__VA_ARGS__, NULL})

Test(options, every_flag_has_a_default)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "./train"), CDDP_OK);
    cr_assert_eq(o.what, OPTIONS_RUN);
    cr_assert_eq(o.nproc_kind, OPTIONS_NPROC_COUNT);
    cr_assert_eq(o.nproc, 1);
    cr_assert_eq(o.min_nodes, 1);
    cr_assert_eq(o.max_nodes, 1);
    cr_assert_eq(o.max_restarts, 0);
    cr_assert_eq(o.master_port, -1);
    cr_assert_eq(o.node_rank, -1);
    cr_assert_null(o.master_addr);
    cr_assert_null(o.run_id);
    cr_assert_not(o.standalone);
    cr_assert_eq(o.on_failure, OPTIONS_STOP);
    cr_assert(o.on_hang == OPTIONS_HANG_STOP && o.hang_warning_ms == 30000 && o.hang_timeout_ms == 600000);
    cr_assert_str_eq(o.role, "default");
    cr_assert_str_eq(o.tmpdir, "/tmp");
    cr_assert_str_eq(o.command[0], "./train");
    cr_assert_null(o.command[1]);
}

Test(options, reads_both_spellings_and_value_forms)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "--nproc-per-node", "3", "--max_restarts=2", "--master_addr=10.0.0.1",
                       "--master-port=29500", "--rdzv-id=run7", "--role", "trainer", "--standalone", "a"),
                 CDDP_OK);
    cr_assert_eq(o.nproc, 3);
    cr_assert_eq(o.max_restarts, 2);
    cr_assert_str_eq(o.master_addr, "10.0.0.1");
    cr_assert_eq(o.master_port, 29500);
    cr_assert_str_eq(o.run_id, "run7");
    cr_assert_str_eq(o.role, "trainer");
    cr_assert(o.standalone);
}

Test(options, words_after_program_are_its_arguments)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "--nproc_per_node=2", "./train", "--max_restarts=9", "--", "-x"), CDDP_OK);
    cr_assert_eq(o.max_restarts, 0);
    cr_assert_str_eq(o.command[1], "--max_restarts=9");
    cr_assert_str_eq(o.command[2], "--");
    cr_assert_str_eq(o.command[3], "-x");
    cr_assert_null(o.command[4]);
}

Test(options, two_dashes_end_flags)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "--standalone", "--", "--odd-program", "x"), CDDP_OK);
    cr_assert_str_eq(o.command[0], "--odd-program");
}

Test(options, reads_words_for_worker_count)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "--nproc_per_node=cpu", "a"), CDDP_OK);
    cr_assert_eq(o.nproc_kind, OPTIONS_NPROC_CPU);
    cr_assert_eq(PARSE(&o, &err, "--nproc_per_node=gpu", "a"), CDDP_OK);
    cr_assert_eq(o.nproc_kind, OPTIONS_NPROC_GPU);
    cr_assert_eq(PARSE(&o, &err, "--nproc_per_node=auto", "a"), CDDP_OK);
    cr_assert_eq(o.nproc_kind, OPTIONS_NPROC_AUTO);
}

Test(options, command_line_overrides_variables)
{
    struct options o;
    struct cdi_error err;
    const char *env[] = {"PET_NPROC_PER_NODE=4",
                         "PET_MAX_RESTARTS=1",
                         "PET_STANDALONE=1",
                         "LOGLEVEL=INFO",
                         "CUDA_VISIBLE_DEVICES=",
                         "TMPDIR=/scratch",
                         NULL};

    cr_assert_eq(parse_env(&o, &err, env, (const char *[]){"--max_restarts=5", "a", NULL}), CDDP_OK);
    cr_assert_eq(o.nproc, 4);
    cr_assert_eq(o.max_restarts, 5);
    cr_assert(o.standalone);
    cr_assert_str_eq(o.log_level, "INFO");
    cr_assert_str_eq(o.cuda_visible_devices, "");
    cr_assert_str_eq(o.tmpdir, "/scratch");
}

Test(options, bad_value_error_names_flag_or_variable)
{
    static const struct {
        const char *word, *expect;
    } bad[] = {
        {"--nproc_per_node=0", "--nproc_per_node '0' is neither"},
        {"--nproc_per_node=-1", "--nproc_per_node '-1' is neither"},
        {"--nproc_per_node=two", "--nproc_per_node 'two' is neither"},
        {"--nproc_per_node=", "--nproc_per_node '' is neither"},
        {"--nproc_per_node=4097", "--nproc_per_node '4097' is neither"},
        {"--nproc_per_node=99999999999999999999", "is neither"},
        {"--max-restarts=-1", "--max_restarts '-1' is not a whole number from 0"},
        {"--master_port=65536", "--master_port '65536' is not a whole number from 0 to 65535"},
        {"--master_port=http", "--master_port 'http'"},
        {"--nnodes=1:2:3", "--nnodes '1:2:3' is neither"},
        {"--nnodes=2:1", "--nnodes '2:1' has a MIN larger than its MAX"},
        {"--nnodes=x", "--nnodes 'x' is neither"},
        {"--nnodes=:", "--nnodes ':' is neither"},
        {"--role=", "--role '' is empty"},
        {"--on_failure=go", "--on_failure 'go' is neither stop nor wait"},
        {"--standalone=yes", "--standalone takes no value, but was given 'yes'"},
        {"--nproc_per_node=xpu", "--nproc_per_node 'xpu' is neither"},
        {"--redirects=4", "--redirects '4' is neither 0 (none)"},
        {"-r0:4", "--redirects '0:4' is neither"},
        {"-t=", "--tee '' is neither"},
        {"--tee=0:1,", "--tee '0:1,' is neither"},
        {"--local_ranks_filter=0,x", "--local_ranks_filter '0,x' is not a list of numbers, such as 0,4"},
        {"--no_restart_codes=2;3", "--no_restart_codes '2;3' is not a list of numbers"},
        {"--signals-to-handle=SIGFOO", "'SIGFOO' is not a signal"},
        {"--signals-to-handle=SIGTERM,SIGKILL", "SIGKILL cannot be used"},
        {"--shutdown_timeout=-1", "--shutdown_timeout '-1' is not a number of seconds from 0 to 86400"},
        {"--shutdown_timeout=.", "--shutdown_timeout '.' is not"},
        {"--shutdown_timeout=1.2.3", "--shutdown_timeout '1.2.3' is not"},
        {"--monitor_interval=inf", "--monitor_interval 'inf' is not"},
        {"--start_method=fork", "--start_method 'fork' is not spawn; torchrun's other methods"},
        {"--event_log_handler=console", "--event_log_handler 'console' is not null; --status_fd=2"},
        {"--status_fd=0", "--status_fd '0' is not a whole number from 1"},
        {"--interactive=-1", "--interactive '-1' is not a whole number from 0"},
        {"--log_dir=", "--log_dir '' is empty"},
        {"--hosts=", "--hosts '' is empty"},
        {"--hostfile=", "--hostfile '' is empty"},
        {"--spares=-1", "--spares '-1' is not"},
        {"-n0", "--world_size '0' is not a whole number from 1"},
        {"-x==1", "--export '=1' has no name"},
        {"-xCDDP_NOT_SET", "--export 'CDDP_NOT_SET': no such variable is set; give a value (CDDP_NOT_SET=VALUE)"},
    };
    struct options o;
    struct cdi_error err;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(PARSE(&o, &err, bad[i].word, "a"), CDDP_E_INVALID, "%s", bad[i].word);
        cr_expect_not_null(strstr(err.msg, bad[i].expect), "%s: %s", bad[i].word, err.msg);
    }
    cr_assert_eq(parse_env(&o, &err, (const char *[]){"PET_STANDALONE=true", NULL}, (const char *[]){"a", NULL}),
                 CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "PET_STANDALONE 'true' is neither 0 nor 1");
}

Test(options, host_of_a_hosts_job_starts_no_hosts)
{
    const char *env[] = {"CDDP_REMOTE=1", "PET_HOSTFILE=f", NULL};
    struct options o;
    struct cdi_error err;

    cr_assert_eq(parse_env(&o, &err, env, (const char *[]){"--hosts=a,b", "a", NULL}), CDDP_OK);
    cr_assert(o.remote && o.hosts == NULL && o.hostfile == NULL);
}

Test(options, nnodes_is_number_or_range)
{
    struct options o;
    struct cdi_error err;
    const char *env[] = {"MASTER_ADDR=10.0.0.7", "MASTER_PORT=", NULL};

    cr_assert_eq(parse_env(&o, &err, env,
                           (const char *[]){"--nnodes=2", "--node-rank=1", "--rdzv-backend=c10d", "--rdzv_endpoint=a:1",
                                            "--rdzv_conf=is_host=0", "--local-addr=b", "a", NULL}),
                 CDDP_OK);
    cr_assert_eq(o.min_nodes, 2);
    cr_assert_eq(o.max_nodes, 2);
    cr_assert_eq(o.node_rank, 1);
    cr_assert_str_eq(o.rdzv_backend, "c10d");
    cr_assert_str_eq(o.rdzv_endpoint, "a:1");
    cr_assert_str_eq(o.rdzv_conf, "is_host=0");
    cr_assert_str_eq(o.local_addr, "b");
    cr_assert_str_eq(o.env_master_addr, "10.0.0.7");
    cr_assert_null(o.env_master_port);
    cr_assert_eq(PARSE(&o, &err, "--nnodes=1:4", "--spares=2", "--topology=rack7", "a"), CDDP_OK);
    cr_assert(o.min_nodes == 1 && o.max_nodes == 4 && o.spares == 2);
    cr_assert_str_eq(o.topology, "rack7");
    cr_assert_eq(PARSE(&o, &err, "--nnodes=2:", "a"), CDDP_OK);
    cr_assert(o.nnodes_given && o.min_nodes == 2 && o.max_nodes == OPTIONS_NODES_AUTO);
    cr_assert_eq(PARSE(&o, &err, "--nnodes=3:auto", "a"), CDDP_OK);
    cr_assert(o.min_nodes == 3 && o.max_nodes == OPTIONS_NODES_AUTO);
    cr_assert_eq(PARSE(&o, &err, "--nnodes=auto", "a"), CDDP_E_INVALID);
    cr_assert_eq(PARSE(&o, &err, "--nnodes=1:1", "a"), CDDP_OK);
    cr_assert_eq(PARSE(&o, &err, "-n8", "--nnodes=1:4", "a"), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "--world_size 8 fixes the number of workers"), "%s", err.msg);
}

Test(options, unknown_flag_suggests_nearest)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "--nproc_pre_node=2", "a"), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "unknown flag '--nproc_pre_node=2'; did you mean --nproc_per_node?");
    cr_assert_eq(PARSE(&o, &err, "--stand-alone", "a"), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "did you mean --standalone?"), "%s", err.msg);
    cr_assert_eq(PARSE(&o, &err, "-q", "2", "a"), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "unknown flag '-q'; see cddprun --help");
    cr_assert_eq(PARSE(&o, &err, "--num-processes=4", "a"), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "unknown flag '--num-processes=4': use --world_size (-n) for all nodes together, or "
                              "--nproc_per_node for each node");
    cr_assert_eq(PARSE(&o, &err, "--bind-to", "core", "a"), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "--numa_binding"), "%s", err.msg);
    cr_assert_eq(PARSE(&o, &err, "--ntasks-per-node=2", "a"), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "unknown flag '--ntasks-per-node=2': use --nproc_per_node (-ppn)");
    cr_assert_eq(PARSE(&o, &err, "--mca", "btl", "self", "a"), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "remove it and its two values"), "%s", err.msg);
    cr_assert_eq(PARSE(&o, &err, "--zzzzzzzzzzzzzz", "a"), CDDP_E_INVALID);
    cr_assert_null(strstr(err.msg, "did you mean"), "%s", err.msg);
}

Test(options, short_flags_of_other_launchers_get_hint)
{
    static const char *const hints[][2] = {{"-H", "--hosts a:8,b:8 starts"},
                                           {"-N", "use -ppn"},
                                           {"-c", "use -n for"},
                                           {"-v", "LOGLEVEL=info"},
                                           {"-V", "use --version"},
                                           {"-mca", "remove it and its two values"},
                                           {"-N4", "see cddprun --help"},
                                           {"-C", "see cddprun --help"},
                                           {"-nproc_per_node=2", "did you mean --nproc_per_node?"},
                                           {"-nnodes", "did you mean --nnodes?"}};
    struct options o;
    struct cdi_error err;

    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        cr_expect_eq(PARSE(&o, &err, (char *)hints[i][0], "a"), CDDP_E_INVALID, "%s", hints[i][0]);
        cr_expect_not_null(strstr(err.msg, hints[i][1]), "%s: %s", hints[i][0], err.msg);
    }
}

Test(options, number_may_follow_long_short_form)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "-np8", "-ppn4", "a"), CDDP_OK, "%s", err.msg);
    cr_assert_eq(o.world_size, 8);
    cr_assert_eq(o.nproc, 4);
    cr_assert_eq(PARSE(&o, &err, "-n8", "-xPATH=1", "a"), CDDP_OK, "%s", err.msg);
    cr_assert_eq(o.world_size, 8);
    cr_assert_eq(PARSE(&o, &err, "-npx", "a"), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "--world_size 'px'"), "%s", err.msg);
}

Test(options, error_message_stays_one_line)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "-\n\033[2J", "a"), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "unknown flag '-??[2J'; see cddprun --help");
}

Test(options, accepts_unambiguous_prefixes)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "--nproc=2", "a"), CDDP_OK);
    cr_assert_eq(o.nproc, 2);
    cr_assert_eq(PARSE(&o, &err, "--stand", "--mod", "--on_f", "wait", "a"), CDDP_OK);
    cr_assert(o.standalone && o.module && o.on_failure == OPTIONS_WAIT);
    cr_assert_eq(PARSE(&o, &err, "--h"), CDDP_OK);
    cr_assert_eq(o.what, OPTIONS_HELP);
    cr_assert_eq(PARSE(&o, &err, "--master=2", "a"), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "--master is ambiguous: --master_addr, --master_port; write more of its name");
    cr_assert_eq(PARSE(&o, &err, "--rdzv-=2", "a"), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "--rdzv_ is ambiguous: --rdzv_id, --rdzv_endpoint"), "%s", err.msg);
}

Test(options, reports_missing_value_or_program)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "--nproc_per_node"), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "--nproc_per_node needs a value (N|cpu|gpu|auto)");
    cr_assert_eq(PARSE(&o, &err, "--standalone"), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "no program"), "%s", err.msg);
    cr_assert_eq(PARSE(&o, &err, ""), CDDP_E_INVALID);
    cr_assert_eq(PARSE(&o, &err, "--"), CDDP_E_INVALID);
}

Test(options, help_and_version_need_no_program)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "--help"), CDDP_OK);
    cr_assert_eq(o.what, OPTIONS_HELP);
    cr_assert_eq(PARSE(&o, &err, "-h"), CDDP_OK);
    cr_assert_eq(o.what, OPTIONS_HELP);
    cr_assert_eq(PARSE(&o, &err, "--version"), CDDP_OK);
    cr_assert_eq(o.what, OPTIONS_VERSION);
}

Test(options, help_shows_every_flag_with_its_variable)
{
    static const char *const expect[] = {"--nproc_per_node=N|cpu|gpu|auto, -ppn N|cpu|gpu|auto   or PET_NPROC_PER_NODE",
                                         "--standalone", "--master_addr=ADDRESS", "--max_restarts=N", "PET_RDZV_ID"};
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    help_usage(f);
    (void)fclose(f);
    for (size_t i = 0; i < sizeof expect / sizeof expect[0]; i++)
        cr_expect_not_null(strstr(text, expect[i]), "%s is missing", expect[i]);
    free(text);
}

Test(options, accepts_short_forms_of_torchrun_and_mpirun)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "-n", "4", "-x", "A=1", "-xB=x=y", "-m", "pkg.train"), CDDP_OK);
    cr_assert_eq(o.world_size, 4);
    cr_assert_not(o.nproc_given || o.nnodes_given);
    cr_assert_eq(o.n_exports, 2);
    cr_assert_str_eq(o.exports[0], "A=1");
    cr_assert_str_eq(o.exports[1], "B=x=y");
    cr_assert(o.module);
    cr_assert_eq(PARSE(&o, &err, "-np=8", "-ppn", "4", "a"), CDDP_OK);
    cr_assert_eq(o.nproc, 4);
    cr_assert_eq(o.max_nodes, 2, "8 workers, 4 on each machine");
    cr_assert(o.nnodes_given);
    cr_assert_eq(PARSE(&o, &err, "-n8", "-ppn=3", "a"), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "--world_size 8 cannot be divided into nodes with --nproc_per_node 3");
    cr_assert_eq(PARSE(&o, &err, "-n8", "-ppn=4", "--nnodes=3", "a"), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "--world_size 8 contradicts --nnodes and --nproc_per_node 4; remove one of them");
}

Test(options, export_without_value_must_be_set)
{
    struct options o;
    struct cdi_error err;
    const char *env[] = {"PATH=/bin", NULL};

    cr_assert_eq(parse_env(&o, &err, env, (const char *[]){"-x", "PATH", "a", NULL}), CDDP_OK);
    cr_assert_str_eq(o.exports[0], "PATH");
}

Test(options, refuses_unsupported_flags)
{
    static const char *const words[] = {"--logs_specs=mine"};
    struct options o;
    struct cdi_error err;
    const char *env[] = {"PET_REDIRECTS=0", "PET_LOCAL_RANKS_FILTER=", "PET_RDZV_ENDPOINT=", NULL};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        cr_expect_eq(PARSE(&o, &err, words[i], "a"), CDDP_E_UNSUPPORTED, "%s", words[i]);
    cr_assert_eq(PARSE(&o, &err, "--logs-specs=mine", "a"), CDDP_E_UNSUPPORTED);
    cr_assert_str_eq(err.msg,
                     "--logs_specs 'mine': it names a Python class of torchrun; use --log_dir, --redirects and "
                     "--tee");
    cr_assert_eq(parse_env(&o, &err, env, (const char *[]){"--spares=0", "a", NULL}), CDDP_OK,
                 "a value without effect is accepted");
    cr_assert_null(o.rdzv_endpoint);
    cr_assert_null(o.local_ranks_filter);
}

Test(options, file_flags_need_log_dir)
{
    static const char *const words[] = {"-r3", "--redirects=0:0,2:1", "--duplicate_stdout_filters=a",
                                        "--duplicate_stderr_filters=a"};
    struct options o;
    struct cdi_error err;

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        cr_expect_eq(PARSE(&o, &err, words[i], "a"), CDDP_E_INVALID, "%s", words[i]);
        cr_expect_not_null(strstr(err.msg, "writes files, but no directory is given; add --log_dir"), "%s", err.msg);
        cr_expect_eq(PARSE(&o, &err, words[i], "--log_dir=/x", "a"), CDDP_OK, "%s", words[i]);
    }
    cr_assert_eq(PARSE(&o, &err, "--redirects=0:0", "--tee=3", "a"), CDDP_OK);
}

Test(options, rejects_contradictory_python_flags)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "-m", "--no-python", "a"), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "remove one of them"), "%s", err.msg);
    cr_assert_eq(PARSE(&o, &err, "-m", "--run-path", "a"), CDDP_E_INVALID);
    cr_assert_eq(PARSE(&o, &err, "--run-path", "--no-python", "a"), CDDP_OK, "as with torchrun, --run_path wins");
    cr_assert_eq(PARSE(&o, &err, "--start-method=spawn", "--event_log_handler", "null", "--monitor-interval=5", "a"),
                 CDDP_OK);
    cr_assert_eq(o.monitor_interval_ms, 5000);
}

Test(options, ending_signals_have_torchruns_default)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "a"), CDDP_OK);
    cr_assert_eq(o.signals, 1u << 14 | 1u << 1 | 1u << 0 | 1u << 2);
    cr_assert_str_eq(o.signals_to_handle, "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
    cr_assert_eq(o.shutdown_timeout_ms, -1);
    cr_assert_eq(o.status_fd, -1);
    cr_assert_eq(o.interactive, -1);
    cr_assert_eq(o.world_size, -1);
}

Test(options, top_needs_no_program_and_takes_none)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "--top=node1:29400"), CDDP_OK);
    cr_assert_eq(o.what, OPTIONS_TOP);
    cr_assert_str_eq(o.top, "node1:29400");
    cr_assert_eq(PARSE(&o, &err, "--top", "node1", "./train"), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "remove the program './train'"));
    cr_assert_eq(PARSE(&o, &err, "--top="), CDDP_E_INVALID);
}

Test(options, report_and_progress_are_off_unless_asked_for)
{
    struct options o;
    struct cdi_error err;

    cr_assert_eq(PARSE(&o, &err, "./train"), CDDP_OK);
    cr_assert_null(o.report);
    cr_assert_not(o.progress);
    cr_assert_eq(PARSE(&o, &err, "--progress", "--report=r.html", "./train"), CDDP_OK);
    cr_assert_str_eq(o.report, "r.html");
    cr_assert(o.progress);
    cr_assert_eq(PARSE(&o, &err, "--report=", "./train"), CDDP_E_INVALID);
}
