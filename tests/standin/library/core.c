/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the environment, planted failures, faults. */
#include "core.h"

#include "common/clock.h"
#include "common/env.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* A planted failure. */
struct plant {
    char function[64];
    uint64_t nth; /* counted from 1 */
    bool and_later;
    int code;
    uint64_t calls;
};

#define PLANTS 16

struct si_settings si_settings;
static struct plant plant[PLANTS];
static size_t n_plants;
static struct plant skip_wait, skip_captured_wait, swap_launch, unsafe;
static bool plants_here; /* in this rank */
static unsigned n_faults;
static uint64_t n_threads;
static char last_fault[512];

/* ---------------------------------------------------------------------------------------------------- settings ---- */

/* A setting that cannot be read must not pass for one that was not given. */
static void bad_setting(const char *name)
{
    fprintf(stderr, "standin: %s=%s: cannot be read; tests/standin/library/standin.h has the settings\n", name,
            cdi_env_str(name));
    _exit(STANDIN_EXIT);
}

static uint64_t setting_number(const char *name, int64_t min, int64_t max, int64_t fallback)
{
    struct cdi_error err = {0};
    int64_t value;

    if (cdi_env_int_or(name, min, max, fallback, &value, &err) != CDDP_OK)
        bad_setting(name);
    return (uint64_t)value;
}

/* Returns the index of the value of a variable among these words; 0 if it is not set. */
static size_t choice(const char *name, const char *const *words)
{
    const char *value = cdi_env_str(name);

    for (size_t i = 0; value != NULL && words[i] != NULL; i++)
        if (strcmp(value, words[i]) == 0)
            return i;
    if (value != NULL)
        bad_setting(name);
    return 0;
}

static bool parse_count(const char *text, struct plant *p)
{
    char digits[24];
    size_t len = strlen(text);
    int64_t n;

    p->and_later = len > 0 && text[len - 1] == '+';
    if (len >= sizeof digits)
        return false;
    (void)snprintf(digits, sizeof digits, "%.*s", (int)(p->and_later ? len - 1 : len), text);
    if (!cdi_parse_int(digits, 1, INT64_MAX, &n))
        return false;
    p->nth = (uint64_t)n;
    return true;
}

/* "K" or "K+" */
static void read_plant(const char *name, struct plant *p)
{
    *p = (struct plant){.nth = 0};
    if (cdi_env_has(name) && !parse_count(cdi_env_str(name), p))
        bad_setting(name);
}

/* "F:K" */
static void read_unsafe(const char *name)
{
    const char *text = cdi_env_str(name);
    char count[24];

    unsafe = (struct plant){.nth = 0};
    if (text != NULL &&
        (sscanf(text, "%63[A-Za-z0-9]:%23[0-9+]", unsafe.function, count) != 2 || !parse_count(count, &unsafe)))
        bad_setting(name);
}

static void read_plants(const char *name)
{
    const char *at = cdi_env_str(name);

    while (at != NULL && *at != '\0') {
        size_t len = strcspn(at, ",");
        char count[24];
        struct plant p = {.nth = 0};

        if (n_plants == PLANTS)
            bad_setting(name);
        if (sscanf(at, "%63[A-Za-z0-9]:%23[0-9+]:%d", p.function, count, &p.code) != 3 || !parse_count(count, &p))
            bad_setting(name);
        si_copy(&plant[n_plants % PLANTS], &p, sizeof p);
        n_plants++;
        at += len + (at[len] == ',');
    }
}

