/* SPDX-License-Identifier: Apache-2.0 */
/*
 * aggregator_rdma.c - gradients and results by RDMA: an Aggregator reads and writes members' regions on other hosts.
 *
 *	PUSH, without payload	READ of the gradient	then what a PUSH with payload does
 *	RESULT			WRITE of the result and, for its keeper, of the state; a READ behind it; then RESULT,
 *				without payload
 *
 * The lane (lane.h) stays what tells, and what ends: nothing is found out by looking at memory. Frames keep their
 *order, in both directions: one behind a push waits until its gradient is here, one behind a result until that is
 *there. The READ behind a WRITE has its answer only when the WRITE can be seen by the member's processor.
 *
 * Where gradients go is as for members by TCP, and counts in the job's memory as there. A transfer that fails ends the
 * lane, whose next one begins as any other. A queue pair ends with its lane: nothing that it still does reaches memory
 *of another.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "aggregator.h"
#include "clock.h"

enum {
	PUSHES_MAX = 128, /* that are read at once; a lane with more waits */
	PROBE_BYTES = 8,
	DONE = 64, /* taken in one call */
};

struct transfer {
	struct ne_io io;
	struct transfer *next;	   /* in `posts`, `pushes` or `free` */
	struct transfer *next_all; /* in `all` */
	bool is_push, is_done;
	struct frame frame; /* a push */
	uint64_t item;	    /* a result: of the lane, which waits for it */
};

/* First in, first out. */
struct queue {
	struct transfer *first, **last;
};

struct rdma {
	struct ne_link *link;
	uint64_t token;
	struct transfer *all, *free;
	struct queue posts;  /* that the link has not taken */
	struct queue pushes; /* in the order in which they came */
	uint32_t reading;
	bool waits;   /* a frame waits for pushes */
	bool is_told; /* its descriptor is ready */
	int watched;  /* descriptor; -1: none */
	uint8_t probe[PROBE_BYTES];
};

static void append(struct queue *queue, struct transfer *transfer)
{
	transfer->next = NULL;
	*queue->last = transfer;
	queue->last = &transfer->next;
}

static struct transfer *take_first(struct queue *queue)
{
	struct transfer *first = queue->first;

	queue->first = first->next;
	if (!queue->first)
		queue->last = &queue->first;
	return first;
}

/* NULL: no memory. */
static struct transfer *make(struct rdma *rdma, enum ne_io_op op, uint64_t offset, void *at, uint64_t bytes)
{
	struct transfer *made = rdma->free;

	if (made) {
		rdma->free = made->next;
	} else {
		made = malloc(sizeof(*made));
		if (!made)
			return NULL;
		made->next_all = rdma->all;
		rdma->all = made;
	}
	made->is_push = made->is_done = false;
	made->io = (struct ne_io){.op = op,
				  .length = bytes,
				  .lease = NE_REGION_LEASE,
				  .token = rdma->token,
				  .offset = offset,
				  .buf = at,
				  .owner = made};
	return made;
}

static void give_back(struct rdma *rdma, struct transfer *transfer)
{
	transfer->next = rdma->free;
	rdma->free = transfer;
}

/* ------------------------------------------------------------------------ ends */

int rdma_begin(struct server *a, const struct ne_lane *lane, struct rdma **ret)
{
	struct rdma *rdma = calloc(1, sizeof(*rdma));
	struct ne_link *spoilt;

	if (!rdma || ne_fault_create(lane->link, a->rules, &spoilt)) {
		free(rdma);
		lane->link->ops->destroy(lane->link);
		return -ENOMEM;
	}
	rdma->link = spoilt;
	rdma->token = lane->token;
	rdma->watched = -1;
	rdma->posts.last = &rdma->posts.first;
	rdma->pushes.last = &rdma->pushes.first;
	a->rdmas++;
	*ret = rdma;
	return 0;
}

