/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line per event: `level ID text`, with stable ids (RDZV-DROP) so that tests and people match ids, not prose.
 * For programs; libcddp logs at debug level at most, but for the warnings of CDDP_DEBUG=1. Any thread. Never exits.
 */
#ifndef CDI_LOG_H
#define CDI_LOG_H

enum cdi_log_level { CDI_LOG_DEBUG, CDI_LOG_INFO, CDI_LOG_WARN, CDI_LOG_ERROR, CDI_LOG_OFF };

typedef void (*cdi_log_sink)(enum cdi_log_level level, const char *id, const char *text, void *arg);

/* Where lines go; NULL: stderr as "cddprun: text" for info and above, with the id in front at debug level. */
void cdi_log_set_sink(cdi_log_sink sink, void *arg);
/* Lines below this level are dropped; the default is CDI_LOG_WARN. */
void cdi_log_set_level(enum cdi_log_level level);
enum cdi_log_level cdi_log_level(void);
/*
 * "debug", "info", "warning"/"warn", "error"/"critical"/"fatal", "off", any case, as PyTorch's LOGLEVEL; -1 if it is
 * none of them.
 */
int cdi_log_level_parse(const char *name);
/* The name in front of each line of the default sink ("cddprun"); kept, not copied. */
void cdi_log_set_name(const char *name);

void cdi_log(enum cdi_log_level level, const char *id, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
