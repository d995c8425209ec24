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
 *members look for them. What comes inline lies in a place for each member and chunk, by the iteration's parity, since a
 *late answer may still come while the next push is here. Server's optimizer: two masters, by the version's parity. An
 *update reads one and writes the other, so that the version before can still be given, and a stop in the middle of an
 *update has spoiled nothing.
 *
 * A member can harm nobody but its own job: heads never lie in shared memory, and each bound is checked where a frame
 * begins. A frame that can't be true ends its lane.
 *
 * One lock guards everything. The thread holds it while it works, never while it sleeps.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chunk.h"
#include "clock.h"
#include "lane.h"
#include "reduce.h"
#include "thread.h"

enum {
	JOBS_MAX = 1024,
	EVENTS = 256,	   /* that wait for Python */
	READY = 64,	   /* sockets of one look */
	SLICE_NS = 200000, /* of updates between two looks */
	HYPERS = 2,	   /* numbers of a group that are known: those of now, and of the iteration before */
	WAKE = -1,
};

struct numbers {
	uint64_t from; /* iteration; 0: none yet */
	struct ne_hyper hyper;
};

struct member {
	struct lane lane;
	bool is_there;
	bool waits_out; /* for its socket to be writable */
	uint8_t *region;
	uint8_t *inlined; /* two areas of gradients */
};

struct job {
	uint64_t id;
	uint32_t index;
	struct layout layout;
	struct ne_chunk *states;
	uint8_t *masters[2];
	uint8_t *results; /* an area: sum only with inline members, or formats that are narrower than the master */
	struct member member[NE_MEMBERS_MAX];
	struct numbers *numbers; /* HYPERS for each group */
	uint32_t *due;		 /* a ring of chunks */
	uint8_t *is_due;
	uint32_t due_first, due_count;
	uint64_t turn_ns; /* processor time that its turns have had */
	bool is_lost;
	struct ne_aggregator_stats stats;
};

struct ne_aggregator {
	pthread_t thread;
	pthread_mutex_t lock;
	int poll, wake, event_fd;
	bool stops;
	uint64_t memory_bytes, used_bytes;
	uint64_t turn_ns; /* of the job whose turn was last */
	struct job *jobs[JOBS_MAX];
	uint8_t *scratch; /* payload that nobody wants */
	struct ne_aggregator_event events[EVENTS];
	uint32_t event_first, event_count;
};

/* One frame's way through the handlers. */
struct source {
	struct ne_aggregator *aggregator;
	struct job *job;
	uint32_t rank;
};

/* --------------------------------------------------------------------- contents */

static uint8_t *pushed(struct job *job, uint32_t rank, uint32_t chunk, uint64_t iteration)
{
	struct member *member = &job->member[rank];

	if (member->lane.is_shm)
		return member->region + layout_gradient(&job->layout, chunk, iteration);
	return member->inlined + (iteration & 1) * job->layout.area_bytes + job->layout.offsets[chunk];
}

static float *master(struct job *job, uint32_t chunk, uint64_t version)
{
	return (float *)(job->masters[version & 1] + job->layout.masters[chunk]);
}

static float *master_array(struct job *job, uint32_t chunk, uint64_t version, uint32_t array)
{
	uint64_t bytes = layout_state_bytes(&job->layout, chunk) / job->layout.arrays;

	return (float *)((uint8_t *)master(job, chunk, version) + array * bytes);
}

static bool is_narrow(const struct job *job, uint32_t chunk)
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

static uint64_t master_bytes(const struct layout *layout)
{
	return 2 * layout->master_bytes;
}

static bool has_results(const struct layout *layout)
{
	for (uint32_t i = 0; i < layout->chunks; i++)
		if (layout->dtypes[i] != NE_DTYPE_F32)
			return !layout->sum_only;
	return false;
}

/* Pages that are written first cost first; none are taken before. */
static uint8_t *pages(uint64_t bytes)
{
	void *made = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return made == MAP_FAILED ? NULL : made;
}

static void unmap(void *at, uint64_t bytes)
{
	if (at)
		munmap(at, bytes ? bytes : 1);
}

