/* SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include "random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One token by the probabilities softmax(logits / temperature). */
static uint8_t draw(const real *logits, size_t vocab, double temperature, uint64_t *random)
{
    double max = (double)logits[0], sum = 0, at;
    size_t i;

    for (i = 1; i < vocab; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max;
    for (i = 0; i < vocab; i++)
        sum += exp(((double)logits[i] - max) / temperature);
    at = random_uniform(random) * sum;
    for (i = 0; i + 1 < vocab; i++) {
        at -= exp(((double)logits[i] - max) / temperature);
        if (at < 0)
            break;
    }
    return (uint8_t)i;
}

/* Bytes of the UTF-8 character at `at`, of which n bytes follow; 0: it is none, or a control character but '\n'. */
static size_t character(const uint8_t *at, size_t n)
{
    const size_t length = *at < 0x80 ? 1 : *at < 0xc2 ? 0 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : *at < 0xf5 ? 4 : 0;

    if (length > n || (length == 1 && *at != '\n' && (*at < ' ' || *at == 127)))
        return 0;
    for (size_t i = 1; i < length; i++)
        if (at[i] < 0x80 || at[i] > 0xbf)
            return 0;
    return length;
}

static void print(FILE *out, const uint8_t *text, size_t n)
{
    for (size_t i = 0, length; i < n; i += length == 0 ? 1 : length) {
        length = character(text + i, n - i);
        if (length == 0)
            (void)fputc('?', out);
        else
            (void)fwrite(text + i, 1, length, out);
    }
    (void)fputc('\n', out);
}

cddp_status sample(struct engine *e, const struct options *opt, FILE *out)
{
    const size_t context = e->model->config.context, vocab = e->model->config.vocab, n_prompt = strlen(opt->prompt);
    const size_t n = n_prompt + (size_t)opt->sample;
    uint8_t *text = malloc(n);
    uint64_t random = (uint64_t)opt->seed;
    cddp_status status = CDDP_OK;

    if (text == NULL)
        return engine_fail(e, "out of memory");
    memcpy(text, opt->prompt, n_prompt);
    for (size_t i = n_prompt; i < n && status == CDDP_OK; i++) {
        const size_t seen = i < context ? i : context;
        const real *logits;

        status = e->ops->logits(e, text + i - seen, seen, &logits);
        if (status == CDDP_OK)
            text[i] = draw(logits, vocab, opt->temperature, &random);
    }
    if (status == CDDP_OK && out != NULL)
        print(out, text, n);
    free(text);
    return status;
}