void rdma_end(struct server *a, struct rdma *rdma)
{
	struct transfer *next;

	if (rdma->watched >= 0)
		epoll_ctl(a->poll, EPOLL_CTL_DEL, rdma->watched, NULL);
	/* No transfer's memory is touched any more. */
	rdma->link->ops->kill(rdma->link, ECANCELED);
	rdma->link->ops->destroy(rdma->link);
	for (struct transfer *one = rdma->all; one; one = next) {
		next = one->next_all;
		free(one);
	}
	free(rdma);
	a->rdmas--;
}

int ne_link_probe(struct ne_link *link, uint32_t lease, uint64_t token, uint32_t limit_ms)
{
	uint64_t deadline_ns = now_ns() + limit_ms * 1000000ull;
	uint8_t bytes[PROBE_BYTES];
	struct ne_io io = {.op = NE_IO_READ, .length = sizeof(bytes), .lease = lease, .token = token, .buf = bytes};
	struct ne_io *done = NULL;
	int err = link->ops->post(link, &io);

	if (err)
		return err;
	link->ops->submit(link);
	while (!link->ops->poll(link, &done, 1)) {
		struct pollfd ready = {0};
		uint64_t now = now_ns(), timeout_ns;

		if (now >= deadline_ns)
			link->ops->kill(link, ETIMEDOUT);
		ready.fd = link->ops->wait(link, &ready.events, &timeout_ns);
		if (now < deadline_ns && timeout_ns)
			poll(&ready, 1, (int)((deadline_ns - now) / 1000000) + 1);
	}
	return io.status;
}

/* ---------------------------------------------------------------------- pushes */

int rdma_take_push(struct source *s, const struct frame *frame)
{
	struct job *job = s->job;
	struct rdma *rdma = job->member[s->rank].rdma;
	const struct ne_chunk *state = &job->states[frame->chunk];
	uint8_t *to = pushed(job, s->rank, frame->chunk, frame->iteration);
	struct transfer *made;

	/* For a plan it waits as other frames do. */
	rdma->waits = false;
	if (ne_chunk_is_early(state, frame->epoch))
		return -EAGAIN;
	rdma->waits = rdma->reading == PUSHES_MAX;
	if (rdma->waits)
		return -EAGAIN;
	/* Nobody's memory is taken for what is not here. */
	if (state->state == NE_CHUNK_GONE)
		to = s->aggregator->scratch;
	made = make(rdma, NE_IO_READ, layout_gradient(&job->layout, frame->chunk, frame->iteration), to,
		    layout_bytes(&job->layout, frame->chunk));
	if (!made)
		return -ENOMEM;
	made->is_push = true;
	made->frame = *frame;
	rdma->reading++;
	append(&rdma->posts, made);
	return 0;
}

bool rdma_must_wait(struct rdma *rdma)
{
	rdma->waits = rdma->reading != 0;
	return rdma->waits;
}

bool rdma_may_go_on(struct rdma *rdma)
{
	return rdma->waits && !rdma->reading;
}

bool rdma_is_reading(const struct rdma *rdma)
{
	return rdma->reading != 0;
}

/* --------------------------------------------------------------------- results */

static uint32_t pieces_of(uint64_t bytes)
{
	return (bytes + NE_CLUSTER_BYTES - 1) / NE_CLUSTER_BYTES;
}

static bool write_part(struct rdma *rdma, uint64_t item, uint64_t offset, const struct part *part)
{
	for (uint64_t at = 0; at < part->bytes; at += NE_CLUSTER_BYTES) {
		uint64_t left = part->bytes - at;
		struct transfer *made = make(rdma, NE_IO_WRITE, offset + at, (uint8_t *)part->at + at,
					     left < NE_CLUSTER_BYTES ? left : NE_CLUSTER_BYTES);

		if (!made)
			return false;
		made->item = item;
		append(&rdma->posts, made);
	}
	return true;
}

