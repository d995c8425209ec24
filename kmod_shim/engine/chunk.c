/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk.c - the states of chunk.h.
 *
 * What each event does in each state (v: the version served; N: the next owner):
 *
 *		PUSH of i		HAVE h			PLAN			COPY
 *	EMPTY	kept, HAVE asked for	all have: choose	N noted; new epoch:	ignored
 *								HAVE asked anew
 *	SERVING	v+1 kept; all: update	nothing: RESULT v	N: LEAVING		again: copied
 *		v: RESULT v		v+1: WANT v+1		new epoch: EMPTY
 *		v+2, old: dropped	v, old: nothing
 *	LEAVING	as SERVING		as SERVING		new epoch: EMPTY	again: copied
 *	LEFT	v: RESULT v, moved	v-1: nothing		owner is N: GONE	again: copied
 *		else MOVED		else MOVED		new epoch: EMPTY
 *	COMING	kept			kept			mine: EMPTY		whole: SERVING
 *	GONE	MOVED			MOVED			mine: EMPTY, N: COMING	ignored
 *
 * "mine under a new epoch" never leads to SERVING: the other owner may have gone on, and only the members know.
 */
#include "chunk.h"

#include <string.h>

enum { NOBODY = 64 };

static const uint64_t VERSION_MAX = UINT64_MAX >> 1;

/* ------------------------------------------------------------------ members */

static uint64_t everybody(const struct ne_chunk *c)
{
	return c->members == 64 ? UINT64_MAX : (1ull << c->members) - 1;
}

static uint32_t lowest(uint64_t mask)
{
	return mask ? (uint32_t)__builtin_ctzll(mask) : NOBODY;
}

static uint64_t pushed_of(const struct ne_chunk *c, uint64_t iteration)
{
	return c->push_iteration[iteration & 1] == iteration ? c->pushed[iteration & 1] : 0;
}

static uint64_t have_of(const struct ne_chunk *c, uint64_t version)
{
	return c->have_version[version & 1] == version ? c->have[version & 1] : 0;
}

static bool is_served(const struct ne_chunk *c)
{
	return c->state == NE_CHUNK_SERVING || c->state == NE_CHUNK_LEAVING;
}

bool ne_chunk_is_due(const struct ne_chunk *c)
{
	return is_served(c) && pushed_of(c, c->version + 1) == everybody(c);
}

bool ne_chunk_has_push(const struct ne_chunk *c, uint32_t member, uint64_t iteration)
{
	return member < c->members && pushed_of(c, iteration) >> member & 1;
}

/* A member has one push outstanding: its newest one counts, and makes room among those of others that are stale. */
static void keep_push(struct ne_chunk *c, uint64_t who, uint64_t iteration)
{
	int slot = iteration & 1;

	c->heard |= who;
	for (int i = 0; i < 2; i++)
		if (c->push_iteration[i] > iteration && (i == slot ? c->pushed[i] : c->pushed[i] & who))
			return;
	c->pushed[!slot] &= ~who;
	if (c->push_iteration[slot] != iteration)
		c->pushed[slot] = 0;
	c->push_iteration[slot] = iteration;
	c->pushed[slot] |= who;
}

static void drop_have(struct ne_chunk *c, uint64_t who)
{
	c->have[0] &= ~who;
	c->have[1] &= ~who;
	c->have_none &= ~who;
	c->keeps &= ~who;
	c->anew &= ~who;
}

static void drop_pushes_but(struct ne_chunk *c, uint64_t iteration)
{
	c->pushed[iteration & 1] = pushed_of(c, iteration);
	c->pushed[~iteration & 1] = 0;
}

/* ------------------------------------------------------------------- serving */

static void tell_due(const struct ne_chunk *c, struct ne_chunk_todo *t)
{
	t->update = ne_chunk_is_due(c);
}

/*
 * Sum only: nobody here has the result that some members lack. A member that holds it sends it, also one that gets it
 * only now by its lane. Where all of them lack it the update is repeated: members stand in `behind` only if no result
 * was sent on their lane, so none can be on its way, and no gradient of that iteration has been overwritten.
 */
