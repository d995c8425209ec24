/* SPDX-License-Identifier: Apache-2.0 */
/*
 * aggregator_move.c - chunks that move from Aggregator to Aggregator.
 *
 *	the owner				the next owner
 *	LEAVING	the version served now goes	COMING
 *		ahead, as the one before
 *	LEFT	the last version here, as soon
 *		as its update is done ──COPY──►	SERVING
 *		◄──COPIED──
 *
 * Contents are sent from where they lie and received to where they stay: nothing is copied within a process. Nobody
 * writes a version that has been updated before the next owner is sure of it, so the mover needs no lock while it
 * sends.
 *
 * What the other end has got is known by COPIED alone. After an end of the lane what is not known to be there is sent
 * again. If the process at the other end is another one by now, and the copy may have reached the one before, that one
 * may have gone on with it: then the move is broken.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "aggregator.h"
#include "reduce.h"

struct bulk_source {
	struct server *aggregator;
	struct job *job;
	uint32_t number;
	struct bulk *bulk;
};

static uint64_t bulk_tag(const struct job *job, uint32_t number, bool is_next)
{
	return (uint64_t)job->index << 16 | (uint64_t)is_next << 8 | number;
}

/* -------------------------------------------------------------- words and wishes */

/* Under `lock`. */
static void want(struct server *a, struct job *job, uint32_t chunk, uint8_t what)
{
	job->wants[chunk] |= what;
	a->wakes_mover = true;
}

/* What goes ahead while members still compute. */
static void want_before(struct server *a, struct job *job, uint32_t chunk)
{
	struct move *move = &job->moves[chunk];

	if (job->states[chunk].state != NE_CHUNK_LEAVING || move->went_ahead || job->layout.sum_only)
		return;
	move->went_ahead = true;
	want(a, job, chunk, WANTS_BEFORE);
}

static void say(struct server *a, struct job *job, uint32_t chunk, uint32_t kind)
{
	uint8_t bit = 1u << (kind - NE_AGGREGATOR_COPIED);

	job->moves[chunk].told |= bit;
	job->moves[chunk].news |= bit;
	if (!job->has_news)
		wake(a->event_fd);
	job->has_news = true;
}

void move_follow(struct server *a, struct job *job, uint32_t chunk, const struct ne_chunk_todo *todo)
{
	want_before(a, job, chunk);
	if (todo->copy)
		want(a, job, chunk, WANTS_COPY);
	if (todo->copied)
		say(a, job, chunk, NE_AGGREGATOR_COPIED);
	if (todo->pushed)
		say(a, job, chunk, NE_AGGREGATOR_PUSHED);
	if (todo->broken_here)
		say(a, job, chunk, NE_AGGREGATOR_BROKEN_HERE);
	if (todo->broken_there)
		say(a, job, chunk, NE_AGGREGATOR_BROKEN_THERE);
	if (todo->freed) {
		say(a, job, chunk, NE_AGGREGATOR_FREED);
		job->has_freed = true;
	}
}

/* ------------------------------------------------------------------------ lanes */

/* What has gone out whole may be there, whatever becomes of the lane. Under `lock`. */
static void note_sent(struct job *job, struct bulk *bulk)
{
	while (bulk->copying_count > bulk->lane.count) {
		struct copying *sent = &bulk->copying[bulk->copying_first];

		if (!sent->is_before)
			job->moves[sent->chunk].sent_to = bulk->life;
		bulk->copying_first = (bulk->copying_first + 1) % BULK_FRAMES;
		bulk->copying_count--;
	}
}

static void end_bulk(struct server *a, struct job *job, uint32_t number, bool is_next, int err)
{
	struct bulk *bulk = is_next ? job->next[number] : job->previous[number];

	if (!bulk || !bulk->is_there)
		return;
	epoll_ctl(a->move_poll, EPOLL_CTL_DEL, bulk->lane.fd, NULL);
	lane_close(&bulk->lane);
	memset(bulk, 0, sizeof(*bulk));
	bulk->placing = job->layout.chunks;
	job->bulks--;
	job->stats.wrong_codes += err == -EBADMSG;
	tell(a, (struct ne_aggregator_event){.kind = is_next ? NE_AGGREGATOR_NEXT_ENDED : NE_AGGREGATOR_PREVIOUS_ENDED,
					     .rank = number,
					     .error = -err,
					     .job = job->id});
}

