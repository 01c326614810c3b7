/* SPDX-License-Identifier: Apache-2.0 */
/* The facts of a node as JSON. Numbers that JSON cannot hold exactly (above 2^63) are cut to INT64_MAX. */
#include "preflight/facts.h"

#include "protocol/json_text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_int_t as_int(uint64_t n)
{
    return n > INT64_MAX ? INT64_MAX : (json_int_t)n;
}

static json_t *pack_links(const struct preflight_facts *f)
{
    json_t *links = json_array();

    for (size_t i = 0; i < f->n_links; i++) {
        const struct preflight_link *l = &f->link[i];

        (void)json_array_append_new(links, json_pack("{s:I s:b s:f s:s}", "to", (json_int_t)l->to, "reached",
                                                     (int)l->reached, "mib_s", l->mib_s, "why", l->why));
    }
    return links;
}

static json_t *pack_disks(const struct preflight_facts *f)
{
    json_t *disks = json_array();

    for (size_t i = 0; i < f->n_disks; i++) {
        const struct preflight_disk *d = &f->disk[i];

        (void)json_array_append_new(disks, json_pack("{s:s s:I s:I s:I}", "path", d->path, "total", as_int(d->total),
                                                     "free", as_int(d->free), "free_files", as_int(d->free_files)));
    }
    return disks;
}

char *preflight_facts_text(const struct preflight_facts *f)
{
    json_t *o =
        json_pack("{s:s s:I s:I s:I s:I s:I s:I s:I s:I s:I s:I s:b s:I s:I s:o s:o}", "host", f->host, "workers",
                  (json_int_t)f->workers, "cpus", (json_int_t)f->cpus, "gpus", (json_int_t)f->gpus, "gpus_bad",
                  (json_int_t)f->gpus_bad, "gpus_slow", (json_int_t)f->gpus_slow, "memory", as_int(f->memory),
                  "memory_free", as_int(f->memory_free), "files", as_int(f->files), "shm", as_int(f->shm), "shm_free",
                  as_int(f->shm_free), "clock_known", (int)f->clock_known, "clock_us", (json_int_t)f->clock_us,
                  "clock_error", (json_int_t)f->clock_error, "disks", pack_disks(f), "links", pack_links(f));
    char *text = o == NULL ? NULL : json_dumps(o, JSON_COMPACT);

    json_decref(o);
    return text;
}

/* ----------------------------------------------------------------------------------------------------- reading ---- */

static bool get_count(const json_t *o, const char *name, uint64_t *out)
{
    const json_t *v = json_object_get(o, name);

    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *out = (uint64_t)json_integer_value(v);
    if (*out == INT64_MAX)
        *out = UINT64_MAX;
    return true;
}

static bool get_u32(const json_t *o, const char *name, uint32_t *out)
{
    uint64_t n = 0;

    if (!get_count(o, name, &n) || n > UINT32_MAX)
        return false;
    *out = (uint32_t)n;
    return true;
}

static bool get_text(const json_t *o, const char *name, char *out, size_t cap)
{
    json_t *v = json_object_get(o, name);

    if (!json_is_string(v) || json_text_bytes(v) >= cap)
        return false;
    json_cut(out, cap, json_line(v));
    return true;
}

static bool get_bool(const json_t *o, const char *name, bool *out)
{
    const json_t *v = json_object_get(o, name);

    *out = json_is_true(v);
    return json_is_boolean(v);
}

static bool get_signed(const json_t *o, const char *name, int64_t *out)
{
    const json_t *v = json_object_get(o, name);

    *out = json_integer_value(v);
    return json_is_integer(v) && *out > -INT64_MAX;
}

static bool get_links(const json_t *o, struct preflight_facts *f)
{
    const json_t *all = json_object_get(o, "links");

    if (!json_is_array(all) || json_array_size(all) > PREFLIGHT_LINKS_MAX)
        return false;
    for (f->n_links = 0; f->n_links < json_array_size(all); f->n_links++) {
        const json_t *one = json_array_get(all, f->n_links);
        struct preflight_link *l = &f->link[f->n_links];
        const json_t *rate = json_object_get(one, "mib_s");

        l->mib_s = json_real_value(rate);
        if (!get_u32(one, "to", &l->to) || !get_bool(one, "reached", &l->reached) || !json_is_real(rate) ||
            !(l->mib_s >= 0) || !get_text(one, "why", l->why, sizeof l->why))
            return false;
    }
    return true;
}

static bool get_disks(const json_t *o, struct preflight_facts *f)
{
    const json_t *all = json_object_get(o, "disks");

    if (!json_is_array(all) || json_array_size(all) > PREFLIGHT_DISKS_MAX)
        return false;
    for (f->n_disks = 0; f->n_disks < json_array_size(all); f->n_disks++) {
        const json_t *one = json_array_get(all, f->n_disks);
        struct preflight_disk *d = &f->disk[f->n_disks];

        if (!get_text(one, "path", d->path, sizeof d->path) || !get_count(one, "total", &d->total) ||
            !get_count(one, "free", &d->free) || !get_count(one, "free_files", &d->free_files))
            return false;
    }
    return true;
}

static bool get_all(const json_t *o, struct preflight_facts *f)
{
    return get_text(o, "host", f->host, sizeof f->host) && get_u32(o, "workers", &f->workers) &&
           get_u32(o, "cpus", &f->cpus) && get_u32(o, "gpus", &f->gpus) && get_u32(o, "gpus_bad", &f->gpus_bad) &&
           get_u32(o, "gpus_slow", &f->gpus_slow) && get_count(o, "memory", &f->memory) &&
           get_count(o, "memory_free", &f->memory_free) && get_count(o, "files", &f->files) &&
           get_count(o, "shm", &f->shm) && get_count(o, "shm_free", &f->shm_free) &&
           get_bool(o, "clock_known", &f->clock_known) && get_signed(o, "clock_us", &f->clock_us) &&
           get_signed(o, "clock_error", &f->clock_error) && get_disks(o, f) && get_links(o, f);
}

cddp_status preflight_facts_parse(struct preflight_facts *out, const char *text, size_t n, struct cdi_error *err)
{
    json_t *o = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    bool good;

    memset(out, 0, sizeof *out);
    good = o != NULL && get_all(o, out);
    json_decref(o);
    if (!good) {
        memset(out, 0, sizeof *out);
        return cdi_fail(err, CDDP_E_PROTOCOL, "the facts of a node are not what cddp-preflight writes");
    }
    out->known = true;
    return CDDP_OK;
}