static int take_memory(struct ne_aggregator *a, struct job *job, uint64_t bytes, uint8_t **ret)
{
	if (bytes > a->memory_bytes - a->used_bytes)
		return -ENOMEM;
	*ret = pages(bytes);
	if (!*ret)
		return -ENOMEM;
	a->used_bytes += bytes;
	job->stats.memory_bytes += bytes;
	return 0;
}

/* ----------------------------------------------------------------------- events */

static void tell(struct ne_aggregator *a, struct ne_aggregator_event event)
{
	uint64_t one = 1;

	if (a->event_count == EVENTS)
		return;
	a->events[(a->event_first + a->event_count++) % EVENTS] = event;
	(void)!write(a->event_fd, &one, sizeof(one));
}

/* ----------------------------------------------------------------------- frames */

static void put(struct job *job, uint32_t rank, uint32_t chunk, struct frame frame, const struct part *parts,
		uint32_t count)
{
	struct member *member = &job->member[rank];

	frame.chunk = chunk;
	frame.epoch = job->states[chunk].epoch;
	/* A lane that can't take more is found by its owner's next look: nothing is written to it any more. */
	if (member->is_there && lane_put(&member->lane, &frame, parts, count) < 0)
		shutdown(member->lane.fd, SHUT_RDWR);
}

static void put_all(struct job *job, uint64_t mask, uint32_t chunk, struct frame frame)
{
	for (; mask; mask &= mask - 1)
		put(job, __builtin_ctzll(mask), chunk, frame, NULL, 0);
}

/* The optimizer's state to its keeper, beside the parameters. */
static void put_result(struct job *job, uint32_t rank, uint32_t chunk, struct frame frame)
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
	if (!member->lane.is_shm) {
		put(job, rank, chunk, frame, parts, count);
		return;
	}
	if (count == 2)
		memcpy(member->region + layout_kept(layout, chunk, frame.iteration), parts[1].at, parts[1].bytes);
	put(job, rank, chunk, frame, NULL, 0);
}

/* Members on this host find results in their region. An update has written them there; else they come from `from`. */
static void write_results(struct job *job, uint32_t chunk, uint64_t mask, const uint8_t *from)
{
	for (; mask; mask &= mask - 1) {
		struct member *member = &job->member[__builtin_ctzll(mask)];

		if (member->is_there && member->lane.is_shm)
			memcpy(member->region + layout_result(&job->layout, chunk), from,
			       layout_bytes(&job->layout, chunk));
	}
}

static void lose(struct ne_aggregator *a, struct job *job, uint32_t chunk)
{
	if (job->is_lost)
		return;
	job->is_lost = true;
	tell(a, (struct ne_aggregator_event){.kind = NE_AGGREGATOR_LOST, .chunk = chunk, .job = job->id});
	for (uint32_t rank = 0; rank < job->layout.members; rank++)
		put(job, rank, chunk, (struct frame){.kind = FRAME_ERROR, .status = ESTALE}, NULL, 0);
}

static void add_due(struct job *job, uint32_t chunk)
{
	if (job->is_due[chunk])
		return;
	job->is_due[chunk] = 1;
	job->due[(job->due_first + job->due_count++) % job->layout.chunks] = chunk;
}

/* What a step asks for. has_written: results stand where members on this host look for them. */
static int carry_out(struct source *s, uint32_t chunk, const struct ne_chunk_todo *todo, bool has_written)
{
	struct job *job = s->job;
	struct ne_chunk *state = &job->states[chunk];

	if (todo->lost)
		lose(s->aggregator, job, chunk);
	put_all(job, todo->moved, chunk, (struct frame){.kind = FRAME_MOVED, .aux = state->epoch});
	if (todo->result && !has_written)
		write_results(job, chunk, todo->result, result(job, chunk));
	for (uint64_t mask = todo->result; mask; mask &= mask - 1)
		put_result(job, __builtin_ctzll(mask), chunk,
			   (struct frame){.kind = FRAME_RESULT, .iteration = todo->result_version});
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
	/* A frame whose epoch is newer than the plan can't be kept yet: the member says it again on a new lane. */
	return todo->wait || todo->bad ? -EPROTO : 0;
}