/* The mover's own, without `lock`. */
static void drop_bulk(struct server *a, struct job *job, uint32_t number, bool is_next, int err)
{
	pthread_mutex_lock(&a->lock);
	if (is_next)
		note_sent(job, job->next[number]);
	end_bulk(a, job, number, is_next, err);
	pthread_mutex_unlock(&a->lock);
}

static bool is_on_its_way(const struct bulk *bulk, uint32_t chunk)
{
	for (uint32_t i = 0; i < bulk->copying_count; i++)
		if (bulk->copying[(bulk->copying_first + i) % BULK_FRAMES].chunk == chunk)
			return true;
	return false;
}

/* Its contents may be written from now on: what was sent or received in part must never become whole. */
static void cut(struct server *a, struct job *job, uint32_t chunk)
{
	for (uint32_t number = 0; job->bulks && number < NE_MEMBERS_MAX; number++) {
		if (job->next[number] && is_on_its_way(job->next[number], chunk))
			end_bulk(a, job, number, true, -ECANCELED);
		if (job->previous[number] && job->previous[number]->placing == chunk)
			end_bulk(a, job, number, false, -ECANCELED);
	}
}

void move_plan(struct server *a, struct job *job, uint32_t chunk)
{
	struct ne_chunk *state = &job->states[chunk];
	struct move *move = &job->moves[chunk];
	bool is_over = state->state == NE_CHUNK_GONE || state->state == NE_CHUNK_EMPTY;

	if (!is_over && move->known_epoch == state->epoch && move->known_next_epoch == state->next_epoch)
		return;
	cut(a, job, chunk);
	job->wants[chunk] = 0;
	move->known_epoch = state->epoch;
	move->known_next_epoch = state->next_epoch;
	move->went_ahead = move->is_copied = false;
	move->sent_to = move->before = 0;
	want_before(a, job, chunk);
}

bool move_may_leave(struct job *job, uint32_t chunk)
{
	uint64_t bytes = layout_state_bytes(&job->layout, chunk), at = job->states[chunk].version + 1;
	uint64_t part = job->layout.master_bytes / LEAVE_PARTS;
	uint64_t limit = part > LEAVE_BYTES ? part : LEAVE_BYTES;

	if (!bytes)
		return true;
	if (at > job->leaves_at) {
		job->leaves_at = at;
		job->leaving_bytes = 0;
	}
	if (at < job->leaves_at || (job->leaving_bytes && bytes > limit - job->leaving_bytes))
		return false;
	job->leaving_bytes += bytes;
	return true;
}

void move_on(struct server *a, struct job *job, uint32_t chunk)
{
	struct move *move = &job->moves[chunk];
	struct source source = {a, job, 0};

	if (!move->waits || job->states[chunk].state != NE_CHUNK_SERVING || !move_may_leave(job, chunk))
		return;
	move->waits = false;
	move->known_next_epoch = move->next_epoch;
	step(&source, chunk,
	     (struct ne_chunk_event){.kind = NE_CHUNK_PLAN,
				     .epoch = move->epoch,
				     .is_mine = true,
				     .has_next = true,
				     .next_epoch = move->next_epoch});
}

void end_bulks(struct server *a, struct job *job)
{
	for (uint32_t number = 0; number < NE_MEMBERS_MAX; number++) {
		end_bulk(a, job, number, true, -ESHUTDOWN);
		end_bulk(a, job, number, false, -ESHUTDOWN);
	}
}

void free_bulks(struct job *job)
{
	for (uint32_t number = 0; number < NE_MEMBERS_MAX; number++) {
		free(job->next[number]);
		free(job->previous[number]);
	}
}

static int attach_bulk(struct server *a, struct job *job, uint32_t number, bool is_next, int fd, const uint8_t *keys)
{
	struct bulk **slot = is_next ? &job->next[number] : &job->previous[number];
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = bulk_tag(job, number, is_next)};
	/* A job that was dropped and added again has nothing of what was sent to it before. */
	struct frame life = {.kind = FRAME_LIFE, .aux = a->life + job->id};
	struct bulk *bulk = *slot;
	struct lane lane;
	int err;

	if (!bulk)
		*slot = bulk = calloc(1, sizeof(*bulk));
	if (!bulk)
		return -ENOMEM;
	err = lane_open(&lane, fd, false, keys, job->layout.chunks + BULK_FRAMES);
	if (!err && epoll_ctl(a->move_poll, EPOLL_CTL_ADD, fd, &event))
		err = -errno;
	else if (!err)
		err = is_next ? 0 : lane_put(&lane, &life, NULL, 0);
	if (err) {
		/* The descriptor stays the caller's. */
		epoll_ctl(a->move_poll, EPOLL_CTL_DEL, fd, NULL);
		lane_abandon(&lane);
		return err;
	}
	end_bulk(a, job, number, is_next, -ESTALE);
	bulk->lane = lane;
	bulk->lane.rules = a->rules;
	bulk->placing = job->layout.chunks;
	bulk->watched = EPOLLIN;
	bulk->is_there = true;
	job->bulks++;
	return 0;
}

