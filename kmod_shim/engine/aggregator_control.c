/* SPDX-License-Identifier: Apache-2.0 */
/* aggregator_control.c - the calls for one server: jobs, memory, lanes, plans, events and counters. */
#include "aggregator.h"

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

#include "thread.h"

static const uint64_t PAGE = 4096;

/* ---------------------------------------------------------------------- memory */

/*
 * Memory of a whole job is mapped at once, and costs nothing before it is written. What counts is that of chunks that
 * are here: owned, coming, or kept until the next owner is sure.
 */
static uint8_t *pages(uint64_t bytes)
{
	void *made = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			  -1, 0);

	return made == MAP_FAILED ? NULL : made;
}

void unmap(void *at, uint64_t bytes)
{
	if (at)
		munmap(at, bytes ? bytes : 1);
}

static bool is_narrower(const struct layout *layout)
{
	for (uint32_t i = 0; i < layout->chunks; i++)
		if (layout->dtypes[i] != NE_DTYPE_F32)
			return !layout->sum_only;
	return false;
}

/* What a job with so many bytes of chunks here may take. */
static uint64_t needed(const struct job *job, uint64_t area_bytes, uint64_t master_bytes, uint32_t inline_members)
{
	uint64_t areas = 2ull * inline_members + (job->has_results || (job->layout.sum_only && inline_members) ? 1 : 0);

	return 2 * master_bytes + areas * area_bytes;
}

/* From so many bytes to so many others. */
static int take_budget(struct budget *budget, uint64_t before, uint64_t bytes)
{
	uint64_t used = atomic_load(&budget->used_bytes);

	do {
		if (bytes > before && bytes - before > budget->limit_bytes - used)
			return -ENOMEM;
	} while (!atomic_compare_exchange_weak(&budget->used_bytes, &used, used - before + bytes));
	return 0;
}

/* Counts that much for the job; -ENOMEM: beyond the budget, and nothing has changed. */
static int charge(struct server *a, struct job *job, uint64_t area_bytes, uint64_t master_bytes,
		  uint32_t inline_members)
{
	uint64_t bytes = needed(job, area_bytes, master_bytes, inline_members);

	if (take_budget(a->budget, job->stats.memory_bytes, bytes))
		return -ENOMEM;
	job->stats.memory_bytes = bytes;
	job->held_area_bytes = area_bytes;
	job->held_master_bytes = master_bytes;
	job->inline_members = inline_members;
	return 0;
}

static uint64_t area_bytes_of(const struct job *job, uint32_t chunk)
{
	const struct layout *layout = &job->layout;

	return (chunk + 1 < layout->chunks ? layout->offsets[chunk + 1] : layout->area_bytes) - layout->offsets[chunk];
}

/* Pages that hold nothing else. */
static void discard(uint8_t *area, uint64_t offset, uint64_t bytes)
{
	uint64_t from = (offset + PAGE - 1) & ~(PAGE - 1), to = (offset + bytes) & ~(PAGE - 1);

	if (area && to > from)
		madvise(area + from, to - from, MADV_DONTNEED);
}

void release_freed(struct server *a, struct job *job)
{
	const struct layout *layout = &job->layout;
	uint64_t area_bytes = job->held_area_bytes, master_bytes = job->held_master_bytes;

	job->has_freed = false;
	for (uint32_t chunk = 0; chunk < layout->chunks; chunk++) {
		uint64_t bytes = area_bytes_of(job, chunk);

		if (!job->moves[chunk].is_held || job->states[chunk].state != NE_CHUNK_GONE)
			continue;
		job->moves[chunk].is_held = false;
		area_bytes -= bytes;
		master_bytes -= layout_state_bytes(layout, chunk);
		for (int i = 0; i < 2; i++)
			discard(job->masters[i], layout->masters[chunk], layout_state_bytes(layout, chunk));
		discard(job->results, layout->offsets[chunk], bytes);
		for (uint32_t rank = 0; rank < layout->members; rank++)
			for (int i = 0; i < 2; i++)
				discard(job->member[rank].inlined, i * layout->area_bytes + layout->offsets[chunk],
					bytes);
	}
	charge(a, job, area_bytes, master_bytes, job->inline_members);
}

/* ------------------------------------------------------------------------ jobs */

struct job *find(struct server *a, uint64_t id)
{
	for (uint32_t i = 0; i < a->jobs_end; i++)
		if (a->jobs[i] && a->jobs[i]->id == id)
			return a->jobs[i];
	return NULL;
}

