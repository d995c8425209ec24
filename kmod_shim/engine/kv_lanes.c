/* SPDX-License-Identifier: Apache-2.0 */
/* kv_lanes.c - what goes between a member and its Aggregators: frames due to each, and what follows from theirs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "kv.h"
#include "reduce.h"

/* One frame's way through the handlers. */
struct source {
	struct ne_kv *kv;
	uint32_t number;
};

/* ---------------------------------------------------------------------- sending */

/* The payload is sent by lanes of any kind; by shared memory it is not needed otherwise. */
static void put_inline(struct ne_kv *kv, uint32_t chunk, struct frame frame, void *payload, uint64_t bytes)
{
	struct held *held = &kv->held[chunk];
	struct part part = {payload, bytes};
	struct aggregator *to;

	if (held->owner == NOBODY || !kv->aggregator[held->owner].is_there)
		return;
	to = &kv->aggregator[held->owner];
	frame.chunk = chunk;
	frame.epoch = held->epoch;
	if (lane_put(&to->lane, &frame, &part, bytes ? 1 : 0) < 0)
		shutdown(to->lane.fd, SHUT_RDWR);
}

static void put(struct ne_kv *kv, uint32_t chunk, struct frame frame, void *payload, uint64_t bytes)
{
	uint8_t owner = kv->held[chunk].owner;

	const struct lane *lane = owner == NOBODY ? NULL : &kv->aggregator[owner].lane;
	bool stays = lane && (lane->is_shm || (lane->is_rdma && frame.kind == FRAME_PUSH));

	put_inline(kv, chunk, frame, payload, stays ? 0 : bytes);
}

static void put_ask(struct ne_kv *kv, uint32_t chunk)
{
	put(kv, chunk, (struct frame){.kind = FRAME_ASK, .iteration = kv->held[chunk].asked}, NULL, 0);
}

void kv_put_push(struct ne_kv *kv, uint32_t chunk, uint64_t iteration)
{
	const struct held *held = &kv->held[chunk];
	bool is_absent = iteration == held->version ? held->was_absent : held->is_absent;

	put(kv, chunk,
	    (struct frame){.kind = FRAME_PUSH, .flags = is_absent ? FRAME_ABSENT : 0, .iteration = iteration},
	    kv->at + layout_gradient(&kv->layout, chunk, iteration), layout_bytes(&kv->layout, chunk));
}

void kv_put_pull(struct ne_kv *kv, uint32_t chunk)
{
	put(kv, chunk, (struct frame){.kind = FRAME_PULL, .iteration = kv->held[chunk].version + 1}, NULL, 0);
}

void kv_introduce(struct ne_kv *kv, uint32_t chunk)
{
	struct held *held = &kv->held[chunk];
	uint16_t flags = (held->has_any ? 0 : FRAME_NOTHING) | (held->keeps ? FRAME_KEEPS : 0) |
			 (held->is_anew ? FRAME_ANEW : 0);

	put(kv, chunk, (struct frame){.kind = FRAME_HAVE, .iteration = held->version, .flags = flags}, NULL, 0);
	if (held->has_asked && !held->has_given)
		put_ask(kv, chunk);
	if (held->is_full)
		kv_put_push(kv, chunk, held->version + 1);
	if (held->is_full && held->is_pulled)
		kv_put_pull(kv, chunk);
}

static void pay(struct ne_kv *kv, uint32_t chunk)
{
	struct held *held = &kv->held[chunk];
	struct frame frame = {.kind = FRAME_SEED, .iteration = held->version};
	const struct layout *layout = &kv->layout;

	if (!held->owes || !held->has_any || held->owed != held->version || !(held->keeps || layout->sum_only))
		return;
	held->owes = false;
	if (held->is_first && !kv->start)
		frame.flags = FRAME_FIRST;
	if (held->is_first && kv->start)
		put_inline(kv, chunk, frame, kv->start + layout->masters[chunk], layout_state_bytes(layout, chunk));
	else if (held->is_first)
		put(kv, chunk, frame, kv->at + layout_start(layout, chunk, held->version), layout_bytes(layout, chunk));
	else if (layout->sum_only)
		put(kv, chunk, frame, kv->at + layout_result(layout, chunk), layout_bytes(layout, chunk));
	else
		put(kv, chunk, frame, kv->at + layout_kept(layout, chunk, held->version),
		    layout_state_bytes(layout, chunk));
}

void kv_put_numbers(struct ne_kv *kv, uint32_t number, uint32_t group, const struct numbers *numbers)
{
	struct aggregator *to = &kv->aggregator[number];
	struct frame frame = {.kind = FRAME_HYPER, .chunk = group, .iteration = numbers->from};

	if (to->is_there && numbers->from &&
	    lane_put_copy(&to->lane, &frame, &numbers->hyper, sizeof(numbers->hyper)) < 0)
		shutdown(to->lane.fd, SHUT_RDWR);
}

