/* SPDX-License-Identifier: Apache-2.0 */
/* A program named py-spy on PATH that is not py-spy. */
#include "hygiene.h"
#include "launcher/process/py_spy.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64], file[128];
static struct cdi_buf out;

static void begin(void)
{
    hygiene_begin();
    (void)snprintf(dir, sizeof dir, "/tmp/cdi-py-spy-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    (void)snprintf(file, sizeof file, "%s/py-spy", dir);
    cdi_buf_init(&out, 0);
}

static void end(void)
{
    cdi_buf_release(&out);
    (void)unlink(file);
    (void)rmdir(dir);
    hygiene_end();
}

TestSuite(py_spy, .init = begin, .fini = end);

static cddp_status dump(const char *script, uint32_t timeout_ms)
{
    char path[256];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s:/usr/bin:/bin", dir);
    (void)setenv("PATH", script == NULL ? dir : path, 1);
    if (script != NULL) {
        f = fopen(file, "we");
        cr_assert_not_null(f);
        (void)fprintf(f, "#!/bin/sh\n%s\n", script);
        (void)fclose(f);
        (void)chmod(file, 0700);
    }
    return py_spy_dump(77, timeout_ms, &out);
}

static const char *text(void)
{
    static char said[256];

    (void)snprintf(said, sizeof said, "%.*s", (int)out.len, (const char *)cdi_buf_data(&out));
    return said;
}

Test(py_spy, passes_on_what_it_prints)
{
    cr_assert_eq(dump("echo \"$@\"; printf 'a\\033b'", 60000), CDDP_OK);
    cr_assert_str_eq(text(), "dump --pid 77 --nonblocking\na?b");
    cr_assert(waitpid(-1, NULL, WNOHANG) < 0, "no child is left");
}

Test(py_spy, is_asked_again_without_the_flag_that_old_ones_lack)
{
    cr_assert_eq(dump("[ $# = 3 ] && echo \"$@\"", 60000), CDDP_OK);
    cr_assert_str_eq(text(), "dump --pid 77\n");
}

Test(py_spy, a_missing_or_failing_one_is_not_found)
{
    cr_assert_eq(dump(NULL, 60000), CDDP_E_NOT_FOUND);
    cr_assert_eq(dump("echo no >&2; exit 1", 60000), CDDP_E_NOT_FOUND);
    cr_assert_eq(out.len, 0);
}

Test(py_spy, one_that_hangs_is_killed)
{
    cr_assert_eq(dump("echo something; exec sleep 1000", 200), CDDP_E_TIMEOUT);
    cr_assert_eq(out.len, 0);
    cr_assert(waitpid(-1, NULL, WNOHANG) < 0, "no child is left");
    cr_assert_eq(dump("echo all; exec >&-; exec sleep 1000", 60000), CDDP_OK);
    cr_assert_str_eq(text(), "all\n");
    cr_assert(waitpid(-1, NULL, WNOHANG) < 0, "no child is left");
}

Test(py_spy, long_output_is_cut)
{
    cr_assert_eq(dump("head -c 1000000 /dev/zero", 60000), CDDP_OK);
    cr_assert_eq(out.len, 65536);
}
