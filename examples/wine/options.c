/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DATA = 1,
    EPOCHS,
    BATCH_SIZE,
    LR,
    SEED,
    DTYPE,
    NO_SHUFFLE,
    DROP_LAST,
    ACCUMULATE,
    COMPRESS,
    CLIP,
    UNEVEN,
    ZERO,
    INIT,
    METRICS,
    WEIGHTS_OUT,
    SAVE,
    SAVE_EVERY,
    SAVE_STEPS,
    SAVE_BACKGROUND,
    RESUME,
    HELP
};

static const struct option flags[] = {
    {"data", required_argument, NULL, DATA},
    {"epochs", required_argument, NULL, EPOCHS},
    {"batch-size", required_argument, NULL, BATCH_SIZE},
    {"lr", required_argument, NULL, LR},
    {"seed", required_argument, NULL, SEED},
    {"dtype", required_argument, NULL, DTYPE},
    {"no-shuffle", no_argument, NULL, NO_SHUFFLE},
    {"drop-last", no_argument, NULL, DROP_LAST},
    {"accumulate", required_argument, NULL, ACCUMULATE},
    {"compress", required_argument, NULL, COMPRESS},
    {"clip", required_argument, NULL, CLIP},
    {"uneven", required_argument, NULL, UNEVEN},
    {"zero", no_argument, NULL, ZERO},
    {"init", required_argument, NULL, INIT},
    {"metrics", required_argument, NULL, METRICS},
    {"weights-out", required_argument, NULL, WEIGHTS_OUT},
    {"save", required_argument, NULL, SAVE},
    {"save-every", required_argument, NULL, SAVE_EVERY},
    {"save-steps", required_argument, NULL, SAVE_STEPS},
    {"save-background", no_argument, NULL, SAVE_BACKGROUND},
    {"resume", required_argument, NULL, RESUME},
    {"help", no_argument, NULL, HELP},
    {NULL, 0, NULL, 0},
};

void options_help(void)
{
    (void)puts(
        "usage: cddprun --standalone --nproc_per_node=N wine [flags]\n"
        "Train a classifier of 178 wines (13 -> 64 -> ReLU -> 3, Adam) on N ranks.\n"
        "\n"
        "  --data DIR          wine.csv, its split and init.f32 (default: beside the program, or as installed)\n"
        "  --epochs N          default 100\n"
        "  --batch-size N      per rank, default 32\n"
        "  --lr X              learning rate, default 0.001\n"
        "  --seed N            of the order of the samples, default 0\n"
        "  --dtype f32|f64     default f32\n"
        "  --no-shuffle        take the samples in the order of the file\n"
        "  --drop-last         leave out samples that do not share out evenly, instead of repeating some\n"
        "  --accumulate N      add the gradients of N batches before each step (no_sync), default 1\n"
        "  --compress TYPE     send gradients as fp16 or bf16, or by powersgd (after 10 steps, of rank 1)\n"
        "  --clip X            make the norm of the gradients at most X before each step\n"
        "  --uneven N          rank r leaves out the last r * N samples of an epoch: the ranks take different numbers\n"
        "                      of steps, and those that are through wait in cddp_ddp_join\n"
        "  --zero              each rank keeps Adam's averages of its share of the weights only (cddp_optim)\n"
        "  --init FILE         initial weights: 1091 little-endian float32 (default: DIR/init.f32)\n"
        "  --metrics FILE      rank 0 writes one JSON line per epoch\n"
        "  --weights-out FILE  rank 0 writes the final weights, one per line\n"
        "  --save DIR          rank 0 saves a checkpoint every 50 epochs and at the end; the newest two stay.\n"
        "                      When the job is to stop, it saves after the step under way, and leaves with status 0\n"
        "  --save-every N      every N epochs instead\n"
        "  --save-steps N      every N steps too, also in the middle of an epoch\n"
        "  --save-background   checkpoints are written by a thread while training goes on\n"
        "  --resume DIR        go on from the newest whole checkpoint there, if any; may be the DIR of --save.\n"
        "                      FILE of --metrics is then cut to the epochs that were done, and continued\n"
        "  --help");
}

/* A whole number from min to max, or false. */
static bool whole(const char *text, long long min, long long max, long long *out)
{
    char *end;

    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && *out >= min && *out <= max;
}

static bool number(const char *text, double *out)
{
    char *end;

    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out) && *out > 0;
}

