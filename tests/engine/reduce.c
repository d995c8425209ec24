/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Aggregation's arithmetic: both variants give the same bits, nothing beyond an array's end is touched, and what is out
 * of bounds is refused before anything is written. The formulas themselves are compared with NumPy in test_reduce.py.
 */
#include "../../kmod_shim/engine/reduce.c"
#include "check.h"

enum { MEMBERS = 3, LENGTHS = 7 };

static const size_t lengths[LENGTHS] = {1, 7, 8, 1023, 1024, 1025, 3000};

/* One call's arrays, each allocated to the byte, so that the sanitizer sees an access past its end. */
struct arrays {
	struct ne_reduction asked;
	void *gradients[MEMBERS], *outputs[MEMBERS];
	float *masters[3];
};

static uint64_t drawn = 88172645463325252u;

static uint8_t draw(void)
{
	drawn ^= drawn << 13;
	drawn ^= drawn >> 7;
	drawn ^= drawn << 17;
	return drawn >> 24;
}

static void *random_bytes(size_t bytes)
{
	uint8_t *made = malloc(bytes);

	CHECK(made);
	for (size_t i = 0; i < bytes; i++)
		made[i] = draw();
	return made;
}

static void make(struct arrays *a, uint32_t dtype, uint32_t rule, size_t count)
{
	*a = (struct arrays){.asked = {.dtype = dtype, .rule = rule, .count = count, .members = MEMBERS, .results = 1}};
	for (int i = 0; i < MEMBERS; i++) {
		a->gradients[i] = random_bytes(count * element_bytes[dtype]);
		a->outputs[i] = random_bytes(count * element_bytes[dtype]);
	}
	for (int i = 0; i < 3; i++) {
		a->masters[i] = random_bytes(count * sizeof(float));
		/* The second moment is a square, or its root is NaN. */
		for (size_t j = 0; j < count; j++)
			a->masters[i][j] = i < 2 ? a->masters[i][j] : fabsf(a->masters[i][j]);
		a->asked.from[i] = a->asked.to[i] = a->masters[i];
	}
	a->asked.gradients = (const void *const *)a->gradients;
	a->asked.outputs = a->outputs;
	a->asked.step = 2;
	a->asked.hyper = (struct ne_hyper){.lr = 0.01,
					   .weight_decay = 0.1,
					   .momentum = rule == NE_RULE_SGD ? 0.9 : 0,
					   .beta1 = 0.9,
					   .beta2 = 0.999,
					   .eps = 1e-8,
					   .nesterov = rule == NE_RULE_SGD};
}

static void copy_of(struct arrays *copy, const struct arrays *a)
{
	*copy = *a;
	for (int i = 0; i < MEMBERS; i++) {
		size_t bytes = a->asked.count * element_bytes[a->asked.dtype];

		copy->gradients[i] = memcpy(malloc(bytes), a->gradients[i], bytes);
		copy->outputs[i] = memcpy(malloc(bytes), a->outputs[i], bytes);
	}
	for (int i = 0; i < 3; i++) {
		size_t bytes = a->asked.count * sizeof(float);

		copy->masters[i] = memcpy(malloc(bytes), a->masters[i], bytes);
		copy->asked.from[i] = copy->asked.to[i] = copy->masters[i];
	}
	copy->asked.gradients = (const void *const *)copy->gradients;
	copy->asked.outputs = copy->outputs;
}

static void drop(struct arrays *a)
{
	for (int i = 0; i < MEMBERS; i++) {
		free(a->gradients[i]);
		free(a->outputs[i]);
	}
	for (int i = 0; i < 3; i++)
		free(a->masters[i]);
}

static bool is_nan(const void *array, uint32_t dtype, size_t i)
{
	switch (dtype) {
	case NE_DTYPE_F64:
		return isnan(((const double *)array)[i]);
	case NE_DTYPE_F32:
		return isnan(((const float *)array)[i]);
	case NE_DTYPE_F16:
		return isnan(from_f16(((const uint16_t *)array)[i]));
	case NE_DTYPE_BF16:
		return isnan(float_of((uint32_t)((const uint16_t *)array)[i] << 16));
	default:
		return false;
	}
}

/* Equal bits; of two NaN that have met, either may have stayed. */
static void same(const void *a, const void *b, uint32_t dtype, size_t count)
{
	size_t bytes = element_bytes[dtype];

	for (size_t i = 0; i < count; i++)
		CHECK((is_nan(a, dtype, i) && is_nan(b, dtype, i)) ||
		      memcmp((const char *)a + i * bytes, (const char *)b + i * bytes, bytes) == 0);
}

