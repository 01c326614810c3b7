/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/stack_text.h"

#include <string.h>

#define NAMED 6 /* threads of a group that a line names */

static const char *state_text(char state)
{
    switch (state) {
    case 'R':
        return "running";
    case 'S':
        return "sleeping";
    case 'D':
        return "in D state";
    case STACK_FROZEN:
        return "frozen by its cgroup";
    case 'T':
        return "stopped by a signal";
    case 't':
        return "stopped by a debugger";
    case 'Z':
    case 'X':
        return "exited";
    default:
        return "idle";
    }
}

static bool are_equal(const struct stack_thread *a, const struct stack_thread *b)
{
    if (a->state != b->state || a->n != b->n || a->cut != b->cut || strcmp(a->why_none, b->why_none) != 0)
        return false;
    return a->n == 0 || memcmp(a->pc, b->pc, (size_t)a->n * sizeof a->pc[0]) == 0;
}

/* Is an earlier thread in the same stack? Then that one's text is also this one's. */
static bool is_told(const struct stack_thread *threads, int i)
{
    for (int k = 0; k < i; k++)
        if (are_equal(&threads[k], &threads[i]))
            return true;
    return false;
}

static cddp_status append_head(const struct stack_thread *threads, int n, int first, struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;
    int members = 0, named = 0;

    for (int i = first; i < n; i++)
        members += are_equal(&threads[first], &threads[i]);
    st = cdi_buf_printf(out, "thread%s", members > 1 ? "s" : "");
    for (int i = first; st == CDDP_OK && i < n && named < NAMED; i++) {
        if (!are_equal(&threads[first], &threads[i]))
            continue;
        st = cdi_buf_printf(out, "%s%d (%s)", named > 0 ? ", " : " ", (int)threads[i].tid, threads[i].name);
        named++;
    }
    if (st == CDDP_OK && members > named)
        st = cdi_buf_printf(out, " and %d more", members - named);
    return st == CDDP_OK ? cdi_buf_printf(out, ", %s:\n", state_text(threads[first].state)) : st;
}

cddp_status stack_text_frames(const struct stack_thread *t, stack_name_fn *name, void *arg, struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;

    if (t->why_none[0] != '\0')
        return cdi_buf_printf(out, "  no stack: %s\n", t->why_none);
    for (int i = 0, last; st == CDDP_OK && i < t->n; i = last + 1) {
        for (last = i; last + 1 < t->n && t->pc[last + 1] == t->pc[i];)
            last++;
        st = last == i ? cdi_buf_printf(out, "  #%d", i) : cdi_buf_printf(out, "  #%d to #%d", i, last);
        if (st == CDDP_OK)
            st = name(arg, t->pc[i], out);
        if (st == CDDP_OK)
            st = cdi_buf_append(out, "\n", 1);
    }
    if (st == CDDP_OK && t->cut)
        st = cdi_buf_printf(out, "  " STACK_CUT "\n");
    return st;
}

cddp_status stack_text(const struct stack_thread *threads, int n, int unread, stack_name_fn *name, void *arg,
                       struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;

    for (int i = 0; st == CDDP_OK && i < n; i++) {
        if (is_told(threads, i))
            continue;
        st = append_head(threads, n, i, out);
        if (st == CDDP_OK)
            st = stack_text_frames(&threads[i], name, arg, out);
    }
    if (st == CDDP_OK && unread > 0)
        st = cdi_buf_printf(out, "and %d more thread%s\n", unread, unread == 1 ? "" : "s");
    return st;
}
