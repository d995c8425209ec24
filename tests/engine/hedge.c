/* SPDX-License-Identifier: Apache-2.0 */
/* The hedge's rule: when a read is late, and whether its second copy is asked then. */
#include "hedge.h"
#include "check.h"

#define US    1000ull
#define MS    1000000ull
#define S     1000000000ull
#define FLOOR (5 * MS)

enum { HISTORIES = 300, READS_MAX = 1000 };

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % below;
}

/* From a microsecond to a minute, each power of two as often as the others. */
static uint64_t draw_ns(void)
{
	return (draw(1024) + 1024) << draw(26);
}

static void took(struct hedge_times *times, uint64_t ns, int reads)
{
	for (int i = 0; i < reads; i++)
		hedge_took(times, ns, S);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* A bucket's end is at most a quarter above what is in it. */
static bool is_just_above(uint64_t bound, uint64_t ns)
{
	return bound > ns && bound <= ns + ns / 4 + 1024;
}

TEST(a_donor_that_is_not_measured_yet_is_late_at_the_floor)
{
	struct hedge_times times = {0};

	CHECK(hedge_late_ns(&times, 0, FLOOR) == FLOOR);
}

TEST(a_quick_donor_is_late_at_the_floor)
{
	struct hedge_times times = {0};

	took(&times, 20 * US, 5000);
	CHECK(hedge_late_ns(&times, 100 * US, FLOOR) == FLOOR);
}

TEST(a_slow_donor_is_late_when_ninety_nine_of_its_reads_in_a_hundred_have_ended)
{
	struct hedge_times times = {0};

	for (int i = 0; i < 5000; i++)
		took(&times, i % 200 ? 30 * MS : 400 * MS, 1);
	CHECK(is_just_above(hedge_late_ns(&times, 1 * MS, FLOOR), 30 * MS));
	for (int i = 0; i < 5000; i++)
		took(&times, i % 50 ? 30 * MS : 400 * MS, 1);
	CHECK(is_just_above(hedge_late_ns(&times, 1 * MS, FLOOR), 400 * MS));
}

TEST(nothing_is_asked_that_would_take_longer_than_the_late_read_itself)
{
	struct hedge_times times = {0};

	/* one read in 200 takes 8 ms, none longer */
	for (int i = 0; i < 5000; i++)
		took(&times, i % 200 ? 20 * US : 8 * MS, 1);
	CHECK(hedge_late_ns(&times, 1 * MS, FLOOR) == FLOOR);
	CHECK(hedge_late_ns(&times, 6 * MS, FLOOR) > 8 * MS);	   /* the longest will be over in 4 ms */
	CHECK(hedge_late_ns(&times, 100 * MS, FLOOR) == 100 * MS); /* beyond what is known: as long again */
}

TEST(a_donor_that_has_recovered_is_measured_anew)
{
	struct hedge_times times = {0};

	took(&times, 300 * MS, 1024);
	CHECK(hedge_late_ns(&times, 0, FLOOR) > 300 * MS);
	took(&times, 20 * US, 5000);
	CHECK(hedge_late_ns(&times, 0, FLOOR) == FLOOR);
}

TEST(a_path_that_turns_slow_is_known_after_one_read_in_a_hundred)
{
	struct hedge_times times = {0};

	took(&times, 20 * US, 5000);
	took(&times, 50 * MS, 11);
	CHECK(hedge_late_ns(&times, 0, FLOOR) > 50 * MS);
}

/* What rule 3 asks for, by the times themselves; as exact as a bucket is. */
static bool is_expected_to_win(uint64_t late_ns, uint64_t second_ns, const uint64_t *sorted, uint32_t reads)
{
	uint32_t from = reads;

	while (from && sorted[from - 1] >= late_ns)
		from--;
	if (from == reads)
		return late_ns >= second_ns;
	return late_ns + second_ns <= sorted[from + (reads - from) / 2] * 5 / 4 + 1024;
}

TEST(after_any_history_a_late_read_is_above_floor_and_quantile_and_its_second_copy_is_expected_to_win)
{
	for (int history = 1; history <= HISTORIES; history++) {
		static uint64_t taken[READS_MAX];
		struct hedge_times times = {0};
		uint64_t floor_ns, second_ns, late_ns;
		uint32_t reads = 0, least;

		seed = (uint64_t)history;
		floor_ns = draw_ns();
		second_ns = draw_ns();
		least = 1 + (uint32_t)draw(800);
		while (reads < least || times.fresh) { /* until the figures are those of all reads */
			taken[reads] = draw_ns();
			hedge_took(&times, taken[reads++], S);
		}
		qsort(taken, reads, sizeof(*taken), compare);
		CHECK(is_just_above(times.quantile_ns, taken[(reads * 99 + 99) / 100 - 1]));
		CHECK(is_just_above(times.usual_ns, taken[(reads + 1) / 2 - 1]));
		late_ns = hedge_late_ns(&times, second_ns, floor_ns);
		CHECK(hedge_slow_ns(&times, floor_ns) >= floor_ns);
		CHECK(hedge_slow_ns(&times, floor_ns) >= times.quantile_ns);
		CHECK(late_ns >= hedge_slow_ns(&times, floor_ns));
		CHECK(is_expected_to_win(late_ns, second_ns, taken, reads));
		CHECK(late_ns >= hedge_late_ns(&times, second_ns / 2, floor_ns));
		CHECK(late_ns >= hedge_late_ns(&times, second_ns, floor_ns / 2));
	}
}

static enum hedge_verdict decide(struct hedge_budget *budget, uint64_t age_ns, uint64_t silent_ns, bool overloaded)
{
	return hedge_decide(&(struct hedge_case){.age_ns = age_ns,
						 .silent_ns = silent_ns,
						 .slow_ns = 10 * MS,
						 .late_ns = 10 * MS,
						 .overloaded = overloaded},
			    budget);
}

TEST(a_read_waits_until_it_is_late)
{
	struct hedge_budget budget;

	hedge_budget_begin(&budget);
	CHECK(decide(&budget, 10 * MS - 1, 0, false) == HEDGE_WAIT);
	CHECK(decide(&budget, 10 * MS, 0, false) == HEDGE_ASK);
}

TEST(of_many_reads_that_are_late_three_in_a_hundred_are_hedged)
{
	struct hedge_budget budget;
	int asked = 0;

	hedge_budget_begin(&budget);
	for (int i = 0; i < 10000; i++) {
		hedge_budget_earn(&budget);
		asked += decide(&budget, 10 * MS, 0, false) == HEDGE_ASK;
	}
	CHECK(asked >= 300 && asked <= 300 + 16);
	CHECK(decide(&budget, 10 * MS, 0, false) == HEDGE_NO_BUDGET);
}

TEST(no_more_than_sixteen_hedges_are_saved_up)
{
	struct hedge_budget budget;

	hedge_budget_begin(&budget);
	for (int i = 0; i < 100000; i++)
		hedge_budget_earn(&budget);
	for (int i = 0; i < 16; i++)
		CHECK(decide(&budget, 10 * MS, 0, false) == HEDGE_ASK);
	CHECK(decide(&budget, 10 * MS, 0, false) == HEDGE_NO_BUDGET);
}

TEST(a_read_waits_for_a_second_copy_that_pays_unless_it_may_be_lost)
{
	struct hedge_budget budget;
	struct hedge_case slow = {.age_ns = 39 * MS, .slow_ns = 10 * MS, .late_ns = 90 * MS};

	hedge_budget_begin(&budget);
	CHECK(hedge_decide(&slow, &budget) == HEDGE_WAIT);
	slow.age_ns = 40 * MS;
	CHECK(hedge_decide(&slow, &budget) == HEDGE_ASK);
}

TEST(a_second_copy_that_is_overloaded_is_left_alone_and_the_budget_kept)
{
	struct hedge_budget budget;

	hedge_budget_begin(&budget);
	for (int i = 0; i < 100; i++)
		CHECK(decide(&budget, 10 * MS, 0, true) == HEDGE_OVERLOAD);
	CHECK(decide(&budget, 10 * MS, 0, false) == HEDGE_ASK);
}

TEST(a_read_that_may_be_lost_is_hedged_without_budget_and_under_overload)
{
	struct hedge_budget budget = {0};
	struct hedge_case suspect = {
		.age_ns = 10 * MS, .slow_ns = 10 * MS, .late_ns = 90 * MS, .suspect = true, .overloaded = true};

	CHECK(decide(&budget, 40 * MS, 0, true) == HEDGE_ASK);
	CHECK(decide(&budget, 10 * MS, 40 * MS, true) == HEDGE_ASK); /* its donor answers nobody */
	CHECK(hedge_decide(&suspect, &budget) == HEDGE_ASK);
	CHECK(decide(&budget, 10 * MS - 1, 40 * MS, true) == HEDGE_WAIT);
}

TEST(a_second_copy_is_overloaded_when_most_of_its_last_reads_took_twice_their_usual_time)
{
	struct hedge_times times = {0};

	took(&times, 1 * MS, 100);
	took(&times, 3 * MS, 5);
	CHECK(!hedge_is_overloaded(&times, S));
	took(&times, 3 * MS, 1);
	CHECK(hedge_is_overloaded(&times, S));
	took(&times, 1 * MS, 3);
	CHECK(!hedge_is_overloaded(&times, S));
}

TEST(after_a_second_without_a_read_nothing_is_known_of_a_second_copys_load)
{
	struct hedge_times times = {0};

	took(&times, 1 * MS, 100);
	took(&times, 9 * MS, 8);
	CHECK(hedge_is_overloaded(&times, 2 * S - 1));
	CHECK(!hedge_is_overloaded(&times, 2 * S));
}

TEST(the_first_reads_of_a_second_copy_say_nothing_of_its_load)
{
	struct hedge_times times = {0};

	took(&times, 1 * MS, 2);
	took(&times, 9 * MS, 6);
	CHECK(!hedge_is_overloaded(&times, S));
}

TEST(times_beyond_both_ends_are_counted)
{
	struct hedge_times times = {0};

	took(&times, 0, 1);
	took(&times, UINT64_MAX, 1);
	CHECK(times.total == 2 && times.count[0] == 1 && times.count[HEDGE_BUCKETS - 1] == 1);
	CHECK(hedge_late_ns(&times, 100 * S, 200 * S) == 200 * S);
	CHECK(hedge_late_ns(&times, 0, UINT64_MAX / 8) == UINT64_MAX / 8);
}
