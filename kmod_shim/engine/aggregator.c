/* SPDX-License-Identifier: Apache-2.0 */
/*
 * aggregator.c - a server that updates chunks for the members of many jobs.
 *
 * What happens to a frame
 *	a lane's frame ──► ne_chunk_step() ──► what is to be done: frames to members, and chunks whose update is due
 *	due chunks ──► in turns between jobs ──► ne_reduce() ──► ne_chunk_step(UPDATED) ──► RESULT to all
 *
 * The thread sleeps in epoll_wait() without a timeout, looks at all sockets that are ready, updates chunks for at most
 * SLICE_NS, sends what has gathered, and looks again. A job's turn comes by the processor time that it has had: a small
 * job never waits behind all chunks of a large one.
 *
 * Contents
 *	Sum only: the gradients of members on this host are read where they lie, and results are written where the
 *	members look for them. What comes inline lies in a place for each member and chunk, by the iteration's parity,
 *	since a late answer may still come while the next push is here.
 *	Server's optimizer: two masters, by the version's parity. An update reads one and writes the other, so that the
 *	version before can still be given, and a stop in the middle of an update has spoiled nothing.
 *
 * A member can harm nobody but its own job: heads never lie in shared memory, and each bound is checked where a frame
 * begins. A frame that can't be true ends its lane. One whose epoch is newer than the plan stops its lane until the
 *plan is here; after HELD_NS the lane ends, and the member says all of it again on the next one.
 */
#include "aggregator.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "reduce.h"

enum {
	SLICE_NS = 200000,	 /* of updates between two looks */
	CACHED_BYTES = 16 << 20, /* of results, and a CPU's caches hold them until they are read */
	HELD_LOOK_MS = 1000,	 /* how often frames that wait for a plan are looked at */
};

/* How long a frame of an epoch newer than the plan may wait for it. */
static const uint64_t HELD_NS = 5000000000;

/* --------------------------------------------------------------------- contents */

uint8_t *pushed(struct job *job, uint32_t rank, uint32_t chunk, uint64_t iteration)
{
	struct member *member = &job->member[rank];

	if (member->lane.is_shm)
		return member->region + layout_gradient(&job->layout, chunk, iteration);
	return member->inlined + (iteration & 1) * job->layout.area_bytes + job->layout.offsets[chunk];
}

float *master(struct job *job, uint32_t chunk, uint64_t version)
{
	return (float *)(job->masters[version & 1] + job->layout.masters[chunk]);
}

static float *master_array(struct job *job, uint32_t chunk, uint64_t version, uint32_t array)
{
	uint64_t bytes = layout_state_bytes(&job->layout, chunk) / job->layout.arrays;

	return (float *)((uint8_t *)master(job, chunk, version) + array * bytes);
}

bool is_narrow(const struct job *job, uint32_t chunk)
{
	return job->layout.dtypes[chunk] != NE_DTYPE_F32;
}

/* Where the result of the version that is served lies, for members that are sent it inline. */
static uint8_t *result(struct job *job, uint32_t chunk)
{
	if (!job->layout.sum_only && !is_narrow(job, chunk))
		return (uint8_t *)master(job, chunk, job->states[chunk].version);
	return job->results + job->layout.offsets[chunk];
}

/* ----------------------------------------------------------------------- events */

void wake(int fd)
{
	uint64_t one = 1;

	(void)!write(fd, &one, sizeof(one));
}

void tell(struct server *a, struct ne_aggregator_event event)
{
	if (a->event_count == EVENTS)
		return;
	a->events[(a->event_first + a->event_count++) % EVENTS] = event;
	wake(a->event_fd);
}

/* ----------------------------------------------------------------------- frames */

bool put(struct job *job, uint32_t rank, uint32_t chunk, struct frame frame, const struct part *parts, uint32_t count)
{
	struct member *member = &job->member[rank];

	frame.chunk = chunk;
	frame.epoch = job->states[chunk].epoch;
	if (!member->is_there)
		return false;
	if (!lane_put(&member->lane, &frame, parts, count))
		return true;
	/* A lane that can't take more is found by its owner's next look: nothing is written to it any more. */
	shutdown(member->lane.fd, SHUT_RDWR);
	return false;
}

static void put_all(struct job *job, uint64_t mask, uint32_t chunk, struct frame frame)
{
	for (; mask; mask &= mask - 1)
		put(job, __builtin_ctzll(mask), chunk, frame, NULL, 0);
}

