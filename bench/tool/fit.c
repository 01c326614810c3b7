/* SPDX-License-Identifier: Apache-2.0 */
#include "fit.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LIVE_UNITS 3 /* the defaults of cddp_fsdp_options */
#define LIVE_GRADIENTS 2
#define MOST_RANKS 65536

/* GPT-2's sizes and GPT-3's 1.3B, with tied embeddings, and those of Llama 2. A unit is a block, the embedding, or the
 * end. */
static const struct {
    const char *name;
    int blocks;
    uint64_t block, embedding, end;
} models[] = {
    {"124M", 12, 7087872, 39383808, 1536},        {"350M", 24, 12596224, 52511744, 2048},
    {"774M", 36, 19677440, 65639680, 2560},       {"1.3B", 24, 50358272, 107120640, 4096},
    {"1.5B", 48, 30740800, 82049600, 3200},       {"7B", 32, 202383360, 131072000, 131076096},
    {"13B", 40, 317204480, 163840000, 163845120}, {"70B", 80, 855654400, 262144000, 262152192},
};

static const struct {
    const char *name;
    size_t numbers; /* for each parameter */
} optims[] = {{"adamw", 2}, {"adam", 2}, {"momentum", 1}, {"sgd", 0}};

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* "1.3B", "350M", "842496". */
static bool parse_count(const char *text, uint64_t *n)
{
    static const char letters[] = "KMBT";
    const char *letter;
    char *end;
    double x;

    if (!isdigit((unsigned char)*text))
        return false;
    x = strtod(text, &end);
    if (*end != '\0' && (letter = strchr(letters, toupper((unsigned char)*end))) != NULL) {
        x *= pow(1e3, (double)(letter - letters + 1));
        end++;
    }
    *n = x >= 1 && x <= 1e15 ? (uint64_t)llround(x) : 0;
    return *end == '\0' && *n > 0;
}

bool bench_fit_model(const char *model, int units, struct bench_model *m)
{
    if (units > 0) {
        if (!parse_count(model, &m->params) || (uint64_t)units > m->params)
            return false;
        m->units = units;
        m->largest = (m->params + (uint64_t)units - 1) / (uint64_t)units;
        return true;
    }
    for (size_t i = 0; i < COUNT(models); i++)
        if (strcasecmp(model, models[i].name) == 0) {
            uint64_t most = models[i].block > models[i].embedding ? models[i].block : models[i].embedding;

            *m = (struct bench_model){.params = (uint64_t)models[i].blocks * models[i].block + models[i].embedding +
                                                models[i].end,
                                      .largest = most,
                                      .units = models[i].blocks + 2};
            return true;
        }
    return false;
}

bool bench_fit_state(const char *optim, size_t param, size_t *state)
{
    for (size_t i = 0; i < COUNT(optims); i++)
        if (strcasecmp(optim, optims[i].name) == 0) {
            /* Of 16 bits there are float32 copies, too. */
            *state = optims[i].numbers * (param > 4 ? param : 4) + (param < 4 ? 4 : 0);
            return true;
        }
    return false;
}

static uint64_t least(int a, int b)
{
    return (uint64_t)(a < b ? a : b);
}

uint64_t bench_fit_bytes(const struct bench_model *m, int stage, int ranks, size_t param, size_t state)
{
    uint64_t share = (m->params + (uint64_t)ranks - 1) / (uint64_t)ranks;
    uint64_t live = least(LIVE_GRADIENTS, m->units) + (stage == 3 ? least(LIVE_UNITS, m->units) : 0);

    if (stage < 2)
        return 2 * param * m->params + state * (stage == 0 ? m->params : share);
    return (stage == 2 ? param * m->params : 0) + (2 * param + state) * share + live * param * m->largest;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

static void row(const struct bench_model *m, const struct bench_fit *f, int ranks, size_t param, size_t state, FILE *to)
{
    (void)fprintf(to, "%8d", ranks);
    for (int stage = 0; stage <= 3; stage++) {
        uint64_t bytes = bench_fit_bytes(m, stage, ranks, param, state);

        (void)fprintf(to, "%10.2f%c", gib(bytes), f->memory > 0 && bytes <= f->memory ? '*' : ' ');
    }
    (void)fputc('\n', to);
}

/* How many ranks each stage needs. */
static void tell_least(const struct bench_model *m, const struct bench_fit *f, size_t param, size_t state, FILE *to)
{
    (void)fprintf(to, "# *: fits into %.2f GiB;", gib(f->memory));
    for (int stage = 0; stage <= 3; stage++) {
        int n = 1;

        while (n <= MOST_RANKS && bench_fit_bytes(m, stage, n, param, state) > f->memory)
            n++;
        (void)fprintf(to, "%s %s%.0d", stage == 0 ? "" : ",", stage == 0 ? "DDP" : "stage ", stage);
        if (n > MOST_RANKS)
            (void)fputs(" never", to);
        else
            (void)fprintf(to, " from %d rank%s", n, n == 1 ? "" : "s");
    }
    (void)fputc('\n', to);
}

bool bench_fit_print(const struct bench_fit *f, const char *type, size_t param, FILE *to, char *why, size_t cap)
{
    const char *optim = f->optim != NULL ? f->optim : optims[0].name;
    struct bench_model m;
    size_t state;

    if (!bench_fit_model(f->model, f->units, &m)) {
        (void)snprintf(why, cap,
                       f->units > 0
                           ? "--fit '%.100s': expected a number of parameters, such as 3.5B, of at least --units"
                           : "--fit '%.100s': not 124M, 350M, 774M, 1.3B, 1.5B, 7B, 13B or 70B; of other "
                             "models give the number of units (blocks), too: --units=N",
                       f->model);
        return false;
    }
    if (!bench_fit_state(optim, param, &state)) {
        (void)snprintf(why, cap, "--optim '%.100s': expected adamw, adam, momentum or sgd", optim);
        return false;
    }
    (void)fprintf(to,
                  "# %llu parameters (%s), %d units, the largest has %llu; %s\n"
                  "# GiB of a rank, without activations; stages as in ZeRO, with cddp_fsdp's pools\n"
                  "#  ranks       DDP    stage 1    stage 2    stage 3\n",
                  (unsigned long long)m.params, type, m.units, (unsigned long long)m.largest, optim);
    if (f->ranks > 0)
        row(&m, f, f->ranks, param, state, to);
    for (int n = 1; f->ranks == 0 && n <= 64; n *= 2)
        row(&m, f, n, param, state, to);
    if (f->memory > 0)
        tell_least(&m, f, param, state, to);
    return true;
}