static int step(struct source *s, uint32_t chunk, struct ne_chunk_event event, bool has_written)
{
	struct ne_chunk_todo todo;

	ne_chunk_step(&s->job->states[chunk], &event, &todo);
	return carry_out(s, chunk, &todo, has_written);
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

	if (job->member[s->rank].lane.is_shm && frame->kind != FRAME_HYPER)
		return -EPROTO;
	if (frame->kind == FRAME_HYPER) {
		parts[0] = (struct part){s->aggregator->scratch, sizeof(struct ne_hyper)};
		return 0;
	}
	if (frame->chunk >= job->layout.chunks)
		return -EPROTO;
	if (frame->kind == FRAME_SEED)
		return place_seed(s, frame, parts);
	if (frame->kind != FRAME_PUSH || frame->bytes != layout_bytes(&job->layout, frame->chunk))
		return -EPROTO;
	parts[0] = (struct part){pushed(job, s->rank, frame->chunk, frame->iteration), frame->bytes};
	return 0;
}

static int take_hyper(struct source *s, const struct frame *frame)
{
	struct numbers *known = s->job->numbers + HYPERS * (uint64_t)frame->chunk;
	struct numbers told = {.from = frame->iteration};

	if (frame->chunk >= s->job->layout.group_count || frame->bytes != sizeof(told.hyper) || !frame->iteration)
		return -EPROTO;
	/* Rank 0's count; the others' are its copies. */
	if (s->rank)
		return 0;
	memcpy(&told.hyper, s->aggregator->scratch, sizeof(told.hyper));
	if (known[0].from != told.from)
		known[1] = known[0];
	known[0] = told;
	return 0;
}

