/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk.h - one chunk of a job's parameters at one Aggregator, as a state machine: no I/O, no clock, no allocation.
 *
 * What it is for
 *   n members train one model. Each pushes its gradient of a chunk and iteration once; when all n are there the chunk
 *   is updated, and every member gets the result. Chunks move between Aggregators while that goes on; lanes break;
 *   members and Aggregators die. Through all of that an update of (chunk, iteration) counts exactly once.
 *
 * Words
 *   Version v of a chunk is what it is after v updates. A member at v pushes iteration v + 1 and gets version v + 1.
 *   The owner is the Aggregator that updates the chunk; the next owner is the one it moves to. An epoch numbers a
 *   plan's word on who owns the chunk: a move carries the next owner's epoch from its start, and its end (the commit)
 *   keeps it; any other change of owner has a new one. Frames carry the epoch under which they were sent.
 *   With the server's optimizer the Aggregator has contents (parameters and optimizer state), and some members keep
 *   the optimizer's state as well. With sum only there are no contents: results lie at the members.
 *
 * The rule that all follows from
 *   A member pushes nothing of iteration i + 1 before it holds every result of iteration i. So versions of two members
 *   differ by at most one; who pushes v + 2 proves to hold v + 1; and an update repeated from the same pushes has the
 *   same bits. On a new lane, and under a new epoch, a member first says what it holds (HAVE).
 *
 * States
 *   EMPTY	owner, not sure of its version. All members are asked what they have (HAVE); then the version is chosen
 *	   	and, where nobody here has it, fetched from a member (SEED)
 *   SERVING	owner at version v
 *   LEAVING	as SERVING; the next update is the last one here
 *   LEFT	at version v, which the next owner gets; kept until the commit
 *   COMING	next owner, without the chunk so far
 *   GONE	not here
 *
 *	GONE ──mine──► EMPTY ──all HAVE [and SEED]──► SERVING ──a next owner──► LEAVING ──last update──► LEFT ──► GONE
 *	GONE ──next──► COMING ──COPY──► SERVING
 *	any of them ──mine, under a new epoch──► EMPTY		any of them ──not mine──► GONE
 *
 * Which version an owner in EMPTY takes, when m is the highest one that a member holds (all others hold m - 1):
 *	its own copy of m or m + 1, if it has one (m + 1: updated, but no result arrived);
 *	a seed of m from a member that keeps the optimizer's state of m;
 *	its own copy, or a kept one, of m - 1: then all push iteration m once more, which gives the same bits. It would
 *	not with a member that came anew and has another gradient of m now: then, and with none of these, state is
 *	lost, and the job is told so.
 *   With sum only it is m, and who is at m - 1 gets the result from who is at m.
 *
 * [autops §4.3.1, §4.4.2; the text has neither states nor faults, see docs/papers.md]
 */
#ifndef FARSIDE_CHUNK_H
#define FARSIDE_CHUNK_H

#include <stdbool.h>
#include <stdint.h>

/* cffi: begin */

enum ne_chunk_state {
	NE_CHUNK_GONE = 0,
	NE_CHUNK_EMPTY = 1,
	NE_CHUNK_SERVING = 2,
	NE_CHUNK_LEAVING = 3,
	NE_CHUNK_LEFT = 4,
	NE_CHUNK_COMING = 5,
};

/* Sets of members are masks, a bit a rank; a chunk has at most 64 members. */
struct ne_chunk {
	uint8_t state;			/* enum ne_chunk_state */
	uint8_t members;
	bool sum_only;
	bool has_owner;			/* a plan has named the owner, so MOVED can say who it is */
	bool has_own;			/* EMPTY: a copy of `version` from before, which may be stale */
	bool has_previous;		/* version - 1 can be given, too */
	bool has_next;			/* a next owner is named; always in LEAVING and LEFT */
	bool is_seeding;		/* EMPTY: a seed is on its way from `seeder`; sum only: a result is */
	bool has_told;			/* `pushed` was told under this epoch */
	uint8_t seeder;			/* rank */
	uint64_t epoch, next_epoch;
	uint64_t version;
	uint64_t seed_version;
	uint64_t push_iteration[2];	/* by parity, since pushes of two iterations may be here at once */
	uint64_t pushed[2];		/* members whose push of that iteration is here */
	uint64_t have_version[2];	/* EMPTY, COMING: by parity, what members said they hold */
	uint64_t have[2];
	uint64_t have_none;		/* members that came anew, and hold nothing */
	uint64_t keeps;			/* members with the optimizer's state of what they hold */
	uint64_t anew;			/* members whose next gradient may differ from one that was pushed before */
	uint64_t asking;		/* EMPTY, COMING: members that have asked for a version */
	uint64_t behind;		/* sum only, served: members that need the result `version` */
	uint64_t holders;		/* sum only, served: members that hold it, or will by what is on their lane */
	uint64_t ahead;			/* served: members known to hold version + 1, so that its update is repeated */
	uint64_t fresh;			/* served: members that came anew since the last update */
	uint64_t heard;			/* members that have pushed here under this epoch */
};

