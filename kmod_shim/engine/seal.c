/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal.c - AES-256-XTS over one page: by OpenSSL, or where the processor encrypts four blocks at once by VAES.
 *
 * How it works
 *   tweak = (page, content) -> E(key 2) -> T;  block i of the page: C = E(key 1, P ^ T * a^i) ^ T * a^i  [IEEE 1619]
 *
 * The vectors hold four blocks; eight of them are under way at once, since an instruction's answer takes a few cycles.
 * T * a^k for k up to 32 is a shift of both halves, and what falls out of the upper one comes back times 0x87. What
 * both ways compute is the same bit for bit; OpenSSL's takes three times as long on a machine that has VAES, as its
 * version 3.0 does not use it.
 */
#include <endian.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "seal.h"

enum { ROUNDS = 14, KEY_BYTES = 32, BLOCK_BYTES = 16 };

struct ne_seal {
	/* Round keys of key 1 for both directions, and of key 2. Only the vector code's. */
	_Alignas(64) uint8_t encrypt[ROUNDS + 1][BLOCK_BYTES], decrypt[ROUNDS + 1][BLOCK_BYTES];
	uint8_t tweak[ROUNDS + 1][BLOCK_BYTES];
	EVP_CIPHER *cipher;
	EVP_CIPHER_CTX *sealing, *opening;
};

static const char PURPOSE[] = "farside: pages at donors, version 1";

/* ------------------------------------------------------------------ by OpenSSL */

static void page_by_openssl(EVP_CIPHER_CTX *ctx, uint8_t *dst, const uint8_t *src, const uint64_t tweak[2])
{
	int bytes = 0;

	/* With a key set and a whole number of blocks neither can fail; a page must never leave as it is. */
	if (EVP_CipherInit_ex2(ctx, NULL, NULL, (const uint8_t *)tweak, -1, NULL) != 1 ||
	    EVP_CipherUpdate(ctx, dst, &bytes, src, NE_PAGE_BYTES) != 1 || bytes != NE_PAGE_BYTES)
		abort();
}

/* ------------------------------------------------------------------ by VAES */

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#define VECTOR	__attribute__((target("aes,vaes,avx512f,avx512bw,vpclmulqdq")))
#define VECTORS 8 /* under way at once */
/* In registers, all of them: an array with an index that varies stands in memory. */
#define EACH_VECTOR _Pragma("GCC unroll 8") for (int v = 0; v < VECTORS; v++)

static bool has_vaes;

/* Not every compiler knows these two by name. */
static bool has_wide_aes(void)
{
	uint32_t a, b, c, d;

	return __get_cpuid_count(7, 0, &a, &b, &c, &d) && c & bit_VAES && c & bit_VPCLMULQDQ;
}

__attribute__((constructor)) static void choose(void)
{
	__builtin_cpu_init();
	has_vaes = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && has_wide_aes();
}

/* Word i of the key schedule from the two before it [FIPS 197 5.2]; AESKEYGENASSIST takes its constant at compile time.
 */
#define NEXT_KEYS(i, constant)                                                                                         \
	do {                                                                                                           \
		keys[i] =                                                                                              \
			mixed(keys[(i)-2], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(keys[(i)-1], constant), 0xff)); \
		if ((i) < ROUNDS)                                                                                      \
			keys[(i) + 1] =                                                                                \
				mixed(keys[(i)-1], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(keys[i], 0), 0xaa));    \
	} while (0)

VECTOR static __m128i mixed(__m128i key, __m128i with)
{
	key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
	key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
	return _mm_xor_si128(key, with);
}

VECTOR static void round_keys(const uint8_t key[KEY_BYTES], __m128i keys[ROUNDS + 2])
{
	keys[0] = _mm_loadu_si128((const __m128i *)key);
	keys[1] = _mm_loadu_si128((const __m128i *)(key + BLOCK_BYTES));
	NEXT_KEYS(2, 0x01);
	NEXT_KEYS(4, 0x02);
	NEXT_KEYS(6, 0x04);
	NEXT_KEYS(8, 0x08);
	NEXT_KEYS(10, 0x10);
	NEXT_KEYS(12, 0x20);
	NEXT_KEYS(14, 0x40);
}