void standin_configure(void)
{
    static const char *const delays[] = {"device", "none", "host", "both", NULL};
    static const char *const reports[] = {"stop", "count", NULL};
    static const char *const captures[] = {"error", "fault", NULL};
    uint64_t random = 0;
    size_t delay = choice("CDDP_STANDIN_DELAY", delays);

    int64_t rank = (int64_t)setting_number("CDDP_STANDIN_RANK", -1, INT32_MAX, -1);

    n_plants = 0;
    plants_here = rank < 0 || (int64_t)setting_number("RANK", -1, INT32_MAX, -1) == rank;
    (void)getrandom(&random, sizeof random, 0);
    si_settings = (struct si_settings){
        .seed = setting_number("CDDP_STANDIN_SEED", 0, INT64_MAX, (int64_t)(random % 1000000)),
        .device_delay = delay == 0 || delay == 3,
        .host_delay = delay == 2 || delay == 3,
        .n_devices = (unsigned)setting_number("CDDP_STANDIN_DEVICES", 0, SI_DEVICES, 8),
        .instances = (unsigned)setting_number("CDDP_STANDIN_INSTANCES", 1, SI_DEVICES, 1),
        .device_memory = setting_number("CDDP_STANDIN_MEMORY_MB", 1, 1 << 20, 4096) << 20,
        .queue = (uint32_t)setting_number("CDDP_STANDIN_QUEUE", 1, 1 << 20, 1024),
        .collective_us = (uint32_t)setting_number("CDDP_STANDIN_COLLECTIVE_US", 0, 1 << 30, 0),
        .driver = (int)setting_number("CDDP_STANDIN_DRIVER", 0, INT32_MAX, CUDA_VERSION),
        .capability = (int)setting_number("CDDP_STANDIN_CAPABILITY", 50, 999, 90),
        .count_faults = choice("CDDP_STANDIN_REPORT", reports) == 1,
        .leaks_are_faults = setting_number("CDDP_STANDIN_LEAKS", 0, 1, 0) == 1,
        .context_lock = setting_number("CDDP_STANDIN_CONTEXT_LOCK", 0, 1, 0) == 1,
        .capture_faults = choice("CDDP_STANDIN_CAPTURE", captures) == 1,
        .never_relaxed = setting_number("CDDP_STANDIN_NEVER_RELAXED", 0, 1, 0) == 1,
    };
    read_plants("CDDP_STANDIN_FAIL");
    read_plant("CDDP_STANDIN_SKIP_WAIT", &skip_wait);
    read_plant("CDDP_STANDIN_SKIP_CAPTURED_WAIT", &skip_captured_wait);
    read_unsafe("CDDP_STANDIN_UNSAFE");
    read_plant("CDDP_STANDIN_SWAP_LAUNCH", &swap_launch);
}

__attribute__((constructor)) static void read_settings(void)
{
    standin_configure();
}

/* ------------------------------------------------------------------------------------------- randomness, delays ----
 */

uint64_t si_random(uint64_t *state, uint64_t below)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return below == 0 ? z : z % below;
}

uint64_t si_seed(uint64_t kind, uint64_t n)
{
    uint64_t state = si_settings.seed * 0x2545f4914f6cdd1du + kind * 1000003 + n;

    return si_random(&state, 0);
}

static void slow_host(void)
{
    static uint64_t calls;
    uint64_t state = si_seed(1, __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED));
    struct timespec ts = {.tv_nsec = (long)si_random(&state, 200000)};

    (void)nanosleep(&ts, NULL);
}

/* ------------------------------------------------------------------------------------------- planted failures ---- */

static bool due(struct plant *p)
{
    uint64_t call = __atomic_add_fetch(&p->calls, 1, __ATOMIC_RELAXED);

    return plants_here && p->nth > 0 && (call == p->nth || (p->and_later && call > p->nth));
}

/* Not strcmp, which ThreadSanitizer sees: a test may change its plants while streams run. */
static bool names_equal(const char *name, const char *function)
{
    while (*name != '\0' && *name == *function) {
        name++;
        function++;
    }
    return *name == *function;
}

static uint64_t n_struck;

static int is_planted(const char *function, bool allocates)
{
    for (size_t i = 0; i < n_plants; i++)
        if ((names_equal(plant[i].function, function) || (allocates && names_equal(plant[i].function, "alloc"))) &&
            due(&plant[i])) {
            __atomic_add_fetch(&n_struck, 1, __ATOMIC_RELAXED);
            return plant[i].code;
        }
    return 0;
}

uint64_t standin_failures(void)
{
    return __atomic_load_n(&n_struck, __ATOMIC_RELAXED);
}

static bool may_wait(const char *function)
{
    static const char *const names[] = {
        "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuMemcpyHtoD",  "cuMemcpyDtoH",
        "cuMemAlloc",          "cuMemFree",          "cuMemHostAlloc",   "cuMemFreeHost",
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(function, names[i]) == 0)
            return true;
    return false;
}

uint64_t standin_waits(void)
{
    return si_thread.waits;
}

uint64_t standin_calls(void)
{
    return si_thread.calls;
}

/* The futex word with the holder of the context; 0: none. */
static uint32_t held;