/* Who owns the chunk now, as far as is known here. */
static void name_owner(const struct job *job, uint32_t chunk, struct frame *frame)
{
	const struct move *move = &job->moves[chunk];
	bool has_left = job->states[chunk].state == NE_CHUNK_LEFT;

	frame->aux = has_left ? move->next_epoch : move->epoch;
	frame->status = has_left ? move->next : move->owner;
}

/*
 * The optimizer's state to its keeper, beside the parameters.
 *
 * is_written: an update has just written the result where a member on this host looks for it; that of one by RDMA is
 * written there now. One that is given again goes by the lane instead, since it may answer a push that was late: then
 * the member has gone on at the next owner, which has written a newer result to the same place.
 */
static void put_result(struct job *job, uint32_t rank, uint32_t chunk, struct frame frame, bool is_written)
{
	const struct layout *layout = &job->layout;
	struct member *member = &job->member[rank];
	struct part parts[2] = {{result(job, chunk), layout_bytes(layout, chunk)}};
	uint32_t count = 1;

	if (!member->is_there)
		return;
	if (!layout->sum_only && layout_keeper(layout, chunk) == rank) {
		frame.flags |= FRAME_KEEPS;
		parts[count++] = (struct part){master(job, chunk, frame.iteration), layout_state_bytes(layout, chunk)};
	}
	if (member->rdma && is_written) {
		rdma_put_result(job, rank, chunk, frame, parts, count);
		return;
	}
	if (!member->lane.is_shm || !is_written) {
		put(job, rank, chunk, frame, parts, count);
		return;
	}
	if (count == 2)
		memcpy(member->region + layout_kept(layout, chunk, frame.iteration), parts[1].at, parts[1].bytes);
	put(job, rank, chunk, frame, NULL, 0);
}

/* Sent from its place: who asked pushes nothing meanwhile, so no update can be writing there. */
static void put_state(struct job *job, uint32_t rank, uint32_t chunk, uint64_t version)
{
	struct part part = {master(job, chunk, version), layout_state_bytes(&job->layout, chunk)};

	put(job, rank, chunk, (struct frame){.kind = FRAME_STATE, .iteration = version}, &part, 1);
}

void tell_lost(struct job *job, uint32_t rank)
{
	put(job, rank, 0, (struct frame){.kind = FRAME_ERROR, .status = ESTALE}, NULL, 0);
}

static void lose(struct server *a, struct job *job, uint32_t chunk)
{
	if (job->is_lost)
		return;
	job->is_lost = true;
	tell(a, (struct ne_aggregator_event){.kind = NE_AGGREGATOR_LOST, .chunk = chunk, .job = job->id});
	for (uint32_t rank = 0; rank < job->layout.members; rank++)
		tell_lost(job, rank);
}

static void add_due(struct job *job, uint32_t chunk)
{
	if (job->is_due[chunk])
		return;
	job->is_due[chunk] = 1;
	job->due[(job->due_first + job->due_count++) % job->layout.chunks] = chunk;
}

static void give_result(struct job *job, uint32_t rank, uint32_t chunk, bool is_written)
{
	const struct ne_chunk *state = &job->states[chunk];
	struct frame frame = {.kind = FRAME_RESULT, .iteration = state->version};

	if (state->state == NE_CHUNK_LEFT) {
		frame.flags = FRAME_LAST;
		name_owner(job, chunk, &frame);
	}
	put_result(job, rank, chunk, frame, is_written);
}

/* holds: whoever has not asked for its result gets it when it does. */
static void give_results(struct job *job, uint64_t mask, uint32_t chunk, bool holds, bool is_written)
{
	if (job->hold) {
		uint64_t *pulls = &job->pulls[chunk][job->states[chunk].version & 1];
		uint64_t now = holds ? mask & *pulls : mask;

		*pulls &= ~now;
		job->owed[chunk] = (job->owed[chunk] | mask) & ~now;
		job->unwritten[chunk] = (job->unwritten[chunk] & ~mask) | (is_written ? 0 : mask);
		mask = now;
	}
	for (; mask; mask &= mask - 1)
		give_result(job, __builtin_ctzll(mask), chunk, is_written);
}