static void find_result(struct ne_chunk *c, struct ne_chunk_todo *t)
{
	uint32_t holder = lowest(c->holders & ~c->behind);

	if (!c->behind || c->is_seeding)
		return;
	if (holder != NOBODY) {
		c->is_seeding = true;
		c->seeder = holder;
		c->seed_version = c->version;
		t->want_seed = 1ull << holder;
		t->seed_version = c->version;
	} else if (c->behind == everybody(c)) {
		t->want_push = everybody(c) & ~pushed_of(c, c->version);
		t->want_iteration = c->version;
		c->version--;
		c->behind = 0;
		c->holders = everybody(c);
		tell_due(c, t);
	}
}

static void give_result(struct ne_chunk *c, uint64_t who, struct ne_chunk_todo *t)
{
	if (c->sum_only && c->state == NE_CHUNK_LEFT) {
		/* It is on their lane, or the next owner finds it. */
		t->moved |= who & ~c->holders;
		return;
	}
	if (c->sum_only) {
		c->behind |= who & ~c->holders;
		find_result(c, t);
		return;
	}
	t->result |= who;
	t->result_version = c->version;
	t->result_is_last = c->state == NE_CHUNK_LEFT;
}

/*
 * An update that is repeated, since some members hold its result already, needs the gradients that it had. A member
 * that came anew has another one.
 */
static void check_repeat(const struct ne_chunk *c, struct ne_chunk_todo *t)
{
	if (c->ahead && c->fresh)
		t->lost = true;
}

/* Becomes the server of `version`. What members said and pushed while that was open is judged now. */
static void serve(struct ne_chunk *c, uint64_t version, struct ne_chunk_todo *t)
{
	uint64_t level = have_of(c, version), ahead = have_of(c, version + 1);
	/* With contents, who is behind has pushed, or has come back to this version and pushes when it will. */
	uint64_t before = version ? have_of(c, version - 1) : 0;
	uint64_t behind = c->have_none | pushed_of(c, version) | (c->sum_only ? before : 0);
	uint64_t said = c->have[0] | c->have[1];

	c->state = c->has_next ? NE_CHUNK_LEAVING : NE_CHUNK_SERVING;
	c->version = version;
	c->has_own = c->is_seeding = false;
	c->behind = 0;
	drop_pushes_but(c, version + 1);
	c->holders = level | pushed_of(c, version + 1);
	behind &= ~level & ~ahead;
	t->refused |= said & ~level & ~ahead & ~behind & ~before;
	c->ahead = ahead;
	c->fresh = c->have_none | (c->anew & level);
	check_repeat(c, t);
	t->want_push = ahead & ~pushed_of(c, version + 1);
	t->want_iteration = version + 1;
	drop_have(c, everybody(c));
	tell_due(c, t);
	if (behind | c->asking)
		give_result(c, behind | c->asking, t);
	c->asking = 0;
}

static void ask_for_seed(struct ne_chunk *c, uint64_t holders, uint64_t version, struct ne_chunk_todo *t)
{
	c->is_seeding = true;
	c->seeder = lowest(holders);
	c->seed_version = version;
	t->want_seed = 1ull << c->seeder;
	t->seed_version = version;
}

/* EMPTY, once all members have said what they hold: chunk.h has the order. */
static void choose(struct ne_chunk *c, struct ne_chunk_todo *t)
{
	uint64_t said = c->have[0] | c->have[1], newest, before;
	bool can_repeat = !c->have_none && !c->anew;

	if (c->is_seeding || (said | c->have_none) != everybody(c))
		return;
	if (!said) {
		if (c->has_own)
			serve(c, c->version, t);
		else
			t->lost = true;
		return;
	}
	newest = c->have[0] ? c->have_version[0] : c->have_version[1];
	if (c->have[1] && c->have_version[1] > newest)
		newest = c->have_version[1];
	before = have_of(c, newest) == said ? 0 : said & ~have_of(c, newest);
	if (before && (!newest || have_of(c, newest - 1) != before))
		t->lost = true;
	else if (c->sum_only || (c->has_own && (c->version == newest || c->version == newest + 1)))
		serve(c, c->sum_only ? newest : c->version, t);
	else if (c->keeps & have_of(c, newest))
		ask_for_seed(c, c->keeps & have_of(c, newest), newest, t);
	else if (can_repeat && newest && c->has_own && c->version == newest - 1)
		serve(c, newest - 1, t);
	else if (can_repeat && before && (c->keeps & before))
		ask_for_seed(c, c->keeps & before, newest - 1, t);
	else
		t->lost = true;
}