/* A seed's contents go from its region or from where they came inline to where the version is served from. */
static void take_contents(struct source *s, const struct frame *frame)
{
	struct job *job = s->job;
	const struct layout *layout = &job->layout;
	uint32_t chunk = frame->chunk;
	struct member *member = &job->member[s->rank];
	bool is_first = frame->flags & FRAME_FIRST;

	if (layout->sum_only) {
		const uint8_t *from = job->results ? job->results + layout->offsets[chunk] : NULL;

		if (member->lane.is_shm) {
			from = member->region + layout_result(layout, chunk);
			if (job->results)
				memcpy(job->results + layout->offsets[chunk], from, layout_bytes(layout, chunk));
		}
		write_results(job, chunk, job->states[chunk].behind & ~(1ull << s->rank), from);
		return;
	}
	if (is_first) {
		const uint8_t *from = member->lane.is_shm     ? member->region + layout_result(layout, chunk)
				      : is_narrow(job, chunk) ? job->results + layout->offsets[chunk]
							      : NULL;

		/* Inline float32 has come to its place already. */
		if (from)
			reduce_widen(layout->dtypes[chunk], master(job, chunk, frame->iteration), from,
				     layout->counts[chunk]);
		for (uint32_t i = 1; i < layout->arrays; i++)
			memset(master_array(job, chunk, frame->iteration, i), 0, layout_array_bytes(layout, chunk));
	} else if (member->lane.is_shm) {
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

	if (frame->kind == FRAME_HYPER)
		return take_hyper(s, frame);
	if (frame->chunk >= layout->chunks)
		return -EPROTO;
	switch (frame->kind) {
	case FRAME_PUSH:
		if (!s->job->member[s->rank].lane.is_shm && !frame->bytes)
			return -EPROTO;
		event.kind = NE_CHUNK_PUSH;
		s->job->stats.pushed_bytes += layout_bytes(layout, frame->chunk);
		return step(s, frame->chunk, event, false);
	case FRAME_HAVE:
		event.kind = NE_CHUNK_HAVE;
		event.has_nothing = frame->flags & FRAME_NOTHING;
		event.keeps = frame->flags & FRAME_KEEPS;
		event.is_anew = frame->flags & FRAME_ANEW;
		return step(s, frame->chunk, event, false);
	case FRAME_SEED:
		event.kind = NE_CHUNK_SEED;
		if (!s->job->member[s->rank].lane.is_shm && !frame->bytes)
			return -EPROTO;
		/* Keepers alone have a place for state in their region. */
		if (s->job->member[s->rank].lane.is_shm && !layout->sum_only && !(frame->flags & FRAME_FIRST) &&
		    layout_keeper(layout, frame->chunk) != s->rank)
			return -EPROTO;
		if (is_seed_wanted(s, frame))
			take_contents(s, frame);
		return step(s, frame->chunk, event, layout->sum_only);
	default:
		return -EPROTO;
	}
}

static const struct lane_owner calls = {.place = place, .take = take};

/* ------------------------------------------------------------------------ lanes */

static void end_lane(struct ne_aggregator *a, struct job *job, uint32_t rank, int err)
{
	struct member *member = &job->member[rank];
	struct source s = {a, job, rank};

	if (!member->is_there)
		return;
	member->is_there = false;
	member->waits_out = false;
	lane_close(&member->lane);
	unmap(member->region, layout_region_bytes(&job->layout, rank));
	member->region = NULL;
	job->stats.lanes--;
	for (uint32_t chunk = 0; chunk < job->layout.chunks; chunk++)
		step(&s, chunk, (struct ne_chunk_event){.kind = NE_CHUNK_LANE_END, .member = rank}, false);
	tell(a, (struct ne_aggregator_event){
			.kind = NE_AGGREGATOR_LANE_ENDED, .rank = rank, .error = -err, .job = job->id});
}

static uint64_t tag_of(const struct job *job, uint32_t rank)
{
	return (uint64_t)job->index << 8 | rank;
}

static void watch(struct ne_aggregator *a, struct job *job, uint32_t rank, bool waits_out)
{
	struct member *member = &job->member[rank];
	struct epoll_event event = {.events = EPOLLIN | (waits_out ? EPOLLOUT : 0), .data.u64 = tag_of(job, rank)};

	if (waits_out == member->waits_out)
		return;
	member->waits_out = waits_out;
	epoll_ctl(a->poll, EPOLL_CTL_MOD, member->lane.fd, &event);
}

static void send_all(struct ne_aggregator *a, struct job *job)
{
	for (uint32_t rank = 0; rank < job->layout.members; rank++) {
		struct member *member = &job->member[rank];
		int left;

		if (!member->is_there || !member->lane.count)
			continue;
		left = lane_send(&member->lane);
		if (left < 0)
			end_lane(a, job, rank, left);
		else
			watch(a, job, rank, left);
	}
}

/* ---------------------------------------------------------------------- updates */

static const struct ne_hyper *numbers_for(const struct job *job, uint32_t group, uint64_t iteration)
{
	const struct numbers *known = job->numbers + HYPERS * (uint64_t)group;

	for (int i = 0; i < HYPERS; i++)
		if (known[i].from && known[i].from <= iteration)
			return &known[i].hyper;
	return NULL;
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
	int err;

	for (uint32_t rank = 0; rank < layout->members; rank++) {
		struct member *member = &job->member[rank];

		gradients[rank] = pushed(job, rank, chunk, version);
		if (member->lane.is_shm)
			outputs[r.results++] = member->region + layout_result(layout, chunk);
	}
	if (job->results && r.results < NE_MEMBERS_MAX)
		outputs[r.results++] = job->results + layout->offsets[chunk];
	if (!layout->sum_only) {
		const struct ne_hyper *hyper = numbers_for(job, layout->groups[chunk], version);

		if (!hyper)
			return -EINVAL;
		r.hyper = *hyper;
		for (uint32_t i = 0; i < layout->arrays; i++) {
			r.from[i] = master_array(job, chunk, version - 1, i);
			r.to[i] = master_array(job, chunk, version, i);
		}
	}
	err = ne_reduce(&r);
	/* With 64 members on this host there is no place for one copy more in that call. */
	if (!err && job->results && outputs[r.results - 1] != job->results + layout->offsets[chunk])
		memcpy(job->results + layout->offsets[chunk], outputs[0], layout_bytes(layout, chunk));
	return err;
}

static void update(struct ne_aggregator *a, struct job *job)
{
	struct source s = {a, job, 0};
	uint32_t chunk = job->due[job->due_first];
	uint64_t begin_ns = now_ns(), busy_ns;

	job->due_first = (job->due_first + 1) % job->layout.chunks;
	job->due_count--;
	job->is_due[chunk] = 0;
	if (!ne_chunk_is_due(&job->states[chunk]) || job->is_lost)
		return;
	/* Numbers out of bounds: none of its chunks can go on. */
	if (reduce_chunk(job, chunk, job->states[chunk].version + 1) < 0) {
		lose(a, job, chunk);
		return;
	}
	step(&s, chunk, (struct ne_chunk_event){.kind = NE_CHUNK_UPDATED}, true);
	busy_ns = now_ns() - begin_ns;
	job->turn_ns += busy_ns;
	job->stats.busy_ns += busy_ns;
	job->stats.updates++;
	job->stats.result_bytes += layout_bytes(&job->layout, chunk) * job->layout.members;
}

/* The job that is due and has had the least. One that had nothing to do does not save its turns up. */
static struct job *next_job(struct ne_aggregator *a)
{
	struct job *found = NULL;

	for (int i = 0; i < JOBS_MAX; i++) {
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

static bool update_for_a_slice(struct ne_aggregator *a)
{
	uint64_t end_ns = now_ns() + SLICE_NS;
	struct job *job;

	while ((job = next_job(a))) {
		update(a, job);
		if (now_ns() >= end_ns)
			return next_job(a) != NULL;
	}
	return false;
}

/* ----------------------------------------------------------------------- thread */

static void look_at(struct ne_aggregator *a, const struct epoll_event *event)
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
	if (event->events & ~EPOLLOUT) {
		err = lane_receive(&job->member[rank].lane, &calls, &s);
		if (err < 0)
			end_lane(a, job, rank, err);
	}
}

static void *serve(void *arg)
{
	struct ne_aggregator *a = arg;
	bool has_due = false, stops = false;

	while (!stops) {
		struct epoll_event events[READY];
		int ready = epoll_wait(a->poll, events, READY, has_due ? 0 : -1);

		pthread_mutex_lock(&a->lock);
		for (int i = 0; i < ready; i++)
			look_at(a, &events[i]);
		has_due = update_for_a_slice(a);
		for (int i = 0; i < JOBS_MAX; i++)
			if (a->jobs[i])
				send_all(a, a->jobs[i]);
		stops = a->stops;
		pthread_mutex_unlock(&a->lock);
	}
	return NULL;
}

/* ------------------------------------------------------------------------ doors */

static struct job *find(struct ne_aggregator *a, uint64_t id)
{
	for (int i = 0; i < JOBS_MAX; i++)
		if (a->jobs[i] && a->jobs[i]->id == id)
			return a->jobs[i];
	return NULL;
}

static void free_job(struct ne_aggregator *a, struct job *job)
{
	if (!job)
		return;
	for (uint32_t rank = 0; rank < job->layout.members; rank++) {
		end_lane(a, job, rank, -ESHUTDOWN);
		unmap(job->member[rank].inlined, 2 * job->layout.area_bytes);
	}
	unmap(job->masters[0], job->layout.master_bytes);
	unmap(job->masters[1], job->layout.master_bytes);
	unmap(job->results, job->layout.area_bytes);
	a->used_bytes -= job->stats.memory_bytes;
	free(job->states);
	free(job->numbers);
	free(job->due);
	free(job->is_due);
	layout_free(&job->layout);
	free(job);
}

int ne_aggregator_create(uint64_t memory_bytes, struct ne_aggregator **ret)
{
	struct ne_aggregator *a = calloc(1, sizeof(*a));
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)WAKE};
	int err = -ENOMEM;

	if (!a)
		return err;
	a->memory_bytes = memory_bytes;
	a->scratch = malloc(FRAME_PAYLOAD_MAX);
	a->poll = epoll_create1(EPOLL_CLOEXEC);
	a->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	a->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_init(&a->lock, NULL);
	if (a->scratch && a->poll >= 0 && a->wake >= 0 && a->event_fd >= 0)
		err = epoll_ctl(a->poll, EPOLL_CTL_ADD, a->wake, &event) ? -errno
									 : thread_start(&a->thread, 0, serve, a);
	if (err) {
		a->stops = true;
		free(a->scratch);
		close(a->poll);
		close(a->wake);
		close(a->event_fd);
		free(a);
		return err;
	}
	*ret = a;
	return 0;
}

