/* SPDX-License-Identifier: Apache-2.0 */
#include "common/float_state.h"
#include "common/thread.h"
#include "float_words.h"
#include "hygiene.h"

#include <setjmp.h>

CDI_SUITE(float_state);

static const enum float_word strange[] = {FLOAT_FLUSH, FLOAT_UP, FLOAT_DOWN, FLOAT_TRAPS};
#define N_STRANGE (sizeof strange / sizeof strange[0])

static volatile double one = 1, three = 3, small = 1e-310, zero = 0;
static double third; /* in the default state */

/* Each of these would trap, or has other bits in some state. */
static uint64_t inside(void)
{
    CDI_DEFAULT_FLOAT_STATE;
    double x = one / three, infinite = one / zero;

    CDI_FLOAT_FENCE(x);
    CDI_FLOAT_FENCE(infinite);
    return x == third && small / three > 0 && infinite > x ? float_get() : UINT64_MAX;
}

static uint64_t inside_twice(void)
{
    CDI_DEFAULT_FLOAT_STATE;
    uint64_t there = inside();

    return there == UINT64_MAX ? there : float_get();
}

static bool is_default(uint64_t word)
{
    return (word & ~UINT64_C(0x3f)) == (float_words[FLOAT_DEFAULT] & ~UINT64_C(0x3f));
}

Test(float_state, computes_in_default_state_and_restores_callers)
{
    third = one / three;
    for (size_t k = 0; k < N_STRANGE; k++) {
        uint64_t set = float_words[strange[k]], there, nested, after;

        float_set(set);
        there = inside();
        nested = inside_twice();
        after = float_get();
        float_set(float_words[FLOAT_DEFAULT]);
        cr_assert(is_default(there) && is_default(nested), "%s", float_names[strange[k]]);
        cr_assert_eq(after, set, "%s: the flags, too", float_names[strange[k]]);
    }
}

static uint64_t seen;

static void see(void)
{
    seen = float_get();
}

static void see_and_change(void)
{
    see();
    float_set(float_words[FLOAT_DOWN]);
}

static uint64_t call(void (*program)(void))
{
    CDI_DEFAULT_FLOAT_STATE;
    {
        CDI_CALLERS_FLOAT_STATE;

        program();
    }
    return float_get();
}

Test(float_state, program_has_its_own_state_in_its_functions)
{
    uint64_t back, after;

    float_set(float_words[FLOAT_UP]);
    back = call(see);
    after = float_get();
    float_set(float_words[FLOAT_DEFAULT]);
    cr_assert(seen == float_words[FLOAT_UP] && is_default(back) && after == float_words[FLOAT_UP]);
}

Test(float_state, what_programs_function_sets_stays)
{
    uint64_t back, after;

    float_set(float_words[FLOAT_UP]);
    back = call(see_and_change);
    after = float_get();
    float_set(float_words[FLOAT_DEFAULT]);
    cr_assert(seen == float_words[FLOAT_UP] && is_default(back) && after == float_words[FLOAT_DOWN]);
}

static void call_again(void)
{
    (void)inside();
    (void)call(see);
}

Test(float_state, programs_function_may_call_library)
{
    uint64_t back, after;

    third = one / three;
    float_set(float_words[FLOAT_FLUSH]);
    back = call(call_again);
    after = float_get();
    float_set(float_words[FLOAT_DEFAULT]);
    cr_assert(seen == float_words[FLOAT_FLUSH] && is_default(back) && after == float_words[FLOAT_FLUSH]);
}

static jmp_buf out;

static void jump(void)
{
    longjmp(out, 1);
}

Test(float_state, programs_function_may_jump_out)
{
    uint64_t left, there;

    third = one / three;
    float_set(float_words[FLOAT_UP]);
    if (setjmp(out) == 0)
        (void)call(jump);
    left = float_get();
    float_set(float_words[FLOAT_FLUSH]);
    there = inside(); /* as if nothing had happened */
    seen = float_get();
    float_set(float_words[FLOAT_DEFAULT]);
    cr_assert(left == float_words[FLOAT_UP] && is_default(there) && seen == float_words[FLOAT_FLUSH]);
}

static void *look(void *at)
{
    *(uint64_t *)at = float_get();
    return NULL;
}

Test(float_state, threads_start_in_default_state)
{
    for (size_t k = 0; k < N_STRANGE; k++) {
        uint64_t of_library = UINT64_MAX, of_program = UINT64_MAX, after;
        pthread_t a, b;
        int failed;

        float_set(float_words[strange[k]]);
        failed = cdi_thread_create(&a, 0, look, &of_library) | pthread_create(&b, NULL, look, &of_program);
        after = float_get();
        float_set(float_words[FLOAT_DEFAULT]);
        cr_assert(failed == 0 && pthread_join(a, NULL) == 0 && pthread_join(b, NULL) == 0);
        cr_assert(is_default(of_library) && after == float_words[strange[k]], "%s", float_names[strange[k]]);
        cr_assert_eq(of_program, float_words[strange[k]], "a new thread inherits %s", float_names[strange[k]]);
    }
}