static void free_job(struct server *a, struct job *job)
{
	if (!job)
		return;
	for (uint32_t rank = 0; rank < job->layout.members; rank++) {
		end_lane(a, job, rank, -ESHUTDOWN);
		unmap(job->member[rank].inlined, 2 * job->layout.area_bytes);
	}
	end_bulks(a, job);
	free_bulks(job);
	unmap(job->masters[0], job->layout.master_bytes);
	unmap(job->masters[1], job->layout.master_bytes);
	unmap(job->results, job->layout.area_bytes);
	take_budget(a->budget, job->stats.memory_bytes, 0);
	free(job->states);
	free(job->moves);
	free(job->wants);
	free(job->numbers);
	free(job->due);
	free(job->is_due);
	free(job->is_carried);
	free(job->absent);
	free(job->pulls);
	free(job->owed);
	free(job->unwritten);
	layout_free(&job->layout);
	free(job);
}

static void lock_both(struct server *a)
{
	pthread_mutex_lock(&a->move_lock);
	pthread_mutex_lock(&a->lock);
}

static void unlock_both(struct server *a)
{
	pthread_mutex_unlock(&a->lock);
	pthread_mutex_unlock(&a->move_lock);
}

static int start(struct server *a)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)WAKE};
	int err;

	if (epoll_ctl(a->poll, EPOLL_CTL_ADD, a->wake, &event) ||
	    epoll_ctl(a->move_poll, EPOLL_CTL_ADD, a->move_wake, &event))
		return -errno;
	err = thread_start(&a->thread, 0, serve, a);
	if (err)
		return err;
	err = thread_start(&a->mover, 0, move_chunks, a);
	if (err) {
		a->stops = true;
		wake(a->wake);
		pthread_join(a->thread, NULL);
	}
	return err;
}

static void free_aggregator(struct server *a)
{
	int fds[] = {a->poll, a->wake, a->move_poll, a->move_wake};

	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	pthread_mutex_destroy(&a->lock);
	pthread_mutex_destroy(&a->move_lock);
	free(a->scratch);
	free(a->move_scratch);
	free(a);
}

int server_create(struct budget *budget, const struct ne_fault_rules *rules, int event_fd, uint64_t life,
		  struct server **ret)
{
	struct server *a = calloc(1, sizeof(*a));
	int err = -ENOMEM;

	if (!a)
		return err;
	a->budget = budget;
	a->rules = rules;
	a->event_fd = event_fd;
	a->life = life;
	a->scratch = malloc(FRAME_PAYLOAD_MAX);
	a->move_scratch = malloc(FRAME_PAYLOAD_MAX);
	a->poll = epoll_create1(EPOLL_CLOEXEC);
	a->move_poll = epoll_create1(EPOLL_CLOEXEC);
	a->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	a->move_wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_init(&a->lock, NULL);
	pthread_mutex_init(&a->move_lock, NULL);
	if (a->scratch && a->move_scratch && a->poll >= 0 && a->move_poll >= 0 && a->wake >= 0 && a->move_wake >= 0)
		err = start(a);
	if (err) {
		free_aggregator(a);
		return err;
	}
	*ret = a;
	return 0;
}

void server_stop(struct server *a)
{
	bool was;

	lock_both(a);
	was = a->stops;
	a->stops = true;
	unlock_both(a);
	if (was)
		return;
	wake(a->wake);
	wake(a->move_wake);
	pthread_join(a->thread, NULL);
	pthread_join(a->mover, NULL);
	lock_both(a);
	for (uint32_t i = 0; i < a->jobs_end; i++) {
		if (!a->jobs[i])
			continue;
		end_bulks(a, a->jobs[i]);
		for (uint32_t rank = 0; rank < a->jobs[i]->layout.members; rank++)
			end_lane(a, a->jobs[i], rank, -ESHUTDOWN);
	}
	unlock_both(a);
}

void server_destroy(struct server *a)
{
	if (!a)
		return;
	server_stop(a);
	for (uint32_t i = 0; i < a->jobs_end; i++)
		free_job(a, a->jobs[i]);
	free_aggregator(a);
}