static int attach(struct server *a, uint64_t id, uint32_t number, bool is_next, int fd, const uint8_t *keys)
{
	struct job *job;
	int err;

	if (number >= NE_MEMBERS_MAX)
		return -EINVAL;
	pthread_mutex_lock(&a->move_lock);
	pthread_mutex_lock(&a->lock);
	job = find(a, id);
	err = a->stops ? -ESHUTDOWN : !job ? -ENOENT : attach_bulk(a, job, number, is_next, fd, keys);
	pthread_mutex_unlock(&a->lock);
	pthread_mutex_unlock(&a->move_lock);
	wake(a->move_wake);
	return err;
}

int server_attach_next(struct server *a, uint64_t id, uint32_t number, int fd, const uint8_t *keys)
{
	return attach(a, id, number, true, fd, keys);
}

int server_attach_previous(struct server *a, uint64_t id, uint32_t number, int fd, const uint8_t *keys)
{
	return attach(a, id, number, false, fd, keys);
}

/* ---------------------------------------------------------------------- sending */

static void put_copy(struct job *job, struct bulk *bulk, uint32_t chunk, uint64_t version, bool is_before)
{
	struct frame frame = {.kind = FRAME_COPY,
			      .flags = is_before ? FRAME_BEFORE : 0,
			      .chunk = chunk,
			      .iteration = version,
			      .epoch = job->states[chunk].next_epoch};
	struct part part = {NULL, layout_state_bytes(&job->layout, chunk)};

	if (part.bytes)
		part.at = master(job, chunk, version);
	if (lane_put(&bulk->lane, &frame, &part, part.bytes ? 1 : 0) < 0) {
		shutdown(bulk->lane.fd, SHUT_RDWR);
		return;
	}
	bulk->copying[(bulk->copying_first + bulk->copying_count++) % BULK_FRAMES] = (struct copying){chunk, is_before};
}

static void copy_chunk(struct job *job, struct bulk *bulk, uint32_t chunk)
{
	const struct ne_chunk *state = &job->states[chunk];
	uint8_t wants = job->wants[chunk];

	job->wants[chunk] = 0;
	if (state->state == NE_CHUNK_LEAVING) {
		if (wants & WANTS_BEFORE)
			put_copy(job, bulk, chunk, state->version, true);
	} else if (state->state == NE_CHUNK_LEFT) {
		if (wants & WANTS_BEFORE && state->has_previous)
			put_copy(job, bulk, chunk, state->version - 1, true);
		if (wants & WANTS_COPY)
			put_copy(job, bulk, chunk, state->version, false);
	}
}

/* Fills the lane with chunks whose turn it is. True: there is more for it. Under `lock`. */
static bool fill(struct job *job, uint32_t number, struct bulk *bulk)
{
	uint32_t chunks = job->layout.chunks;

	note_sent(job, bulk);
	if (!bulk->life)
		return false;
	for (uint32_t looked = 0; looked < chunks; looked++) {
		if (bulk->copying_count + 2 > BULK_FRAMES)
			return true;
		if (job->wants[bulk->cursor] && job->moves[bulk->cursor].next == number)
			copy_chunk(job, bulk, bulk->cursor);
		bulk->cursor = (bulk->cursor + 1) % chunks;
	}
	return false;
}

static void watch(struct server *a, struct job *job, uint32_t number, bool is_next)
{
	struct bulk *bulk = is_next ? job->next[number] : job->previous[number];
	uint32_t wanted = (bulk->lane.hold ? 0 : EPOLLIN) | (bulk->lane.is_blocked ? EPOLLOUT : 0);
	struct epoll_event event = {.events = wanted, .data.u64 = bulk_tag(job, number, is_next)};

	if (wanted == bulk->watched)
		return;
	bulk->watched = wanted;
	epoll_ctl(a->move_poll, EPOLL_CTL_MOD, bulk->lane.fd, &event);
}

/* -------------------------------------------------------------------- receiving */

