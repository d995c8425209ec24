/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed pages [H1]: both ways to AES-256-XTS are the same bit for bit, and what is not exactly what was sealed opens
 * to noise. The source is included, so that OpenSSL's way is tried on a CPU that needs none.
 */
#include "../../kmod_shim/engine/seal.c"
#include "check.h"

static uint8_t page[NE_PAGE_BYTES], sealed[NE_PAGE_BYTES], opened[NE_PAGE_BYTES];

static struct ne_seal *made(uint32_t seed)
{
	uint8_t secret[NE_SEAL_SECRET_BYTES];
	struct ne_seal *seal;

	fill(secret, sizeof(secret), seed);
	CHECK(ne_seal_create(secret, &seal) == 0);
	return seal;
}

/* How many blocks of two pages are the same. */
static int same_blocks(const uint8_t *a, const uint8_t *b)
{
	int same = 0;

	for (int at = 0; at < NE_PAGE_BYTES; at += BLOCK_BYTES)
		same += !memcmp(a + at, b + at, BLOCK_BYTES);
	return same;
}

TEST(vectors_and_openssl_agree_bit_for_bit)
{
	struct ne_seal *seal = made(1);

	for (uint32_t seed = 0; seed < 300; seed++) {
		uint32_t number = seed * 2654435761u;
		uint64_t content = ~seed * 4050300000007ull;
		const uint64_t tweak[2] = {number, content};

		fill(page, sizeof(page), seed);
		ne_seal_page(seal, sealed, page, number, content);
		page_by_openssl(seal->opening, opened, sealed, tweak);
		CHECK(!memcmp(opened, page, sizeof(page)));
		page_by_openssl(seal->sealing, sealed, page, tweak);
		ne_open_page(seal, opened, sealed, number, content);
		CHECK(!memcmp(opened, page, sizeof(page)));
	}
	ne_seal_destroy(seal);
}

TEST(a_page_is_sealed_and_opened_in_place)
{
	struct ne_seal *seal = made(2);

	fill(page, sizeof(page), 5);
	memcpy(sealed, page, sizeof(page));
	ne_seal_page(seal, sealed, sealed, 7, 9);
	CHECK(same_blocks(sealed, page) == 0);
	ne_open_page(seal, sealed, sealed, 7, 9);
	CHECK(!memcmp(sealed, page, sizeof(page)));
	ne_seal_destroy(seal);
}

TEST(equal_pages_look_different_by_place_content_and_device)
{
	struct ne_seal *seal = made(3), *other = made(4);

	memset(page, 0x55, sizeof(page));
	ne_seal_page(seal, sealed, page, 7, 9);
	ne_seal_page(seal, opened, page, 8, 9);
	CHECK(same_blocks(sealed, opened) == 0);
	ne_seal_page(seal, opened, page, 7, 10);
	CHECK(same_blocks(sealed, opened) == 0);
	ne_seal_page(other, opened, page, 7, 9);
	CHECK(same_blocks(sealed, opened) == 0);
	ne_seal_destroy(seal);
	ne_seal_destroy(other);
}

TEST(a_changed_bit_makes_noise_of_its_block_and_of_no_other)
{
	struct ne_seal *seal = made(5);

	fill(page, sizeof(page), 6);
	for (int bit = 0; bit < NE_PAGE_BYTES * 8; bit += 997) {
		int block = bit / 8 / BLOCK_BYTES, flipped = 0;

		ne_seal_page(seal, sealed, page, 1, 2);
		sealed[bit / 8] ^= 1 << bit % 8;
		ne_open_page(seal, opened, sealed, 1, 2);
		CHECK(same_blocks(opened, page) == NE_PAGE_BYTES / BLOCK_BYTES - 1);
		for (int i = 0; i < BLOCK_BYTES; i++)
			flipped += __builtin_popcount(opened[block * BLOCK_BYTES + i] ^ page[block * BLOCK_BYTES + i]);
		CHECK(flipped > 20); /* of 128; fewer come up once in 10^15 */
	}
	ne_seal_destroy(seal);
}