/* Store one flag's value; NULL, or what its value must be. */
static const char *store(struct options *o, int flag, const char *value)
{
    long long n = 0;

    switch (flag) {
    case DATA:
        o->data = value;
        return *value != '\0' ? NULL : "a directory";
    case EPOCHS:
        if (!whole(value, 1, 1000000, &n))
            return "a whole number from 1 to 1000000";
        o->epochs = (long)n;
        return NULL;
    case BATCH_SIZE:
        if (!whole(value, 1, 1000000, &n))
            return "a whole number from 1 to 1000000";
        o->batch_size = (long)n;
        return NULL;
    case LR:
        return number(value, &o->lr) ? NULL : "a number above 0";
    case SEED:
        if (!whole(value, INT64_MIN, INT64_MAX, &n))
            return "a whole number of 64 bits";
        o->seed = n;
        return NULL;
    case DTYPE:
        o->f64 = strcmp(value, "f64") == 0;
        return o->f64 || strcmp(value, "f32") == 0 ? NULL : "f32 or f64";
    case ACCUMULATE:
        if (!whole(value, 1, 1000, &n))
            return "a whole number from 1 to 1000";
        o->accumulate = (long)n;
        return NULL;
    case COMPRESS:
        o->powersgd = strcmp(value, "powersgd") == 0;
        o->compress = strcmp(value, "fp16") == 0 ? 16 : strcmp(value, "bf16") == 0 ? -16 : 0;
        return o->powersgd || o->compress != 0 ? NULL : "fp16, bf16 or powersgd";
    case CLIP:
        return number(value, &o->clip) ? NULL : "a number above 0";
    case UNEVEN:
        if (!whole(value, 0, 1000000, &n))
            return "a whole number from 0 to 1000000";
        o->uneven = (long)n;
        return NULL;
    case INIT:
        o->init = value;
        return *value != '\0' ? NULL : "a file";
    case METRICS:
        o->metrics = value;
        return *value != '\0' ? NULL : "a file";
    case WEIGHTS_OUT:
        o->weights_out = value;
        return *value != '\0' ? NULL : "a file";
    case SAVE:
        o->save = value;
        return *value != '\0' ? NULL : "a directory";
    case SAVE_EVERY:
        if (!whole(value, 1, 1000000, &n))
            return "a whole number from 1 to 1000000";
        o->save_every = (long)n;
        return NULL;
    case SAVE_STEPS:
        if (!whole(value, 1, 1000000, &n))
            return "a whole number from 1 to 1000000";
        o->save_steps = (long)n;
        return NULL;
    case SAVE_BACKGROUND:
        o->save_background = true;
        return NULL;
    case RESUME:
        o->resume = value;
        return *value != '\0' ? NULL : "a directory";
    case NO_SHUFFLE:
        o->no_shuffle = true;
        return NULL;
    case ZERO:
        o->zero = true;
        return NULL;
    case DROP_LAST:
        o->drop_last = true;
        return NULL;
    default:
        o->help = true;
        return NULL;
    }
}

bool options_parse(struct options *o, int argc, char **argv)
{
    int flag, which = 0;

    *o = (struct options){.epochs = 100, .batch_size = 32, .lr = 1e-3, .accumulate = 1};
    opterr = 0;
    while ((flag = getopt_long(argc, argv, ":", flags, &which)) != -1) {
        const char *must;

        if (flag == ':') {
            (void)fprintf(stderr, "wine: %s needs a value (see wine --help)\n", argv[optind - 1]);
            return false;
        }
        if (flag == '?') {
            (void)fprintf(stderr, "wine: unknown flag, or a value that it does not take: %s (see wine --help)\n",
                          argv[optind - 1]);
            return false;
        }
        must = store(o, flag, optarg);
        if (must != NULL) {
            (void)fprintf(stderr, "wine: --%s must be %s, not '%s'\n", flags[which].name, must, optarg);
            return false;
        }
    }
    if (o->save == NULL && (o->save_every > 0 || o->save_steps > 0 || o->save_background)) {
        (void)fprintf(stderr, "wine: --%s needs --save DIR\n",
                      o->save_every > 0   ? "save-every"
                      : o->save_steps > 0 ? "save-steps"
                                          : "save-background");
        return false;
    }
    if (o->save_every == 0)
        o->save_every = 50;
    if (optind < argc) {
        (void)fprintf(stderr, "wine: unexpected argument '%s' (see wine --help)\n", argv[optind]);
        return false;
    }
    return true;
}
