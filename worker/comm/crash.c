/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/crash.h"

#include "common/env.h"
#include "protocol/flight_crash.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define HANDLER_STACK 32768 /* bytes for the handler, beside the kernel's frame */
#define GUARD_BYTES 65536   /* below that stack; a multiple of every page size */
#define STATUS_BYTES 512    /* read of /proc/self/status: TracerPid is its eighth line, and a signal stack small */
#define OTHERS_PAUSE_NS 5000000
#define OTHERS_WAIT_MS (2 * CDI_CRASH_WAIT_MS)
#define DIRENT_LENGTH_AT 16 /* in struct linux_dirent64, getdents64(2): d_reclen, */
#define DIRENT_NAME_AT 19   /* and d_name */

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
#define N_SIGNALS (sizeof signals / sizeof signals[0])

/* Read by the handler, which takes no lock. */
static _Atomic(struct cdi_flight_crash *) page; /* NULL: not armed */
static pid_t process;
static atomic_int first_tid; /* the thread that has crashed first */

/* The rest, under the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t stack_key; /* a thread's stack for signals that is ours */
static bool has_key;

/* --------------------------------------------------------------------------------------------- in the handler ---- */

static long crash_tid(void)
{
    return syscall(SYS_gettid);
}

/* Does a debugger have this process? It has seen the signal already. */
static bool is_traced(void)
{
    static const char name[] = "\nTracerPid:\t";
    char text[STATUS_BYTES];
    const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    const char *at;

    if (fd >= 0)
        (void)close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    at = strstr(text, name);
    return at != NULL && at[sizeof name - 1] >= '1' && at[sizeof name - 1] <= '9';
}

/* The order of DWARF's numbers: System V ABI, AMD64 supplement, figure 3.36; DWARF for the Arm 64-bit architecture. */
static void note_registers(struct cdi_flight_crash *c, const ucontext_t *context)
{
#if defined __x86_64__
    static const int order[] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
                                REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};

    c->n_registers = sizeof order / sizeof order[0];
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        c->registers[i] = (uint64_t)context->uc_mcontext.gregs[order[i]];
    c->pc = (uint64_t)context->uc_mcontext.gregs[REG_RIP];
#elif defined __aarch64__
    c->n_registers = 32;
    for (int i = 0; i < 31; i++)
        c->registers[i] = context->uc_mcontext.regs[i];
    c->registers[31] = context->uc_mcontext.sp;
    c->pc = context->uc_mcontext.pc;
#else
    (void)context;
    c->n_registers = 0;
#endif
}

static void note_crash(struct cdi_flight_crash *c, const siginfo_t *info, const ucontext_t *context,
                       enum cdi_crash_state state)
{
    c->signal = info->si_signo;
    c->code = info->si_code;
    c->pid = (int32_t)process;
    c->tid = (int32_t)crash_tid();
    c->address = (uint64_t)(uintptr_t)info->si_addr;
    note_registers(c, context);
    if (state == CDI_CRASH_WAITS && !cdi_crash_is_there(c))
        state = CDI_CRASH_UNREACHED;
    /* Where Yama lets only ancestors trace, a worker that has left its agent still shows itself. */
    if (state == CDI_CRASH_WAITS)
        (void)prctl(PR_SET_PTRACER, (unsigned long)atomic_load(&c->reader_pid), 0, 0, 0);
    atomic_store_explicit(&c->state, state, memory_order_release);
    if (state != CDI_CRASH_WAITS)
        return;
    if (cdi_crash_tell(c))
        cdi_crash_wait_read(c);
    else
        atomic_store_explicit(&c->state, CDI_CRASH_UNREACHED, memory_order_release);
}

/* Another thread has crashed first, and ends the process when its stack has been read. */
static void wait_for_first(void)
{
    const struct timespec pause = {.tv_nsec = OTHERS_PAUSE_NS};

    for (int64_t ns = 0; ns < OTHERS_WAIT_MS * INT64_C(1000000); ns += OTHERS_PAUSE_NS)
        (void)nanosleep(&pause, NULL);
}