VECTOR static void schedules_make(struct ne_seal *seal, const uint8_t keys[2 * KEY_BYTES])
{
	__m128i one[ROUNDS + 2], two[ROUNDS + 2];

	round_keys(keys, one);
	round_keys(keys + KEY_BYTES, two);
	for (int i = 0; i <= ROUNDS; i++) {
		bool is_end = i == 0 || i == ROUNDS;

		_mm_store_si128((__m128i *)seal->encrypt[i], one[i]);
		_mm_store_si128((__m128i *)seal->decrypt[i],
				is_end ? one[ROUNDS - i] : _mm_aesimc_si128(one[ROUNDS - i]));
		_mm_store_si128((__m128i *)seal->tweak[i], two[i]);
	}
	OPENSSL_cleanse(one, sizeof(one));
	OPENSSL_cleanse(two, sizeof(two));
}

VECTOR static __m128i tweak_encrypted(const struct ne_seal *seal, const uint64_t tweak[2])
{
	const __m128i *keys = (const __m128i *)seal->tweak;
	__m128i block = _mm_xor_si128(_mm_set_epi64x((long long)tweak[1], (long long)tweak[0]), keys[0]);

	for (int i = 1; i < ROUNDS; i++)
		block = _mm_aesenc_si128(block, keys[i]);
	return _mm_aesenclast_si128(block, keys[ROUNDS]);
}

/* Each of the four tweaks times a^by; by is at most 32. */
VECTOR static inline __m512i tweaks_after(__m512i t, unsigned int by)
{
	const __m512i polynomial = _mm512_broadcast_i32x4(_mm_set_epi64x(0, 0x87));
	/* What leaves each half at the top, in the other half's place. */
	__m512i carries = _mm512_shuffle_epi32(_mm512_srli_epi64(t, 64 - by), _MM_PERM_BADC);
	__m512i folded = _mm512_clmulepi64_epi128(carries, polynomial, 0x00);

	t = _mm512_xor_si512(_mm512_slli_epi64(t, by), folded);
	return _mm512_mask_xor_epi64(t, 0xaa, t, carries);
}

/* One tweak times a^0 to a^3. */
VECTOR static __m512i first_tweaks(__m128i t)
{
	__m512i all = _mm512_broadcast_i32x4(t);

	all = _mm512_mask_blend_epi64(0xf0, all, tweaks_after(all, 2));
	return _mm512_mask_blend_epi64(0xcc, all, tweaks_after(all, 1));
}

VECTOR static inline __attribute__((always_inline)) void
page_by_vaes(const struct ne_seal *seal, bool seals, uint8_t *dst, const uint8_t *src, const uint64_t tweak[2])
{
	const __m128i *keys = (const __m128i *)(seals ? seal->encrypt : seal->decrypt);
	__m512i tweaks[VECTORS], blocks[VECTORS];

	tweaks[0] = first_tweaks(tweak_encrypted(seal, tweak));
	_Pragma("GCC unroll 8") for (int v = 1; v < VECTORS; v++) tweaks[v] = tweaks_after(tweaks[v - 1], 4);
	for (uint32_t done = 0; done < NE_PAGE_BYTES; done += VECTORS * 64) {
		__m512i key = _mm512_broadcast_i32x4(keys[0]);

		EACH_VECTOR
		blocks[v] = _mm512_xor_si512(key, _mm512_xor_si512(tweaks[v], _mm512_loadu_si512(src + done + v * 64)));
		for (int i = 1; i < ROUNDS; i++) {
			key = _mm512_broadcast_i32x4(keys[i]);
			EACH_VECTOR
			blocks[v] = seals ? _mm512_aesenc_epi128(blocks[v], key) : _mm512_aesdec_epi128(blocks[v], key);
		}
		key = _mm512_broadcast_i32x4(keys[ROUNDS]);
		EACH_VECTOR
		{
			blocks[v] = seals ? _mm512_aesenclast_epi128(blocks[v], key)
					  : _mm512_aesdeclast_epi128(blocks[v], key);
			_mm512_storeu_si512(dst + done + v * 64, _mm512_xor_si512(blocks[v], tweaks[v]));
			tweaks[v] = tweaks_after(tweaks[v], 32);
		}
	}
}

