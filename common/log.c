/* SPDX-License-Identifier: Apache-2.0 */
#include "common/log.h"

#include "common/visible.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const char *const level_names[] = {"debug", "info", "warning", "error", "off"};

static atomic_int threshold = CDI_LOG_WARN;
static const char *_Atomic program = "cddp";
static cdi_log_sink the_sink;
static void *the_sink_arg;

void cdi_log_set_sink(cdi_log_sink sink, void *arg)
{
    the_sink = sink;
    the_sink_arg = arg;
}

void cdi_log_set_level(enum cdi_log_level level)
{
    atomic_store(&threshold, (int)level);
}

enum cdi_log_level cdi_log_level(void)
{
    return (enum cdi_log_level)atomic_load(&threshold);
}

void cdi_log_set_name(const char *name)
{
    atomic_store(&program, name);
}

int cdi_log_level_parse(const char *name)
{
    for (int i = 0; i < (int)(sizeof level_names / sizeof level_names[0]); i++)
        if (strcasecmp(name, level_names[i]) == 0)
            return i;
    if (strcasecmp(name, "critical") == 0 || strcasecmp(name, "fatal") == 0)
        return CDI_LOG_ERROR;
    return strcasecmp(name, "warn") == 0 ? CDI_LOG_WARN : -1;
}

static void to_stderr(enum cdi_log_level level, const char *id, const char *text)
{
    char line[2048];
    int n;

    if (cdi_log_level() == CDI_LOG_DEBUG)
        n = snprintf(line, sizeof line, "%s: %s %s %s\n", atomic_load(&program), level_names[level], id, text);
    else
        n = snprintf(line, sizeof line, "%s: %s\n", atomic_load(&program), text);
    if (n < 0)
        return;
    if ((size_t)n >= sizeof line) {
        n = (int)sizeof line - 1;
        line[n - 1] = '\n';
    }
    /* One write, so that lines of several processes do not mix. A log line that cannot be written is lost. */
    while (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0)
        break;
}

void cdi_log(enum cdi_log_level level, const char *id, const char *fmt, ...)
{
    char raw[1536], text[1536];
    va_list ap;

    if ((int)level < atomic_load(&threshold) || level >= CDI_LOG_OFF)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    /* Text of a file or the system has come through no decoder. */
    (void)cdi_visible_lines(text, sizeof text, raw, strlen(raw));
    if (the_sink != NULL)
        the_sink(level, id, text, the_sink_arg);
    else
        to_stderr(level, id, text);
}