/* Returns a signal whose handler is ours, and which libcddp's own threads do not block; 0: none. */
static int signal_to_hold(uint32_t armed)
{
    static const int open[] = {SIGILL, SIGFPE, SIGBUS, SIGSEGV};

    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++)
        if ((armed & CDI_CRASH_BIT(open[i])) != 0)
            return open[i];
    return 0;
}

/* Sends the signal to a thread, by its name in /proc. */
static void hold_thread(const char *name, long self, int number)
{
    long tid = 0;

    for (; *name >= '0' && *name <= '9'; name++)
        tid = tid * 10 + (*name - '0');
    if (tid > 0 && tid != self)
        (void)syscall(SYS_tgkill, getpid(), tid, number);
}

/*
 * Holds all other threads in this handler. They would go on over the memory that the crash may have damaged, save it,
 * send it, or end the process with status 0. A thread that blocks the signal goes on; the agent sees the crash anyway.
 */
static void hold_others(int number)
{
    const int fd = number == 0 ? -1 : open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const long self = crash_tid();
    union {
        char bytes[1024];
        uint64_t align;
    } list;
    long n;

    /* getdents64(2), since opendir() allocates. */
    while (fd >= 0 && (n = syscall(SYS_getdents64, fd, list.bytes, sizeof list.bytes)) > 0)
        for (long at = 0; at < n;) {
            uint16_t len;

            memcpy(&len, list.bytes + at + DIRENT_LENGTH_AT, sizeof len);
            hold_thread(list.bytes + at + DIRENT_NAME_AT, self, number);
            at += len;
        }
    if (fd >= 0)
        (void)close(fd);
}

/*
 * The default action, and the same signal once more with the same information. It is blocked until the handler returns,
 * and then precedes all others that may be pending: the process dies as if it had met no handler. (Returning alone
 * would not do: an abort() or a kill() is not repeated, and a pending SIGTERM would come first.)
 */
static void crash_again(int number, siginfo_t *info)
{
    struct sigaction standard = {.sa_handler = SIG_DFL};

    (void)sigemptyset(&standard.sa_mask);
    (void)sigaction(number, &standard, NULL);
    if (syscall(SYS_rt_tgsigqueueinfo, getpid(), crash_tid(), number, info) != 0)
        (void)syscall(SYS_tgkill, getpid(), crash_tid(), number);
}

static void on_crash(int number, siginfo_t *info, void *context)
{
    struct cdi_flight_crash *c = atomic_load(&page);
    const int error = errno;
    int none = 0;

    if (c != NULL && getpid() == process) {
        if (atomic_compare_exchange_strong(&first_tid, &none, (int)crash_tid())) {
            const bool traced = is_traced();

            if (!traced) /* a debugger would stop at each of these signals */
                hold_others(signal_to_hold(atomic_load(&c->armed)));
            note_crash(c, info, context, traced ? CDI_CRASH_TRACED : CDI_CRASH_WAITS);
        } else if (none != (int)crash_tid()) {
            wait_for_first();
        }
    }
    crash_again(number, info);
    errno = error;
}

/* ------------------------------------------------------------------------------------------------- the stack ---- */

static size_t stack_size(void)
{
    return (HANDLER_STACK + getauxval(AT_MINSIGSTKSZ) + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
}

/* The thread ends. Its program may have set another stack since. */
static void free_stack(void *memory)
{
    const stack_t none = {.ss_flags = SS_DISABLE};
    stack_t now;

    if (sigaltstack(NULL, &now) != 0 || (now.ss_flags & SS_ONSTACK) != 0)
        return;
    if (now.ss_sp == (char *)memory + GUARD_BYTES && sigaltstack(&none, NULL) != 0)
        return;
    (void)munmap(memory, GUARD_BYTES + stack_size());
}

/* A thread that has used up its stack has no room for a handler, either. It keeps this one until it ends. */
static void give_stack(void)
{
    stack_t now, mine = {.ss_size = stack_size()};
    char *memory;

    if (!has_key || pthread_getspecific(stack_key) != NULL || sigaltstack(NULL, &now) != 0 ||
        (now.ss_flags & SS_DISABLE) == 0)
        return;
    memory = mmap(NULL, GUARD_BYTES + mine.ss_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return;
    mine.ss_sp = memory + GUARD_BYTES;
    if (mprotect(mine.ss_sp, mine.ss_size, PROT_READ | PROT_WRITE) == 0 &&
        pthread_setspecific(stack_key, memory) == 0) {
        if (sigaltstack(&mine, NULL) == 0)
            return;
        (void)pthread_setspecific(stack_key, NULL);
    }
    (void)munmap(memory, GUARD_BYTES + mine.ss_size);
}

/* ----------------------------------------------------------------------------------------------- the handlers ---- */

static bool is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) != 0 && action->sa_sigaction == on_crash;
}