VECTOR static void seal_by_vaes(const struct ne_seal *seal, uint8_t *dst, const uint8_t *src, const uint64_t tweak[2])
{
	page_by_vaes(seal, true, dst, src, tweak);
}

VECTOR static void open_by_vaes(const struct ne_seal *seal, uint8_t *dst, const uint8_t *src, const uint64_t tweak[2])
{
	page_by_vaes(seal, false, dst, src, tweak);
}

#else

static const bool has_vaes;

#define schedules_make(seal, keys)
#define seal_by_vaes(seal, dst, src, tweak)
#define open_by_vaes(seal, dst, src, tweak)

#endif

/* ------------------------------------------------------------------ either */

const char *ne_seal_name(void)
{
	return has_vaes ? "vaes" : "openssl";
}

/* The halves of XTS's key, of a secret that the disk's cipher may use as it is. */
static bool keys_derive(const uint8_t secret[NE_SEAL_SECRET_BYTES], uint8_t keys[2 * KEY_BYTES])
{
	uint8_t input[NE_SEAL_SECRET_BYTES + sizeof(PURPOSE)];
	unsigned int bytes = 0;
	bool good;

	memcpy(input, secret, NE_SEAL_SECRET_BYTES);
	memcpy(input + NE_SEAL_SECRET_BYTES, PURPOSE, sizeof(PURPOSE));
	good = EVP_Digest(input, sizeof(input), keys, &bytes, EVP_sha512(), NULL) == 1 && bytes == 2 * KEY_BYTES;
	OPENSSL_cleanse(input, sizeof(input));
	return good;
}

static int contexts_make(struct ne_seal *seal, const uint8_t keys[2 * KEY_BYTES])
{
	seal->cipher = EVP_CIPHER_fetch(NULL, "AES-256-XTS", NULL);
	seal->sealing = EVP_CIPHER_CTX_new();
	seal->opening = EVP_CIPHER_CTX_new();
	if (!seal->cipher || !seal->sealing || !seal->opening)
		return -ENOMEM;
	if (EVP_EncryptInit_ex2(seal->sealing, seal->cipher, keys, NULL, NULL) != 1 ||
	    EVP_DecryptInit_ex2(seal->opening, seal->cipher, keys, NULL, NULL) != 1)
		return -EINVAL;
	return 0;
}

int ne_seal_create(const uint8_t secret[NE_SEAL_SECRET_BYTES], struct ne_seal **ret)
{
	struct ne_seal *seal = aligned_alloc(64, (sizeof(*seal) + 63) / 64 * 64);
	uint8_t keys[2 * KEY_BYTES];
	int rc;

	if (!seal)
		return -ENOMEM;
	memset(seal, 0, sizeof(*seal));
	rc = keys_derive(secret, keys) ? contexts_make(seal, keys) : -EIO;
	if (!rc && has_vaes)
		schedules_make(seal, keys);
	OPENSSL_cleanse(keys, sizeof(keys));
	if (rc) {
		ne_seal_destroy(seal);
		return rc;
	}
	*ret = seal;
	return 0;
}

void ne_seal_destroy(struct ne_seal *seal)
{
	if (!seal)
		return;
	EVP_CIPHER_CTX_free(seal->sealing);
	EVP_CIPHER_CTX_free(seal->opening);
	EVP_CIPHER_free(seal->cipher);
	OPENSSL_cleanse(seal, sizeof(*seal));
	free(seal);
}

void ne_seal_page(struct ne_seal *seal, uint8_t *dst, const uint8_t *src, uint32_t page, uint64_t content)
{
	const uint64_t tweak[2] = {htole64(page), htole64(content)};

	if (has_vaes)
		seal_by_vaes(seal, dst, src, tweak);
	else
		page_by_openssl(seal->sealing, dst, src, tweak);
}

void ne_open_page(struct ne_seal *seal, uint8_t *dst, const uint8_t *src, uint32_t page, uint64_t content)
{
	const uint64_t tweak[2] = {htole64(page), htole64(content)};

	if (has_vaes)
		open_by_vaes(seal, dst, src, tweak);
	else
		page_by_openssl(seal->opening, dst, src, tweak);
}
