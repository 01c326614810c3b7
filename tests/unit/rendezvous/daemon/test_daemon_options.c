/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "rendezvous/daemon/options.h"

#include <stdlib.h>
#include <string.h>

CDI_SUITE(daemon_options);

static struct daemon_options o;
static struct cdi_error err;

static cddp_status parse(const char *a, const char *b)
{
    char *argv[] = {(char *)(uintptr_t) "cddp-rendezvous", (char *)(uintptr_t)a, (char *)(uintptr_t)b, NULL};

    return daemon_options_parse(&o, a == NULL ? 1 : b == NULL ? 2 : 3, argv, &err);
}

Test(daemon_options, has_defaults_without_flags)
{
    cr_assert_eq(parse(NULL, NULL), CDDP_OK);
    cr_assert_str_eq(o.bind, "*");
    cr_assert(o.what == DAEMON_RUN && o.port == 29400 && o.max_jobs == 64 && o.first_job_port == 0);
    cr_assert(o.plain_store == RDZV_ACCESS_AUTO && o.auth_token_file == NULL);
}

Test(daemon_options, parses_every_flag_in_every_spelling)
{
    cr_assert(parse("--bind", "::1") == CDDP_OK && strcmp(o.bind, "::1") == 0);
    cr_assert(parse("--port=0", "--job-ports=3-3") == CDDP_OK && o.port == 0);
    cr_assert(o.first_job_port == 3 && o.last_job_port == 3);
    cr_assert(parse("--job_ports", "1000-65535") == CDDP_OK && o.last_job_port == 65535);
    cr_assert(parse("--auth-token-file=/x", "--max_jobs=65535") == CDDP_OK && o.max_jobs == 65535);
    cr_assert_str_eq(o.auth_token_file, "/x");
    cr_assert(parse("--plain_store", "never") == CDDP_OK && o.plain_store == RDZV_ACCESS_NEVER);
    cr_assert(parse("--plain-store", "any") == CDDP_OK && o.plain_store == RDZV_ACCESS_ANY);
    cr_assert(parse("--http=never", "--max_connections=7") == CDDP_OK && o.http == RDZV_ACCESS_NEVER &&
              o.max_connections == 7);
    cr_assert(parse("--store_memory=3M", "--buffer_memory=9") == CDDP_OK && o.store.bytes == 3 << 20);
    cr_assert_eq(o.max_buffered, 9);
    cr_assert(parse("--max_key=1K", "--max_value=8M") == CDDP_OK && o.store.key == 1024 && o.store.value == 8 << 20);
    cr_assert(parse("--max_waits=12", "--store-memory=2G") == CDDP_OK && o.store.waits == 12 &&
              o.store.bytes >> 31 == 1);
    cr_assert(parse("-h", "--nonsense") == CDDP_OK && o.what == DAEMON_HELP);
    cr_assert(parse("--version", NULL) == CDDP_OK && o.what == DAEMON_VERSION);
}

static char *text_of(void (*write)(FILE *to))
{
    char *text = NULL;
    size_t size;
    FILE *mem = open_memstream(&text, &size);

    cr_assert_not_null(mem);
    write(mem);
    (void)fclose(mem);
    return text;
}

Test(daemon_options, help_man_page_and_completion_list_same_flags)
{
    static const char *const names[] = {"bind",          "port", "job_ports", "http", "max_connections",
                                        "buffer_memory", "help"};
    void (*const write[])(FILE *) = {daemon_options_usage, daemon_options_man, daemon_options_bash};
    const char *const dashes[] = {"--", "\\-\\-", "--"};

    for (size_t i = 0; i < sizeof write / sizeof write[0]; i++) {
        char *text = text_of(write[i]);

        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
            char flag[64];

            (void)snprintf(flag, sizeof flag, "%s%s", dashes[i], names[k]);
            cr_assert_not_null(strstr(text, flag), "%s is not in %s", flag, text);
        }
        free(text);
    }
}

Test(daemon_options, errors_name_the_flag)
{
    static const struct {
        const char *a, *b, *says;
    } cases[] = {
        {"--port", NULL, "--port needs a value: a port, 0 to 65535"},
        {"--port=65536", NULL, "--port is '65536'; it must be a port, 0 to 65535"},
        {"--port=-1", NULL, "--port is '-1'"},
        {"--port=99999999999999999999", NULL, "--port is '9999"},
        {"--port=12x", NULL, "--port is '12x'"},
        {"--port=", NULL, "--port is ''"},
        {"--bind=", NULL, "--bind is ''; it must be a name or an address"},
        {"--job_ports", "7", "--job_ports is '7'; it must be a range such as 29500-29599"},
        {"--job_ports=9-8", NULL, "--job_ports is '9-8'"},
        {"--job_ports=0-8", NULL, "--job_ports is '0-8'"},
        {"--job_ports=1-8-9", NULL, "--job_ports is '1-8-9'"},
        {"--plain_store=maybe", NULL, "it must be auto, never or any"},
        {"--max_jobs=0", NULL, "--max_jobs is '0'; it must be a number, 1 to 65535"},
        {"--auth_token_file=", NULL, "it must be a path"},
        {"--max_value=9M", NULL, "--max_value is '9M'; it must be a number of bytes up to 8M"},
        {"--max_key=1T", NULL, "--max_key is '1T'"},
        {"--store_memory=9999999999G", NULL, "--store_memory is '9999999999G'"},
        {"--store_memory=1MM", NULL, "it must be a number of bytes, such as 512M"},
        {"--max_waits=0", NULL, "it must be a number, 1 or more"},
        {"--max_connections=x", NULL, "it must be a number, 1 or more"},
        {"--http=yes", NULL, "it must be auto, never or any"},
        {"--help=1", NULL, "--help takes no value"},
        {"--nonsense", NULL, "unknown flag --nonsense; see --help"},
        {"nonsense", NULL, "unexpected argument 'nonsense'; see --help"},
        {"--a-flag-that-is-longer-than-any-that-there-could-ever-be", NULL, "unknown flag --a-flag"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(parse(cases[i].a, cases[i].b), CDDP_E_INVALID, "%s", cases[i].a);
        cr_assert_not_null(strstr(err.msg, cases[i].says), "%s says: %s", cases[i].a, err.msg);
    }
}
