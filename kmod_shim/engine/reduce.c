/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce.c - the arithmetic of aggregation: the members' gradients of one chunk in, its result out, to the bit.
 *
 * A chunk is worked on in blocks that fit the CPU's first cache. A block is summed in rank order, divided or given to
 * the optimizer, and written to every result:
 *
 *	gradients ──widen──► sum [──/ n──► optimizer, on float32 masters] ──round──► results
 *
 * Sum and mean of float32, which most jobs want, take one pass instead: a few elements of all gradients are added in
 * registers and stored to all results. Copies by way of a block cost half as much again where nothing is in the cache.
 * Results that no cache holds until their member reads them are written past the caches: a line that is only written
 * need not be read, which is a third of what goes over the memory's bus.
 *
 * Every operation is one IEEE 754 operation of the formulas in ne_reduce()'s comment, so the bits depend neither on the
 * CPU nor on the variant that was chosen. That needs -ffp-contract=off: a compiler that may fuse a product and a sum
 * does so in the AVX2 variant alone. A fused operation is written as such; a CPU without one calls libm's, which is
 * slow and right. -fno-math-errno lets the compiler use the square root of the CPU.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "reduce.h"

#include "engine.h"

enum {
	BLOCK = 1024,  /* elements: the stack holds four blocks of float32 */
	TOGETHER = 64, /* elements that fit the CPU's registers */
	LINE = 16,     /* elements of float32 in a line of the CPU's caches */
	VECTOR = 32,   /* bytes of a register */
	AHEAD = 512,   /* elements from what is added to what is fetched */
};

/* The optimizer's numbers in the form in which every element needs them. */
struct factors {
	float lr, momentum, decay;
	float first_weight, second_weight, second_keep; /* 1 - beta1, 1 - beta2, beta2 */
	float step_size, second_correction, eps, shrink;
	bool has_momentum, is_first, is_nesterov, has_decay, has_shrink;
};

/* What a variant does with a block; the first one with a whole chunk. */
struct operations {
	void (*combine)(const struct ne_reduction *r, float by);
	void (*combine_past_caches)(const struct ne_reduction *r, float by);
	void (*add_f32)(float *restrict sum, const float *restrict part, size_t n);
	void (*add_f64)(double *restrict sum, const double *restrict part, size_t n);
	void (*add_i32)(uint32_t *restrict sum, const uint32_t *restrict part, size_t n);
	void (*add_i64)(uint64_t *restrict sum, const uint64_t *restrict part, size_t n);
	void (*divide)(float *sum, float by, size_t n);
	void (*widen_f16)(float *restrict to, const uint16_t *restrict from, size_t n);
	void (*widen_bf16)(float *restrict to, const uint16_t *restrict from, size_t n);
	void (*round_f16)(uint16_t *restrict to, const float *restrict from, size_t n);
	void (*round_bf16)(uint16_t *restrict to, const float *restrict from, size_t n);
	void (*sgd)(float *restrict p, float *restrict b, float *restrict g, const struct factors *f, size_t n);
	void (*adam)(float *restrict p, float *restrict m, float *restrict v, float *restrict g,
		     const struct factors *f, size_t n);
};

#define INLINE static inline __attribute__((always_inline))

/* ------------------------------------------------------------ number formats */

INLINE uint32_t bits_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

INLINE float float_of(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* The same bits as the CPU's vcvtph2ps, subnormals and NaN (made quiet, payload kept) included. */
INLINE float from_f16(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000) << 16;
	uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
	uint32_t small = bits_of((float)mantissa * 0x1p-24f); /* exact: 10 bits */
	uint32_t normal = (exponent + 112) << 23 | mantissa << 13;
	uint32_t special = 0x7f800000 | mantissa << 13 | (mantissa ? 1u << 22 : 0);

	return float_of(sign | (exponent == 0 ? small : exponent == 31 ? special : normal));
}

