/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk's states, by single steps; whole runs of jobs, moves and deaths are played in tests/property/test_chunk.py.
 */
#include "chunk.h"
#include "check.h"

enum { ALL = 7, RANDOM_STEPS = 2000000 };

static struct ne_chunk chunk;
static struct ne_chunk_todo todo;

static void step(struct ne_chunk_event event)
{
	ne_chunk_step(&chunk, &event, &todo);
}

static void push(uint8_t member, uint64_t iteration)
{
	step((struct ne_chunk_event){
		.kind = NE_CHUNK_PUSH, .member = member, .epoch = chunk.epoch, .version = iteration});
}

static void have(uint8_t member, uint64_t version, bool keeps)
{
	step((struct ne_chunk_event){
		.kind = NE_CHUNK_HAVE, .member = member, .epoch = chunk.epoch, .version = version, .keeps = keeps});
}

static void have_nothing(uint8_t member)
{
	step((struct ne_chunk_event){
		.kind = NE_CHUNK_HAVE, .member = member, .epoch = chunk.epoch, .has_nothing = true});
}

static void lane_ends(uint8_t member)
{
	step((struct ne_chunk_event){.kind = NE_CHUNK_LANE_END, .member = member});
}

static void plan_mine(uint64_t epoch, uint64_t next_epoch)
{
	step((struct ne_chunk_event){.kind = NE_CHUNK_PLAN,
				     .is_mine = true,
				     .epoch = epoch,
				     .has_next = next_epoch != 0,
				     .next_epoch = next_epoch});
}

static void plan_next_is_me(uint64_t epoch, uint64_t next_epoch)
{
	step((struct ne_chunk_event){
		.kind = NE_CHUNK_PLAN, .has_next = true, .is_next = true, .epoch = epoch, .next_epoch = next_epoch});
}

static void plan_not_mine(uint64_t epoch)
{
	step((struct ne_chunk_event){.kind = NE_CHUNK_PLAN, .epoch = epoch});
}

/* Three members; the chunk is served at version 5 under epoch 1. */
static void served(bool sum_only)
{
	ne_chunk_make(&chunk, 3, sum_only);
	plan_mine(1, 0);
	CHECK(chunk.state == NE_CHUNK_EMPTY && todo.want_have == ALL);
	for (uint8_t member = 0; member < 3; member++)
		have(member, 5, !sum_only && member == 1);
	if (!sum_only) {
		CHECK(todo.want_seed == 2 && todo.seed_version == 5);
		step((struct ne_chunk_event){.kind = NE_CHUNK_SEED, .member = 1, .epoch = 1, .version = 5});
	}
	CHECK(chunk.state == NE_CHUNK_SERVING && chunk.version == 5);
}

static void all_push(uint64_t iteration)
{
	for (uint8_t member = 0; member < 3; member++)
		push(member, iteration);
}

static void updated(void)
{
	step((struct ne_chunk_event){.kind = NE_CHUNK_UPDATED});
}

TEST(the_last_push_makes_the_update_due_and_all_get_its_result)
{
	served(false);
	push(0, 6);
	push(2, 6);
	CHECK(!todo.update && !ne_chunk_is_due(&chunk));
	push(0, 6);
	CHECK(!todo.update);
	push(1, 6);
	CHECK(todo.update && ne_chunk_is_due(&chunk));
	updated();
	CHECK(todo.result == ALL && todo.result_version == 6 && chunk.version == 6 && !ne_chunk_is_due(&chunk));
}

TEST(a_lane_that_ends_takes_its_push_with_it)
{
	served(false);
	all_push(6);
	lane_ends(1);
	CHECK(!ne_chunk_is_due(&chunk) && !ne_chunk_has_push(&chunk, 1, 6) && ne_chunk_has_push(&chunk, 0, 6));
	updated();
	CHECK(todo.bad && chunk.version == 5);
	push(1, 6);
	CHECK(todo.update);
}

TEST(who_is_behind_gets_the_result_again)
{
	served(false);
	push(2, 5);
	CHECK(todo.result == 4 && todo.result_version == 5);
	/* It may have come back to version 4 to compute 5 anew: its push says whether it wants the result. */
	have(0, 4, false);
	CHECK(todo.result == 0);
	push(0, 5);
	CHECK(todo.result == 1 && todo.result_version == 5);
	have_nothing(0);
	CHECK(todo.result == 1);
}