static void variants_agree(uint32_t dtype, uint32_t rule, size_t count)
{
	struct arrays fast, slow;

	make(&fast, dtype, rule, count);
	copy_of(&slow, &fast);
	ne_reduce_portable(false);
	CHECK(ne_reduce(&fast.asked) == 0);
	CHECK(ne_reduce_portable(true) == 1);
	CHECK(ne_reduce(&slow.asked) == 0);
	ne_reduce_portable(false);
	same(fast.outputs[0], slow.outputs[0], dtype, count);
	for (int i = 0; i < masters(&fast.asked); i++)
		same(fast.masters[i], slow.masters[i], NE_DTYPE_F32, count);
	drop(&fast);
	drop(&slow);
}

TEST(both_variants_give_the_same_bits_whatever_bits_they_get)
{
	for (uint32_t dtype = NE_DTYPE_F32; dtype <= NE_DTYPE_I64; dtype++)
		for (uint32_t rule = NE_RULE_SUM; rule <= NE_RULE_ADAMW; rule++)
			for (int i = 0; i < LENGTHS && (dtype <= NE_DTYPE_BF16 || rule == NE_RULE_SUM); i++)
				variants_agree(dtype, rule, lengths[i]);
}

TEST(every_float16_is_widened_and_rounded_back_alike)
{
	static uint16_t all[65536], fast[65536], slow[65536];
	static float wide[65536];

	for (int i = 0; i < 65536; i++)
		all[i] = i;
	portable_operations.widen_f16(wide, all, 65536);
	portable_operations.round_f16(slow, wide, 65536);
	fastest()->round_f16(fast, wide, 65536);
	for (int i = 0; i < 65536; i++) {
		/* A NaN that signals is made quiet. */
		uint16_t wanted = (i & 0x7fff) > 0x7c00 ? i | 0x200 : i;

		CHECK(slow[i] == wanted && fast[i] == wanted);
	}
}

TEST(a_result_may_lie_where_a_gradient_was)
{
	struct arrays apart, inside;

	make(&apart, NE_DTYPE_F32, NE_RULE_SUM, 3000);
	copy_of(&inside, &apart);
	free(inside.outputs[0]);
	inside.outputs[0] = inside.gradients[1];
	CHECK(ne_reduce(&apart.asked) == 0 && ne_reduce(&inside.asked) == 0);
	same(apart.outputs[0], inside.outputs[0], NE_DTYPE_F32, 3000);
	inside.outputs[0] = NULL;
	drop(&apart);
	drop(&inside);
}

static void refuses(const struct arrays *a, const struct ne_reduction *asked)
{
	size_t bytes = a->asked.count * element_bytes[a->asked.dtype];
	void *before = memcpy(malloc(bytes), a->outputs[0], bytes);

	CHECK(ne_reduce(asked) == -EINVAL);
	CHECK(memcmp(before, a->outputs[0], bytes) == 0);
	free(before);
}

#define REFUSES(change)                              \
	do {                                         \
		struct ne_reduction asked = a.asked; \
		change;                              \
		refuses(&a, &asked);                 \
	} while (0)

TEST(what_is_out_of_bounds_is_refused_and_nothing_is_written)
{
	struct arrays a;
	void *odd[MEMBERS];

	make(&a, NE_DTYPE_F32, NE_RULE_ADAM, 64);
	memcpy(odd, a.gradients, sizeof(odd));
	odd[1] = (char *)odd[1] + 2;
	REFUSES(asked.dtype = NE_DTYPE_I64 + 1);
	REFUSES(asked.dtype = NE_DTYPE_F64);
	REFUSES(asked.rule = NE_RULE_ADAMW + 1);
	REFUSES(asked.members = 0);
	REFUSES(asked.members = NE_MEMBERS_MAX + 1);
	REFUSES(asked.results = NE_MEMBERS_MAX + 1);
	REFUSES(asked.count = NE_REDUCTION_MAX + 1ull);
	REFUSES(asked.step = 0);
	REFUSES(asked.gradients = (const void *const *)odd);
	REFUSES(asked.from[2] = NULL);
	REFUSES(asked.to[1] = NULL);
	REFUSES(asked.hyper.lr = -1);
	REFUSES(asked.hyper.lr = NAN);
	REFUSES(asked.hyper.eps = INFINITY);
	REFUSES(asked.hyper.beta1 = 1);
	REFUSES(asked.hyper.beta2 = -0.1);
	REFUSES((asked.rule = NE_RULE_SGD, asked.hyper.nesterov = 1, asked.hyper.momentum = 0));
	drop(&a);
}