/* -------------------------------------------------------------------- frames */

bool ne_chunk_is_early(const struct ne_chunk *c, uint64_t epoch)
{
	bool is_next = c->has_next && epoch == c->next_epoch;

	return !c->has_owner || (epoch > c->epoch && !is_next);
}

/* Whether the frame's epoch is the chunk's; else it has been dealt with. */
static bool is_current(const struct ne_chunk *c, const struct ne_chunk_event *e, uint64_t who, struct ne_chunk_todo *t)
{
	if (c->state != NE_CHUNK_GONE && e->epoch == c->epoch)
		return true;
	if (ne_chunk_is_early(c, e->epoch))
		t->wait = true;
	else
		t->moved = who;
	return false;
}

static void push(struct ne_chunk *c, const struct ne_chunk_event *e, struct ne_chunk_todo *t)
{
	uint64_t who = 1ull << e->member;

	if (!is_current(c, e, who, t))
		return;
	if (c->state == NE_CHUNK_LEFT) {
		if (e->version == c->version)
			give_result(c, who, t);
		else
			t->moved = who;
		return;
	}
	if (!is_served(c)) {
		keep_push(c, who, e->version);
		if (c->state == NE_CHUNK_EMPTY && !((c->have[0] | c->have[1] | c->have_none) & who))
			t->want_have = who;
	} else if (e->version == c->version + 1) {
		keep_push(c, who, e->version);
		c->holders |= who;
		c->behind &= ~who;
		find_result(c, t);
		tell_due(c, t);
	} else if (e->version == c->version) {
		c->heard |= who;
		give_result(c, who, t);
	} else if (e->version == c->version + 2) {
		c->ahead |= who;
		check_repeat(c, t);
	} else if (e->version > c->version) {
		t->refused = who;
		return;
	}
	/* An older one answers a WANT that was overtaken by its result. */
	if (!c->has_told && c->heard == everybody(c))
		t->pushed = c->has_told = true;
}

/* A served chunk, or one that has left, is told what a member holds. */
static void have_served(struct ne_chunk *c, const struct ne_chunk_event *e, uint64_t who, struct ne_chunk_todo *t)
{
	bool is_behind = e->has_nothing || e->version + 1 == c->version;

	/* What left may be older than what a member that came anew can have from the next owner. */
	if (c->state == NE_CHUNK_LEFT && (!is_behind || e->has_nothing)) {
		t->moved = who;
	} else if (is_behind) {
		c->fresh |= e->has_nothing ? who : 0;
		check_repeat(c, t);
		/* Its push follows, and asks for the result: without one it has come anew, and computes it again. */
		if (e->has_nothing || c->sum_only)
			give_result(c, who, t);
	} else if (e->version == c->version) {
		c->fresh |= e->is_anew ? who : 0;
		check_repeat(c, t);
		c->holders |= who;
		c->behind &= ~who;
		find_result(c, t);
	} else if (e->version == c->version + 1) {
		c->ahead |= who;
		check_repeat(c, t);
		t->want_push = who & ~pushed_of(c, e->version);
		t->want_iteration = e->version;
	} else if (e->version > c->version) {
		t->refused = who;
	}
	/* An older one was overtaken by the pushes that came after it on another stream. */
}