void ne_aggregator_stop(struct ne_aggregator *a)
{
	uint64_t one = 1;
	bool was;

	pthread_mutex_lock(&a->lock);
	was = a->stops;
	a->stops = true;
	pthread_mutex_unlock(&a->lock);
	if (was)
		return;
	(void)!write(a->wake, &one, sizeof(one));
	pthread_join(a->thread, NULL);
	pthread_mutex_lock(&a->lock);
	for (int i = 0; i < JOBS_MAX; i++)
		for (uint32_t rank = 0; a->jobs[i] && rank < a->jobs[i]->layout.members; rank++)
			end_lane(a, a->jobs[i], rank, -ESHUTDOWN);
	pthread_mutex_unlock(&a->lock);
}

void ne_aggregator_destroy(struct ne_aggregator *a)
{
	if (!a)
		return;
	ne_aggregator_stop(a);
	for (int i = 0; i < JOBS_MAX; i++)
		free_job(a, a->jobs[i]);
	pthread_mutex_destroy(&a->lock);
	close(a->poll);
	close(a->wake);
	close(a->event_fd);
	free(a->scratch);
	free(a);
}

static int make_job(struct ne_aggregator *a, struct job *made, const struct ne_job *job)
{
	int err = layout_make(&made->layout, job);

	if (err)
		return err;
	made->states = calloc(job->chunks, sizeof(*made->states));
	made->numbers = calloc(HYPERS * job->groups, sizeof(*made->numbers));
	made->due = calloc(job->chunks, sizeof(*made->due));
	made->is_due = calloc(job->chunks, 1);
	if (!made->states || !made->numbers || !made->due || !made->is_due)
		return -ENOMEM;
	for (uint32_t chunk = 0; chunk < job->chunks; chunk++)
		ne_chunk_make(&made->states[chunk], job->members, made->layout.sum_only);
	/* A sum is at its members, and has no master here. */
	if (master_bytes(&made->layout)) {
		err = take_memory(a, made, made->layout.master_bytes, &made->masters[0]);
		if (!err)
			err = take_memory(a, made, made->layout.master_bytes, &made->masters[1]);
	}
	if (!err && has_results(&made->layout))
		err = take_memory(a, made, made->layout.area_bytes, &made->results);
	return err;
}

