/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/error_file.h"

#include "common/env.h"
#include "worker/base/last_error.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define JSON_MAX (6 * CDI_ERROR_TEXT + 256) /* every byte as \u00xx */

static struct cdi_flight_note *note; /* it stays mapped */
static pid_t its_process;

static void note_error(const struct cdi_error *err)
{
    if (getpid() == its_process)
        cdi_flight_note_error(note, err);
}

void cdi_error_page_arm(struct cdi_flight *f)
{
    if (!cdi_flight_has_agent(f))
        return;
    cdi_last_error_tell(NULL); /* no call of note_error() is under way after it */
    cdi_flight_keep(f);
    note = cdi_flight_error_note(f);
    its_process = getpid();
    cdi_last_error_tell(note_error);
}

#ifdef __GLIBC__ /* on_exit(3) passes the status; elsewhere there is no way to get it */

static char path[PATH_MAX];
static pid_t process;

/* Appends text as the inside of a JSON string, with '?' for bytes outside of ASCII. Returns the new end. */
static size_t add_escaped(char *to, size_t at, const char *text)
{
    for (; *text != '\0' && at + 8 < JSON_MAX; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\') {
            to[at++] = '\\';
            to[at++] = (char)c;
        } else if (c < 0x20) {
            at += (size_t)snprintf(to + at, JSON_MAX - at, "\\u%04x", c);
        } else {
            to[at++] = (char)(c < 0x7f ? c : '?');
        }
    }
    return at;
}

static void error_file_write(int exit_status, cddp_status status, const char *text)
{
    static char json[JSON_MAX];
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    size_t n;
    ssize_t written;

    if (fd < 0)
        return;
    n = (size_t)snprintf(json, sizeof json, "{\"message\":{\"message\":\"%s: ", cddp_status_name(status));
    n = add_escaped(json, n, text);
    n += (size_t)snprintf(json + n, sizeof json - n, "\",\"extraInfo\":{\"timestamp\":\"%lld\",\"exitStatus\":%d}}}",
                          (long long)time(NULL), exit_status & 0xff);
    written = write(fd, json, n < sizeof json ? n : sizeof json - 1);
    (void)written;
    (void)close(fd);
}

static void error_file_at_exit(int exit_status, void *arg)
{
    struct cdi_error err;

    (void)arg;
    if (exit_status != 0 && getpid() == process && cdi_last_error_of_process(&err))
        error_file_write(exit_status, err.status, err.msg);
}

static void error_file_arm(void)
{
    const char *name = cdi_env_str("TORCHELASTIC_ERROR_FILE");

    if (name == NULL || strlen(name) >= sizeof path)
        return;
    (void)snprintf(path, sizeof path, "%s", name);
    process = getpid();
    (void)on_exit(error_file_at_exit, NULL);
}

void cdi_error_file_arm(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, error_file_arm);
}

#else

void cdi_error_file_arm(void)
{
}

#endif
