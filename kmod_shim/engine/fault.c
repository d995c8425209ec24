/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault.c - fault injection: a link in front of another that spoils some of its operations, as nbdkit's filters do.
 *
 * With no rule set an operation is only handed on, and with no spoilt one under way poll() is the inner link's. An
 * operation that a rule hits goes one of these ways (several rules can hit one operation; the first that applies wins,
 * and DELAY adds to any that completes):
 *
 *	DISCONNECT	the link is killed with -ECONNRESET; post() answers -ENOTCONN
 *	HANG		it stays on `hung` until the link dies
 *	ERROR		it goes to `ready` with -EIO and is not handed on
 *	SHORT		a stand-in for its first half is handed on; when that is done the link is killed
 *	CORRUPT		READ: a stand-in; one byte of its buffer is flipped at the end. WRITE: a stand-in that sends a
 *			private copy with one byte flipped, because the poster may be sending the same buffer elsewhere
 *	DELAY		a stand-in is handed on; its end is told no sooner than posted_ns + delay
 *
 * A stand-in is an ne_io of ours in `spoils`, made at the first hit: links in good health carry none of that memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "clock.h"
#include "link.h"

enum {
	SPOILS = 256, /* stand-ins at once; more wait (-EAGAIN) */
	COPIES = 8,   /* WRITEs being corrupted at once */
	COPY_BYTES = NE_CLUSTER_BYTES,
	FLIP = 0x10,
};

struct spoil {
	struct ne_io standin;
	struct ne_io *io; /* the poster's; NULL when this place is free */
	uint64_t due_ns;  /* not to be told sooner; 0 at once */
	bool done, is_short, flips;
	uint8_t *copy;
};

struct spoils {
	struct spoil spoil[SPOILS];
	uint8_t copies[COPIES][COPY_BYTES];
	bool copy_taken[COPIES];
};

struct fault {
	struct ne_link link;
	struct ne_link *inner;
	const struct ne_fault_rules *rules;
	struct spoils *spoils; /* NULL until something is spoilt */
	uint32_t spoilt;       /* stand-ins in use */
	struct ne_io *hung;
	struct ne_io *ready, **ready_last; /* status is set; to be given back */
	uint32_t kept;			   /* on hung and ready */
	int err;			   /* negative once killed */
};

static struct fault *to_fault(const struct ne_link *link)
{
	return (struct fault *)link;
}

static void make_ready(struct fault *fault, struct ne_io *io, int32_t status)
{
	io->status = status;
	io->next = NULL;
	*fault->ready_last = io;
	fault->ready_last = &io->next;
	fault->kept++;
}

/* --- the dice */

static uint32_t rule_every(const struct fault *fault, enum ne_fault kind)
{
	return atomic_load_explicit(&fault->rules->every[kind], memory_order_relaxed);
}

static bool has_rules(const struct fault *fault)
{
	uint32_t any = 0;

	for (int kind = 0; kind < NE_FAULT_KINDS; kind++)
		any |= rule_every(fault, kind);
	return any;
}

/* A bit for each kind whose rule this operation hits. Every rule counts every operation. */
static uint32_t roll(struct fault *fault)
{
	uint32_t hits = 0;

	for (int kind = 0; kind < NE_FAULT_KINDS; kind++)
		hits |= (uint32_t)ne_fault_is_hit(fault->rules, kind) << kind;
	return hits;
}

/* --- stand-ins */

/* The stand-in that this is, or NULL for an operation of the poster's. */
static struct spoil *to_spoil(const struct fault *fault, struct ne_io *io)
{
	uintptr_t from = fault->spoils ? (uintptr_t)fault->spoils->spoil : 0;

	if (!from || (uintptr_t)io - from >= sizeof(fault->spoils->spoil))
		return NULL;
	return (struct spoil *)io; /* its first member */
}

static struct spoil *free_spoil(struct fault *fault)
{
	for (int i = 0; i < SPOILS; i++)
		if (!fault->spoils->spoil[i].io)
			return &fault->spoils->spoil[i];
	return NULL;
}

static int free_copy(const struct fault *fault)
{
	for (int i = 0; i < COPIES; i++)
		if (!fault->spoils->copy_taken[i])
			return i;
	return -1;
}

