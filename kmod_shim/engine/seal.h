/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal.h - encryption of the pages that leave for donors.
 *
 * A page is sealed by AES-256-XTS. Its tweak is the page's number and a number of its content: a sealed page that is
 * changed, moved to another place, or put back after it was overwritten opens to noise in each block of 16 bytes that
 * is not its own. The checksum of the content, which never leaves the borrower, then fits with a probability of 2^-32.
 *
 * The content's number is the epoch of the process that wrote it, of 16 bits, and the page's sequence, of 32. Two
 * contents of a page have the same tweak only
 *   - where that page was written 2^32 times by one process, or the device has had 65,536 processes since it was made
 *     and the page the same sequence in both;
 *   - where the machine's memory came back as it was, as a virtual machine does from a snapshot: it has the same keys,
 *     epoch and sequences as at that moment, and goes on from there a second time.
 * Whoever has both sealed pages then sees which of their blocks are equal, and of no block what it is. The older one put
 * in the newer one's place opens to what it was, which the checksum finds with the same probability. Random numbers in
 * the epoch's place would not do better: 16 bits repeat by chance after 300 processes, and a snapshot has them, too.
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