/* The same bits as vcvtps2ph: to nearest, ties to even. */
INLINE uint16_t to_f16(float x)
{
	uint32_t bits = bits_of(x), size = bits & 0x7fffffff;
	uint16_t sign = bits >> 16 & 0x8000;
	/* The last bit of 0.5 is worth 2^-24, as that of a subnormal half: the sum rounds where the half is to round.
	 */
	uint32_t small = bits_of(float_of(size) + 0.5f) - 0x3f000000;
	uint32_t normal = ((size + 0xfff + (size >> 13 & 1)) >> 13) - (112 << 10);
	uint32_t nan = 0x7e00 | (size >> 13 & 0x3ff);

	if (size > 0x7f800000)
		return sign | nan;
	return sign | (size < 0x38800000 ? small : size < 0x47800000 ? normal : 0x7c00);
}

/* To nearest, ties to even. A NaN keeps what there is room for of its payload, and is made quiet. */
INLINE uint16_t to_bf16(float x)
{
	uint32_t bits = bits_of(x);
	uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;

	return (bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded;
}

/* ------------------------------------------------------- bodies of operations */

#define EACH(i, n) for (size_t i = 0; (i) < (n); (i)++)

INLINE void divide(float *sum, float by, size_t n)
{
	EACH(i, n)
	sum[i] /= by;
}

INLINE void widen_bf16(float *restrict to, const uint16_t *restrict from, size_t n)
{
	EACH(i, n)
	to[i] = float_of((uint32_t)from[i] << 16);
}

INLINE void round_bf16(uint16_t *restrict to, const float *restrict from, size_t n)
{
	EACH(i, n)
	to[i] = to_bf16(from[i]);
}

static void widen_f16_portable(float *restrict to, const uint16_t *restrict from, size_t n)
{
	EACH(i, n)
	to[i] = from_f16(from[i]);
}

static void round_f16_portable(uint16_t *restrict to, const float *restrict from, size_t n)
{
	EACH(i, n)
	to[i] = to_f16(from[i]);
}

/* Branches on the factors stay outside of the loops. */
INLINE void sgd(float *restrict p, float *restrict b, float *restrict g, const struct factors *f, size_t n)
{
	if (f->has_decay)
		EACH(i, n)
	g[i] = __builtin_fmaf(f->decay, p[i], g[i]);
	if (f->has_momentum) {
		if (f->is_first)
			memcpy(b, g, n * sizeof(*g));
		else
			EACH(i, n)
		b[i] = f->momentum * b[i] + g[i];
		if (f->is_nesterov)
			EACH(i, n)
		g[i] = __builtin_fmaf(f->momentum, b[i], g[i]);
		else memcpy(g, b, n * sizeof(*g));
	}
	EACH(i, n)
	p[i] = __builtin_fmaf(-f->lr, g[i], p[i]);
}

INLINE void adam(float *restrict p, float *restrict m, float *restrict v, float *restrict g, const struct factors *f,
		 size_t n)
{
	if (f->has_shrink)
		EACH(i, n)
	p[i] *= f->shrink;
	if (f->has_decay)
		EACH(i, n)
	g[i] = __builtin_fmaf(f->decay, p[i], g[i]);
	/* An interpolation starts from the end that is nearer. */
	if (f->first_weight < 0.5f)
		EACH(i, n)
	m[i] = __builtin_fmaf(f->first_weight, g[i] - m[i], m[i]);
	else EACH(i, n) m[i] = __builtin_fmaf(f->first_weight - 1.0f, g[i] - m[i], g[i]);
	EACH(i, n)
	v[i] = __builtin_fmaf(f->second_weight * g[i], g[i], v[i] * f->second_keep);
	EACH(i, n)
	p[i] += f->step_size * m[i] / (sqrtf(v[i]) / f->second_correction + f->eps);
}

/*
 * Elements i to i + n of all gradients. Those that come next are on their way meanwhile: the CPU itself foresees no
 * other page, and goes from one array to another.
 */
INLINE void sum_some(const struct ne_reduction *r, float by, size_t i, size_t n, float *sum)
{
	for (uint32_t m = 0; m < r->members; m++) {
		const float *part = (const float *)r->gradients[m] + i;

		for (size_t j = 0; j < n; j += LINE)
			__builtin_prefetch(part + AHEAD + j);
		if (m == 0) {
			memcpy(sum, part, n * sizeof(*sum));
			continue;
		}
		EACH(j, n)
		sum[j] += part[j];
	}
	if (by > 1)
		divide(sum, by, n);
}

/* All gradients are read before any result is written, so a result may be a gradient. */
INLINE void combine_some(const struct ne_reduction *r, float by, size_t i, size_t n)
{
	float sum[TOGETHER];

	sum_some(r, by, i, n, sum);
	for (uint32_t m = 0; m < r->results; m++)
		memcpy((float *)r->outputs[m] + i, sum, n * sizeof(*sum));
}

/* The sum of float32 in rank order, divided by `by` if that is more than 1. */
INLINE void combine(const struct ne_reduction *r, float by)
{
	size_t i = 0;

	for (; i + TOGETHER <= r->count; i += TOGETHER)
		combine_some(r, by, i, TOGETHER);
	if (i < r->count)
		combine_some(r, by, i, r->count - i);
}

/* ------------------------------------------------------------------- variants */

#define ADD(type, name, target, variant)                                                                   \
	target static void add_##name##_##variant(type *restrict sum, const type *restrict part, size_t n) \
	{                                                                                                  \
		EACH(i, n)                                                                                 \
		sum[i] += part[i];                                                                         \
	}

#define VARIANT(target, variant, past_caches)                                                                         \
	target static void combine_##variant(const struct ne_reduction *r, float by)                                  \
	{                                                                                                             \
		combine(r, by);                                                                                       \
	}                                                                                                             \
	ADD(float, f32, target, variant)                                                                              \
	ADD(double, f64, target, variant)                                                                             \
	ADD(uint32_t, i32, target, variant)                                                                           \
	ADD(uint64_t, i64, target, variant)                                                                           \
	target static void divide_##variant(float *sum, float by, size_t n)                                           \
	{                                                                                                             \
		divide(sum, by, n);                                                                                   \
	}                                                                                                             \
	target static void widen_bf16_##variant(float *restrict to, const uint16_t *restrict from, size_t n)          \
	{                                                                                                             \
		widen_bf16(to, from, n);                                                                              \
	}                                                                                                             \
	target static void round_bf16_##variant(uint16_t *restrict to, const float *restrict from, size_t n)          \
	{                                                                                                             \
		round_bf16(to, from, n);                                                                              \
	}                                                                                                             \
	target static void sgd_##variant(float *restrict p, float *restrict b, float *restrict g,                     \
					 const struct factors *f, size_t n)                                           \
	{                                                                                                             \
		sgd(p, b, g, f, n);                                                                                   \
	}                                                                                                             \
	target static void adam_##variant(float *restrict p, float *restrict m, float *restrict v, float *restrict g, \
					  const struct factors *f, size_t n)                                          \
	{                                                                                                             \
		adam(p, m, v, g, f, n);                                                                               \
	}                                                                                                             \
	static const struct operations variant##_operations = {                                                       \
		.combine = combine_##variant,                                                                         \
		.combine_past_caches = past_caches,                                                                   \
		.add_f32 = add_f32_##variant,                                                                         \
		.add_f64 = add_f64_##variant,                                                                         \
		.add_i32 = add_i32_##variant,                                                                         \
		.add_i64 = add_i64_##variant,                                                                         \
		.divide = divide_##variant,                                                                           \
		.widen_f16 = widen_f16_##variant,                                                                     \
		.widen_bf16 = widen_bf16_##variant,                                                                   \
		.round_f16 = round_f16_##variant,                                                                     \
		.round_bf16 = round_bf16_##variant,                                                                   \
		.sgd = sgd_##variant,                                                                                 \
		.adam = adam_##variant,                                                                               \
	};

