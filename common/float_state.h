/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floating-point state of a thread: rounding, the flushing of small numbers to zero, traps, and the flags that
 * operations leave. A program changes it on purpose or without knowing, such as by a library that was linked with
 * -ffast-math, and a new thread inherits its creator's. Results must not depend on it. So each public function of
 * libcddp begins with CDI_DEFAULT_FLOAT_STATE, and cdi_thread_create() starts threads in the default state.
 *
 * On x86-64 this is MXCSR alone: the x87 unit computes long doubles, which libcddp does not have.
 */
#ifndef CDI_FLOAT_STATE_H
#define CDI_FLOAT_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)

struct cdi_float_state {
    uint32_t mxcsr;
};

static inline struct cdi_float_state cdi_float_read(void)
{
    struct cdi_float_state s;

    __asm__ volatile("stmxcsr %0" : "=m"(s.mxcsr) : : "memory");
    return s;
}

static inline void cdi_float_write(struct cdi_float_state s)
{
    __asm__ volatile("ldmxcsr %0" : : "m"(s.mxcsr) : "memory");
}

/* Sets the default state, if the present state computes differently: its low six bits are flags. */
static inline void cdi_float_set_default(struct cdi_float_state now)
{
    if ((now.mxcsr & ~0x3fu) != 0x1f80)
        cdi_float_write((struct cdi_float_state){0x1f80});
}

/* Writing costs more than reading: it happens only where something has changed. */
static inline void cdi_float_restore(struct cdi_float_state s)
{
    if (cdi_float_read().mxcsr != s.mxcsr)
        cdi_float_write(s);
}

#elif defined(__aarch64__)

struct cdi_float_state {
    uint64_t control, flags;
};

static inline struct cdi_float_state cdi_float_read(void)
{
    struct cdi_float_state s;

    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(s.control), "=r"(s.flags) : : "memory");
    return s;
}

static inline void cdi_float_write(struct cdi_float_state s)
{
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(s.control), "r"(s.flags) : "memory");
}

static inline void cdi_float_set_default(struct cdi_float_state now)
{
    if (now.control != 0)
        cdi_float_write((struct cdi_float_state){0, 0});
}

static inline void cdi_float_restore(struct cdi_float_state s)
{
    struct cdi_float_state now = cdi_float_read();

    if (now.control != s.control || now.flags != s.flags)
        cdi_float_write(s);
}

#else
#include <fenv.h>

struct cdi_float_state {
    fenv_t env;
};

static inline struct cdi_float_state cdi_float_read(void)
{
    struct cdi_float_state s;

    (void)fegetenv(&s.env);
    __asm__ volatile("" : : : "memory");
    return s;
}

static inline void cdi_float_write(struct cdi_float_state s)
{
    __asm__ volatile("" : : : "memory");
    (void)fesetenv(&s.env);
    __asm__ volatile("" : : : "memory");
}

static inline void cdi_float_set_default(struct cdi_float_state now)
{
    (void)now;
    (void)fesetenv(FE_DFL_ENV);
    __asm__ volatile("" : : : "memory");
}

static inline void cdi_float_restore(struct cdi_float_state s)
{
    cdi_float_write(s);
}

#endif

/* Of the thread: whether it is inside libcddp, and what the program gets back then, with its flags. */
struct cdi_float_thread {
    struct cdi_float_state callers;
    bool inside;
};
extern _Thread_local struct cdi_float_thread cdi_float_thread;

/* Returns NULL inside: a public function that another one calls changes nothing. */
static inline struct cdi_float_thread *cdi_float_enter_(void)
{
    struct cdi_float_thread *t = &cdi_float_thread;

    if (t->inside)
        return NULL;
    t->inside = true;
    t->callers = cdi_float_read();
    cdi_float_set_default(t->callers);
    return t;
}

static inline void cdi_float_leave_(struct cdi_float_thread *const *t)
{
    if (*t == NULL)
        return;
    cdi_float_restore((*t)->callers);
    (*t)->inside = false;
}

/* Returns NULL outside. */
static inline struct cdi_float_thread *cdi_float_call_(void)
{
    struct cdi_float_thread *t = &cdi_float_thread;

    if (!t->inside)
        return NULL;
    t->inside = false;
    cdi_float_restore(t->callers);
    return t;
}

static inline void cdi_float_called_(struct cdi_float_thread *const *t)
{
    if (*t == NULL)
        return;
    (*t)->callers = cdi_float_read();
    cdi_float_set_default((*t)->callers);
    (*t)->inside = true;
}

/* The rest of the scope, a public function, computes with the default state. Its end restores the caller's. */
#define CDI_DEFAULT_FLOAT_STATE                                                                           \
    __attribute__((unused, cleanup(cdi_float_leave_))) struct cdi_float_thread *const cdi_float_inside_ = \
        cdi_float_enter_()
/*
 * The rest of the scope has the caller's state, for a function of the program that the library calls. What that
 * function makes of the state is what the caller gets back. It may leave by longjmp().
 */
#define CDI_CALLERS_FLOAT_STATE                                                                             \
    __attribute__((unused, cleanup(cdi_float_called_))) struct cdi_float_thread *const cdi_float_outside_ = \
        cdi_float_call_()

/*
 * Makes a compiler keep arithmetic with x on its side of this line, as it does not know that the state matters. For a
 * double that is an argument or a result of the function that changes the state; memory needs no such line.
 */
#define CDI_FLOAT_FENCE(x) __asm__ volatile("" : "+m"(x))

#endif