/* What a step asks for. */
static int carry_out(struct source *s, uint32_t chunk, const struct ne_chunk_todo *todo, uint8_t kind)
{
	struct job *job = s->job;
	struct frame moved = {.kind = FRAME_MOVED};

	if (todo->lost)
		lose(s->aggregator, job, chunk);
	name_owner(job, chunk, &moved);
	put_all(job, todo->moved, chunk, moved);
	give_results(job, todo->result, chunk, kind == NE_CHUNK_PUSH || kind == NE_CHUNK_UPDATED,
		     kind == NE_CHUNK_UPDATED);
	for (uint64_t mask = todo->given; mask; mask &= mask - 1)
		put_state(job, __builtin_ctzll(mask), chunk, todo->given_version);
	put_all(job, todo->want_have, chunk, (struct frame){.kind = FRAME_WANT_HAVE});
	put_all(job, todo->want_push, chunk,
		(struct frame){.kind = FRAME_WANT_PUSH, .iteration = todo->want_iteration});
	put_all(job, todo->want_seed, chunk, (struct frame){.kind = FRAME_WANT_SEED, .iteration = todo->seed_version});
	if (todo->update)
		add_due(job, chunk);
	/* The thread's next look finds that the lane has ended. */
	for (uint64_t mask = todo->refused; mask; mask &= mask - 1)
		if (job->member[__builtin_ctzll(mask)].is_there)
			shutdown(job->member[__builtin_ctzll(mask)].lane.fd, SHUT_RDWR);
	move_follow(s->aggregator, job, chunk, todo);
	return todo->wait ? -EAGAIN : todo->bad ? -EPROTO : 0;
}

int step(struct source *s, uint32_t chunk, struct ne_chunk_event event)
{
	struct ne_chunk_todo todo;

	ne_chunk_step(&s->job->states[chunk], &event, &todo);
	return carry_out(s, chunk, &todo, event.kind);
}

/* ------------------------------------------------------------------- what comes */

static bool is_seed_wanted(const struct source *s, const struct frame *frame)
{
	const struct ne_chunk *state = &s->job->states[frame->chunk];

	return state->is_seeding && state->seeder == s->rank && state->seed_version == frame->iteration &&
	       state->epoch == frame->epoch;
}

static int place_seed(struct source *s, const struct frame *frame, struct part *parts)
{
	struct job *job = s->job;
	bool is_first = frame->flags & FRAME_FIRST;
	uint64_t bytes = job->layout.sum_only || is_first ? layout_bytes(&job->layout, frame->chunk)
							  : layout_state_bytes(&job->layout, frame->chunk);

	if (frame->bytes != bytes)
		return -EPROTO;
	parts[0] = (struct part){s->aggregator->scratch, bytes};
	if (!is_seed_wanted(s, frame))
		return 0;
	if (job->layout.sum_only || (is_first && is_narrow(job, frame->chunk)))
		parts[0].at = job->results + job->layout.offsets[frame->chunk];
	else
		parts[0].at = master(job, frame->chunk, frame->iteration);
	return 0;
}

static int place(void *owner, const struct frame *frame, struct part parts[LANE_PARTS])
{
	struct source *s = owner;
	struct job *job = s->job;

	bool may_be_inline = frame->kind == FRAME_HYPER || (frame->kind == FRAME_SEED && !job->layout.sum_only);

	if (job->member[s->rank].lane.is_shm && !may_be_inline)
		return -EPROTO;
	if (frame->kind == FRAME_HYPER) {
		parts[0] = (struct part){&job->member[s->rank].hyper, sizeof(struct ne_hyper)};
		return 0;
	}
	if (frame->chunk >= job->layout.chunks)
		return -EPROTO;
	if (ne_chunk_is_early(&job->states[frame->chunk], frame->epoch))
		return -EAGAIN;
	if (frame->kind == FRAME_SEED)
		return place_seed(s, frame, parts);
	if (frame->kind != FRAME_PUSH || job->member[s->rank].rdma ||
	    frame->bytes != layout_bytes(&job->layout, frame->chunk))
		return -EPROTO;
	parts[0] = (struct part){pushed(job, s->rank, frame->chunk, frame->iteration), frame->bytes};
	/* Nobody's memory is taken for what is not here. */
	if (job->states[frame->chunk].state == NE_CHUNK_GONE)
		parts[0].at = s->aggregator->scratch;
	return 0;
}

static bool is_equal(const struct ne_hyper *one, const struct ne_hyper *other)
{
	return !memcmp(one, other, offsetof(struct ne_hyper, nesterov)) && one->nesterov == other->nesterov;
}

/* What a member has said of a group: HYPERS of them, the newest first. */
static struct numbers *numbers_of(const struct job *job, uint32_t rank, uint32_t group)
{
	return job->numbers + HYPERS * ((uint64_t)rank * job->layout.group_count + group);
}