static void have(struct ne_chunk *c, const struct ne_chunk_event *e, struct ne_chunk_todo *t)
{
	uint64_t who = 1ull << e->member;
	int slot = e->version & 1;

	if (!is_current(c, e, who, t))
		return;
	/* Parameters can't be made from a sum of gradients, so a member without any can't begin here. */
	if (e->has_nothing && c->sum_only) {
		t->refused = who;
		return;
	}
	if (c->state != NE_CHUNK_EMPTY && c->state != NE_CHUNK_COMING) {
		have_served(c, e, who, t);
		return;
	}
	drop_have(c, who);
	if (e->has_nothing) {
		c->have_none |= who;
	} else if (c->have[slot] && c->have_version[slot] != e->version) {
		/* Two members that are two versions apart have no version in common. */
		t->lost = true;
		return;
	} else {
		c->have_version[slot] = e->version;
		c->have[slot] |= who;
		c->keeps |= e->keeps ? who : 0;
		c->anew |= e->is_anew ? who : 0;
	}
	if (c->state == NE_CHUNK_EMPTY)
		choose(c, t);
}

static void ask(struct ne_chunk *c, const struct ne_chunk_event *e, struct ne_chunk_todo *t)
{
	uint64_t who = 1ull << e->member;

	if (!is_current(c, e, who, t))
		return;
	if (c->sum_only) {
		t->refused = who;
	} else if (c->state == NE_CHUNK_LEFT) {
		t->moved = who;
	} else if (!is_served(c)) {
		/* The version that is served will be told, and then it asks again. */
		c->asking |= who;
	} else if (e->version == c->version || (c->has_previous && e->version + 1 == c->version)) {
		t->given = who;
		t->given_version = e->version;
	} else if (e->version + 1 == c->version) {
		t->lost = true;
	} else {
		t->refused = who;
	}
}

static void seed(struct ne_chunk *c, const struct ne_chunk_event *e, struct ne_chunk_todo *t)
{
	uint64_t who = 1ull << e->member;

	/* One that was asked for before a lane ended, or by an epoch before, has been asked for again. */
	if (!is_current(c, e, who, t) || !c->is_seeding || c->seeder != e->member || e->version != c->seed_version)
		return;
	if (c->state == NE_CHUNK_EMPTY) {
		c->has_previous = false;
		serve(c, e->version, t);
		return;
	}
	t->result = c->behind;
	t->result_version = c->version;
	c->holders |= c->behind;
	c->behind = 0;
	c->is_seeding = false;
}

static void lane_end(struct ne_chunk *c, const struct ne_chunk_event *e, struct ne_chunk_todo *t)
{
	uint64_t who = 1ull << e->member;

	c->pushed[0] &= ~who;
	c->pushed[1] &= ~who;
	drop_have(c, who);
	c->asking &= ~who;
	c->ahead &= ~who;
	c->fresh &= ~who;
	c->behind &= ~who;
	c->holders &= ~who;
	c->heard &= ~who;
	/* Who comes back says anew what it holds, so an empty chunk chooses again. */
	if (c->is_seeding && (c->state == NE_CHUNK_EMPTY || c->seeder == e->member)) {
		c->is_seeding = false;
		if (is_served(c))
			find_result(c, t);
	}
}

static void updated(struct ne_chunk *c, struct ne_chunk_todo *t)
{
	if (!ne_chunk_is_due(c)) {
		t->bad = true;
		return;
	}
	c->version++;
	c->has_previous = !c->sum_only;
	c->pushed[0] = c->pushed[1] = 0;
	c->ahead = c->fresh = c->behind = 0;
	c->is_seeding = false;
	c->holders = everybody(c);
	t->result = everybody(c);
	t->result_version = c->version;
	if (c->state == NE_CHUNK_LEAVING) {
		c->state = NE_CHUNK_LEFT;
		t->result_is_last = t->copy = true;
	}
}

static void copy(struct ne_chunk *c, const struct ne_chunk_event *e, struct ne_chunk_todo *t)
{
	if (c->state != NE_CHUNK_GONE && e->epoch == c->epoch && c->state != NE_CHUNK_EMPTY) {
		/* One that comes again, since the answer was lost, changes nothing. */
		t->copied = true;
		if (c->state == NE_CHUNK_COMING) {
			c->has_previous = e->has_previous && !c->sum_only;
			serve(c, e->version, t);
		}
	} else if (e->epoch > c->epoch) {
		t->wait = true;
	}
	/* Else it is for a life before this one, or for a plan that is over. */
}

/* --------------------------------------------------------------------- plans */