/* The process at the other end: chunks that it is not known to have go to it. */
static void take_life(struct bulk_source *s, uint64_t life)
{
	struct job *job = s->job;
	struct source source = {s->aggregator, job, 0};

	s->bulk->life = life;
	for (uint32_t chunk = 0; chunk < job->layout.chunks; chunk++) {
		const struct ne_chunk *state = &job->states[chunk];
		struct move *move = &job->moves[chunk];

		if (move->next != s->number || (state->state != NE_CHUNK_LEFT && state->state != NE_CHUNK_LEAVING))
			continue;
		if (state->state == NE_CHUNK_LEFT && move->sent_to && move->sent_to != life)
			step(&source, chunk, (struct ne_chunk_event){.kind = NE_CHUNK_NEXT_ANEW});
		else if (state->state == NE_CHUNK_LEFT && !move->is_copied)
			want(s->aggregator, job, chunk, WANTS_BEFORE | WANTS_COPY);
		else if (state->state == NE_CHUNK_LEAVING && !job->layout.sum_only)
			want(s->aggregator, job, chunk, WANTS_BEFORE);
	}
}

static int take_answer(void *owner, const struct frame *frame)
{
	struct bulk_source *s = owner;
	struct job *job = s->job;
	int err = 0;

	if (frame->kind == FRAME_COPIED && frame->chunk >= job->layout.chunks)
		return -EPROTO;
	pthread_mutex_lock(&s->aggregator->lock);
	if (frame->kind == FRAME_LIFE && frame->aux && !s->bulk->life) {
		take_life(s, frame->aux);
	} else if (frame->kind == FRAME_COPIED && s->bulk->life) {
		struct move *move = &job->moves[frame->chunk];

		if (job->states[frame->chunk].state == NE_CHUNK_LEFT && move->next_epoch == frame->epoch) {
			move->is_copied = true;
			move->sent_to = s->bulk->life;
		}
	} else {
		err = -EPROTO;
	}
	pthread_mutex_unlock(&s->aggregator->lock);
	return err;
}

static int place_nothing(void *owner, const struct frame *frame, struct part parts[LANE_PARTS])
{
	(void)owner, (void)frame, (void)parts;
	return -EPROTO;
}

static int place_copy(void *owner, const struct frame *frame, struct part parts[LANE_PARTS])
{
	struct bulk_source *s = owner;
	struct job *job = s->job;
	const struct ne_chunk *state;
	int err = 0;

	if (frame->kind != FRAME_COPY || frame->chunk >= job->layout.chunks ||
	    frame->bytes != layout_state_bytes(&job->layout, frame->chunk))
		return -EPROTO;
	state = &job->states[frame->chunk];
	parts[0] = (struct part){s->aggregator->move_scratch, frame->bytes};
	pthread_mutex_lock(&s->aggregator->lock);
	if (frame->epoch > state->epoch) {
		err = -EAGAIN;
	} else if (state->state == NE_CHUNK_COMING && frame->epoch == state->epoch) {
		parts[0].at = master(job, frame->chunk, frame->iteration);
		s->bulk->placing = frame->chunk;
	}
	pthread_mutex_unlock(&s->aggregator->lock);
	return err;
}

/* Whole, and nobody else reads it so far. */
static void take_contents(struct bulk_source *s, const struct frame *frame)
{
	struct job *job = s->job;

	job->is_carried[frame->chunk] = 0;
	if (frame->flags & FRAME_BEFORE)
		job->moves[frame->chunk].before = 1 + frame->iteration;
	else if (is_narrow(job, frame->chunk))
		reduce_narrow(job->layout.dtypes[frame->chunk], job->results + job->layout.offsets[frame->chunk],
			      master(job, frame->chunk, frame->iteration), job->layout.counts[frame->chunk]);
}