/* False when an operation that a rule hits could not be taken now; asked before the dice, so that no hit is lost. */
static bool has_room(struct fault *fault, const struct ne_io *io)
{
	if (!fault->spoils)
		fault->spoils = ne_zeros(sizeof(struct spoils));
	if (!fault->spoils || fault->spoilt == SPOILS)
		return false;
	return io->op == NE_IO_READ || !rule_every(fault, NE_FAULT_CORRUPT) || free_copy(fault) >= 0;
}

static void release(struct fault *fault, struct spoil *spoil)
{
	if (spoil->copy)
		fault->spoils->copy_taken[(spoil->copy - fault->spoils->copies[0]) / COPY_BYTES] = false;
	spoil->io = NULL;
	fault->spoilt--;
}

static int post_standin(struct fault *fault, struct ne_io *io, uint32_t hits)
{
	struct spoil *spoil = free_spoil(fault);
	uint32_t delay_us = atomic_load_explicit(&fault->rules->delay_us, memory_order_relaxed);
	bool corrupts = (hits & 1u << NE_FAULT_CORRUPT) && !(hits & 1u << NE_FAULT_SHORT);
	int err;

	*spoil = (struct spoil){.standin = *io, .io = io};
	if (hits & 1u << NE_FAULT_DELAY)
		spoil->due_ns = io->posted_ns + 1000ull * delay_us;
	if (hits & 1u << NE_FAULT_SHORT) {
		spoil->is_short = true;
		spoil->standin.length = io->length / 2;
	}
	fault->spoilt++;
	if (corrupts && io->op == NE_IO_READ) {
		spoil->flips = true;
	} else if (corrupts) {
		int copy = free_copy(fault);

		fault->spoils->copy_taken[copy] = true;
		spoil->copy = fault->spoils->copies[copy];
		memcpy(spoil->copy, io->buf, io->length);
		spoil->copy[io->length / 2] ^= FLIP;
		spoil->standin.buf = spoil->copy;
	}
	err = fault->inner->ops->post(fault->inner, &spoil->standin);
	if (err)
		release(fault, spoil);
	return err;
}

/* --- the end of the link */

/* Everything not given back yet becomes ready with the link's error. The inner link must be dead and empty. */
static void fail_kept(struct fault *fault)
{
	for (struct ne_io *io = fault->ready; io; io = io->next)
		io->status = fault->err;
	while (fault->hung) {
		struct ne_io *io = fault->hung;

		fault->hung = io->next;
		fault->kept--;
		make_ready(fault, io, fault->err);
	}
	for (int i = 0; fault->spoilt && i < SPOILS; i++) {
		struct spoil *spoil = &fault->spoils->spoil[i];

		if (spoil->io) {
			make_ready(fault, spoil->io, fault->err);
			release(fault, spoil);
		}
	}
}

static void fault_kill(struct ne_link *link, int err)
{
	struct fault *fault = to_fault(link);
	struct ne_io *done[32];
	int got;

	if (fault->err)
		return;
	fault->err = -abs(err);
	fault->inner->ops->kill(fault->inner, err);
	while ((got = fault->inner->ops->poll(fault->inner, done, 32)) > 0) {
		/* Stand-ins are failed below, with those that were done and delayed. */
		for (int i = 0; i < got; i++)
			if (!to_spoil(fault, done[i]))
				make_ready(fault, done[i], fault->err);
	}
	fail_kept(fault);
}

/* --- ops */

static int fault_post(struct ne_link *link, struct ne_io *io)
{
	struct fault *fault = to_fault(link);
	uint32_t hits;

	if (fault->err)
		return -ENOTCONN;
	if (!has_rules(fault))
		return fault->inner->ops->post(fault->inner, io);
	if (!has_room(fault, io))
		return -EAGAIN;
	hits = roll(fault);
	if (!hits)
		return fault->inner->ops->post(fault->inner, io);
	if (hits & 1u << NE_FAULT_DISCONNECT) {
		fault_kill(link, ECONNRESET);
		return -ENOTCONN;
	}
	if (hits & 1u << NE_FAULT_HANG) {
		io->next = fault->hung;
		fault->hung = io;
		fault->kept++;
		return 0;
	}
	if (hits & 1u << NE_FAULT_ERROR) {
		make_ready(fault, io, -EIO);
		return 0;
	}
	return post_standin(fault, io, hits);
}

static void fault_submit(struct ne_link *link)
{
	struct ne_link *inner = to_fault(link)->inner;

	inner->ops->submit(inner);
}