static int make_job(struct job *made, const struct ne_job *job)
{
	const struct layout *layout = &made->layout;
	int err = layout_make(&made->layout, job);

	if (err)
		return err;
	made->states = calloc(job->chunks, sizeof(*made->states));
	made->moves = calloc(job->chunks, sizeof(*made->moves));
	made->wants = calloc(job->chunks, 1);
	made->numbers = calloc((uint64_t)HYPERS * job->members * job->groups, sizeof(*made->numbers));
	made->due = calloc(job->chunks, sizeof(*made->due));
	made->is_due = calloc(job->chunks, 1);
	made->is_carried = calloc(job->chunks, 1);
	made->absent = calloc(job->chunks, sizeof(*made->absent));
	made->pulls = calloc(job->hold ? job->chunks : 1, sizeof(*made->pulls));
	made->owed = calloc(job->hold ? job->chunks : 1, sizeof(*made->owed));
	made->unwritten = calloc(job->hold ? job->chunks : 1, sizeof(*made->unwritten));
	made->hold = job->hold;
	if (!made->states || !made->moves || !made->wants || !made->numbers || !made->due || !made->is_due ||
	    !made->is_carried || !made->absent || !made->pulls || !made->owed || !made->unwritten)
		return -ENOMEM;
	for (uint32_t chunk = 0; chunk < job->chunks; chunk++)
		ne_chunk_make(&made->states[chunk], job->members, layout->sum_only);
	made->has_results = is_narrower(layout);
	/* A sum is at its members, and has no master here. */
	for (int i = 0; layout->master_bytes && i < 2; i++)
		if (!(made->masters[i] = pages(layout->master_bytes)))
			return -ENOMEM;
	if (made->has_results && !(made->results = pages(layout->area_bytes)))
		return -ENOMEM;
	return 0;
}

static int add_job(struct server *a, uint64_t id, const struct ne_job *job)
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
	err = make_job(made, job);
	if (err) {
		free_job(a, made);
		return err;
	}
	a->jobs[index] = made;
	if (a->jobs_end <= (uint32_t)index)
		a->jobs_end = index + 1;
	return 0;
}

int server_add_job(struct server *a, uint64_t id, const struct ne_job *job)
{
	int err;

	lock_both(a);
	err = add_job(a, id, job);
	unlock_both(a);
	return err;
}

int server_drop_job(struct server *a, uint64_t id)
{
	struct job *job;

	lock_both(a);
	job = find(a, id);
	if (job) {
		a->jobs[job->index] = NULL;
		free_job(a, job);
	}
	unlock_both(a);
	return job ? 0 : -ENOENT;
}

/* ----------------------------------------------------------------------- plans */

static bool is_here(const struct ne_place *place)
{
	return place->owner == place->me || (place->next_epoch && place->next_owner == place->me);
}

/* Memory for those chunks of a run that come here anew. */
static int charge_run(struct server *a, struct job *job, uint32_t first, uint32_t count)
{
	uint64_t area_bytes = job->held_area_bytes, master_bytes = job->held_master_bytes;
	int err;

	for (uint32_t chunk = first; chunk < first + count; chunk++) {
		if (job->moves[chunk].is_held)
			continue;
		area_bytes += area_bytes_of(job, chunk);
		master_bytes += layout_state_bytes(&job->layout, chunk);
	}
	err = charge(a, job, area_bytes, master_bytes, job->inline_members);
	for (uint32_t chunk = first; !err && chunk < first + count; chunk++)
		job->moves[chunk].is_held = true;
	return err;
}

/* Words come in any order; one that is older than what was said last says nothing new. */
static bool is_old(const struct move *move, const struct ne_place *place)
{
	uint64_t last = move->next_epoch > move->epoch ? move->next_epoch : move->epoch;
	uint64_t now = place->next_epoch > place->epoch ? place->next_epoch : place->epoch;

	return place->epoch < move->epoch || now < last;
}

/* Said again, the same word changes nothing for a chunk that waits or leaves. */
static bool has_to_wait(struct job *job, uint32_t chunk, const struct ne_chunk_event *event)
{
	const struct ne_chunk *state = &job->states[chunk];

	return event->is_mine && event->has_next && state->state == NE_CHUNK_SERVING && state->epoch == event->epoch &&
	       (job->moves[chunk].waits || !move_may_leave(job, chunk));
}

static int plan_chunk(struct server *a, struct job *job, uint32_t chunk, const struct ne_place *place)
{
	struct move *move = &job->moves[chunk];
	struct source s = {a, job, 0};
	struct ne_chunk_event event = {.kind = NE_CHUNK_PLAN,
				       .epoch = place->epoch,
				       .is_mine = place->owner == place->me,
				       .has_next = place->next_epoch != 0,
				       .is_next = place->next_epoch && place->next_owner == place->me,
				       .next_epoch = place->next_epoch};
	int err;

	if (is_old(move, place))
		return 0;
	if (move->epoch != place->epoch || move->next_epoch != place->next_epoch) {
		move->told = move->news = 0;
		move->waits = false;
	}
	move->epoch = place->epoch;
	move->next_epoch = place->next_epoch;
	move->owner = place->owner;
	move->next = place->next_owner;
	/* Under a new epoch members say all of it again. */
	if (job->hold && (event.is_next ? place->next_epoch : place->epoch) != job->states[chunk].epoch)
		job->pulls[chunk][0] = job->pulls[chunk][1] = job->owed[chunk] = 0;
	move->waits = has_to_wait(job, chunk, &event);
	if (move->waits) {
		event.has_next = false;
		event.next_epoch = 0;
	}
	err = step(&s, chunk, event);
	move_plan(a, job, chunk);
	return err;
}

