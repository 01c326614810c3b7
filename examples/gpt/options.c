/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Presets; the named sizes are those of GPT-2, but for its 50257 tokens: bytes need fewer weights. */
static const struct {
    const char *name;
    struct gpt_config config;
} presets[] = {
    {"tiny", {256, 128, 4, 4, 128, 0}},     {"small", {256, 256, 6, 6, 384, 0}},
    {"124M", {256, 1024, 12, 12, 768, 0}},  {"350M", {256, 1024, 24, 16, 1024, 0}},
    {"774M", {256, 1024, 36, 20, 1280, 0}}, {"1558M", {256, 1024, 48, 25, 1600, 0}},
};

enum kind { SIZE, TEXT, WHOLE, SMALL, NUMBER, SWITCH, CONFIG_SWITCH, STAGE };

/* One flag: the place of its value, and the right ones. SMALL is a uint32_t. STAGE is a number that may be left out. */
static const struct flag {
    const char *name;
    enum kind kind;
    size_t at;
    double min, max;
    const char *value, *help;
} flags[] = {
#define AT(member) offsetof(struct options, member)
    {"size", SIZE, AT(config), 0, 0, "NAME",
     "tiny (default), small, 124M, 350M, 774M or 1558M; the next four change it"},
    {"layers", SMALL, AT(config.layers), 1, 1000, "N", "layers"},
    {"heads", SMALL, AT(config.heads), 1, 65536, "N", "heads of the attention"},
    {"width", SMALL, AT(config.width), 2, 65536, "N", "numbers per token"},
    {"context", SMALL, AT(config.context), 2, 65536, "N", "tokens of a sequence"},
    {"untied", CONFIG_SWITCH, AT(config.untied), 0, 0, NULL, "the output layer has its own weights"},
    {"text", TEXT, AT(text), 0, 0, "FILE", "train on this text; its last tenth is held out (default: data/kjv.txt)"},
    {"steps", WHOLE, AT(steps), 0, 1e9, "N", "steps of the optimizer (default: 2000)"},
    {"batch", WHOLE, AT(batch), 1, 1e6, "N", "sequences of a step, over all ranks (default: 8)"},
    {"micro", WHOLE, AT(micro), 0, 1e6, "N",
     "of these, so many at a time on a rank; gradients add up (default: 8 at most)"},
    {"lr", NUMBER, AT(lr), 1e-12, 1e3, "X", "highest learning rate (default: 0.002)"},
    {"min-lr", NUMBER, AT(min_lr), 0, 1, "X", "the last one, as a part of it (default: 0.1)"},
    {"warmup", WHOLE, AT(warmup), 0, 1e9, "N", "steps until the highest one (default: 50)"},
    {"weight-decay", NUMBER, AT(weight_decay), 0, 1e3, "X", "of matrices (default: 0.1)"},
    {"beta2", NUMBER, AT(beta2), 1e-6, 0.999999, "X", "of AdamW, whose beta1 is 0.9 (default: 0.99)"},
    {"clip", NUMBER, AT(clip), 0, 1e9, "X", "largest norm of the gradients; 0: any (default: 1)"},
    {"seed", WHOLE, AT(seed), 0, 1e15, "N", "of the weights, the order of the data, and the sample (default: 1)"},
    {"divided", SWITCH, AT(divided), 0, 0, NULL, "each rank keeps AdamW's averages of its share only (cddp_optim)"},
    {"fsdp", STAGE, AT(fsdp), 2, 3, "[=2]",
     "and of weights and gradients; =2: of gradients, with whole weights (cddp_fsdp)"},
    {"hsdp", SWITCH, AT(hsdp), 0, 0, NULL,
     "with --fsdp: divide the model within each node only; each node has all of it"},
    {"graph", SWITCH, AT(graph), 0, 0, NULL, "on a GPU: capture a whole step once, and launch it as a CUDA graph"},
    {"bucket-kib", WHOLE, AT(bucket_kib), 0, 1e7, "N",
     "size of the buckets, without --fsdp; 0: libcddp's default (default: 512)"},
    {"device", TEXT, AT(device), 0, 0, "NAME", "cpu, gpu, or auto: a GPU if there is one (default: auto)"},
    {"dtype", TEXT, AT(dtype), 0, 0, "NAME", "float32, or on a GPU bf16 (default: float32)"},
    {"apart-every", WHOLE, AT(apart_every), 0, 1e9, "N",
     "every N-th step does not communicate, to measure what that costs (default: 0: none)"},
    {"kernels", TEXT, AT(kernels), 0, 0, "NAME",
     "of the CPU: openblas, avx512, avx2 or plain (default: the first that there is)"},
    {"log", TEXT, AT(log), 0, 0, "FILE", "rank 0 writes JSON lines"},
    {"log-every", WHOLE, AT(log_every), 1, 1e9, "N", "steps from line to line (default: 10)"},
    {"eval-every", WHOLE, AT(eval_every), 0, 1e9, "N", "steps between evaluations; 0: only at the end (default: 500)"},
    {"save", TEXT, AT(save), 0, 0, "DIR", "save checkpoints here, also when the job is to stop"},
    {"save-every", WHOLE, AT(save_every), 0, 1e9, "N", "steps between them; 0: only at the end (default: 100)"},
    {"resume", TEXT, AT(resume), 0, 0, "DIR",
     "go on from the newest whole checkpoint there, if any; may be the DIR of --save"},
    {"weights-out", TEXT, AT(weights_out), 0, 0, "FILE",
     "rank 0 writes the final weights, float32 in the order of the model"},
    {"sample", WHOLE, AT(sample), 0, 1e6, "N", "bytes of text that rank 0 writes at the end (default: 400)"},
    {"prompt", TEXT, AT(prompt), 0, 0, "TEXT", "how that text begins"},
    {"temperature", NUMBER, AT(temperature), 1e-3, 100, "X", "less is safer, more is bolder (default: 0.7)"},
    {"help", SWITCH, AT(help), 0, 0, NULL, "print this text"},
#undef AT
};

