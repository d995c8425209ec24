/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checksum: known answers, and both ways to it agree with the definition at every length and alignment. The source
 * is included, so that the table is tried on a CPU that needs none.
 */
#include "../../kmod_shim/engine/crc32c.c"
#include "check.h"

enum { PAGE = NE_PAGE_BYTES, BYTES = 5 * NE_PAGE_BYTES };

static uint8_t data[BYTES + 8], copy[BYTES + 8];

/* The definition, bit by bit. */
static uint32_t slowly(const uint8_t *p, size_t bytes)
{
	uint32_t crc = ~0u;

	for (size_t i = 0; i < bytes; i++) {
		crc ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78 : 0);
	}
	return ~crc;
}

/* Runs the test as this CPU does it, and by the table. */
static void both_ways(void (*test)(void))
{
	bool before = hardware;

	test();
#ifdef __x86_64__
	hardware = false;
	test();
	hardware = before;
#else
	(void)before;
#endif
}

static void known_answers(void)
{
	uint8_t block[32];

	/* The check value of the CRC catalogues, and the vectors of RFC 3720, B.4. */
	CHECK(ne_crc32c("123456789", 9) == 0xE3069283);
	CHECK(ne_crc32c("", 0) == 0);
	memset(block, 0, sizeof(block));
	CHECK(ne_crc32c(block, sizeof(block)) == 0x8A9136AA);
	memset(block, 0xff, sizeof(block));
	CHECK(ne_crc32c(block, sizeof(block)) == 0x62A8AB43);
	for (int i = 0; i < 32; i++)
		block[i] = i;
	CHECK(ne_crc32c(block, sizeof(block)) == 0x46DD794E);
	for (int i = 0; i < 32; i++)
		block[i] = 31 - i;
	CHECK(ne_crc32c(block, sizeof(block)) == 0x113FDB5C);
}

TEST(known_answers_are_given)
{
	both_ways(known_answers);
}

static void every_length(void)
{
	fill(data, sizeof(data), 1);
	for (size_t bytes = 0; bytes <= BYTES; bytes += bytes < 64 ? 1 : 509)
		for (size_t align = 0; align < 8; align += 3)
			CHECK(ne_crc32c(data + align, bytes) == slowly(data + align, bytes));
	CHECK(ne_crc32c(data, PAGE) == slowly(data, PAGE));
	CHECK(ne_crc32c(data + 1, 2 * PAGE) == slowly(data + 1, 2 * PAGE));
}

TEST(every_length_and_alignment_agrees_with_the_definition)
{
	both_ways(every_length);
}

static void exact_copy(void)
{
	fill(data, sizeof(data), 2);
	for (size_t bytes = 0; bytes <= BYTES; bytes += bytes < 64 ? 1 : 509) {
		memset(copy, 0xaa, sizeof(copy));
		CHECK(ne_copy_crc32c(copy + 3, data + 1, bytes) == slowly(data + 1, bytes));
		CHECK(memcmp(copy + 3, data + 1, bytes) == 0);
		CHECK(copy[2] == 0xaa && copy[bytes + 3] == 0xaa);
	}
	CHECK(ne_copy_crc32c(copy, data, PAGE) == slowly(data, PAGE));
	CHECK(memcmp(copy, data, PAGE) == 0);
}

TEST(the_copy_is_exact_and_touches_nothing_beyond)
{
	both_ways(exact_copy);
}

TEST(one_flipped_bit_anywhere_in_a_page_changes_the_checksum)
{
	uint32_t good;

	fill(data, PAGE, 3);
	good = ne_crc32c(data, PAGE);
	for (int bit = 0; bit < PAGE * 8; bit += 7) {
		data[bit / 8] ^= 1 << bit % 8;
		CHECK(ne_crc32c(data, PAGE) != good);
		data[bit / 8] ^= 1 << bit % 8;
	}
	CHECK(ne_crc32c(data, PAGE) == good);
}

TEST(only_a_page_of_zeros_is_a_zero_page)
{
	for (int align = 0; align < 3; align++) {
		memset(data, 0xff, sizeof(data));
		memset(data + 8 + align, 0, PAGE);
		CHECK(ne_page_is_zero(data + 8 + align));
		for (int i = 0; i < PAGE; i++) {
			data[8 + align + i] = 1;
			CHECK(!ne_page_is_zero(data + 8 + align));
			data[8 + align + i] = 0;
		}
	}
}