static void watch(struct ne_kv *kv, uint32_t number, bool waits_out)
{
	struct aggregator *to = &kv->aggregator[number];
	struct epoll_event event = {.events = EPOLLIN | (waits_out ? EPOLLOUT : 0), .data.u64 = number};

	if (waits_out == to->waits_out)
		return;
	to->waits_out = waits_out;
	epoll_ctl(kv->lanes, EPOLL_CTL_MOD, to->lane.fd, &event);
}

void kv_end_lane(struct ne_kv *kv, uint32_t number)
{
	struct aggregator *to = &kv->aggregator[number];

	if (!to->is_there)
		return;
	to->is_there = to->waits_out = false;
	to->has_ended = true;
	/* When it is gone, nothing of that Aggregator's can land any more. */
	ne_export_destroy(to->pair);
	to->pair = NULL;
	/* While anybody else has its descriptor, epoll would tell its end again and again. */
	epoll_ctl(kv->lanes, EPOLL_CTL_DEL, to->lane.fd, NULL);
	lane_close(&to->lane);
	pthread_cond_broadcast(&kv->ended);
}

void kv_send_all(struct ne_kv *kv)
{
	for (uint32_t number = 0; number < NE_MEMBERS_MAX; number++) {
		struct aggregator *to = &kv->aggregator[number];
		int left;

		if (!to->is_there || !to->lane.count)
			continue;
		left = lane_send(&to->lane);
		if (left < 0)
			kv_end_lane(kv, number);
		else
			watch(kv, number, left);
	}
}

/* -------------------------------------------------------------------- receiving */

/* The Aggregator writes results to the region itself. */
static bool has_region(const struct source *s)
{
	const struct lane *lane = &s->kv->aggregator[s->number].lane;

	return lane->is_shm || lane->is_rdma;
}

static bool is_current(const struct source *s, const struct frame *frame)
{
	const struct held *held = &s->kv->held[frame->chunk];

	return held->owner == s->number && held->epoch == frame->epoch;
}

static bool is_wanted(const struct source *s, const struct frame *frame)
{
	const struct held *held = &s->kv->held[frame->chunk];

	/* What was not pushed is not wanted: a member that came anew may be one behind the owner. */
	return is_current(s, frame) &&
	       (!held->has_any || (frame->iteration == held->version + 1 && (held->is_full || s->kv->layout.sum_only)));
}

static bool is_asked(const struct source *s, const struct frame *frame)
{
	const struct held *held = &s->kv->held[frame->chunk];

	return is_current(s, frame) && held->has_asked && !held->has_given && held->asked == frame->iteration;
}

static int place_state(struct source *s, const struct frame *frame, struct part *part)
{
	const struct layout *layout = &s->kv->layout;

	if (layout->sum_only || frame->bytes != layout_state_bytes(layout, frame->chunk))
		return -EPROTO;
	*part = (struct part){is_asked(s, frame) ? s->kv->held[frame->chunk].given : s->kv->scratch, frame->bytes};
	return 0;
}

static int place(void *owner, const struct frame *frame, struct part parts[LANE_PARTS])
{
	struct source *s = owner;
	struct ne_kv *kv = s->kv;
	const struct layout *layout = &kv->layout;
	uint64_t bytes, kept = 0;

	if (frame->chunk >= layout->chunks)
		return -EPROTO;
	if (frame->kind == FRAME_STATE)
		return place_state(s, frame, &parts[0]);
	if (frame->kind != FRAME_RESULT)
		return -EPROTO;
	bytes = layout_bytes(layout, frame->chunk);
	if (frame->flags & FRAME_KEEPS) {
		if (layout->sum_only || layout_keeper(layout, frame->chunk) != kv->rank)
			return -EPROTO;
		kept = layout_state_bytes(layout, frame->chunk);
	}
	if (frame->bytes != bytes + kept)
		return -EPROTO;
	if (!is_wanted(s, frame)) {
		parts[0] = (struct part){kv->scratch, frame->bytes};
		return 0;
	}
	parts[0] = (struct part){kv->at + layout_result(layout, frame->chunk), bytes};
	parts[1] = (struct part){kv->at + layout_kept(layout, frame->chunk, frame->iteration), kept};
	return 0;
}

/* ---------------------------------------------------------------------- joining */

bool kv_is_joining(const struct ne_kv *kv)
{
	return !kv->layout.sum_only && !kv->has_started && !kv->has_joined;
}