static bool is_free(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) == 0 && action->sa_handler == SIG_DFL;
}

/* Returns the value of `armed`. */
static uint32_t install(void)
{
    struct sigaction mine = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK}, now;
    uint32_t armed = CDI_CRASH_LOOKED;

    (void)sigfillset(&mine.sa_mask);
    for (size_t i = 0; i < N_SIGNALS; i++) {
        if (sigaction(signals[i], NULL, &now) != 0)
            continue;
        if (is_ours(&now) || (is_free(&now) && sigaction(signals[i], &mine, NULL) == 0))
            armed |= CDI_CRASH_BIT(signals[i]);
    }
    return armed;
}

static void uninstall(void)
{
    struct sigaction standard = {.sa_handler = SIG_DFL}, now;

    (void)sigemptyset(&standard.sa_mask);
    for (size_t i = 0; i < N_SIGNALS; i++)
        if (sigaction(signals[i], NULL, &now) == 0 && is_ours(&now))
            (void)sigaction(signals[i], &standard, NULL);
}

/* Takes the page for the life of the process. Returns false if no stack can be read of this process, or not now. */
static bool take_page(struct cdi_flight *f)
{
    struct cdi_flight_crash *c = cdi_flight_crash(f);
    uint32_t traced = CDI_CRASH_TRACED;

    if (!cdi_crash_has_reader(c))
        return false;
    process = getpid();
    if (is_traced()) {
        atomic_store(&c->armed, CDI_CRASH_LOOKED);
        atomic_store(&c->state, CDI_CRASH_TRACED);
        return false;
    }
    (void)atomic_compare_exchange_strong(&c->state, &traced, CDI_CRASH_NONE);
    atomic_store(&first_tid, 0); /* a child of fork() may have inherited its parent's */
    cdi_flight_keep(f);
    atomic_store(&page, c);
    return true;
}

static bool is_wanted(bool *wanted, struct cdi_error *err)
{
    const char *text = cdi_env_str(CDI_CRASH_ENV);

    *wanted = text == NULL || strcmp(text, "on") == 0;
    if (*wanted || strcmp(text, "off") == 0)
        return true;
    (void)cdi_fail(err, CDDP_E_INVALID, CDI_CRASH_ENV "='%.64s' is neither on nor off", text);
    return false;
}

cddp_status cdi_crash_arm(struct cdi_flight *f, struct cdi_error *err)
{
    bool wanted;

    if (!is_wanted(&wanted, err))
        return CDDP_E_INVALID;
    if (!wanted || !cdi_flight_has_agent(f))
        return CDDP_OK;
    (void)pthread_mutex_lock(&lock);
    if ((atomic_load(&page) != NULL && process == getpid()) || take_page(f)) {
        has_key = has_key || pthread_key_create(&stack_key, free_stack) == 0;
        give_stack();
        atomic_store(&atomic_load(&page)->armed, install());
    }
    (void)pthread_mutex_unlock(&lock);
    return CDDP_OK;
}

/*
 * libcddp.so is never unloaded, but libcddp.a may be a part of a library that is. At the end of a process this runs
 * after the program's own functions of atexit() and destructors.
 */
__attribute__((destructor)) static void crash_leave(void)
{
    struct cdi_flight_crash *c = atomic_load(&page);

    if (c == NULL)
        return;
    uninstall();
    if (has_key)
        (void)pthread_key_delete(stack_key);
    has_key = false;
    if (process == getpid())
        atomic_store(&c->armed, CDI_CRASH_LOOKED | CDI_CRASH_LEFT);
}