TEST(a_frame_that_can_not_be_true_is_refused)
{
	served(false);
	push(0, 8);
	CHECK(todo.refused == 1);
	have(1, 7, false);
	CHECK(todo.refused == 2);
	step((struct ne_chunk_event){.kind = NE_CHUNK_PUSH, .member = 3, .epoch = 1, .version = 6});
	CHECK(todo.bad);
	step((struct ne_chunk_event){.kind = NE_CHUNK_PUSH, .member = 0, .epoch = 1, .version = UINT64_MAX});
	CHECK(todo.bad);
	step((struct ne_chunk_event){.kind = 200});
	CHECK(todo.bad);
	served(true);
	have_nothing(2);
	CHECK(todo.refused == 4);
}

TEST(a_frame_of_an_older_epoch_is_told_who_the_owner_is_and_a_newer_one_waits)
{
	served(false);
	plan_mine(4, 0);
	CHECK(chunk.state == NE_CHUNK_EMPTY && chunk.has_own && todo.want_have == ALL);
	step((struct ne_chunk_event){.kind = NE_CHUNK_PUSH, .member = 0, .epoch = 1, .version = 6});
	CHECK(todo.moved == 1);
	step((struct ne_chunk_event){.kind = NE_CHUNK_PUSH, .member = 0, .epoch = 5, .version = 6});
	CHECK(todo.wait && !ne_chunk_has_push(&chunk, 0, 6));
	ne_chunk_make(&chunk, 3, false);
	push(0, 1);
	CHECK(todo.wait);
}

TEST(a_move_ends_with_the_commit_and_every_member_is_told)
{
	struct ne_chunk here;

	served(false);
	plan_mine(1, 2);
	CHECK(chunk.state == NE_CHUNK_LEAVING);
	all_push(6);
	updated();
	CHECK(todo.result == ALL && todo.result_is_last && todo.copy && chunk.state == NE_CHUNK_LEFT);
	push(1, 6);
	CHECK(todo.result == 2 && todo.result_is_last);
	push(1, 7);
	CHECK(todo.moved == 2);
	have_nothing(2);
	CHECK(todo.moved == 4);
	here = chunk;

	ne_chunk_make(&chunk, 3, false);
	plan_next_is_me(1, 2);
	CHECK(chunk.state == NE_CHUNK_COMING);
	push(0, 7);
	push(1, 7);
	push(2, 7);
	CHECK(todo.pushed && !todo.update);
	step((struct ne_chunk_event){.kind = NE_CHUNK_COPY, .epoch = 2, .version = 6, .has_previous = true});
	CHECK(todo.copied && todo.update && chunk.state == NE_CHUNK_SERVING && chunk.version == 6);
	plan_mine(2, 0);
	CHECK(chunk.state == NE_CHUNK_SERVING && !todo.want_have);

	chunk = here;
	plan_not_mine(2);
	CHECK(chunk.state == NE_CHUNK_GONE && todo.freed);
}

TEST(a_move_that_is_taken_back_asks_all_members_what_they_have)
{
	served(false);
	plan_mine(1, 2);
	all_push(6);
	updated();
	plan_mine(3, 0);
	CHECK(chunk.state == NE_CHUNK_EMPTY && chunk.has_own && todo.want_have == ALL);
	for (uint8_t member = 0; member < 3; member++)
		have(member, 6, false);
	CHECK(chunk.state == NE_CHUNK_SERVING && chunk.version == 6 && !todo.want_seed);
}

TEST(a_next_owner_whose_process_is_another_one_gets_no_second_copy)
{
	served(false);
	step((struct ne_chunk_event){.kind = NE_CHUNK_NEXT_ANEW});
	CHECK(!todo.broken_there);
	plan_mine(1, 2);
	all_push(6);
	updated();
	step((struct ne_chunk_event){.kind = NE_CHUNK_NEXT_ANEW});
	CHECK(todo.broken_there && !todo.copy);
	ne_chunk_make(&chunk, 3, false);
	plan_mine(1, 2);
	CHECK(todo.broken_here);
}

TEST(where_the_keeper_is_behind_the_update_is_repeated_from_the_same_pushes)
{
	ne_chunk_make(&chunk, 3, false);
	plan_mine(1, 0);
	have(0, 6, false);
	have(1, 5, true);
	have(2, 6, false);
	CHECK(todo.want_seed == 2 && todo.seed_version == 5);
	step((struct ne_chunk_event){.kind = NE_CHUNK_SEED, .member = 0, .epoch = 1, .version = 6});
	CHECK(chunk.state == NE_CHUNK_EMPTY);
	step((struct ne_chunk_event){.kind = NE_CHUNK_SEED, .member = 1, .epoch = 1, .version = 5});
	CHECK(chunk.state == NE_CHUNK_SERVING && chunk.version == 5 && todo.want_push == 5 && todo.want_iteration == 6);
	/* One that comes anew has another gradient of iteration 6, of which two members hold the result. */
	lane_ends(1);
	have_nothing(1);
	CHECK(todo.lost);
}