int server_plan(struct server *a, uint64_t id, uint32_t first, uint32_t count, const struct ne_place *place)
{
	struct job *job;
	int err = 0;

	if (!place->epoch || place->owner >= NE_MEMBERS_MAX || place->me >= NE_MEMBERS_MAX ||
	    (place->next_epoch && (place->next_owner >= NE_MEMBERS_MAX || place->next_epoch <= place->epoch)))
		return -EINVAL;
	lock_both(a);
	job = find(a, id);
	if (!job)
		err = -ENOENT;
	else if (first > job->layout.chunks || count > job->layout.chunks - first)
		err = -EINVAL;
	else if (is_here(place))
		err = charge_run(a, job, first, count);
	for (uint32_t chunk = first; !err && chunk < first + count; chunk++)
		err = plan_chunk(a, job, chunk, place);
	if (job)
		job->has_plan = true;
	unlock_both(a);
	/* Members that are there are asked what they have; frames that were held go on. */
	wake(a->wake);
	wake(a->move_wake);
	return err == -EPROTO ? -EINVAL : err;
}

/* ----------------------------------------------------------------------- lanes */

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

int make_results(struct job *job)
{
	if (!job->results)
		job->results = pages(job->layout.area_bytes);
	return job->results ? 0 : -ENOMEM;
}

/* What an inline member needs here, which stays for its next lane. */
static int make_inline(struct server *a, struct job *job, struct member *member)
{
	int err;

	if (member->inlined)
		return 0;
	if (job->layout.sum_only && make_results(job))
		return -ENOMEM;
	member->inlined = pages(2 * job->layout.area_bytes);
	if (!member->inlined)
		return -ENOMEM;
	err = charge(a, job, job->held_area_bytes, job->held_master_bytes, job->inline_members + 1);
	if (err) {
		unmap(member->inlined, 2 * job->layout.area_bytes);
		member->inlined = NULL;
	}
	return err;
}

static int greet(int fd, const void *greeting, uint32_t bytes)
{
	return !bytes || send(fd, greeting, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes ? 0 : -EPIPE;
}

static int attach(struct server *a, struct job *job, uint32_t rank, const struct ne_lane *given, struct rdma *rdma)
{
	struct member *member = &job->member[rank];
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = member_tag(job, rank)};
	uint8_t *mapped = NULL;
	struct lane lane;
	int err;

	err = given->region >= 0 ? map_region(job, rank, given->region, &mapped) : make_inline(a, job, member);
	if (err)
		return err;
	err = lane_open(&lane, given->fd, given->region >= 0, given->keys, 4 * job->layout.chunks + 1024);
	if (!err && epoll_ctl(a->poll, EPOLL_CTL_ADD, given->fd, &event))
		err = -errno;
	if (!err) {
		err = greet(given->fd, given->greeting, given->greeting_bytes);
		if (err)
			epoll_ctl(a->poll, EPOLL_CTL_DEL, given->fd, NULL);
	}
	if (err) {
		lane_abandon(&lane);
		unmap(mapped, layout_region_bytes(&job->layout, rank));
		return err;
	}
	end_lane(a, job, rank, -ESTALE);
	member->lane = lane;
	member->lane.rules = a->rules;
	member->lane.is_rdma = rdma != NULL;
	member->rdma = rdma;
	job->stats.shm_lanes += lane.is_shm;
	job->stats.rdma_lanes += rdma != NULL;
	member->region = mapped;
	member->watched = EPOLLIN;
	member->is_there = true;
	member->is_refused = false;
	job->stats.lanes++;
	job->stats.uncoded_lanes += lane_is_uncoded(&lane);
	if (job->is_lost)
		tell_lost(job, rank);
	return 0;
}

int server_attach(struct server *a, uint64_t id, uint32_t rank, const struct ne_lane *lane)
{
	struct rdma *rdma = NULL;
	struct job *job;
	int err = 0;

	pthread_mutex_lock(&a->lock);
	job = find(a, id);
	if (lane->link)
		err = rdma_begin(a, lane, &rdma);
	if (!err && a->stops)
		err = -ESHUTDOWN;
	else if (!err && !job)
		err = -ENOENT;
	else if (!err && rank >= job->layout.members)
		err = -EINVAL;
	if (!err)
		err = attach(a, job, rank, lane, rdma);
	if (err && rdma)
		rdma_end(a, rdma);
	pthread_mutex_unlock(&a->lock);
	wake(a->wake);
	if (!err && lane->region >= 0)
		close(lane->region);
	return err;
}