static const struct ne_hyper *numbers_for(const struct job *job, uint32_t rank, uint32_t group, uint64_t iteration)
{
	const struct numbers *known = numbers_of(job, rank, group);

	for (int i = 0; i < HYPERS; i++)
		if (known[i].from && known[i].from <= iteration)
			return &known[i].hyper;
	return NULL;
}

/*
 * Rank 0's numbers count, and the others' are their copies: a member with others would believe in another model than it
 * gets. They say numbers only when these change, so they are judged where both name one iteration, and at each update.
 */
static void judge_numbers(struct job *job, uint32_t rank, const struct ne_hyper *counts, const struct ne_hyper *other)
{
	struct member *member = &job->member[rank];

	if (!counts || !other || is_equal(counts, other) || !member->is_there || member->is_refused)
		return;
	member->is_refused = true;
	put(job, rank, 0, (struct frame){.kind = FRAME_ERROR, .status = EDOM}, NULL, 0);
}

static int take_hyper(struct source *s, const struct frame *frame)
{
	struct job *job = s->job;
	struct numbers *known;
	struct numbers told = {.from = frame->iteration};

	if (frame->chunk >= job->layout.group_count || frame->bytes != sizeof(told.hyper) || !frame->iteration)
		return -EPROTO;
	told.hyper = job->member[s->rank].hyper;
	known = numbers_of(job, s->rank, frame->chunk);
	if (known[0].from != told.from)
		known[1] = known[0];
	known[0] = told;
	for (uint32_t rank = 1; rank < job->layout.members; rank++) {
		const struct numbers *counts = numbers_of(job, 0, frame->chunk),
				     *others = numbers_of(job, rank, frame->chunk);

		if (counts->from == told.from && others->from == told.from)
			judge_numbers(job, rank, &counts->hyper, &others->hyper);
	}
	return 0;
}

int take_push(struct source *s, const struct frame *frame)
{
	struct job *job = s->job;
	struct ne_chunk_event event = {.kind = NE_CHUNK_PUSH,
				       .member = s->rank,
				       .epoch = frame->epoch,
				       .version = frame->iteration};
	uint64_t who = 1ull << s->rank, *absent = &job->absent[frame->chunk][frame->iteration & 1];
	int err;

	if (!job->member[s->rank].lane.is_shm && !job->member[s->rank].rdma && !frame->bytes)
		return -EPROTO;
	*absent = frame->flags & FRAME_ABSENT ? *absent | who : *absent & ~who;
	err = step(s, frame->chunk, event);
	if (err)
		return err;
	job->stats.pushed_bytes += layout_bytes(&job->layout, frame->chunk);
	if (job->hold && job->states[frame->chunk].epoch == frame->epoch)
		put(job, s->rank, frame->chunk, (struct frame){.kind = FRAME_TAKEN, .iteration = frame->iteration},
		    NULL, 0);
	return 0;
}

/* A result that is wanted now: it is here, or will be. */
static int take_pull(struct source *s, const struct frame *frame)
{
	struct job *job = s->job;
	const struct ne_chunk *state = &job->states[frame->chunk];
	uint64_t who = 1ull << s->rank, *pulls = job->pulls[frame->chunk];
	struct frame moved = {.kind = FRAME_MOVED};

	if (!job->hold)
		return -EPROTO;
	if (ne_chunk_is_early(state, frame->epoch))
		return -EAGAIN;
	if (state->state == NE_CHUNK_GONE || frame->epoch != state->epoch) {
		name_owner(job, frame->chunk, &moved);
		put(job, s->rank, frame->chunk, moved, NULL, 0);
	} else if (job->owed[frame->chunk] & who && frame->iteration == state->version) {
		give_results(job, who, frame->chunk, false, !(job->unwritten[frame->chunk] & who));
	} else {
		/* Also where it is served: its update may have to be repeated. */
		pulls[frame->iteration & 1] |= who;
		pulls[~frame->iteration & 1] &= ~who;
	}
	return 0;
}

