/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the real libnccl, which loads without a GPU, with the project's assumptions: the table of its functions
 * (library.h), its numbers, and the results of the stand-in. In TAP.
 *
 * contract STANDIN [LIBNCCL]: without LIBNCCL, or with an empty one, all is skipped.
 */
#include "library/version.h"
#include "worker/backend/nccl/device/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if NCCL_VERSION_CODE >= 23003
_Static_assert((int)ncclTimeout == CDI_NCCL_TIMEOUT, "the number of ncclTimeout");
#endif

#define CRASHED (-1)

struct function {
    const char *name;
    bool needed;
    void *real, *standin;
};

static struct function table[] = {
#define X(member, function, needed) {#function, needed, NULL, NULL},
    CDI_NCCL_MAP(X)
#undef X
};
#define N_TABLE (sizeof table / sizeof table[0])

static int n_tests, n_failed;

static void tell(bool ok, const char *what)
{
    printf("%s %d - %s\n", ok ? "ok" : "not ok", ++n_tests, what);
    n_failed += !ok;
}

static int version_of(void *library)
{
    ncclResult_t (*version)(int *);
    int code = 0;

    *(void **)&version = dlsym(library, "ncclGetVersion");
    return version != NULL && version(&code) == ncclSuccess ? code : 0;
}

static void check_functions(int code)
{
    bool needed = true, same = true;

    for (size_t i = 0; i < N_TABLE; i++) {
        if (table[i].needed && table[i].real == NULL) {
            printf("# %s is missing\n", table[i].name);
            needed = false;
        }
        if ((table[i].real == NULL) != (table[i].standin == NULL)) {
            printf("# %s: NCCL %d has %s, the stand-in as that version has %s\n", table[i].name, code,
                   table[i].real != NULL ? "it" : "none", table[i].standin != NULL ? "it" : "none");
            same = false;
        }
    }
    tell(needed, "every function that libcddp needs is exported");
    tell(same, "the stand-in has the same functions as this version");
}

/* The enumerators of the header of this build, as far as the library has names for their numbers. */
static void check_results(void *real, void *standin, int code)
{
    const char *(*theirs)(ncclResult_t), *(*ours)(ncclResult_t);
    bool ok = true;

    *(void **)&theirs = dlsym(real, "ncclGetErrorString");
    *(void **)&ours = dlsym(standin, "ncclGetErrorString");
    for (int i = 0; theirs != NULL && ours != NULL && i < 16; i++) {
        bool known = strstr(theirs((ncclResult_t)i), "unknown") == NULL;
        bool believed = strstr(ours((ncclResult_t)i), "unknown") == NULL;
        bool in_header = i < (int)ncclNumResults;

        if (known == believed && (code != NCCL_VERSION_CODE || known == in_header))
            continue;
        printf("# result %d: NCCL reports \"%s\", the stand-in \"%s\"; nccl.h %s it\n", i, theirs((ncclResult_t)i),
               ours((ncclResult_t)i), in_header ? "has" : "has not");
        ok = false;
    }
    tell(ok && theirs != NULL && ours != NULL, "the results have the same numbers in the library, nccl.h and stand-in");
}

/* ------------------------------------------------------------------------- answers that need no GPU ---- */

/*
 * Returns the result of a function for these two arguments, in a separate process. Results are small, so a byte holds
 * them.
 */
static int answer(void *library, const char *name, void *a, void *b)
{
    int (*f)(void *, void *);
    int status = 0;
    pid_t pid;

    *(void **)&f = dlsym(library, name);
    if (f == NULL)
        return CRASHED;
    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) {
        (void)freopen("/dev/null", "w", stderr);
        (void)freopen("/dev/null", "w", stdout);
        (void)alarm(60);
        _exit(f(a, b));
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : CRASHED;
}

static void check_answers(void *real, void *standin)
{
    static char block[256];
    const struct {
        const char *name;
        void *a, *b;
    } asked[] = {
        {"ncclGetVersion", NULL, NULL},    {"ncclGroupEnd", NULL, NULL},           {"ncclGroupStart", NULL, NULL},
        {"ncclGetUniqueId", NULL, NULL},   {"ncclCommGetAsyncError", NULL, block}, {"ncclCommCount", NULL, block},
        {"ncclCommUserRank", NULL, block}, {"ncclCommAbort", NULL, NULL},          {"ncclCommDestroy", NULL, NULL},
        {"ncclCommFinalize", NULL, NULL},
    };
    bool ok = true;

    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        int theirs = answer(real, asked[i].name, asked[i].a, asked[i].b);
        int ours = answer(standin, asked[i].name, asked[i].a, asked[i].b);

        if (theirs == ours)
            continue;
        printf("# %s: NCCL answers %d, the stand-in %d\n", asked[i].name, theirs, ours);
        ok = false;
    }
    tell(ok, "calls without a GPU return the same");
}

int main(int argc, char **argv)
{
    const char *path = argc > 2 ? argv[2] : "";
    char text[16];
    void *real, *standin;
    int code;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: contract STANDIN [LIBNCCL]\n");
        return 2;
    }
    if (*path == '\0') {
        printf("1..0 # SKIP there is no libnccl on this node (scripts/setup --cuda gets one)\n");
        return 0;
    }
    real = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (real == NULL) {
        printf("1..0 # SKIP %s\n", dlerror());
        return 0;
    }
    code = version_of(real);
    (void)snprintf(text, sizeof text, "%d", code);
    (void)setenv("CDDP_STANDIN_NCCL_VERSION", text, 1);
    standin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (standin == NULL) {
        printf("Bail out! %s\n", dlerror());
        return 1;
    }
    for (size_t i = 0; i < N_TABLE; i++) {
        table[i].real = dlsym(real, table[i].name);
        table[i].standin = dlsym(standin, table[i].name);
    }
    printf("# %s is NCCL %d; nccl.h is of %d\n", path, code, NCCL_VERSION_CODE);
    tell(code >= CDI_NCCL_FLOOR && version_of(standin) == code, "the version is known and not too old");
    check_functions(code);
    check_results(real, standin, code);
    check_answers(real, standin);
    printf("1..%d\n", n_tests);
    return n_failed != 0;
}