int kv_want_state(struct ne_kv *kv, uint32_t chunk, uint64_t version)
{
	struct held *held = &kv->held[chunk];

	if (!held->given)
		held->given = malloc(layout_state_bytes(&kv->layout, chunk));
	if (!held->given)
		return -ENOMEM;
	held->has_asked = true;
	held->has_given = false;
	held->asked = version;
	put_ask(kv, chunk);
	return 0;
}

void kv_forget(struct held *held, bool is_whole)
{
	held->has_asked = held->has_given = false;
	/* What has come in part may go on coming in. */
	if (is_whole) {
		free(held->given);
		held->given = NULL;
	}
}

/*
 * A member that came anew has chunks at two versions, if it came in the middle of an iteration. It goes on from the
 * lower one, which all Aggregators still have.
 */
static void join(struct ne_kv *kv)
{
	while (kv->joining < ASKED && kv->join_next < kv->layout.chunks) {
		uint32_t chunk = kv->join_next++;

		if (kv->held[chunk].version == kv->join_version)
			continue;
		if (kv->held[chunk].version != kv->join_version + 1) {
			kv->dead = -ESTALE;
			return;
		}
		if (kv_want_state(kv, chunk, kv->join_version) < 0) {
			kv->dead = -ENOMEM;
			return;
		}
		kv->joining++;
	}
	if (!kv->joining && kv->join_next == kv->layout.chunks)
		kv->has_joined = true;
}

static void begin_to_join(struct ne_kv *kv)
{
	kv->join_version = UINT64_MAX;
	for (uint32_t chunk = 0; chunk < kv->layout.chunks; chunk++)
		if (kv->held[chunk].version < kv->join_version)
			kv->join_version = kv->held[chunk].version;
	join(kv);
}

/* The chunk goes back to the version that was asked for. */
static void install(struct ne_kv *kv, uint32_t chunk)
{
	const struct layout *layout = &kv->layout;
	struct held *held = &kv->held[chunk];
	uint8_t *result = kv->at + layout_result(layout, chunk);

	if (layout->dtypes[chunk] == NE_DTYPE_F32)
		memcpy(result, held->given, layout_bytes(layout, chunk));
	else
		reduce_narrow(layout->dtypes[chunk], result, (const float *)held->given, layout->counts[chunk]);
	if (layout_keeper(layout, chunk) == kv->rank)
		memcpy(kv->at + layout_kept(layout, chunk, held->asked), held->given,
		       layout_state_bytes(layout, chunk));
	held->keeps = layout_keeper(layout, chunk) == kv->rank;
	held->version = held->asked;
	held->is_anew = true;
	kv_forget(held, true);
	kv->joining--;
	join(kv);
}

static int take_state(struct source *s, const struct frame *frame)
{
	struct ne_kv *kv = s->kv;

	if (kv->layout.sum_only || !frame->bytes)
		return -EPROTO;
	if (!is_asked(s, frame))
		return 0;
	kv->held[frame->chunk].has_given = true;
	if (kv_is_joining(kv))
		install(kv, frame->chunk);
	return 0;
}

/* ---------------------------------------------------------------------- results */

/* An Aggregator says who owns the chunk now, which counts if it is newer than what is known. */
static int follow(const struct source *s, const struct frame *frame)
{
	struct ne_kv *kv = s->kv;
	struct held *held = &kv->held[frame->chunk];

	if (frame->status >= NE_MEMBERS_MAX || !frame->aux)
		return -EPROTO;
	if (frame->aux <= held->epoch)
		return 0;
	/* A former owner that says so itself updates nothing any more; another one may know of nothing yet. */
	if (held->owner != s->number && held->owner != frame->status)
		kv_leave_owner(kv, held);
	held->owner = frame->status;
	held->epoch = frame->aux;
	if (!kv->aggregator[held->owner].is_there) {
		kv->aggregator[held->owner].has_ended = true;
		pthread_cond_broadcast(&kv->ended);
	}
	kv_introduce(kv, frame->chunk);
	return 0;
}

static void leave_start(struct ne_kv *kv, struct held *held)
{
	kv->first_left -= held->is_first ? 1 : 0;
	held->is_first = false;
	/* Nothing of it is on its way: who has the next version has had it. */
	if (!kv->first_left && kv->start) {
		free(kv->start);
		kv->start = NULL;
	}
}