/* A seed's contents go from its region or from where they came inline to where the version is served from. */
static void take_contents(struct source *s, const struct frame *frame)
{
	struct job *job = s->job;
	const struct layout *layout = &job->layout;
	uint32_t chunk = frame->chunk;
	struct member *member = &job->member[s->rank];
	bool is_first = frame->flags & FRAME_FIRST, in_region = !frame->bytes;

	job->is_carried[chunk] = 0;
	if (layout->sum_only) {
		if (in_region)
			memcpy(job->results + layout->offsets[chunk], member->region + layout_result(layout, chunk),
			       layout_bytes(layout, chunk));
		return;
	}
	if (is_first) {
		const uint8_t *from = in_region ? member->region + layout_start(layout, chunk, frame->iteration)
				      : is_narrow(job, chunk) ? job->results + layout->offsets[chunk]
							      : NULL;

		/* Inline float32 has come to its place already. */
		if (from)
			reduce_widen(layout->dtypes[chunk], master(job, chunk, frame->iteration), from,
				     layout->counts[chunk]);
		for (uint32_t i = 1; i < layout->arrays; i++)
			memset(master_array(job, chunk, frame->iteration, i), 0, layout_array_bytes(layout, chunk));
	} else if (in_region) {
		memcpy(master(job, chunk, frame->iteration),
		       member->region + layout_kept(layout, chunk, frame->iteration),
		       layout_state_bytes(layout, chunk));
	}
	if (is_narrow(job, chunk))
		reduce_narrow(layout->dtypes[chunk], job->results + layout->offsets[chunk],
			      master(job, chunk, frame->iteration), layout->counts[chunk]);
}

static int take(void *owner, const struct frame *frame)
{
	struct source *s = owner;
	struct ne_chunk_event event = {.member = s->rank, .epoch = frame->epoch, .version = frame->iteration};
	const struct layout *layout = &s->job->layout;
	struct rdma *rdma = s->job->member[s->rank].rdma;

	if (rdma && frame->kind != FRAME_PUSH && rdma_must_wait(rdma))
		return -EAGAIN;
	if (frame->kind == FRAME_HYPER)
		return take_hyper(s, frame);
	if (frame->chunk >= layout->chunks)
		return -EPROTO;
	switch (frame->kind) {
	case FRAME_PUSH:
		return rdma ? rdma_take_push(s, frame) : take_push(s, frame);
	case FRAME_PULL:
		return take_pull(s, frame);
	case FRAME_HAVE:
		event.kind = NE_CHUNK_HAVE;
		event.has_nothing = frame->flags & FRAME_NOTHING;
		event.keeps = frame->flags & FRAME_KEEPS;
		event.is_anew = frame->flags & FRAME_ANEW;
		return step(s, frame->chunk, event);
	case FRAME_ASK:
		event.kind = NE_CHUNK_ASK;
		return step(s, frame->chunk, event);
	case FRAME_SEED:
		event.kind = NE_CHUNK_SEED;
		if (!s->job->member[s->rank].lane.is_shm && !frame->bytes)
			return -EPROTO;
		/* Keepers alone have a place for state in their region. */
		if (!frame->bytes && !layout->sum_only && !(frame->flags & FRAME_FIRST) &&
		    layout_keeper(layout, frame->chunk) != s->rank)
			return -EPROTO;
		if (is_seed_wanted(s, frame)) {
			if (layout->sum_only && make_results(s->job))
				return -ENOMEM;
			take_contents(s, frame);
		}
		return step(s, frame->chunk, event);
	default:
		return -EPROTO;
	}
}

static const struct lane_owner calls = {.place = place, .take = take};

/* ------------------------------------------------------------------------ lanes */

static void hold(struct server *a, struct member *member, bool holds)
{
	if (holds == (member->held_ns != 0))
		return;
	member->held_ns = holds ? now_ns() : 0;
	a->held += holds ? 1 : -1;
}

void end_lane(struct server *a, struct job *job, uint32_t rank, int err)
{
	struct member *member = &job->member[rank];
	struct source s = {a, job, rank};

	if (!member->is_there)
		return;
	hold(a, member, false);
	member->is_there = false;
	job->stats.shm_lanes -= member->lane.is_shm;
	job->stats.rdma_lanes -= member->lane.is_rdma;
	if (member->rdma)
		rdma_end(a, member->rdma);
	member->rdma = NULL;
	job->stats.uncoded_lanes -= lane_is_uncoded(&member->lane);
	job->stats.wrong_codes += err == -EBADMSG;
	epoll_ctl(a->poll, EPOLL_CTL_DEL, member->lane.fd, NULL);
	lane_close(&member->lane);
	unmap(member->region, layout_region_bytes(&job->layout, rank));
	member->region = NULL;
	job->stats.lanes--;
	for (uint32_t chunk = 0; chunk < job->layout.chunks; chunk++) {
		if (job->hold) {
			job->pulls[chunk][0] &= ~(1ull << rank);
			job->pulls[chunk][1] &= ~(1ull << rank);
			job->owed[chunk] &= ~(1ull << rank);
		}
		step(&s, chunk, (struct ne_chunk_event){.kind = NE_CHUNK_LANE_END, .member = rank});
	}
	tell(a, (struct ne_aggregator_event){
			.kind = NE_AGGREGATOR_LANE_ENDED, .rank = rank, .error = -err, .job = job->id});
}