void si_context_hold(void)
{
    uint32_t nobody = 0;

    while (si_settings.context_lock &&
           !__atomic_compare_exchange_n(&held, &nobody, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        si_futex_wait(&held, 1, 0, false);
        nobody = 0;
    }
}

void si_context_let_go(void)
{
    if (!si_settings.context_lock)
        return;
    __atomic_store_n(&held, 0, __ATOMIC_RELEASE);
    si_futex_wake(&held, false);
}

bool standin_context_held(void)
{
    return __atomic_load_n(&held, __ATOMIC_ACQUIRE) != 0;
}

/* Calls that still work after a fault of the device: contexts can be changed, and devices be queried. */
static bool survives_fault(const char *function)
{
    return (strncmp(function, "cuCtx", 5) == 0 && strcmp(function, "cuCtxSynchronize") != 0) ||
           strncmp(function, "cuDevice", 8) == 0 || strncmp(function, "cuGet", 5) == 0 ||
           strcmp(function, "cuThreadExchangeStreamCaptureMode") == 0;
}

static bool forked;

void si_forked(void)
{
    __atomic_store_n(&forked, true, __ATOMIC_RELEASE);
}

static CUresult enter(const char *function, bool allocates)
{
    const struct CUctx_st *ctx = si_current();

    if (__atomic_load_n(&forked, __ATOMIC_ACQUIRE))
        return CUDA_ERROR_NOT_INITIALIZED; /* another thread may have had a lock at the fork */
    while (__atomic_load_n(&held, __ATOMIC_ACQUIRE) != 0)
        si_futex_wait(&held, 1, 0, false);
    if (ctx != NULL && si_context_fault(ctx) != CUDA_SUCCESS && !survives_fault(function))
        return si_context_fault(ctx);
    if (si_thread.in_host_function) {
        si_refused("%s: called inside a host function of a stream, where no call of CUDA is allowed", function);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    si_thread.calls++;
    si_thread.waits += may_wait(function);
    if (si_settings.host_delay)
        slow_host();
    return (CUresult)is_planted(function, allocates);
}

CUresult si_enter(const char *function)
{
    return enter(function, false);
}

CUresult si_enter_alloc(const char *function)
{
    return enter(function, true);
}

int si_enter_nccl(const char *function, bool allocates)
{
    if (si_settings.host_delay)
        slow_host();
    return is_planted(function, allocates);
}

int si_planted_kernel(void)
{
    return is_planted("kernel", false);
}

int si_planted_async(void)
{
    return is_planted("async", false);
}

bool si_skip_wait(void)
{
    return due(&skip_wait);
}

bool si_skip_captured_wait(void)
{
    return due(&skip_captured_wait);
}

const char *si_unsafe_call(void)
{
    return due(&unsafe) ? unsafe.function : NULL;
}

bool si_swap_launch(void)
{
    return due(&swap_launch);
}

/* ------------------------------------------------------------------------------------------------------ faults ---- */

void si_fault(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(last_fault, sizeof last_fault, fmt, ap);
    va_end(ap);
    fprintf(stderr, "standin: fault: %s (seed %llu)\n", last_fault, (unsigned long long)si_settings.seed);
    (void)__atomic_add_fetch(&n_faults, 1, __ATOMIC_RELAXED);
    if (!si_settings.count_faults)
        _exit(STANDIN_EXIT);
}

void si_refused(const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "standin: %s\n", text);
}

unsigned standin_faults(void)
{
    return __atomic_load_n(&n_faults, __ATOMIC_RELAXED);
}

uint64_t standin_threads(void)
{
    return __atomic_load_n(&n_threads, __ATOMIC_RELAXED);
}

bool si_start_thread(void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    int rc;

    (void)sigfillset(&all);
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    (void)__atomic_add_fetch(&n_threads, 1, __ATOMIC_RELAXED);
    rc = pthread_create(&thread, &attr, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return rc == 0;
}

const char *standin_last_fault(void)
{
    return last_fault;
}

void standin_live(struct standin_live *out)
{
    si_lock();
    *out = (struct standin_live){.streams = si_streams_locked(),
                                 .events = si_events_locked(),
                                 .libraries = si_libraries_locked(),
                                 .communicators = si_n_communicators,
                                 .registered = si_registered_locked()};
    si_count_memory_locked(&out->device_memory, &out->pinned_memory);
    si_unlock();
}

__attribute__((destructor)) static void report_leaks(void)
{
    struct standin_live l;

    if (!si_settings.leaks_are_faults)
        return;
    standin_live(&l);
    if (l.device_memory + l.pinned_memory + l.streams + l.events + l.libraries + l.communicators > 0)
        si_fault("left at exit: %u of device memory, %u of pinned memory, %u streams, %u events, %u "
                 "libraries, %u communicators",
                 l.device_memory, l.pinned_memory, l.streams, l.events, l.libraries, l.communicators);
}
