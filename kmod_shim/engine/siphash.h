/* SPDX-License-Identifier: Apache-2.0 */
/*
 * siphash.h - SipHash-2-4: a keyed code of 64 bits for short messages [Aumasson, Bernstein 2012]. Only for whole words:
 * the heads of wire.h are.
 */
#ifndef FARSIDE_SIPHASH_H
#define FARSIDE_SIPHASH_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t sip_rotated(uint64_t x, int by) { return x << by | x >> (64 - by); }

static inline void sip_rounds(uint64_t v[4], int rounds)
{
	while (rounds--) {
		v[0] += v[1];
		v[1] = sip_rotated(v[1], 13) ^ v[0];
		v[0] = sip_rotated(v[0], 32);
		v[2] += v[3];
		v[3] = sip_rotated(v[3], 16) ^ v[2];
		v[0] += v[3];
		v[3] = sip_rotated(v[3], 21) ^ v[0];
		v[2] += v[1];
		v[1] = sip_rotated(v[1], 17) ^ v[2];
		v[2] = sip_rotated(v[2], 32);
	}
}

/* bytes: a multiple of 8. */
static inline uint64_t siphash(const uint64_t key[2], const void *data, size_t bytes)
{
	uint64_t v[4] = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
			 key[1] ^ 0x7465646279746573};
	uint64_t last = (uint64_t)bytes << 56, word;

	for (size_t at = 0; at < bytes; at += 8) {
		memcpy(&word, (const uint8_t *)data + at, 8);
		v[3] ^= le64toh(word);
		sip_rounds(v, 2);
		v[0] ^= le64toh(word);
	}
	v[3] ^= last;
	sip_rounds(v, 2);
	v[0] ^= last;
	v[2] ^= 0xff;
	sip_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