static void forget(struct ne_chunk *c, uint32_t state, uint64_t epoch, struct ne_chunk_todo *t)
{
	struct ne_chunk fresh = {.state = state,
				 .members = c->members,
				 .sum_only = c->sum_only,
				 .has_owner = true,
				 .epoch = epoch,
				 .has_told = state != NE_CHUNK_COMING};

	t->freed = c->state != NE_CHUNK_GONE;
	*c = fresh;
}

/* Owner, but not sure of the version: pushes stay, and all are asked what they hold. */
static void start_over(struct ne_chunk *c, uint64_t epoch, struct ne_chunk_todo *t)
{
	c->has_own = c->has_own || ((is_served(c) || c->state == NE_CHUNK_LEFT) && !c->sum_only);
	c->state = NE_CHUNK_EMPTY;
	c->epoch = epoch;
	c->is_seeding = false;
	c->has_told = true;
	c->ahead = c->fresh = c->asking = c->behind = c->holders = c->heard = 0;
	drop_have(c, everybody(c));
	t->want_have = everybody(c);
}

static void note_next(struct ne_chunk *c, const struct ne_chunk_event *e)
{
	c->has_next = e->has_next;
	c->next_epoch = e->has_next ? e->next_epoch : 0;
	if (is_served(c))
		c->state = c->has_next ? NE_CHUNK_LEAVING : NE_CHUNK_SERVING;
}

static void plan(struct ne_chunk *c, const struct ne_chunk_event *e, struct ne_chunk_todo *t)
{
	bool is_known = c->state != NE_CHUNK_GONE;

	if (e->is_mine && is_known && e->epoch == c->epoch) {
		/* Members know the next owner by now: another one would need a new epoch. */
		if (c->state == NE_CHUNK_LEFT && (!e->has_next || e->next_epoch != c->next_epoch)) {
			t->bad = true;
			return;
		}
		/* The copy went to a life before this one. */
		if (c->state == NE_CHUNK_COMING)
			start_over(c, e->epoch, t);
		note_next(c, e);
	} else if (e->is_mine) {
		if (!is_known) {
			forget(c, NE_CHUNK_EMPTY, e->epoch, t);
			/* In the life before this one it may have left: then some members ask the next owner alone. */
			t->broken_here = e->has_next;
		}
		start_over(c, e->epoch, t);
		note_next(c, e);
	} else if (e->has_next && e->is_next) {
		if (!is_known || e->next_epoch != c->epoch)
			forget(c, NE_CHUNK_COMING, e->next_epoch, t);
	} else {
		forget(c, NE_CHUNK_GONE, e->epoch, t);
		note_next(c, e);
	}
}

/* ---------------------------------------------------------------------- doors */

void ne_chunk_make(struct ne_chunk *c, uint32_t members, bool sum_only)
{
	*c = (struct ne_chunk){.state = NE_CHUNK_GONE, .members = members, .sum_only = sum_only, .has_told = true};
}

void ne_chunk_step(struct ne_chunk *c, const struct ne_chunk_event *e, struct ne_chunk_todo *t)
{
	memset(t, 0, sizeof(*t));
	if ((e->kind <= NE_CHUNK_LANE_END && e->member >= c->members) || e->version > VERSION_MAX) {
		t->bad = true;
		return;
	}
	switch (e->kind) {
	case NE_CHUNK_PUSH:
		push(c, e, t);
		break;
	case NE_CHUNK_HAVE:
		have(c, e, t);
		break;
	case NE_CHUNK_ASK:
		ask(c, e, t);
		break;
	case NE_CHUNK_SEED:
		seed(c, e, t);
		break;
	case NE_CHUNK_LANE_END:
		lane_end(c, e, t);
		break;
	case NE_CHUNK_UPDATED:
		updated(c, t);
		break;
	case NE_CHUNK_PLAN:
		plan(c, e, t);
		break;
	case NE_CHUNK_COPY:
		copy(c, e, t);
		break;
	case NE_CHUNK_NEXT_ANEW:
		t->broken_there = c->state == NE_CHUNK_LEFT;
		break;
	default:
		t->bad = true;
	}
}
