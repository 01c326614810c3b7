/* SPDX-License-Identifier: Apache-2.0 */
/* The floating-point state of the calling thread as one word, and words that programs set. */
#ifndef CDI_TEST_FLOAT_WORDS_H
#define CDI_TEST_FLOAT_WORDS_H

#include <stdint.h>

/* traps: every exception that the processor can trap. */
enum float_word { FLOAT_DEFAULT, FLOAT_FLUSH, FLOAT_UP, FLOAT_DOWN, FLOAT_TRAPS, N_FLOAT_WORDS };

static const char *const float_names[N_FLOAT_WORDS] = {"the default", "flush to zero", "rounding up", "rounding down",
                                                       "traps"};

#if defined(__x86_64__)
static const uint64_t float_words[N_FLOAT_WORDS] = {0x1f80, 0x9fc0, 0x5f80, 0x3f80, 0};

static inline uint64_t float_get(void)
{
    uint32_t word;

    __asm__ volatile("stmxcsr %0" : "=m"(word) : : "memory");
    return word;
}

static inline void float_set(uint64_t word)
{
    uint32_t narrow = (uint32_t)word;

    __asm__ volatile("ldmxcsr %0" : : "m"(narrow) : "memory");
}
#elif defined(__aarch64__)
static const uint64_t float_words[N_FLOAT_WORDS] = {0, 1u << 24, 1u << 22, 2u << 22, 0x9f00};

static inline uint64_t float_get(void)
{
    uint64_t word;

    __asm__ volatile("mrs %0, fpcr" : "=r"(word) : : "memory");
    return word;
}

static inline void float_set(uint64_t word)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(word) : "memory");
}
#else
#include <fenv.h>
static const uint64_t float_words[N_FLOAT_WORDS] = {FE_TONEAREST, FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TONEAREST};

static inline uint64_t float_get(void)
{
    return (uint64_t)fegetround();
}

static inline void float_set(uint64_t word)
{
    (void)fesetround((int)word);
}
#endif

#endif