void rdma_put_result(struct job *job, uint32_t rank, uint32_t chunk, struct frame frame, const struct part *parts,
		     uint32_t count)
{
	const struct layout *layout = &job->layout;
	struct member *member = &job->member[rank];
	struct rdma *rdma = member->rdma;
	struct transfer *behind;
	uint64_t item;
	bool is_whole;

	if (!put(job, rank, chunk, frame, NULL, 0))
		return;
	item = lane_wait(&member->lane, pieces_of(parts[0].bytes) + (count == 2 ? pieces_of(parts[1].bytes) : 0) + 1);
	is_whole = write_part(rdma, item, layout_result(layout, chunk), &parts[0]);
	if (count == 2)
		is_whole = is_whole && write_part(rdma, item, layout_kept(layout, chunk, frame.iteration), &parts[1]);
	/* The region begins with gradients, and no chunk is smaller than an element: there is something to read. */
	behind = is_whole ? make(rdma, NE_IO_READ, 0, rdma->probe,
				 layout_bytes(layout, 0) < PROBE_BYTES ? layout_bytes(layout, 0) : PROBE_BYTES)
			  : NULL;
	if (!behind) {
		rdma->link->ops->kill(rdma->link, ENOMEM);
		return;
	}
	behind->item = item;
	append(&rdma->posts, behind);
}

/* ------------------------------------------------------------------------ link */

void rdma_tell(struct rdma *rdma)
{
	rdma->is_told = true;
}

/* Pushes that are here are taken in their order. */
static int take_pushes(struct source *s, struct rdma *rdma)
{
	while (rdma->pushes.first && rdma->pushes.first->is_done) {
		struct transfer *push = take_first(&rdma->pushes);
		int err = take_push(s, &push->frame);

		rdma->reading--;
		give_back(rdma, push);
		if (err)
			return err;
	}
	return 0;
}

void rdma_poll(struct server *a, struct job *job, uint32_t rank)
{
	struct rdma *rdma = job->member[rank].rdma;
	struct source s = {a, job, rank};
	struct ne_io *done[DONE];
	int count, err = 0;

	if (!rdma->is_told && !rdma->link->ops->outstanding(rdma->link))
		return;
	rdma->is_told = false;
	do {
		count = rdma->link->ops->poll(rdma->link, done, DONE);
		for (int i = 0; i < count; i++) {
			struct transfer *one = done[i]->owner;

			if (done[i]->status < 0) {
				err = done[i]->status;
			} else if (one->is_push) {
				one->is_done = true;
			} else {
				lane_go_on(&job->member[rank].lane, one->item);
				give_back(rdma, one);
			}
		}
	} while (count == DONE && !err);
	if (!err)
		err = take_pushes(&s, rdma);
	if (err || !rdma->link->ops->alive(rdma->link))
		end_lane(a, job, rank, err ? err : -ECONNRESET);
}

/* What the link says it is to be told by changes, and may be nothing. */
static void watch(struct server *a, struct job *job, uint32_t rank, int fd)
{
	struct rdma *rdma = job->member[rank].rdma;
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = member_tag(job, rank) | RDMA_TAG};

	if (fd == rdma->watched)
		return;
	if (rdma->watched >= 0)
		epoll_ctl(a->poll, EPOLL_CTL_DEL, rdma->watched, NULL);
	rdma->watched = fd;
	if (fd >= 0)
		epoll_ctl(a->poll, EPOLL_CTL_ADD, fd, &event);
}

int rdma_submit(struct server *a, struct job *job, uint32_t rank)
{
	struct rdma *rdma = job->member[rank].rdma;
	struct ne_link *link = rdma->link;
	uint64_t timeout_ns;
	short events;

	while (rdma->posts.first && !link->ops->post(link, &rdma->posts.first->io)) {
		struct transfer *one = take_first(&rdma->posts);

		if (one->is_push)
			append(&rdma->pushes, one);
	}
	link->ops->submit(link);
	watch(a, job, rank, link->ops->wait(link, &events, &timeout_ns));
	if (!link->ops->alive(link)) {
		/* With something under way the next look has its error. */
		if (!link->ops->outstanding(link))
			end_lane(a, job, rank, -ECONNRESET);
		return 0;
	}
	if (timeout_ns == UINT64_MAX)
		return -1;
	return timeout_ns < 1000000000 ? (int)((timeout_ns + 999999) / 1000000) : 1000;
}
