/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal.h - encryption of the pages that leave for donors.
 *
 * A page is sealed by AES-256-XTS. Its tweak is the page's number and a number of its content, so no two contents of a
 * device have the same one: a sealed page that is changed, moved to another place, or put back after it was
 * overwritten opens to noise in each block of 16 bytes that is not its own. The checksum of the content, which never
 * leaves the borrower, then fits with a probability of 2^-32.
 */
#ifndef FARSIDE_SEAL_H
#define FARSIDE_SEAL_H

#include <stdbool.h>
#include <stdint.h>

#define NE_SEAL_SECRET_BYTES 64

/* One thread's; not shared. */
struct ne_seal;
/* The keys are derived from the secret, which others may derive from, too. 0 or -errno; ne_seal_destroy() takes NULL. */
int ne_seal_create(const uint8_t secret[NE_SEAL_SECRET_BYTES], struct ne_seal **ret);
void ne_seal_destroy(struct ne_seal *seal);
/* What this build and machine seal by: "vaes" (AVX-512), or "openssl". */
const char *ne_seal_name(void);

/* dst may be src; else the two do not overlap. */
void ne_seal_page(struct ne_seal *seal, uint8_t *dst, const uint8_t *src, uint32_t page, uint64_t content);
void ne_open_page(struct ne_seal *seal, uint8_t *dst, const uint8_t *src, uint32_t page, uint64_t content);

#endif