enum ne_chunk_event_kind {
	NE_CHUNK_PUSH = 0,		/* member: its gradient of iteration `version` is here */
	NE_CHUNK_HAVE = 1,		/* member: it holds `version`, or nothing; `keeps`, `is_anew` */
	NE_CHUNK_ASK = 2,		/* member: it wants `version` */
	NE_CHUNK_SEED = 3,		/* member: contents of `version` (sum only: the result) are here */
	NE_CHUNK_LANE_END = 4,		/* member: its lane has ended */
	NE_CHUNK_UPDATED = 5,		/* the update that was due is done */
	NE_CHUNK_PLAN = 6,		/* a plan, no older than the last: owner's `epoch`, `is_mine`; next owner's */
	NE_CHUNK_COPY = 7,		/* contents of `version` are here whole, from the owner before; `has_previous` */
	NE_CHUNK_NEXT_ANEW = 8,		/* the next owner is another process than the one that was sent the copy */
};

struct ne_chunk_event {
	uint8_t kind;			/* enum ne_chunk_event_kind */
	uint8_t member;			/* rank, of the first five kinds */
	bool has_nothing, keeps, is_anew; /* HAVE */
	bool is_mine;			/* PLAN: this Aggregator is the owner */
	bool has_next, is_next;		/* PLAN: there is a next owner; it is this Aggregator */
	bool has_previous;		/* COPY */
	uint64_t epoch;			/* of the frame; PLAN: the owner's */
	uint64_t next_epoch;		/* PLAN: the next owner's */
	uint64_t version;
};

/* What is to be done, in this order. Frames to members go to each rank of the mask. */
struct ne_chunk_todo {
	uint64_t refused;		/* ERROR, and end the lane: the frame can't be true */
	uint64_t moved;			/* MOVED: who the owner is now, and its epoch */
	uint64_t result;		/* RESULT of `result_version`... */
	uint64_t result_version;
	uint64_t given;			/* STATE of `given_version`, which is the version served or the one before it */
	uint64_t given_version;
	uint64_t want_have;		/* WANT: what do you hold? */
	uint64_t want_push;		/* WANT: push `want_iteration` (again) */
	uint64_t want_iteration;
	uint64_t want_seed;		/* WANT: send `seed_version`, once you hold it; one rank */
	uint64_t seed_version;
	bool result_is_last;		/* ...with the flag MOVED: next owner and its epoch */
	bool update;			/* the update to version + 1 is due: run it in the job's turn, then UPDATED */
	bool copy;			/* contents go to the next owner */
	bool copied;			/* tell the manager and the owner before: the copy is whole */
	bool pushed;			/* tell the manager: all members have come to the next owner */
	bool broken_here;		/* tell the manager: this owner came anew during a move, so it ends at the next one */
	bool broken_there;		/* tell the manager: the next owner came anew and may have gone on; it ends here */
	bool freed;			/* contents are of no use any more */
	bool wait;			/* nothing was done: the frame's epoch is newer than the plan. Give it again after the next */
	bool lost;			/* no copy of a version that all could go on from: tell the job, end its start */
	bool bad;			/* nothing was done: not in this state, or not one of the limits above */
};

/* A chunk that no plan has named so far. members: 1 to 64. */
void ne_chunk_make(struct ne_chunk *chunk, uint32_t members, bool sum_only);
/*
 * One step. Writes all of `todo`. After it, contents of pushes that ne_chunk_has_push() does not know are of no use.
 * One thread at a time.
 */
void ne_chunk_step(struct ne_chunk *chunk, const struct ne_chunk_event *event, struct ne_chunk_todo *todo);
/* Whether the update to version + 1 is due. An end of a lane takes it back, so ask again when its turn has come. */
bool ne_chunk_is_due(const struct ne_chunk *chunk);
bool ne_chunk_has_push(const struct ne_chunk *chunk, uint32_t member, uint64_t iteration);
/* Whether a member's frame of this epoch would have to wait for the next plan. */
bool ne_chunk_is_early(const struct ne_chunk *chunk, uint64_t epoch);

/* cffi: end */

#endif
