/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane.h - a lane: the stream socket between a member and an Aggregator, and the member's region beside it.
 *
 * A frame is a head of 48 bytes, and on TCP the payload behind it. On one host the payload stays in the member's region,
 * a memory file that the Aggregator maps: the socket is then the doorbell, the sleep and the notice of death.
 *
 *	region	| gradients, even iterations | gradients, odd iterations | results | kept, even | kept, odd |
 *
 * each in the order of chunks, every chunk on a cache line. Two areas of gradients are there with a server's optimizer
 * alone, since there an update may be repeated while the member goes on. What is kept is parameters and optimizer state of
 * every members-th chunk, which is nowhere else if the Aggregator dies; two, since one may be half written then.
 *
 * Where both ends agreed on it (agent/aggregator/door.py), each head is followed by a code of 8 bytes: SipHash-2-4 of the
 * head and of the number of heads before it, under a key of the handshake for this direction. So a head that was made up,
 * changed, dropped, repeated or put in another place ends the lane. Payload has no code.
 *
 * Payload is received straight into its place, and sent from its place: a lane copies nothing, and allocates only to
 * queue more frames than before. Everything here belongs to one thread.
 */
#ifndef FARSIDE_LANE_H
#define FARSIDE_LANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine.h"
#include "link.h"

/* ---------------------------------------------------------------------- region */

/* A model with its optimizer; larger ones would not fit a node's memory a few times over. */
#define NE_JOB_BYTES_MAX (1ull << 40)

/* Where a job's chunks are. Made by both ends from the same ne_job. */
struct layout {
	uint32_t members, chunks, rule;
	bool sum_only;
	uint32_t arrays;	/* float32 arrays of a chunk with a server's optimizer; 0: sum only */
	uint64_t *counts;	/* elements */
	uint64_t *offsets;	/* of a chunk within an area of gradients or results */
	uint64_t *masters;	/* of a chunk's first float32 array within a master; the others follow it */
	uint64_t *kept;		/* of a chunk within its keeper's area */
	uint8_t *dtypes, *groups;
	uint32_t group_count;
	uint64_t area_bytes;	/* of one area of gradients or results */
	uint64_t master_bytes;
	uint64_t kept_bytes[NE_MEMBERS_MAX];
};

/* Copies what it needs of the job. -EINVAL for anything outside of engine.h's limits, -ENOMEM. */
int layout_make(struct layout *layout, const struct ne_job *job);
void layout_free(struct layout *layout);

uint64_t layout_bytes(const struct layout *layout, uint32_t chunk);
uint32_t layout_keeper(const struct layout *layout, uint32_t chunk);
uint64_t layout_region_bytes(const struct layout *layout, uint32_t rank);
/* Offsets within a region. */
uint64_t layout_gradient(const struct layout *layout, uint32_t chunk, uint64_t iteration);
uint64_t layout_result(const struct layout *layout, uint32_t chunk);
/*
 * Parameters of a start, with a server's optimizer. Not where results are: an update that is broken off has written a
 * part of them. The gradients of `version` have this place, and are never needed.
 */
uint64_t layout_start(const struct layout *layout, uint32_t chunk, uint64_t version);
uint64_t layout_kept(const struct layout *layout, uint32_t chunk, uint64_t version);
/* Bytes of one array, and of what is kept of a chunk: all its arrays. */
uint64_t layout_array_bytes(const struct layout *layout, uint32_t chunk);
uint64_t layout_state_bytes(const struct layout *layout, uint32_t chunk);

/* ---------------------------------------------------------------------- frames */

#define FRAME_MAGIC 0x31415246u /* "FRA1" */

enum frame_kind {
	/* member */
	FRAME_HAVE = 1,		/* iteration: the version held; flags: FRAME_NOTHING, FRAME_KEEPS, FRAME_ANEW */
	FRAME_PUSH = 2,		/* iteration; payload: the gradient */
	FRAME_SEED = 3,		/* iteration: the version; payload: its state, or with sum only the result. On one host
				   it lies in the region, but for the state of a start, which has no place there */
	FRAME_HYPER = 4,	/* chunk: the group; iteration: from it on; payload: struct ne_hyper */
	FRAME_ASK = 5,		/* iteration: the version whose state is wanted */
	FRAME_PULL = 6,		/* hold: iteration: its result is wanted now */
	/* Aggregator */
	FRAME_RESULT = 16,	/* iteration: the version; payload: parameters, and for the keeper the state. None where
				   an update has just written them to the member's region */
	FRAME_MOVED = 17,	/* aux: the epoch of the owner that is told; status: its number */
	FRAME_WANT_HAVE = 18,
	FRAME_WANT_PUSH = 19,	/* iteration */
	FRAME_WANT_SEED = 20,	/* iteration: the version */
	FRAME_ERROR = 21,	/* status: errno; the lane ends behind it */
	FRAME_TAKEN = 23,	/* hold: iteration: the push is here */
	FRAME_STATE = 22,	/* iteration: the version; payload: all its arrays, on a lane of any kind */
	/* the owner to the next owner; epoch: the next owner's */
	FRAME_COPY = 32,	/* iteration: the version; payload: its state */
	/* the next owner to the owner */
	FRAME_LIFE = 33,	/* aux: names this process; the first frame of a lane */
	FRAME_COPIED = 34,	/* the copy is there, whole */
};

enum frame_flag {
	FRAME_NOTHING = 1,	/* HAVE: nothing is held */
	FRAME_KEEPS = 2,	/* HAVE: the optimizer's state, too; RESULT: the state is there */
	FRAME_ANEW = 4,		/* HAVE */
	FRAME_FIRST = 8,	/* SEED: parameters of a start, in their place; the state is zero */
	FRAME_LAST = 16,	/* RESULT: it has moved; aux and status as in MOVED */
	FRAME_ABSENT = 64,	/* PUSH: zeros, since the member has no gradient */
	FRAME_BEFORE = 32,	/* COPY: the version before the one that will follow */
};