#define N_FLAGS (sizeof flags / sizeof flags[0])

void options_help(void)
{
    (void)puts("usage: cddprun --standalone --nproc_per_node=N gpt [flags]\n"
               "Train a GPT on the bytes of a text, on N ranks, and let it write.\n");
    for (size_t i = 0; i < N_FLAGS; i++) {
        const char *value = flags[i].value == NULL ? "" : flags[i].value;
        const char *gap = flags[i].kind == STAGE ? "" : " ";

        (void)printf("  --%s%s%-*s  %s\n", flags[i].name, gap, (int)(18 - strlen(flags[i].name) - strlen(gap)), value,
                     flags[i].help);
    }
}

static bool find_preset(struct gpt_config *config, const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
        if (strcmp(presets[i].name, name) == 0) {
            *config = presets[i].config;
            return true;
        }
    return false;
}

/* A number from min to max, and whole where that is asked for. */
static bool number(const struct flag *f, const char *text, double *out)
{
    char *end;

    errno = 0;
    *out = strtod(text, &end);
    return errno == 0 && end != text && *end == '\0' && *out >= f->min && *out <= f->max &&
           (f->kind == NUMBER || floor(*out) == *out);
}

/* Stores one flag's value. Returns false if it is not right. */
static bool store(struct options *o, const struct flag *f, const char *text)
{
    char *to = (char *)o + f->at;
    double x = 0;

    switch (f->kind) {
    case SIZE:
        return find_preset(&o->config, text);
    case TEXT:
        memcpy(to, &text, sizeof text);
        return *text != '\0';
    case WHOLE:
        if (!number(f, text, &x))
            return false;
        memcpy(to, &(long){(long)x}, sizeof(long));
        return true;
    case SMALL:
        if (!number(f, text, &x))
            return false;
        memcpy(to, &(uint32_t){(uint32_t)x}, sizeof(uint32_t));
        return true;
    case STAGE:
        x = f->max;
        if (text != NULL && !number(f, text, &x))
            return false;
        memcpy(to, &(long){(long)x}, sizeof(long));
        return true;
    case NUMBER:
        if (!number(f, text, &x))
            return false;
        memcpy(to, &x, sizeof x);
        return true;
    case SWITCH:
        memcpy(to, &(bool){true}, sizeof(bool));
        return true;
    case CONFIG_SWITCH:
        memcpy(to, &(uint32_t){1}, sizeof(uint32_t));
        return true;
    }
    return false;
}

static bool complain(const struct flag *f, const char *value)
{
    if (f->kind == SIZE)
        (void)fprintf(stderr, "gpt: --size must be tiny, small, 124M, 350M, 774M or 1558M, not '%s'\n", value);
    else if (f->kind == TEXT)
        (void)fprintf(stderr, "gpt: --%s must not be empty\n", f->name);
    else
        (void)fprintf(stderr, "gpt: --%s must be a %s from %g to %g, not '%s'\n", f->name,
                      f->kind == NUMBER ? "number" : "whole number", f->min, f->max, value);
    return false;
}