static int add_job(struct ne_aggregator *a, uint64_t id, const struct ne_job *job)
{
	struct job *made;
	int index = 0, err;

	if (find(a, id))
		return -EEXIST;
	while (index < JOBS_MAX && a->jobs[index])
		index++;
	if (index == JOBS_MAX)
		return -ENOMEM;
	made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	made->id = id;
	made->index = index;
	made->turn_ns = a->turn_ns;
	err = make_job(a, made, job);
	if (err) {
		free_job(a, made);
		return err;
	}
	a->jobs[index] = made;
	return 0;
}

int ne_aggregator_add_job(struct ne_aggregator *a, uint64_t id, const struct ne_job *job)
{
	int err;

	pthread_mutex_lock(&a->lock);
	err = add_job(a, id, job);
	pthread_mutex_unlock(&a->lock);
	return err;
}

int ne_aggregator_drop_job(struct ne_aggregator *a, uint64_t id)
{
	struct job *job;

	pthread_mutex_lock(&a->lock);
	job = find(a, id);
	if (job) {
		a->jobs[job->index] = NULL;
		free_job(a, job);
	}
	pthread_mutex_unlock(&a->lock);
	return job ? 0 : -ENOENT;
}

int ne_aggregator_own(struct ne_aggregator *a, uint64_t id, uint32_t first, uint32_t count, uint64_t epoch)
{
	uint64_t one = 1;
	struct job *job;
	int err = 0;

	pthread_mutex_lock(&a->lock);
	job = find(a, id);
	if (!job)
		err = -ENOENT;
	else if (!epoch || first > job->layout.chunks || count > job->layout.chunks - first)
		err = -EINVAL;
	for (uint32_t chunk = first; !err && chunk < first + count; chunk++) {
		struct source s = {a, job, 0};

		step(&s, chunk, (struct ne_chunk_event){.kind = NE_CHUNK_PLAN, .is_mine = true, .epoch = epoch}, false);
	}
	pthread_mutex_unlock(&a->lock);
	/* Members that are there already are asked what they have. */
	(void)!write(a->wake, &one, sizeof(one));
	return err;
}