/* True when the inner link's operation is one of ours and has been noted; false when it is the poster's own. */
static bool note_done(struct fault *fault, struct ne_io *io)
{
	struct spoil *spoil = to_spoil(fault, io);

	if (!spoil)
		return false;
	spoil->done = true;
	if (spoil->flips && io->status == 0)
		((uint8_t *)io->buf)[io->length / 2] ^= FLIP;
	return true;
}

/* Makes ready what is done and due. A short operation's end is the link's end. */
static void settle(struct fault *fault)
{
	uint64_t now = now_ns();

	for (int i = 0; fault->spoilt && i < SPOILS; i++) {
		struct spoil *spoil = &fault->spoils->spoil[i];

		if (!spoil->io || !spoil->done || spoil->due_ns > now)
			continue;
		if (spoil->is_short) {
			fault_kill(&fault->link, ECONNRESET);
			return;
		}
		make_ready(fault, spoil->io, spoil->standin.status);
		release(fault, spoil);
	}
}

static int give_back(struct fault *fault, struct ne_io **done, int max)
{
	int count = 0;

	for (; fault->ready && count < max; fault->kept--) {
		done[count++] = fault->ready;
		fault->ready = fault->ready->next;
	}
	if (!fault->ready)
		fault->ready_last = &fault->ready;
	return count;
}

static int fault_poll(struct ne_link *link, struct ne_io **done, int max)
{
	struct fault *fault = to_fault(link);
	int count = 0;

	if (!fault->err) {
		int got = fault->inner->ops->poll(fault->inner, done, max);

		for (int i = 0; i < got; i++)
			if (!note_done(fault, done[i]))
				done[count++] = done[i];
		if (fault->spoilt)
			settle(fault);
		if (!fault->err && !fault->inner->ops->alive(fault->inner))
			fault_kill(link, ECONNRESET);
	}
	return count + give_back(fault, done + count, max - count);
}

static uint32_t fault_outstanding(const struct ne_link *link)
{
	const struct fault *fault = to_fault(link);
	uint32_t delayed = 0;

	/* Stand-ins that are not done are the inner link's, too. */
	for (int i = 0; fault->spoilt && i < SPOILS; i++)
		delayed += fault->spoils->spoil[i].io && fault->spoils->spoil[i].done;
	return fault->inner->ops->outstanding(fault->inner) + fault->kept + delayed;
}

static int fault_wait(const struct ne_link *link, short *events, uint64_t *timeout_ns)
{
	const struct fault *fault = to_fault(link);
	int fd = fault->inner->ops->wait(fault->inner, events, timeout_ns);
	uint64_t now = fault->spoilt ? now_ns() : 0;

	for (int i = 0; fault->spoilt && i < SPOILS; i++) {
		const struct spoil *spoil = &fault->spoils->spoil[i];
		uint64_t left = spoil->due_ns > now ? spoil->due_ns - now : 0;

		if (spoil->io && spoil->done && left < *timeout_ns)
			*timeout_ns = left;
	}
	if (fault->ready)
		*timeout_ns = 0;
	return fd;
}

static bool fault_alive(const struct ne_link *link)
{
	const struct fault *fault = to_fault(link);

	return !fault->err && fault->inner->ops->alive(fault->inner);
}

static void fault_destroy(struct ne_link *link)
{
	struct fault *fault = to_fault(link);

	fault->inner->ops->destroy(fault->inner);
	if (fault->spoils)
		munmap(fault->spoils, sizeof(*fault->spoils));
	free(fault);
}

static const struct ne_link_ops fault_ops = {
	.post = fault_post,
	.submit = fault_submit,
	.poll = fault_poll,
	.outstanding = fault_outstanding,
	.wait = fault_wait,
	.kill = fault_kill,
	.alive = fault_alive,
	.destroy = fault_destroy,
};

int ne_fault_create(struct ne_link *inner, const struct ne_fault_rules *rules, struct ne_link **ret)
{
	struct fault *fault = calloc(1, sizeof(*fault));

	if (!fault)
		return -ENOMEM;
	fault->link = (struct ne_link){.ops = &fault_ops, .asks_kernel = inner->asks_kernel};
	fault->inner = inner;
	fault->rules = rules;
	fault->ready_last = &fault->ready;
	*ret = &fault->link;
	return 0;
}