/* Little-endian, as all hosts here are. */
struct frame {
	uint32_t magic;
	uint16_t kind, flags;
	uint32_t chunk;
	uint32_t bytes;		/* of the payload behind it */
	uint64_t iteration, epoch, aux;
	uint32_t status, reserved;
};

_Static_assert(sizeof(struct frame) == 48, "the wire's layout");

/* As on the wire; without codes the head alone is. */
struct coded_frame {
	struct frame frame;
	uint64_t code;
};

_Static_assert(sizeof(struct coded_frame) == 56, "a code stands behind its head");

enum {
	LANE_PARTS = 4,			/* of one payload: RESULT with its state is two */
	FRAME_PAYLOAD_MAX = 8 << 20,	/* a chunk with three arrays of float32 */
};

struct part {
	void *at;
	uint64_t bytes;
};

enum { LANE_COPY_BYTES = 64 };

/* What a fault rule has done to an item. */
enum lane_spoilt {
	LANE_SOUND = 0,
	LANE_CUT = 1,		/* the lane ends before it */
	LANE_HALF = 2,		/* half of it goes out, then the lane ends */
	LANE_STUCK = 3,		/* neither it nor what is behind it ever goes out */
};

struct lane_item {
	struct coded_frame head;
	struct part parts[LANE_PARTS];
	uint8_t spoilt;			/* enum lane_spoilt */
	uint32_t waits;			/* transfers by RDMA that must end before it goes out */
	uint8_t copy[LANE_COPY_BYTES];	/* payload of lane_put_copy, whose part has no address */
};

enum lane_hold {
	LANE_FLOWS = 0,
	LANE_HELD_HEAD = 1,	/* the payload's place is not known yet */
	LANE_HELD_FRAME = 2,	/* the frame is whole, and nobody can take it yet */
};

struct lane {
	int fd;
	bool is_shm;
	bool is_rdma;		/* gradients and results have a queue pair beside the lane; all else is sent inline */
	uint8_t hold;		/* enum lane_hold */
	/* Codes: keys of heads that go out and come in, and how many have. */
	bool is_coded;
	uint32_t head_bytes;	/* with its code */
	uint64_t out_key[2], in_key[2];
	uint64_t out_heads, in_heads;
	/* Coming in: bytes of the head, then of the payload, that are still to come. */
	struct coded_frame in;
	uint32_t head_left;
	struct part in_parts[LANE_PARTS];
	uint32_t in_part;
	uint8_t *buffer;
	uint32_t begin, end;
	/* Going out: a ring of [first, first + count). */
	struct lane_item *items;
	uint32_t size, first, count, limit;
	uint64_t taken;		/* items that have gone out: the number of the first one that has not */
	uint64_t sent;		/* bytes of the first item that have gone out */
	bool is_blocked;	/* the socket took less than there was: go on when it is writable */
	/*
	 * The owner's, or NULL. A frame that is put is an operation. NE_FAULT_ERROR: it is refused with -EIO; CORRUPT: a byte
	 * of its head is flipped; DELAY: the thread that puts it sleeps first; for the others see enum lane_spoilt.
	 */
	const struct ne_fault_rules *rules;
};

/*
 * What a lane's owner does with frames. place: says where the payload goes, by at most LANE_PARTS parts which together
 * have frame->bytes; -errno ends the lane. take: the frame is whole; -errno ends the lane. -EAGAIN of both: this frame,
 * and all behind it, wait for lane_resume().
 */
struct lane_owner {
	int (*place)(void *owner, const struct frame *frame, struct part parts[LANE_PARTS]);
	int (*take)(void *owner, const struct frame *frame);
};

/*
 * Takes the socket, which becomes non-blocking. keys: as ne_kv_attach()'s. limit: frames that may wait to go out; more:
 * -ENOBUFS.
 */
int lane_open(struct lane *lane, int fd, bool is_shm, const uint8_t *keys, uint32_t limit);
/* Whoever can change its traffic could make up frames. */
static inline bool lane_is_uncoded(const struct lane *lane)
{
	return !lane->is_shm && !lane->is_coded;
}
void lane_close(struct lane *lane);
/* The same, and the socket stays its caller's. */
void lane_abandon(struct lane *lane);
/*
 * Reads what is there, up to a bound that lets others have their turn. -EPIPE: the other end has closed it; -EPROTO: no
 * frame; -EBADMSG: one whose code is not the other end's; -EAGAIN: a frame waits, and nothing is read before lane_resume().
 */
int lane_receive(struct lane *lane, const struct lane_owner *calls, void *owner);
/* Gives the frame that waits once more, then those behind it. Answers as lane_receive(). */
int lane_resume(struct lane *lane, const struct lane_owner *calls, void *owner);
/* Queues a frame; its payload, if any, stays in place until it has gone out. */
int lane_put(struct lane *lane, const struct frame *frame, const struct part *parts, uint32_t count);
/* The same with a copy of the payload, at most LANE_COPY_BYTES. */
int lane_put_copy(struct lane *lane, const struct frame *frame, const void *payload, uint32_t bytes);
/* The item that was put last waits for so many transfers, and with it all behind it; returns the item's number. */
uint64_t lane_wait(struct lane *lane, uint32_t transfers);
/* One of them has ended. */
void lane_go_on(struct lane *lane, uint64_t item);
/* Sends what the socket takes, up to an item that waits. 1: more is left, ask again when it is writable; 0: all has gone out. */
int lane_send(struct lane *lane);

#endif