uint64_t member_tag(const struct job *job, uint32_t rank)
{
	return (uint64_t)job->index << 8 | rank;
}

static void watch(struct server *a, struct job *job, uint32_t rank)
{
	struct member *member = &job->member[rank];
	uint32_t wanted = (member->lane.hold ? 0 : EPOLLIN) | (member->lane.is_blocked ? EPOLLOUT : 0);
	struct epoll_event event = {.events = wanted, .data.u64 = member_tag(job, rank)};

	if (wanted == member->watched)
		return;
	member->watched = wanted;
	epoll_ctl(a->poll, EPOLL_CTL_MOD, member->lane.fd, &event);
}

/* Frames that wait are tried again after a plan, and given up when none has come. */
static void try_held(struct server *a, struct job *job)
{
	for (uint32_t rank = 0; rank < job->layout.members; rank++) {
		struct member *member = &job->member[rank];
		struct source s = {a, job, rank};
		int err = -EAGAIN;

		if (!member->held_ns)
			continue;
		if (member->rdma && rdma_may_go_on(member->rdma)) {
			member->held_ns = now_ns();
			err = lane_resume(&member->lane, &calls, &s);
		} else if (job->has_plan) {
			err = lane_resume(&member->lane, &calls, &s);
		}
		if (err == -EAGAIN && now_ns() - member->held_ns > HELD_NS)
			err = -ETIMEDOUT;
		if (err == -EAGAIN)
			continue;
		hold(a, member, false);
		if (err < 0)
			end_lane(a, job, rank, err);
	}
	job->has_plan = false;
}

/* Of two times until the next look; below 0: for ever. */
static int sooner(int one_ms, int other_ms)
{
	return other_ms < 0 || (one_ms >= 0 && one_ms < other_ms) ? one_ms : other_ms;
}

/* Returns how long it may be until the next look, as rdma_submit(). */
static int send_all(struct server *a, struct job *job)
{
	bool has_more = false;
	int timeout_ms = -1;

	for (uint32_t rank = 0; rank < job->layout.members; rank++) {
		struct member *member = &job->member[rank];
		int left, ms = -1;

		if (!member->is_there)
			continue;
		if (member->rdma)
			ms = rdma_submit(a, job, rank);
		timeout_ms = sooner(timeout_ms, ms);
		if (!member->is_there)
			continue;
		left = member->lane.count ? lane_send(&member->lane) : 0;
		if (left < 0) {
			end_lane(a, job, rank, left);
			continue;
		}
		has_more = has_more || member->lane.count || (member->rdma && rdma_is_reading(member->rdma));
		watch(a, job, rank);
	}
	if (job->has_freed && !has_more)
		release_freed(a, job);
	return timeout_ms;
}

/* ---------------------------------------------------------------------- updates */

/*
 * An update with a momentum of 0 leaves the array as it is, as torch.optim does, and ne_reduce() does not touch it. The
 * first such update copies it to the other master; from then on both have it.
 */
static void carry_momentum(struct job *job, uint32_t chunk, uint64_t version, const struct ne_hyper *hyper)
{
	bool is_kept = job->layout.rule == NE_RULE_SGD && !(hyper->momentum > 0);

	if (is_kept && !job->is_carried[chunk])
		memcpy(master_array(job, chunk, version, 1), master_array(job, chunk, version - 1, 1),
		       layout_array_bytes(&job->layout, chunk));
	job->is_carried[chunk] = is_kept;
}

