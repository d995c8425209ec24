/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32c.c - checksum, checksum while copying, and test for a page of zeros.
 *
 * crc32c (Castagnoli, reflected; ~0 in, inverted out, so crc32c("123456789") is 0xE3069283) guards every page that
 * leaves this host. The CPU's crc32 instruction takes 8 bytes a cycle but answers three cycles later, so a block is cut
 * into three streams that run side by side, and a carry-less multiplication puts the three results together:
 *
 *	| stream a, 1360 bytes | stream b, 1360 | stream c, 1360 | 16 |	one 4096-byte block
 *
 * The crc of "a followed by n zero bytes" is crc(a) * x^(8n) mod P. Reducing a product by the crc32 instruction itself
 * multiplies by x^33 (the register's width, and one for reflection), hence the exponents below. A CPU without SSE 4.2
 * gets a table, and so does one whose instruction is slower than that: an emulated one computes it bit by bit.
 */
#include <endian.h>
#include <string.h>

#include "clock.h"
#include "link.h"

enum {
	POLYNOMIAL = 0x82F63B78, /* Castagnoli, bits reflected */
	STREAM_BYTES = 1360,	 /* a multiple of 8; three of them and two words make a page */
	BLOCK_BYTES = 4096,
};

/* table[k][b]: what byte b does to the crc when k more bytes follow it ("slicing by 8"). */
static uint32_t table[8][256];

static void table_init(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t crc = i;

		for (int bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ ((crc & 1) ? (uint32_t)POLYNOMIAL : 0);
		table[0][i] = crc;
	}
	for (int k = 1; k < 8; k++)
		for (int i = 0; i < 256; i++)
			table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 0xff];
}

static inline uint64_t load64(const uint8_t *p)
{
	uint64_t word;

	memcpy(&word, p, sizeof(word));
	return word;
}

static inline void store64(uint8_t *p, uint64_t word)
{
	memcpy(p, &word, sizeof(word));
}

static uint32_t crc_by_table(uint32_t crc, const uint8_t *p, size_t bytes)
{
	for (; bytes >= 8; p += 8, bytes -= 8) {
		uint64_t word = le64toh(load64(p)) ^ crc;

		crc = 0;
		for (int k = 0; k < 8; k++)
			crc ^= table[7 - k][(word >> (8 * k)) & 0xff];
	}
	for (; bytes; p++, bytes--)
		crc = (crc >> 8) ^ table[0][(crc ^ *p) & 0xff];
	return crc;
}

static uint32_t copy_by_table(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t bytes)
{
	memcpy(dst, src, bytes);
	return crc_by_table(crc, dst, bytes);
}

#ifdef __x86_64__

#include <immintrin.h>

#define NE_HARDWARE __attribute__((target("sse4.2,pclmul")))

enum {
	SHIFT_1_STREAM = 0x79113270,  /* x^(8 * (1360 + 8) - 33) mod P, reflected */
	SHIFT_2_STREAMS = 0x7b454cb3, /* x^(8 * (2720 + 8) - 33) mod P, reflected */
};

/* Moves crc past as many zero bytes as `shift` stands for; to be xored into the word that comes there. */
NE_HARDWARE static inline uint64_t multiply(uint64_t crc, uint32_t shift)
{
	return _mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi64_si128(crc), _mm_cvtsi64_si128(shift), 0));
}