TEST(a_version_that_nobody_can_go_on_from_is_told)
{
	ne_chunk_make(&chunk, 3, false);
	plan_mine(1, 0);
	have(0, 5, false);
	have(1, 5, false);
	CHECK(!todo.lost);
	have(2, 5, false);
	CHECK(todo.lost && chunk.state == NE_CHUNK_EMPTY);
	/* Unless this owner has it from before. */
	served(false);
	plan_mine(2, 0);
	for (uint8_t member = 0; member < 3; member++)
		have_nothing(member);
	CHECK(!todo.lost && chunk.state == NE_CHUNK_SERVING && todo.result == ALL && todo.result_version == 5);
}

TEST(with_sum_only_a_result_comes_from_a_member_that_holds_it)
{
	served(true);
	all_push(6);
	updated();
	lane_ends(2);
	have(2, 5, false);
	CHECK(todo.want_seed == 1 && todo.seed_version == 6 && !todo.result);
	lane_ends(0);
	CHECK(todo.want_seed == 2);
	step((struct ne_chunk_event){.kind = NE_CHUNK_SEED, .member = 1, .epoch = 1, .version = 6});
	CHECK(todo.result == 4 && todo.result_version == 6);
}

TEST(with_sum_only_a_result_that_nobody_got_is_made_again)
{
	served(true);
	all_push(6);
	updated();
	for (uint8_t member = 0; member < 3; member++)
		lane_ends(member);
	have(0, 5, false);
	have(1, 5, false);
	CHECK(!todo.want_push && !todo.want_seed);
	have(2, 5, false);
	CHECK(chunk.version == 5 && todo.want_push == ALL && todo.want_iteration == 6);
	all_push(6);
	CHECK(todo.update);
}

TEST(the_version_before_can_be_asked_for_until_the_next_update)
{
	served(false);
	step((struct ne_chunk_event){.kind = NE_CHUNK_ASK, .member = 0, .epoch = 1, .version = 4});
	CHECK(todo.lost);
	all_push(6);
	updated();
	step((struct ne_chunk_event){.kind = NE_CHUNK_ASK, .member = 0, .epoch = 1, .version = 5});
	CHECK(todo.given == 1 && todo.given_version == 5);
	step((struct ne_chunk_event){.kind = NE_CHUNK_ASK, .member = 0, .epoch = 1, .version = 3});
	CHECK(todo.refused == 1);
}

static bool all_have_pushed(int members)
{
	for (int member = 0; member < members; member++)
		if (!ne_chunk_has_push(&chunk, member, chunk.version + 1))
			return false;
	return true;
}

/* Whatever comes, in whatever order: no undefined behaviour, and no update without all members' pushes. */
TEST(random_events_never_make_an_update_due_without_all_pushes)
{
	uint64_t drawn = 88172645463325252u, epoch = 1;

	for (int members = 1; members <= 64; members += members < 4 ? 1 : 20) {
		uint64_t everybody = members == 64 ? UINT64_MAX : (1ull << members) - 1;

		ne_chunk_make(&chunk, members, members & 1);
		for (int i = 0; i < RANDOM_STEPS / 10; i++) {
			struct ne_chunk_event event = {0};

			drawn ^= drawn << 13;
			drawn ^= drawn >> 7;
			drawn ^= drawn << 17;
			event.kind = drawn % 10;
			event.member = (drawn >> 8) % (members + 1);
			event.has_nothing = (drawn >> 16) % 16 == 0;
			event.keeps = drawn >> 20 & 1;
			event.is_anew = drawn >> 21 & 1;
			event.is_mine = drawn >> 22 & 1;
			event.has_next = drawn >> 23 & 1;
			event.is_next = event.has_next && !event.is_mine && (drawn >> 24 & 1);
			epoch += event.kind == NE_CHUNK_PLAN && (drawn >> 25) % 8 == 0;
			event.epoch = epoch - (drawn >> 28) % 2;
			event.next_epoch = epoch + 1;
			event.version = chunk.version + (drawn >> 32) % 4 - 1;
			step(event);
			if (todo.update)
				CHECK(all_have_pushed(members));
			CHECK(((todo.result | todo.moved | todo.want_have | todo.want_push) & ~everybody) == 0);
		}
	}
}