static int reduce_chunk(struct job *job, uint32_t chunk, uint64_t version)
{
	const struct layout *layout = &job->layout;
	const void *gradients[NE_MEMBERS_MAX];
	void *outputs[NE_MEMBERS_MAX];
	struct ne_reduction r = {.dtype = layout->dtypes[chunk],
				 .rule = layout->rule,
				 .members = layout->members,
				 .count = layout->counts[chunk],
				 .gradients = gradients,
				 .outputs = outputs,
				 .step = version};
	bool keeps_results = job->has_results || (layout->sum_only && job->inline_members);
	int err;

	for (uint32_t rank = 0; rank < layout->members; rank++) {
		struct member *member = &job->member[rank];

		gradients[rank] = pushed(job, rank, chunk, version);
		if (member->lane.is_shm)
			outputs[r.results++] = member->region + layout_result(layout, chunk);
	}
	if (keeps_results && r.results < NE_MEMBERS_MAX)
		outputs[r.results++] = job->results + layout->offsets[chunk];
	r.past_caches = layout->area_bytes * r.results > CACHED_BYTES;
	if (!layout->sum_only) {
		const struct ne_hyper *hyper = numbers_for(job, 0, layout->groups[chunk], version);

		if (!hyper)
			return -EINVAL;
		for (uint32_t rank = 1; rank < layout->members; rank++)
			judge_numbers(job, rank, hyper, numbers_for(job, rank, layout->groups[chunk], version));
		r.hyper = *hyper;
		for (uint32_t i = 0; i < layout->arrays; i++) {
			r.from[i] = master_array(job, chunk, version - 1, i);
			r.to[i] = master_array(job, chunk, version, i);
		}
		carry_momentum(job, chunk, version, hyper);
	}
	err = ne_reduce(&r);
	/* With 64 members on this host there is no place for one copy more in that call. */
	if (!err && keeps_results && outputs[r.results - 1] != job->results + layout->offsets[chunk])
		memcpy(job->results + layout->offsets[chunk], outputs[0], layout_bytes(layout, chunk));
	return err;
}

/* Nobody has a gradient: the next version is this one, as an optimizer of torch passes over such a parameter. */
static bool is_passed_over(const struct job *job, uint32_t chunk, uint64_t version)
{
	uint32_t members = job->layout.members;

	return !job->layout.sum_only &&
	       job->absent[chunk][version & 1] == (members == 64 ? UINT64_MAX : (1ull << members) - 1);
}

static void pass_over(struct job *job, uint32_t chunk, uint64_t version)
{
	const uint8_t *from = job->results ? job->results + job->layout.offsets[chunk] : NULL;

	memcpy(master(job, chunk, version), master(job, chunk, version - 1), layout_state_bytes(&job->layout, chunk));
	if (is_narrow(job, chunk))
		reduce_narrow(job->layout.dtypes[chunk], job->results + job->layout.offsets[chunk],
			      master(job, chunk, version), job->layout.counts[chunk]);
	else
		from = (const uint8_t *)master(job, chunk, version);
	for (uint32_t rank = 0; rank < job->layout.members; rank++)
		if (job->member[rank].lane.is_shm)
			memcpy(job->member[rank].region + layout_result(&job->layout, chunk), from,
			       layout_bytes(&job->layout, chunk));
}

static int reduce_or_pass(struct job *job, uint32_t chunk, uint64_t version)
{
	if (!is_passed_over(job, chunk, version))
		return reduce_chunk(job, chunk, version);
	pass_over(job, chunk, version);
	return 0;
}

/*
 * Members on this host that have left their lane have another owner for what is due here, or are gone: this process may
 * have stood still meanwhile. Nothing is written to their memory any more.
 */
static bool are_there(const struct job *job)
{
	struct pollfd ends[NE_MEMBERS_MAX];
	uint32_t count = 0;

	for (uint32_t rank = 0; rank < job->layout.members; rank++)
		if (job->member[rank].is_there && job->member[rank].lane.is_shm)
			ends[count++] = (struct pollfd){.fd = job->member[rank].lane.fd, .events = POLLRDHUP};
	return !count || poll(ends, count, 0) == 0;
}

/* Of an update: chunks of different sizes tell what a chunk costs beside its bytes. */
static void count_update(struct job *job, uint32_t chunk, uint64_t busy_ns)
{
	struct ne_aggregator_stats *stats = &job->stats;
	uint64_t bytes = layout_bytes(&job->layout, chunk) * job->layout.members;

	job->turn_ns += busy_ns;
	stats->busy_ns += busy_ns;
	stats->updates++;
	stats->result_bytes += bytes;
	stats->size_squares += (double)bytes * (double)bytes;
	stats->size_times += (double)bytes * (double)busy_ns;
}

