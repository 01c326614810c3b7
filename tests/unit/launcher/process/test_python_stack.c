/* SPDX-License-Identifier: Apache-2.0 */
/* What py-spy prints as JSON, and the text that is made of it. */
#include "hygiene.h"
#include "launcher/process/python_stack.h"

#include <string.h>
#include <unistd.h>

#define FRAME(name, file, line) \
    "{\"name\":\"" name "\",\"filename\":\"/a/" file "\",\"short_filename\":\"" file "\",\"line\":" #line "}"

static struct python_stacks stacks;
static struct cdi_error err;

CDI_SUITE(python_stack);

static cddp_status parse(const char *text, const struct python_stack_limits *limits)
{
    python_stacks_release(&stacks);
    return python_stacks_parse(text, strlen(text), 77, limits, &stacks, &err);
}

static void check_text(const char *json, const struct python_stack_limits *limits, const char *expected)
{
    struct cdi_buf out;

    cr_assert_eq(parse(json, limits), CDDP_OK, "%s", err.msg);
    cdi_buf_init(&out, 4096);
    cr_assert_eq(python_stack_text(&stacks, &out), CDDP_OK);
    cr_assert_eq(cdi_buf_append(&out, "", 1), CDDP_OK);
    cr_assert_str_eq((const char *)cdi_buf_data(&out), expected);
    cdi_buf_release(&out);
    cdi_buf_init(&out, 16); /* too small for the text */
    cr_assert_eq(python_stack_text(&stacks, &out), CDDP_E_LIMIT);
    cdi_buf_release(&out);
    python_stacks_release(&stacks);
}

static const char threads[] =
    "[{\"os_thread_id\":80,\"thread_name\":\"a\\u001bb\",\"owns_gil\":true,\"frames\":[" FRAME(
        "wait", "t.py",
        5) "]},"
           "{\"os_thread_id\":79,\"thread_name\":\"c\",\"owns_gil\":false,\"frames\":[" FRAME(
               "wait", "t.py",
               5) "]},"
                  "{\"os_thread_id\":78,\"thread_name\":\"none\",\"owns_gil\":false,\"frames\":[]},"
                  "{\"os_thread_id\":77,\"thread_name\":\"MainThread\",\"owns_gil\":false,\"frames\":[" FRAME(
                      "f", "x.py", 3) "," FRAME("f", "x.py", 3) "," FRAME("<module>", "x.py", 0) "]}] and more";

Test(python_stack, threads_in_equal_stacks_share_a_text)
{
    const struct python_stack_limits few = {.max_threads = 2, .max_frames = 1};

    check_text(threads, NULL,
               "main thread:\n    f (x.py:3), 2 times\n    <module> (x.py)\n"
               "thread 79 'c', thread 80 'a\\x1bb' with the GIL:\n    wait (t.py:5)\n");
    check_text(threads, &few,
               "main thread:\n    f (x.py:3)\n    ...\nthread 79 'c':\n    wait (t.py:5)\n... and more threads\n");
}

/* Before Python 3.11, py-spy does not tell the kernel's numbers. */
Test(python_stack, threads_without_a_number_have_their_names)
{
    check_text("[{\"os_thread_id\":null,\"thread_name\":\"loader\",\"frames\":[" FRAME(
                   "g", "y.py",
                   1) "]},"
                      "{\"os_thread_id\":null,\"thread_name\":\"MainThread\",\"frames\":[" FRAME("f", "x.py", 3) "]}]",
               NULL, "main thread:\n    f (x.py:3)\nthread 'loader':\n    g (y.py:1)\n");
}

Test(python_stack, long_texts_are_cut)
{
    static char json[4096], name[1001], path[1001];

    memset(name, 'n', sizeof name - 1);
    memset(path, 'p', sizeof path - 1);
    memcpy(path + sizeof path - 1 - PYTHON_FILE, "\xc3\xa9", 2); /* its second byte would be the first one */
    memcpy(path + sizeof path - 6, "/z.py", 5);
    (void)snprintf(json, sizeof json, "[{\"frames\":[{\"name\":\"%s\",\"filename\":\"%s\",\"line\":99999999999}]}]",
                   name, path);
    cr_assert_eq(parse(json, NULL), CDDP_OK, "%s", err.msg);
    cr_assert_eq(strlen(stacks.threads[0].frames[0].function), PYTHON_FUNCTION - 1);
    cr_assert_eq(strlen(stacks.threads[0].frames[0].file), PYTHON_FILE - 2, "%s", stacks.threads[0].frames[0].file);
    cr_assert_str_eq(stacks.threads[0].frames[0].file + PYTHON_FILE - 7, "/z.py");
    cr_assert_eq(stacks.threads[0].frames[0].line, 0);
    python_stacks_release(&stacks);
}

Test(python_stack, rejects_what_lists_no_threads)
{
    cr_assert_eq(parse("", NULL), CDDP_E_PROTOCOL);
    cr_assert_eq(parse("[{]", NULL), CDDP_E_PROTOCOL);
    cr_assert_eq(parse("{}", NULL), CDDP_E_PROTOCOL);
    cr_assert_eq(parse("[]", NULL), CDDP_E_NOT_FOUND);
    cr_assert_eq(parse("[7, {}, {\"frames\": 5}, {\"frames\": []}]", NULL), CDDP_E_NOT_FOUND);
    cr_assert_eq(parse("[{\"frames\": [5, {\"name\": null, \"short_filename\": 7}]}]", NULL), CDDP_OK, "%s", err.msg);
    cr_assert_str_eq(stacks.threads[0].frames[1].function, "");
    python_stacks_release(&stacks);
}

Test(python_stack, finds_python_by_what_a_process_has_mapped)
{
    cr_assert_not(python_stack_is_python(getpid()));
    cr_assert_not(python_stack_is_python(-1));
}
