/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - the file through which a job's processes tell the agent what they send, and what writes to it.
 *
 * How it works
 *   The agent makes one file a task, whole and with all its pages, and names it in FARSIDE_PROFILE. Each process that
 *   starts with this library preloaded maps it. A thread that sends something of a size takes a lane of its own there,
 *   and from then on writes each message into it: no lock, no allocation, no system call. The newest RING_EVENTS of a
 *   lane are there, whatever becomes of the process.
 *
 *       0      struct ring_head                     written by the agent, counted in by processes
 *       2048   struct ring_lane[RING_LANES]         who has the lane, and how many messages it has had
 *       4096   RING_EVENTS events of each lane
 *
 *   A reader copies the lanes and believes all events before `head` but the oldest, which may just be overwritten.
 *   agent/profile/ring.py reads it. Layouts change with RING_VERSION only.
 *
 * Guarantees
 *   A job is never broken or slowed by a file that is missing, damaged, full or of another version: nothing is recorded
 *   then. Nothing is written to its standard error. `errno` is as the real function left it.
 */
#ifndef FARSIDE_PROFILE_RING_H
#define FARSIDE_PROFILE_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RING_MAGIC	 0x464f525045444953ull /* little-endian "SIDEPROF" */
#define RING_VERSION	 1
#define RING_LANES	 32
#define RING_EVENTS	 8192 /* a power of two: three iterations of ResNet152 to three servers */
#define RING_LANES_AT	 2048
#define RING_EVENTS_AT	 4096
#define RING_BYTES	 (RING_EVENTS_AT + sizeof(struct ring_event) * RING_EVENTS * RING_LANES)
#define RING_FIRST_BYTES 1024 /* a thread that only ever sends less takes no lane: shells, name look-ups, heartbeats \
			       */

/* Why a process that has the file records nothing, or not all: bits of ring_head.problems. */
#define RING_NO_WIPE	  1u /* a fork can't be told (Linux before 4.14) */
#define RING_VERBS_UNSEEN 2u /* more RDMA devices or queue pairs than there are places for */
#define RING_FDS_UNSEEN	  4u /* descriptors above the table */

struct ring_head {
	uint64_t magic;
	uint32_t version;
	uint32_t lanes;
	uint32_t events;
	uint32_t reserved;
	_Atomic uint32_t attached; /* processes that have mapped it */
	_Atomic uint32_t claimed;  /* lanes that were asked for; more than RING_LANES: some threads got none */
	_Atomic uint32_t problems;
	uint32_t padding;
};

struct ring_lane {
	_Atomic uint32_t pid; /* in the namespace of the process; 0: nobody has had it */
	_Atomic uint32_t state;
	_Atomic uint64_t born_ns; /* pid and this are a process */
	_Atomic uint64_t head;	  /* messages so far; the next goes to head % RING_EVENTS */
	_Atomic uint64_t bytes;
	uint64_t padding[4];
};

enum ring_lane_state {
	LANE_FREE,
	LANE_TAKEN,
	LANE_IDLE, /* its thread has ended; another of the same process may go on with it */
};

struct ring_event {
	_Atomic uint64_t at_ns; /* CLOCK_MONOTONIC, when the call had returned */
	_Atomic uint64_t word;	/* EVENT_... */
};

#define EVENT_FLOW_BITS	 16
#define EVENT_INCOMPLETE (1ull << 16) /* less was taken than was asked for: the next message of the flow goes on */
#define EVENT_READ	 (1ull << 17) /* an RDMA read: the bytes come to this process */
#define EVENT_BYTES_AT	 20

#define FLOW_UNKNOWN	 0	 /* of a descriptor: not looked at yet */
#define FLOW_NONE	 0xffff	 /* of a descriptor: no socket of a network */
#define FLOW_VERBS	 0x8000u /* with the low bits of a queue pair's number */
#define FLOW_MAX	 0x7ffeu /* of a socket, from 1 */

/* Where this process writes; NULL: nowhere. Set once, before main. */
extern struct ring_head *ring;

/* Writes one message into this thread's lane. Any thread, any time; async-signal-safe but for a thread's first. */
void ring_note(uint16_t flow, uint64_t bytes, uint64_t flags);

/* Tells the agent, in ring_head.problems. */
void ring_problem(uint32_t bit);

/* Bytes in all parts of one message; `length` is the field of a part that has its own. */
#define TOTAL_BYTES(parts, count, length)                                      \
	({                                                                     \
		uint64_t total = 0;                                            \
                                                                               \
		for (__typeof__((count) + 0) part = 0; part < (count); part++) \
			total += (parts)[part].length;                         \
		total;                                                         \
	})

#define EXPORT __attribute__((visibility("default")))

#endif