static int map_region(const struct job *job, uint32_t rank, int region, uint8_t **ret)
{
	uint64_t bytes = layout_region_bytes(&job->layout, rank);
	int seals = fcntl(region, F_GET_SEALS);
	struct stat st;
	void *at;

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return -EPERM;
	if (fstat(region, &st))
		return -errno;
	if ((uint64_t)st.st_size < bytes)
		return -EINVAL;
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region, 0);
	if (at == MAP_FAILED)
		return -errno;
	*ret = at;
	return 0;
}

/* What an inline member needs here, which stays for its next lane. */
static int make_inline(struct ne_aggregator *a, struct job *job, struct member *member)
{
	int err = 0;

	if (!member->inlined)
		err = take_memory(a, job, 2 * job->layout.area_bytes, &member->inlined);
	if (!err && job->layout.sum_only && !job->results)
		err = take_memory(a, job, job->layout.area_bytes, &job->results);
	return err;
}

static int attach(struct ne_aggregator *a, struct job *job, uint32_t rank, int fd, int region)
{
	struct member *member = &job->member[rank];
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = tag_of(job, rank)};
	struct lane lane;
	uint8_t *mapped = NULL;
	int err;

	err = region >= 0 ? map_region(job, rank, region, &mapped) : make_inline(a, job, member);
	if (err)
		return err;
	err = lane_open(&lane, fd, region >= 0, 4 * job->layout.chunks + 1024);
	if (!err && epoll_ctl(a->poll, EPOLL_CTL_ADD, fd, &event)) {
		err = -errno;
		free(lane.buffer);
		free(lane.items);
	}
	if (err) {
		unmap(mapped, layout_region_bytes(&job->layout, rank));
		return err;
	}
	end_lane(a, job, rank, -ESTALE);
	member->lane = lane;
	member->region = mapped;
	member->is_there = true;
	job->stats.lanes++;
	return 0;
}

int ne_aggregator_attach(struct ne_aggregator *a, uint64_t id, uint32_t rank, int fd, int region)
{
	struct job *job;
	int err;

	pthread_mutex_lock(&a->lock);
	job = find(a, id);
	if (a->stops)
		err = -ESHUTDOWN;
	else if (!job)
		err = -ENOENT;
	else if (rank >= job->layout.members)
		err = -EINVAL;
	else
		err = attach(a, job, rank, fd, region);
	pthread_mutex_unlock(&a->lock);
	if (!err && region >= 0)
		close(region);
	return err;
}

int ne_aggregator_event_fd(struct ne_aggregator *a)
{
	return a->event_fd;
}

int ne_aggregator_next_event(struct ne_aggregator *a, struct ne_aggregator_event *ret)
{
	uint64_t count;
	int found;

	pthread_mutex_lock(&a->lock);
	(void)!read(a->event_fd, &count, sizeof(count));
	found = a->event_count > 0;
	if (found) {
		*ret = a->events[a->event_first];
		a->event_first = (a->event_first + 1) % EVENTS;
		a->event_count--;
	}
	pthread_mutex_unlock(&a->lock);
	return found;
}

static uint32_t waits_for(const struct job *job)
{
	for (uint32_t chunk = 0; chunk < job->layout.chunks; chunk++) {
		const struct ne_chunk *state = &job->states[chunk];
		uint32_t lacking = job->layout.members;
		bool has_any = false;

		for (uint32_t rank = job->layout.members; rank-- > 0;) {
			if (ne_chunk_has_push(state, rank, state->version + 1))
				has_any = true;
			else
				lacking = rank;
		}
		if (has_any && lacking < job->layout.members)
			return lacking;
	}
	return job->layout.members;
}

int ne_aggregator_job_stats(struct ne_aggregator *a, uint64_t id, struct ne_aggregator_stats *ret)
{
	struct job *job;

	pthread_mutex_lock(&a->lock);
	job = find(a, id);
	if (job) {
		*ret = job->stats;
		ret->waits_for = waits_for(job);
	}
	pthread_mutex_unlock(&a->lock);
	return job ? 0 : -ENOENT;
}