static bool parse(struct options *o, int argc, char **argv)
{
    struct option list[N_FLAGS + 1] = {{0}};
    int got;

    for (size_t i = 0; i < N_FLAGS; i++)
        list[i] = (struct option){flags[i].name,
                                  flags[i].kind == STAGE   ? optional_argument
                                  : flags[i].value != NULL ? required_argument
                                                           : no_argument,
                                  NULL, (int)i};
    opterr = 0;
    while ((got = getopt_long(argc, argv, ":", list, NULL)) != -1) {
        if (got == ':' || got == '?') {
            const char letter[] = {'-', (char)optopt, '\0'}; /* optopt of a long flag is its number, or 0 */

            (void)fprintf(stderr, "gpt: %s: %s (see gpt --help)\n", optopt > ' ' ? letter : argv[optind - 1],
                          got == ':' ? "needs a value" : "unknown flag, or a value that it does not take");
            return false;
        }
        if (!store(o, &flags[got], optarg))
            return complain(&flags[got], optarg);
    }
    if (optind < argc)
        (void)fprintf(stderr, "gpt: unexpected argument '%s' (see gpt --help)\n", argv[optind]);
    return optind >= argc;
}

/* Is it one of the words? */
static bool one_of(const char *word, const char *words)
{
    const size_t n = strlen(word);

    for (const char *at = words; *at != '\0'; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == n && memcmp(at, word, n) == 0)
            return true;
    return false;
}

#define SAVE_EVERY_UNSET (-1)

bool options_parse(struct options *o, int argc, char **argv)
{
    const char *wrong;

    *o = (struct options){.config = presets[0].config,
                          .device = "auto",
                          .dtype = "float32",
                          .steps = 2000,
                          .batch = 8,
                          .lr = 2e-3,
                          .min_lr = 0.1,
                          .warmup = 50,
                          .weight_decay = 0.1,
                          .beta2 = 0.99,
                          .clip = 1,
                          .seed = 1,
                          .bucket_kib = 512,
                          .log_every = 10,
                          .eval_every = 500,
                          .save_every = SAVE_EVERY_UNSET,
                          .sample = 400,
                          .prompt = "\nAnd ",
                          .temperature = 0.7};
    if (!parse(o, argc, argv))
        return false;
    wrong = gpt_check(&o->config);
    if (wrong == NULL && o->save_every != SAVE_EVERY_UNSET && o->save == NULL)
        wrong = "--save-every needs --save DIR";
    if (o->save_every == SAVE_EVERY_UNSET)
        o->save_every = 100;
    o->divided = o->divided || o->fsdp > 0;
    if (wrong == NULL && o->apart_every > 0 && (o->divided || o->save != NULL))
        wrong =
            "--apart-every cannot be combined with --divided, --fsdp or --save: the ranks' weights become different";
    if (wrong == NULL && o->hsdp && o->fsdp == 0)
        wrong = "--hsdp needs --fsdp";
    if (wrong == NULL && o->hsdp && (o->save != NULL || o->resume != NULL))
        wrong = "--save and --resume cannot be combined with --hsdp: every node would write the whole model";
    if (wrong == NULL && o->fsdp > 0 && o->graph)
        wrong = "--graph cannot be combined with --fsdp: the steps of a sharded model cannot be captured";
    if (wrong == NULL && o->apart_every > 0 && strcmp(o->device, "gpu") == 0)
        wrong = "--apart-every is for the CPU; remove --device gpu";
    if (wrong == NULL && kernels_pick(o->kernels) == NULL)
        wrong = "--kernels must be openblas, avx512, avx2 or plain, and one that this machine has";
    if (wrong == NULL && !one_of(o->device, "auto cpu gpu"))
        wrong = "--device must be auto, cpu or gpu";
    if (wrong == NULL && !one_of(o->dtype, "float32 bf16"))
        wrong = "--dtype must be float32 or bf16";
    o->bf16 = strcmp(o->dtype, "bf16") == 0;
    if (wrong == NULL && o->bf16 && strcmp(o->device, "cpu") == 0)
        wrong = "--dtype bf16 needs a GPU: the CPU computes in float32";
    if (wrong != NULL)
        (void)fprintf(stderr, "gpt: %s\n", wrong);
    return wrong == NULL;
}