static int take_result(struct source *s, const struct frame *frame)
{
	struct ne_kv *kv = s->kv;
	struct held *held = &kv->held[frame->chunk];

	if (!has_region(s) && !frame->bytes)
		return -EPROTO;
	if (!is_current(s, frame))
		return 0;
	if (is_wanted(s, frame)) {
		held->has_gradient = held->has_any && held->is_full && !kv->layout.sum_only;
		held->is_anew = !held->has_any && !kv->has_started;
		held->version = frame->iteration;
		held->keeps = frame->flags & FRAME_KEEPS;
		leave_start(kv, held);
		kv->lacking -= held->has_any ? 0 : 1;
		held->has_any = true;
		held->is_full = held->is_taken = held->is_pulled = false;
		held->was_absent = held->is_absent;
		pay(kv, frame->chunk);
		if (!kv->lacking && kv_is_joining(kv))
			begin_to_join(kv);
	} else if (frame->iteration > held->version + 1) {
		return -EPROTO;
	} else if (held->has_asked && !held->has_given) {
		/* The owner knows its version now. */
		put_ask(kv, frame->chunk);
	} else if (held->is_full && frame->iteration == held->version) {
		/* What is held already asks a member that is ahead for its next push. */
		kv_put_push(kv, frame->chunk, held->version + 1);
	}
	return frame->flags & FRAME_LAST ? follow(s, frame) : 0;
}

static int take(void *owner, const struct frame *frame)
{
	struct source *s = owner;
	struct ne_kv *kv = s->kv;
	struct held *held;

	if (frame->chunk >= kv->layout.chunks)
		return -EPROTO;
	held = &kv->held[frame->chunk];
	switch (frame->kind) {
	case FRAME_RESULT:
		return take_result(s, frame);
	case FRAME_STATE:
		return take_state(s, frame);
	case FRAME_TAKEN:
		if (is_current(s, frame) && held->is_full && frame->iteration == held->version + 1)
			held->is_taken = true;
		return 0;
	case FRAME_MOVED:
		return follow(s, frame);
	case FRAME_WANT_HAVE:
		if (is_current(s, frame))
			kv_introduce(kv, frame->chunk);
		return 0;
	case FRAME_WANT_PUSH:
		if (!is_current(s, frame))
			return 0;
		if ((held->is_full && frame->iteration == held->version + 1) ||
		    (held->has_gradient && frame->iteration == held->version))
			kv_put_push(kv, frame->chunk, frame->iteration);
		return 0;
	case FRAME_WANT_SEED:
		if (is_current(s, frame)) {
			held->owes = true;
			held->owed = frame->iteration;
			pay(kv, frame->chunk);
		}
		return 0;
	case FRAME_ERROR:
		kv->dead = -(int)(frame->status && frame->status < 4096 ? frame->status : EPROTO);
		return 0;
	default:
		return -EPROTO;
	}
}

static const struct lane_owner calls = {.place = place, .take = take};

static void look_at(struct ne_kv *kv, const struct epoll_event *event)
{
	struct source s = {kv, (uint32_t)event->data.u64};

	/* It is for the end alone: whoever else sleeps here is to see it, too. */
	if (event->data.u64 == (uint64_t)WAKE)
		return;
	if (!kv->aggregator[s.number].is_there || !(event->events & ~EPOLLOUT))
		return;
	if (lane_receive(&kv->aggregator[s.number].lane, &calls, &s) < 0)
		kv_end_lane(kv, s.number);
}

bool kv_has_version(const struct ne_kv *kv, uint32_t chunk, uint64_t version)
{
	return !kv_is_joining(kv) && kv->held[chunk].has_any && kv->held[chunk].version >= version;
}

void kv_take_in(struct ne_kv *kv, const struct epoll_event *events, int ready)
{
	bool has_any = kv->is_fetching || kv->others; /* what these wait for is looked at there */

	for (int i = 0; i < ready; i++)
		look_at(kv, &events[i]);
	kv_send_all(kv);
	if (kv->dead)
		pthread_cond_broadcast(&kv->ended);
	for (struct waiter *w = kv->waiters; w && !has_any; w = w->next)
		has_any = kv->dead || kv_has_version(kv, w->chunk, w->version);
	if (has_any)
		pthread_cond_broadcast(&kv->changed);
}

void *kv_receive(void *arg)
{
	struct ne_kv *kv = arg;
	bool stops = false;

	while (!stops) {
		struct epoll_event events[READY], any;
		int ready;

		epoll_wait(kv->poll, &any, 1, -1);
		pthread_mutex_lock(&kv->lock);
		/* A waiter may have taken it over in between, and taken all. */
		ready = kv->has_receiver ? 0 : epoll_wait(kv->lanes, events, READY, 0);
		kv_take_in(kv, events, ready);
		stops = kv->stops;
		pthread_mutex_unlock(&kv->lock);
	}
	return NULL;
}

void kv_set_receiver(struct ne_kv *kv, bool is_waiter)
{
	struct epoll_event event = {.events = is_waiter ? 0 : EPOLLIN};

	kv->has_receiver = is_waiter;
	epoll_ctl(kv->poll, EPOLL_CTL_MOD, kv->lanes, &event);
}