VARIANT(, portable, combine_portable)

static const struct operations *operations = &portable_operations;

#ifdef __x86_64__

#include <cpuid.h>
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma,f16c")))

AVX2 static void widen_f16_avx2(float *restrict to, const uint16_t *restrict from, size_t n)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		_mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
	for (; i < n; i++)
		to[i] = _cvtsh_ss(from[i]);
}

AVX2 static void round_f16_avx2(uint16_t *restrict to, const float *restrict from, size_t n)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		_mm_storeu_si128((__m128i *)(to + i),
				 _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
	for (; i < n; i++)
		to[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
}

/* As combine(): a line that is written whole is not read before. */
AVX2 static void combine_past_caches(const struct ne_reduction *r, float by)
{
	size_t i = 0;

	for (; i + TOGETHER <= r->count; i += TOGETHER) {
		float sum[TOGETHER] __attribute__((aligned(VECTOR)));

		sum_some(r, by, i, TOGETHER, sum);
		for (uint32_t m = 0; m < r->results; m++)
			for (size_t j = 0; j < TOGETHER; j += VECTOR / sizeof(*sum))
				_mm256_stream_ps((float *)r->outputs[m] + i + j, _mm256_load_ps(sum + j));
	}
	_mm_sfence();
	if (i < r->count)
		combine_some(r, by, i, r->count - i);
}

VARIANT(AVX2, avx2, combine_past_caches)

/* Not every compiler knows this one by name. */
static bool has_f16c(void)
{
	uint32_t a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

static const struct operations *fastest(void)
{
	bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();

	return has ? &avx2_operations : &portable_operations;
}

#else

static const struct operations *fastest(void)
{
	return &portable_operations;
}

#endif

__attribute__((constructor)) static void choose(void)
{
#ifdef __x86_64__
	__builtin_cpu_init();
#endif
	operations = fastest();
}

int ne_reduce_portable(bool portable)
{
	operations = portable ? &portable_operations : fastest();
	return operations == &portable_operations;
}

/* --------------------------------------------------------------------- a chunk */

static const uint32_t element_bytes[] = {
	[NE_DTYPE_F32] = 4, [NE_DTYPE_F16] = 2, [NE_DTYPE_BF16] = 2,
	[NE_DTYPE_F64] = 8, [NE_DTYPE_I32] = 4, [NE_DTYPE_I64] = 8,
};

static bool is_aligned(const void *address, uint32_t bytes)
{
	return address && (uintptr_t)address % bytes == 0;
}

/* A share that is kept: 0 or more, below 1. A NaN is none. */
static bool is_share(double x)
{
	return x >= 0 && x < 1;
}

static bool is_amount(double x)
{
	return x >= 0 && x <= (double)__FLT_MAX__;
}

static bool is_optimizer(uint32_t rule)
{
	return rule == NE_RULE_SGD || rule == NE_RULE_ADAM || rule == NE_RULE_ADAMW;
}

/* How many float32 arrays the rule keeps a chunk: parameters, and what the optimizer remembers. */
static int masters(const struct ne_reduction *r)
{
	if (r->rule == NE_RULE_SGD)
		return r->hyper.momentum > 0 ? 2 : 1;
	return is_optimizer(r->rule) ? 3 : 0;
}

static bool is_hyper(const struct ne_hyper *h, uint32_t rule)
{
	if (!is_amount(h->lr) || !is_amount(h->weight_decay))
		return false;
	if (rule == NE_RULE_SGD)
		return is_amount(h->momentum) && (!h->nesterov || h->momentum > 0);
	return is_share(h->beta1) && is_share(h->beta2) && is_amount(h->eps);
}

static bool is_valid(const struct ne_reduction *r)
{
	if (r->dtype > NE_DTYPE_I64 || r->rule > NE_RULE_ADAMW || r->count > NE_REDUCTION_MAX)
		return false;
	if (!r->members || r->members > NE_MEMBERS_MAX || r->results > NE_MEMBERS_MAX)
		return false;
	if (r->dtype >= NE_DTYPE_F64 && r->rule != NE_RULE_SUM)
		return false;
	for (uint32_t i = 0; i < r->members; i++)
		if (!is_aligned(r->gradients[i], element_bytes[r->dtype]))
			return false;
	for (uint32_t i = 0; i < r->results; i++)
		if (!is_aligned(r->outputs[i], element_bytes[r->dtype]))
			return false;
	if (is_optimizer(r->rule) && (!r->step || !is_hyper(&r->hyper, r->rule)))
		return false;
	for (int i = 0; i < masters(r); i++)
		if (!is_aligned(r->from[i], 4) || !is_aligned(r->to[i], 4))
			return false;
	return true;
}

static void combine_floats(const struct ne_reduction *r)
{
	bool is_past = r->past_caches;

	for (uint32_t i = 0; i < r->results; i++)
		is_past = is_past && is_aligned(r->outputs[i], VECTOR);
	(is_past ? operations->combine_past_caches : operations->combine)(r, r->rule == NE_RULE_MEAN ? (float)r->members
												     : 1);
}

/* Scalars in double, rounded once, as torch.optim's Python does. */
static struct factors factors_of(const struct ne_reduction *r)
{
	const struct ne_hyper *h = &r->hyper;
	bool decoupled = r->rule == NE_RULE_ADAMW;
	struct factors f = {
		.lr = (float)h->lr,
		.momentum = (float)h->momentum,
		.decay = (float)h->weight_decay,
		.eps = (float)h->eps,
		.has_momentum = h->momentum > 0,
		.is_first = r->step == 1,
		.is_nesterov = h->nesterov,
		.has_decay = h->weight_decay > 0 && !decoupled,
		.has_shrink = h->weight_decay > 0 && decoupled,
	};

	if (r->rule != NE_RULE_SGD) {
		f.first_weight = (float)(1 - h->beta1);
		f.second_weight = (float)(1 - h->beta2);
		f.second_keep = (float)h->beta2;
		f.step_size = (float)-(h->lr / (1 - pow(h->beta1, (double)r->step)));
		f.second_correction = (float)pow(1 - pow(h->beta2, (double)r->step), 0.5);
		f.shrink = (float)(1 - h->lr * h->weight_decay);
	}
	return f;
}

/* Elements first to first + n of the gradients, widened and summed in rank order. One gradient's sum is its copy. */
static void sum_floats(const struct ne_reduction *r, size_t first, size_t n, float *sum)
{
	float wide[BLOCK];

	for (uint32_t i = 0; i < r->members; i++) {
		float *to = i ? wide : sum;

		if (r->dtype == NE_DTYPE_F16)
			operations->widen_f16(to, (const uint16_t *)r->gradients[i] + first, n);
		else if (r->dtype == NE_DTYPE_BF16)
			operations->widen_bf16(to, (const uint16_t *)r->gradients[i] + first, n);
		else if (i == 0)
			memcpy(sum, (const float *)r->gradients[0] + first, n * sizeof(*sum));
		else
			operations->add_f32(sum, (const float *)r->gradients[i] + first, n);
		if (i && r->dtype != NE_DTYPE_F32)
			operations->add_f32(sum, wide, n);
	}
}

/* The same in the gradients' own format, which is at most 8 bytes an element. */
static void sum_wide(const struct ne_reduction *r, size_t first, size_t n, void *sum)
{
	memcpy(sum, (const char *)r->gradients[0] + first * element_bytes[r->dtype], n * element_bytes[r->dtype]);
	for (uint32_t i = 1; i < r->members; i++) {
		const void *gradient = r->gradients[i];

		if (r->dtype == NE_DTYPE_F64)
			operations->add_f64(sum, (const double *)gradient + first, n);
		else if (r->dtype == NE_DTYPE_I32)
			operations->add_i32(sum, (const uint32_t *)gradient + first, n);
		else
			operations->add_i64(sum, (const uint64_t *)gradient + first, n);
	}
}

/* The optimizer's step of a block, on copies, so that `to` may be `from`. Leaves the new parameters in g. */
static void update(const struct ne_reduction *r, const struct factors *f, size_t first, size_t n, float *g)
{
	float block[3][BLOCK];
	int arrays = masters(r);

	for (int i = 0; i < arrays; i++)
		memcpy(block[i], r->from[i] + first, n * sizeof(float));
	if (r->rule == NE_RULE_SGD)
		operations->sgd(block[0], block[1], g, f, n);
	else
		operations->adam(block[0], block[1], block[2], g, f, n);
	for (int i = 0; i < arrays; i++)
		memcpy(r->to[i] + first, block[i], n * sizeof(float));
	memcpy(g, block[0], n * sizeof(float));
}

static void put(const struct ne_reduction *r, size_t first, size_t n, const void *block)
{
	size_t bytes = element_bytes[r->dtype];

	for (uint32_t i = 0; i < r->results; i++)
		memcpy((char *)r->outputs[i] + first * bytes, block, n * bytes);
}

static void put_floats(const struct ne_reduction *r, size_t first, size_t n, const float *block)
{
	uint16_t narrow[BLOCK];

	if (r->dtype == NE_DTYPE_F32) {
		put(r, first, n, block);
		return;
	}
	if (r->dtype == NE_DTYPE_F16)
		operations->round_f16(narrow, block, n);
	else
		operations->round_bf16(narrow, block, n);
	put(r, first, n, narrow);
}

int ne_reduce(const struct ne_reduction *r)
{
	uint64_t block[BLOCK];
	struct factors f;
	bool is_float, is_copy;

	if (!is_valid(r))
		return -EINVAL;
	f = factors_of(r);
	is_float = r->dtype <= NE_DTYPE_BF16;
	/* Divided by 1 it is the same, and NaN of half the width keep their bits. */
	is_copy = r->members == 1 && !is_optimizer(r->rule);
	if (r->dtype == NE_DTYPE_F32 && !is_copy && !is_optimizer(r->rule)) {
		combine_floats(r);
		return 0;
	}
	for (size_t first = 0; first < r->count; first += BLOCK) {
		size_t n = r->count - first < BLOCK ? r->count - first : BLOCK;

		if (!is_float || is_copy) {
			sum_wide(r, first, n, block);
			put(r, first, n, block);
			continue;
		}
		sum_floats(r, first, n, (float *)block);
		if (r->rule != NE_RULE_SUM && r->members > 1)
			operations->divide((float *)block, (float)r->members, n);
		if (is_optimizer(r->rule))
			update(r, &f, first, n, (float *)block);
		put_floats(r, first, n, (float *)block);
	}
	return 0;
}

void reduce_widen(uint32_t dtype, float *to, const void *from, size_t count)
{
	if (dtype == NE_DTYPE_F16)
		operations->widen_f16(to, from, count);
	else if (dtype == NE_DTYPE_BF16)
		operations->widen_bf16(to, from, count);
	else
		memcpy(to, from, count * sizeof(*to));
}

void reduce_narrow(uint32_t dtype, void *to, const float *from, size_t count)
{
	if (dtype == NE_DTYPE_F16)
		operations->round_f16(to, from, count);
	else if (dtype == NE_DTYPE_BF16)
		operations->round_bf16(to, from, count);
	else
		memcpy(to, from, count * sizeof(*from));
}
