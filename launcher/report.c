/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/report.h"

#include "launcher/signame.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ERROR_FILE_MAX (1024 * 1024) /* bytes read of an error file */

void report_sentence(const struct cdi_failure *f, char *buf, size_t cap)
{
    char who[400], name[32];

    (void)snprintf(who, sizeof who, "rank %d (pid %lld on %.200s)", f->rank, (long long)f->pid, f->host);
    switch (f->kind) {
    case CDI_END_NONE:
        (void)snprintf(buf, cap, "%s ended", who);
        return;
    case CDI_END_EXIT:
        (void)snprintf(buf, cap, "%s exited with status %d", who, f->code);
        return;
    case CDI_END_SIGNAL:
        (void)snprintf(buf, cap, "%s was killed by signal %d (%s)%s", who, f->code, signame(f->code, name, sizeof name),
                       f->core_dumped != 0 ? ", core dumped" : "");
        return;
    case CDI_END_SPAWN:
        if (f->text[0] != '\0')
            (void)snprintf(buf, cap, "%s", f->text);
        else
            (void)snprintf(buf, cap, "rank %d on %.200s could not be started: %s", f->rank, f->host, strerror(f->code));
        return;
    case CDI_END_NODE:
        if (f->text[0] != '\0')
            (void)snprintf(buf, cap, "%.*s", (int)strcspn(f->text, "\n"), f->text);
        else
            (void)snprintf(buf, cap, "node %d (%.200s) was lost", f->node_rank, f->host);
        return;
    }
}

/* The text of a JSON error file's "message", wherever torch's forms put it. */
static const char *find_message(json_t *root)
{
    json_t *m = json_object_get(root, "message");

    if (json_is_object(m))
        m = json_object_get(m, "message");
    return json_string_value(m);
}

bool report_error_file(const char *path, char *buf, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const char *text;
    struct stat sb;
    json_t *root;

    /* The worker wrote it: it may be anything. */
    if (fd < 0)
        return false;
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode) || sb.st_size > ERROR_FILE_MAX) {
        (void)close(fd);
        return false;
    }
    root = json_loadfd(fd, JSON_DISABLE_EOF_CHECK, NULL);
    (void)close(fd);
    text = find_message(root);
    if (text != NULL && *text != '\0')
        (void)snprintf(buf, cap, "%s", text);
    else
        text = NULL;
    json_decref(root);
    return text != NULL;
}

static cddp_status write_head(const struct report *r, struct cdi_buf *out)
{
    char text[1024];
    cddp_status st;

    report_sentence(&r->first, text, sizeof text);
    st = cdi_buf_printf(out, "cddprun: %s", text);
    if (st == CDDP_OK && r->after_ms >= 0)
        st = cdi_buf_printf(out, " after %lld.%01lld s", (long long)(r->after_ms / 1000),
                            (long long)(r->after_ms % 1000 / 100));
    if (st == CDDP_OK && r->restart_count > 0)
        st = cdi_buf_printf(out, ", after %u restart%s", r->restart_count, r->restart_count == 1 ? "" : "s");
    if (st == CDDP_OK && r->first.local_rank >= 0)
        st = cdi_buf_printf(out, "\n    local rank %d%s of %.300s\n", r->first.local_rank,
                            r->elsewhere ? " of another node" : "", r->program);
    else if (st == CDDP_OK)
        st = cdi_buf_printf(out, "\n");
    return st;
}

/* Text of several lines, each behind "    | ". */
static cddp_status write_indented(const char *text, struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;

    while (st == CDDP_OK && *text != '\0') {
        size_t n = strcspn(text, "\n");

        st = cdi_buf_printf(out, "    | %.*s\n", (int)n, text);
        text += text[n] == '\n' ? n + 1 : n;
    }
    return st;
}

static cddp_status write_others(const struct report *r, struct cdi_buf *out)
{
    if (r->n_others == 0)
        return CDDP_OK;
    if (r->n_others == 1)
        return cdi_buf_printf(out, "    the %sworker of this node %s\n", r->elsewhere ? "" : "other ",
                              r->n_ended_well == 1 ? "had ended well" : "was stopped, or failed after it");
    return cdi_buf_printf(out,
                          "    of the %s%u workers of this node %u were stopped or failed after it, %u ended well\n",
                          r->elsewhere ? "" : "other ", r->n_others, r->n_ended_after, r->n_ended_well);
}

cddp_status report_write(const struct report *r, struct cdi_buf *out)
{
    char message[REPORT_MESSAGE_MAX];
    cddp_status st = write_head(r, out);

    if (st == CDDP_OK && r->error_file != NULL && report_error_file(r->error_file, message, sizeof message)) {
        st = cdi_buf_printf(out, "    its message:\n");
        if (st == CDDP_OK)
            st = write_indented(message, out);
    }
    if (st == CDDP_OK && r->n_lines > 0)
        st = cdi_buf_printf(out, "    the last of its stderr:\n");
    for (unsigned i = 0; st == CDDP_OK && i < r->n_lines; i++)
        st = cdi_buf_printf(out, "    | %s\n", r->lines[i]);
    if (st == CDDP_OK)
        st = write_others(r, out);
    return st;
}