/* Whole blocks only. copy is a constant at each call, so that the checksum alone carries no stores. */
NE_HARDWARE static inline __attribute__((always_inline)) uint32_t
crc_blocks(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t blocks, bool copy)
{
	for (; blocks; blocks--, src += BLOCK_BYTES) {
		uint64_t a = crc, b = 0, c = 0;

		for (size_t i = 0; i < STREAM_BYTES; i += 8) {
			uint64_t word_a = load64(src + i);
			uint64_t word_b = load64(src + STREAM_BYTES + i);
			uint64_t word_c = load64(src + 2 * STREAM_BYTES + i);

			if (copy) {
				store64(dst + i, word_a);
				store64(dst + STREAM_BYTES + i, word_b);
				store64(dst + 2 * STREAM_BYTES + i, word_c);
			}
			a = _mm_crc32_u64(a, word_a);
			b = _mm_crc32_u64(b, word_b);
			c = _mm_crc32_u64(c, word_c);
		}

		uint64_t word = load64(src + 3 * STREAM_BYTES);
		uint64_t last = load64(src + 3 * STREAM_BYTES + 8);

		if (copy) {
			store64(dst + 3 * STREAM_BYTES, word);
			store64(dst + 3 * STREAM_BYTES + 8, last);
		}
		/* The products enter with the word after stream c, so they are shifted past that word too. */
		word ^= c ^ multiply(a, SHIFT_2_STREAMS) ^ multiply(b, SHIFT_1_STREAM);
		crc = _mm_crc32_u64(_mm_crc32_u64(0, word), last);
		if (copy)
			dst += BLOCK_BYTES;
	}
	return crc;
}

NE_HARDWARE static uint32_t crc_by_hardware(uint32_t crc, const uint8_t *p, size_t bytes)
{
	crc = crc_blocks(crc, NULL, p, bytes / BLOCK_BYTES, false);
	p += bytes / BLOCK_BYTES * BLOCK_BYTES;
	bytes %= BLOCK_BYTES;
	for (; bytes >= 8; p += 8, bytes -= 8)
		crc = _mm_crc32_u64(crc, load64(p));
	for (; bytes; p++, bytes--)
		crc = _mm_crc32_u8(crc, *p);
	return crc;
}

NE_HARDWARE static uint32_t copy_by_hardware(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src,
					     size_t bytes)
{
	size_t whole = bytes / BLOCK_BYTES * BLOCK_BYTES;

	crc = crc_blocks(crc, dst, src, bytes / BLOCK_BYTES, true);
	memcpy(dst + whole, src + whole, bytes - whole);
	return crc_by_hardware(crc, dst + whole, bytes - whole);
}

static bool hardware;

/* The least of a few times: whatever interrupts one does not interrupt all. */
static int64_t page_ns(uint32_t (*crc_of)(uint32_t, const uint8_t *, size_t))
{
	static const uint8_t page[BLOCK_BYTES];
	volatile uint32_t crc = 0;
	int64_t least = INT64_MAX;

	for (int i = 0; i < 5; i++) {
		uint64_t from = now_ns();
		int64_t ns;

		crc = crc_of(crc, page, sizeof(page));
		ns = (int64_t)(now_ns() - from);
		least = ns < least ? ns : least;
	}
	return least;
}

__attribute__((constructor)) static void choose(void)
{
	table_init();
	__builtin_cpu_init();
	hardware = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") &&
		   page_ns(crc_by_hardware) < page_ns(crc_by_table);
}

#else

static const bool hardware;

#define crc_by_hardware	 crc_by_table
#define copy_by_hardware copy_by_table

__attribute__((constructor)) static void choose(void)
{
	table_init();
}

#endif

uint32_t ne_crc32c(const void *data, size_t bytes)
{
	return ~(hardware ? crc_by_hardware : crc_by_table)(~0u, data, bytes);
}

uint32_t ne_copy_crc32c(void *restrict dst, const void *restrict src, size_t bytes)
{
	return ~(hardware ? copy_by_hardware : copy_by_table)(~0u, dst, src, bytes);
}

bool ne_page_is_zero(const void *page)
{
	const uint8_t *p = page;

	/* Most pages that are not zero say so here: at a header, in the middle, or at the end. */
	if (load64(p) | load64(p + NE_PAGE_BYTES / 2) | load64(p + NE_PAGE_BYTES - 8))
		return false;

	for (size_t i = 0; i < NE_PAGE_BYTES; i += 64) {
		uint64_t any = 0;

		for (size_t k = 0; k < 64; k += 8)
			any |= load64(p + i + k);
		if (any)
			return false;
	}
	return true;
}