/* ---------------------------------------------------------------------- events */

/* The run of chunks from `first` on that have the bit of `first`, under one epoch. */
static uint32_t run_of(const struct job *job, uint32_t first, uint8_t bit, bool of_news)
{
	uint32_t end = first;

	while (end < job->layout.chunks && job->states[end].epoch == job->states[first].epoch &&
	       (of_news ? job->moves[end].news : job->moves[end].told) & bit)
		end++;
	return end - first;
}

/* The next word about moves, for as many chunks as it is true of. */
static bool next_news(struct job *job, struct ne_aggregator_event *ret)
{
	uint32_t chunk = 0;
	uint8_t bit;

	while (chunk < job->layout.chunks && !job->moves[chunk].news)
		chunk++;
	if (chunk == job->layout.chunks) {
		job->has_news = false;
		return false;
	}
	bit = job->moves[chunk].news & -job->moves[chunk].news;
	*ret = (struct ne_aggregator_event){.kind = NE_AGGREGATOR_COPIED + (uint32_t)__builtin_ctz(bit),
					    .chunk = chunk,
					    .count = run_of(job, chunk, bit, true),
					    .epoch = job->states[chunk].epoch,
					    .job = job->id};
	for (uint32_t i = 0; i < ret->count; i++)
		job->moves[chunk + i].news &= ~bit;
	return true;
}

static bool next_event(struct server *a, struct ne_aggregator_event *ret)
{
	if (a->event_count) {
		*ret = a->events[a->event_first];
		a->event_first = (a->event_first + 1) % EVENTS;
		a->event_count--;
		return true;
	}
	for (uint32_t i = 0; i < a->jobs_end; i++)
		if (a->jobs[i] && a->jobs[i]->has_news && next_news(a->jobs[i], ret))
			return true;
	return false;
}

int server_next_event(struct server *a, struct ne_aggregator_event *ret)
{
	bool found;

	pthread_mutex_lock(&a->lock);
	found = next_event(a, ret);
	pthread_mutex_unlock(&a->lock);
	return found;
}

int server_told(struct server *a, uint64_t id, uint32_t kind, uint32_t from, struct ne_aggregator_event *ret)
{
	uint8_t bit = 1u << (kind - NE_AGGREGATOR_COPIED);
	struct job *job;
	int err = 0;

	if (kind < NE_AGGREGATOR_COPIED || kind > NE_AGGREGATOR_BROKEN_THERE)
		return -EINVAL;
	pthread_mutex_lock(&a->lock);
	job = find(a, id);
	while (job && from < job->layout.chunks && !(job->moves[from].told & bit))
		from++;
	if (!job) {
		err = -ENOENT;
	} else if (from < job->layout.chunks) {
		err = 1;
		*ret = (struct ne_aggregator_event){.kind = kind,
						    .chunk = from,
						    .count = run_of(job, from, bit, false),
						    .epoch = job->states[from].epoch,
						    .job = id};
	}
	pthread_mutex_unlock(&a->lock);
	return err;
}

/* -------------------------------------------------------------------- counters */

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

/* A copy that may be stale counts: its version was served. */
static void find_served(const struct job *job, struct ne_aggregator_stats *ret)
{
	bool lacks_any = false, has_any = false;

	ret->serves = UINT64_MAX;
	for (uint32_t chunk = 0; chunk < job->layout.chunks; chunk++) {
		const struct ne_chunk *state = &job->states[chunk];

		if (state->state == NE_CHUNK_GONE || state->state == NE_CHUNK_COMING)
			continue;
		lacks_any = lacks_any || (state->state == NE_CHUNK_EMPTY && !state->has_own);
		has_any = true;
		ret->serves = state->version < ret->serves ? state->version : ret->serves;
	}
	ret->has_served = has_any && !lacks_any;
}

int server_job_stats(struct server *a, uint64_t id, struct ne_aggregator_stats *ret)
{
	struct job *job;

	pthread_mutex_lock(&a->lock);
	job = find(a, id);
	if (job) {
		*ret = job->stats;
		ret->waits_for = waits_for(job);
		find_served(job, ret);
	}
	pthread_mutex_unlock(&a->lock);
	return job ? 0 : -ENOENT;
}
