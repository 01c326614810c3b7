/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/element.h"

#include "worker/backend/cpu/float16.h"
#include "worker/dtype.h"

cddp_status cdi_element_pack(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                             struct cdi_error *err)
{
    uint8_t *p = to;

    (void)b;
    (void)err;
    for (size_t i = 0; i < n; i++) {
        if (from[i].bytes > 0)
            memcpy(p, from[i].data, from[i].bytes);
        p += from[i].bytes;
    }
    return CDDP_OK;
}

cddp_status cdi_element_unpack(struct cdi_backend *b, const struct cdi_slice *to, size_t n, const void *from,
                               struct cdi_error *err)
{
    const uint8_t *p = from;

    (void)b;
    (void)err;
    for (size_t i = 0; i < n; i++) {
        if (to[i].bytes > 0)
            memcpy(to[i].data, p, to[i].bytes);
        p += to[i].bytes;
    }
    return CDDP_OK;
}

cddp_status cdi_element_cast(struct cdi_backend *b, void *to, cddp_dtype to_type, const void *from,
                             cddp_dtype from_type, size_t count, struct cdi_error *err)
{
    const float *wide = from;
    const uint16_t *narrow = from;

    (void)b;
    if (from_type == CDDP_FLOAT32 && to_type == CDDP_FLOAT16)
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = cdi_f16_of_float(wide[i]);
    else if (from_type == CDDP_FLOAT32 && to_type == CDDP_BFLOAT16)
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = cdi_bf16_of_float(wide[i]);
    else if (from_type == CDDP_FLOAT16 && to_type == CDDP_FLOAT32)
        for (size_t i = 0; i < count; i++)
            ((float *)to)[i] = cdi_float_of_f16(narrow[i]);
    else if (from_type == CDDP_BFLOAT16 && to_type == CDDP_FLOAT32)
        for (size_t i = 0; i < count; i++)
            ((float *)to)[i] = cdi_float_of_bf16(narrow[i]);
    else
        return cdi_fail(err, CDDP_E_INVALID, "cannot cast %s to %s", cdi_dtype_name(from_type),
                        cdi_dtype_name(to_type));
    return CDDP_OK;
}

cddp_status cdi_element_scale(struct cdi_backend *b, void *x, size_t count, cddp_dtype dtype, double factor,
                              struct cdi_error *err)
{
    float f = (float)factor;
    uint16_t *narrow = x;

    (void)b;
    if (dtype == CDDP_FLOAT64)
        for (size_t i = 0; i < count; i++)
            ((double *)x)[i] *= factor;
    else if (dtype == CDDP_FLOAT32)
        for (size_t i = 0; i < count; i++)
            ((float *)x)[i] *= f;
    else if (dtype == CDDP_FLOAT16)
        for (size_t i = 0; i < count; i++)
            narrow[i] = cdi_f16_of_float(cdi_float_of_f16(narrow[i]) * f);
    else if (dtype == CDDP_BFLOAT16)
        for (size_t i = 0; i < count; i++)
            narrow[i] = cdi_bf16_of_float(cdi_float_of_bf16(narrow[i]) * f);
    else
        return cdi_fail(err, CDDP_E_INVALID, "cannot scale %s", cdi_dtype_name(dtype));
    return CDDP_OK;
}

/* The bits of a float's magnitude say it: above those of infinity is NaN. */
static void scan_narrow(const uint16_t *x, size_t count, uint16_t inf, struct cdi_scan *out)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t mag = x[i] & 0x7fffu;

        out->n_nan += mag > inf;
        out->n_inf += mag == inf;
    }
}

static void scan_float(const float *x, size_t count, struct cdi_scan *out)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t mag = cdi_bits_of_float(x[i]) & 0x7fffffffu;

        out->n_nan += mag > 0x7f800000u;
        out->n_inf += mag == 0x7f800000u;
    }
}

static void scan_double(const double *x, size_t count, struct cdi_scan *out)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t mag;

        memcpy(&mag, &x[i], sizeof mag);
        mag &= 0x7fffffffffffffffu;
        out->n_nan += mag > 0x7ff0000000000000u;
        out->n_inf += mag == 0x7ff0000000000000u;
    }
}

cddp_status cdi_element_scan(struct cdi_backend *b, const void *x, size_t count, cddp_dtype dtype, struct cdi_scan *out,
                             struct cdi_error *err)
{
    struct cdi_scan found = {0};

    (void)b;
    if (dtype == CDDP_FLOAT64)
        scan_double(x, count, &found);
    else if (dtype == CDDP_FLOAT32)
        scan_float(x, count, &found);
    else if (dtype == CDDP_FLOAT16)
        scan_narrow(x, count, 0x7c00u, &found);
    else if (dtype == CDDP_BFLOAT16)
        scan_narrow(x, count, 0x7f80u, &found);
    else
        return cdi_fail(err, CDDP_E_INVALID, "%s has no NaN to scan for", cdi_dtype_name(dtype));
    *out = found;
    return CDDP_OK;
}