static int take_copy(void *owner, const struct frame *frame)
{
	struct bulk_source *s = owner;
	struct job *job = s->job;
	struct source source = {s->aggregator, job, 0};
	struct frame copied = {.kind = FRAME_COPIED, .chunk = frame->chunk, .epoch = frame->epoch};
	struct ne_chunk_event event = {.kind = NE_CHUNK_COPY, .epoch = frame->epoch, .version = frame->iteration};
	const struct ne_chunk *state;
	bool is_placed = job->layout.sum_only || s->bulk->placing == frame->chunk;
	bool is_coming;
	int err = 0;

	if (frame->kind != FRAME_COPY || frame->chunk >= job->layout.chunks ||
	    frame->bytes != layout_state_bytes(&job->layout, frame->chunk))
		return -EPROTO;
	s->bulk->placing = job->layout.chunks;
	state = &job->states[frame->chunk];
	if (is_placed && !job->layout.sum_only)
		take_contents(s, frame);
	if (frame->flags & FRAME_BEFORE)
		return 0;
	event.has_previous = job->moves[frame->chunk].before && job->moves[frame->chunk].before == frame->iteration;
	pthread_mutex_lock(&s->aggregator->lock);
	is_coming = state->state == NE_CHUNK_COMING && state->epoch == frame->epoch;
	if (is_placed || !is_coming)
		err = step(&source, frame->chunk, event);
	if (!err && state->epoch == frame->epoch && state->state >= NE_CHUNK_SERVING && state->state != NE_CHUNK_COMING)
		err = lane_put(&s->bulk->lane, &copied, NULL, 0);
	pthread_mutex_unlock(&s->aggregator->lock);
	return err;
}

static const struct lane_owner next_calls = {.place = place_nothing, .take = take_answer};
static const struct lane_owner previous_calls = {.place = place_copy, .take = take_copy};

/* ----------------------------------------------------------------------- thread */

/* resumes: a plan may have come for the frame that waits. */
static int receive(struct server *a, struct job *job, uint32_t number, bool is_next, bool resumes)
{
	struct bulk *bulk = is_next ? job->next[number] : job->previous[number];
	struct bulk_source s = {a, job, number, bulk};
	const struct lane_owner *calls = is_next ? &next_calls : &previous_calls;
	int err = resumes ? lane_resume(&bulk->lane, calls, &s) : lane_receive(&bulk->lane, calls, &s);

	return err == -EAGAIN ? 0 : err;
}

static void look_at(struct server *a, const struct epoll_event *event)
{
	uint32_t number = event->data.u64 & 255;
	bool is_next = event->data.u64 >> 8 & 1;
	struct bulk *bulk;
	struct job *job;
	uint64_t count;
	int err;

	if (event->data.u64 == (uint64_t)WAKE) {
		(void)!read(a->move_wake, &count, sizeof(count));
		return;
	}
	job = a->jobs[event->data.u64 >> 16 & (JOBS_MAX - 1)];
	bulk = !job ? NULL : is_next ? job->next[number] : job->previous[number];
	if (!bulk || !bulk->is_there || !(event->events & ~EPOLLOUT))
		return;
	err = bulk->lane.hold ? -EPIPE : receive(a, job, number, is_next, false);
	if (err < 0)
		drop_bulk(a, job, number, is_next, err);
}

/* True: there is more to send, and room for it. */
static bool work_on(struct server *a, struct job *job, uint32_t number, bool is_next)
{
	struct bulk *bulk = is_next ? job->next[number] : job->previous[number];
	bool has_more = false;
	int err = 0;

	if (!bulk || !bulk->is_there)
		return false;
	if (bulk->lane.hold)
		err = receive(a, job, number, is_next, true);
	if (is_next) {
		pthread_mutex_lock(&a->lock);
		has_more = fill(job, number, bulk);
		pthread_mutex_unlock(&a->lock);
	}
	if (!err && bulk->lane.count)
		err = lane_send(&bulk->lane);
	if (err < 0) {
		drop_bulk(a, job, number, is_next, err);
		return false;
	}
	watch(a, job, number, is_next);
	return is_next && !bulk->lane.count && (has_more || bulk->copying_count);
}

void *move_chunks(void *arg)
{
	struct server *a = arg;
	bool stops = false, has_more = false;

	while (!stops) {
		struct epoll_event events[READY];
		int ready = epoll_wait(a->move_poll, events, READY, has_more ? 0 : -1);

		pthread_mutex_lock(&a->move_lock);
		has_more = false;
		for (int i = 0; i < ready; i++)
			look_at(a, &events[i]);
		for (uint32_t i = 0; i < a->jobs_end; i++) {
			if (!a->jobs[i] || !a->jobs[i]->bulks)
				continue;
			for (uint32_t number = 0; number < 2 * NE_MEMBERS_MAX; number++)
				has_more = work_on(a, a->jobs[i], number / 2, number % 2) || has_more;
		}
		stops = a->stops;
		pthread_mutex_unlock(&a->move_lock);
		/* What came may have made updates due, or be an answer that members wait for. */
		wake(a->wake);
	}
	return NULL;
}
