/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/process/blocked.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

CDI_SUITE(blocked);

#if defined __x86_64__
#define STACK_POINTER 7
#define THIRD_ARGUMENT 1
#else
#define STACK_POINTER 31
#define THIRD_ARGUMENT 2
#endif

static bool knows(const struct task_registers *regs, int number)
{
    return (regs->unknown >> number & 1) == 0;
}

Test(blocked, reads_registers_of_a_system_call)
{
    struct task_registers regs;

    cr_assert(blocked_parse("230 0x0 0x1 0x7ffcdd29e850 0x3 0x4 0x5 0x7ffcdd29e838 0x7fee79fd5503\n", &regs));
    cr_assert_eq(regs.pc, UINT64_C(0x7fee79fd5503));
    cr_assert(knows(&regs, STACK_POINTER) && regs.value[STACK_POINTER] == UINT64_C(0x7ffcdd29e838));
    cr_assert(knows(&regs, THIRD_ARGUMENT) && regs.value[THIRD_ARGUMENT] == UINT64_C(0x7ffcdd29e850));
#if defined __x86_64__
    cr_assert_eq(regs.n, 17);
    cr_assert_eq(~regs.unknown & 0x1ffff, 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 16);
    cr_assert_eq(regs.value[16], regs.pc);
#else
    cr_assert_eq(regs.n, 32);
    cr_assert_not(knows(&regs, 0), "the result is written there");
    cr_assert_not(knows(&regs, 30));
#endif
}

Test(blocked, reads_a_thread_outside_of_a_system_call)
{
    struct task_registers regs;

    cr_assert(blocked_parse("-1 0x7fff9cd9a478 0x55cd0b5742e7\n", &regs));
    cr_assert_eq(regs.pc, UINT64_C(0x55cd0b5742e7));
    cr_assert_eq(regs.value[STACK_POINTER], UINT64_C(0x7fff9cd9a478));
    cr_assert_not(knows(&regs, THIRD_ARGUMENT));
}

Test(blocked, rejects_other_lines)
{
    static const char *const lines[] = {
        "running\n",
        "",
        "\n",
        "-1",
        "-1 0x7fff9cd9a478\n",
        "-1 0x0 0x0\n",
        "-1 0x7fff9cd9a478 0x0\n",
        "-2 0x7fff9cd9a478 0x55cd0b5742e7\n",
        "-1 7fff9cd9a478 55cd0b5742e7\n",
        "-1 0x 0x55cd0b5742e7\n",
        "-1 0x-5 0x55cd0b5742e7\n",
        "-1 0x7fff9cd9a478 0x55cd0b5742e7 0x1\n",
        "230 0x0 0x1 0x2 0x3 0x4 0x5 0x7ffcdd29e838\n",
        "230 0x0 0x1 0x2 0x3 0x4 0x5 0x7ffcdd29e838 0x7fee79fd5503 0x1\n",
        "0x0 0x1 0x2\n",
    };
    struct task_registers regs;

    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        cr_assert_not(blocked_parse(lines[i], &regs), "%s", lines[i]);
}

Test(blocked, tells_looks_apart)
{
    const struct blocked_look look = {.line = "-1 0x10 0x20\n", .switches = 7};
    struct blocked_look other = look;

    cr_assert(blocked_is_same(&look, &other));
    other.switches = 8;
    cr_assert_not(blocked_is_same(&look, &other));
    other = look;
    other.line[4] = '5';
    cr_assert_not(blocked_is_same(&look, &other));
}

/* The child has a copy of this stack, and waits deeper in it. */
Test(blocked, looks_at_a_process_that_sleeps)
{
    int ready[2];
    struct blocked_look look, again;
    struct task_registers regs;
    const uint64_t here = (uint64_t)(uintptr_t)__builtin_frame_address(0);
    char byte;
    pid_t pid;

    cr_assert_eq(pipe(ready), 0);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)!write(ready[1], "x", 1);
        for (;;)
            (void)pause();
    }
    (void)close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    for (int i = 0; i < 500 && (!blocked_look(pid, pid, &look) || strncmp(look.line, "running", 7) == 0); i++)
        (void)usleep(10000);
    if (blocked_look(pid, pid, &look)) { /* a kernel may have no such file, or allow no tracing */
        cr_assert(blocked_parse(look.line, &regs), "%s", look.line);
        cr_assert_geq(look.switches, 0);
        cr_assert_lt(regs.value[STACK_POINTER], here);
        cr_assert_gt(regs.value[STACK_POINTER], here - (8 << 20));
        cr_assert(blocked_look(pid, pid, &again) && blocked_is_same(&look, &again));
    }
    cr_assert(blocked_is_native(pid));
    (void)kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    cr_assert_not(blocked_look(pid, pid, &look));
    cr_assert_not(blocked_is_native(pid));
}