/* begin_ns: of the thread's processor time. Returns what it is by then: the update behind it begins there. */
static uint64_t update(struct server *a, struct job *job, uint64_t begin_ns)
{
	struct source s = {a, job, 0};
	uint32_t chunk = job->due[job->due_first];
	uint64_t end_ns;

	job->due_first = (job->due_first + 1) % job->layout.chunks;
	job->due_count--;
	job->is_due[chunk] = 0;
	if (!ne_chunk_is_due(&job->states[chunk]) || job->is_lost || !are_there(job))
		return begin_ns;
	/* Numbers out of bounds: none of its chunks can go on. */
	if (reduce_or_pass(job, chunk, job->states[chunk].version + 1) < 0) {
		lose(a, job, chunk);
		return begin_ns;
	}
	step(&s, chunk, (struct ne_chunk_event){.kind = NE_CHUNK_UPDATED});
	move_on(a, job, chunk);
	end_ns = thread_ns();
	count_update(job, chunk, end_ns - begin_ns);
	return end_ns;
}

/* The job that is due and has had the least. One that had nothing to do does not save its turns up. */
static struct job *next_job(struct server *a)
{
	struct job *found = NULL;

	for (uint32_t i = 0; i < a->jobs_end; i++) {
		struct job *job = a->jobs[i];

		if (!job || !job->due_count)
			continue;
		if (job->turn_ns + SLICE_NS < a->turn_ns)
			job->turn_ns = a->turn_ns - SLICE_NS;
		if (!found || job->turn_ns < found->turn_ns)
			found = job;
	}
	if (found)
		a->turn_ns = found->turn_ns;
	return found;
}

static bool update_for_a_slice(struct server *a)
{
	struct job *job = next_job(a);
	uint64_t end_ns, used_ns;

	if (!job)
		return false;
	end_ns = now_ns() + SLICE_NS;
	used_ns = thread_ns();
	for (; job; job = next_job(a)) {
		used_ns = update(a, job, used_ns);
		if (now_ns() >= end_ns)
			return next_job(a) != NULL;
	}
	return false;
}

/* ----------------------------------------------------------------------- thread */

static void look_at(struct server *a, const struct epoll_event *event)
{
	struct job *job;
	uint32_t rank = event->data.u64 & 255;
	struct source s;
	int err;

	if (event->data.u64 == (uint64_t)WAKE) {
		uint64_t count;

		(void)!read(a->wake, &count, sizeof(count));
		return;
	}
	job = a->jobs[event->data.u64 >> 8 & (JOBS_MAX - 1)];
	/* Between epoll_wait() and the lock it may have gone. */
	if (!job || rank >= job->layout.members || !job->member[rank].is_there)
		return;
	s = (struct source){a, job, rank};
	if (event->data.u64 & RDMA_TAG) {
		if (job->member[rank].rdma)
			rdma_tell(job->member[rank].rdma);
		return;
	}
	if (!(event->events & ~EPOLLOUT))
		return;
	/* The other end has gone, and what it said last is for a plan that is not here. */
	err = job->member[rank].lane.hold ? -EPIPE : lane_receive(&job->member[rank].lane, &calls, &s);
	if (err == -EAGAIN)
		hold(a, &job->member[rank], true);
	else if (err < 0)
		end_lane(a, job, rank, err);
}

/* What queue pairs have done; then the lanes that waited for it. */
static void poll_rdma(struct server *a, struct job *job)
{
	for (uint32_t rank = 0; rank < job->layout.members; rank++)
		if (job->member[rank].rdma)
			rdma_poll(a, job, rank);
}

void *serve(void *arg)
{
	struct server *a = arg;
	bool has_due = false, stops = false;
	int timeout_ms = -1;

	while (!stops) {
		struct epoll_event events[READY];
		int ready = epoll_wait(a->poll, events, READY, timeout_ms);

		pthread_mutex_lock(&a->lock);
		for (int i = 0; i < ready; i++)
			look_at(a, &events[i]);
		for (uint32_t i = 0; a->rdmas && i < a->jobs_end; i++)
			if (a->jobs[i])
				poll_rdma(a, a->jobs[i]);
		for (uint32_t i = 0; a->held && i < a->jobs_end; i++)
			if (a->jobs[i])
				try_held(a, a->jobs[i]);
		has_due = update_for_a_slice(a);
		timeout_ms = has_due ? 0 : a->held ? HELD_LOOK_MS : -1;
		for (uint32_t i = 0; i < a->jobs_end; i++)
			if (a->jobs[i])
				timeout_ms = sooner(timeout_ms, send_all(a, a->jobs[i]));
		stops = a->stops;
		if (a->wakes_mover)
			wake(a->move_wake);
		a->wakes_mover = false;
		pthread_mutex_unlock(&a->lock);
	}
	return NULL;
}
