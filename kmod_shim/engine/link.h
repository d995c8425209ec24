/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.h - link of a worker to one donor, or to the disk: the ops table of the transports.
 *
 * A link belongs to one thread; nothing here is locked. Operations are posted, handed to the wire by submit(), and
 * come back from poll() in any order. A link that fails gives every operation it holds back through poll() with a
 * negative status, once, and is dead from then on: post() answers -ENOTCONN. It never frees itself, never exits, and
 * never touches an io again after giving it back.
 *
 *   shm.c    the donor's slab is mapped here: an operation is a copy, complete when poll() is called
 *   tcp.c    pipelined requests on a socket (wire.h)
 *   fault.c  stands before another link and spoils some operations (enum ne_fault)
 *   verbs.c  one-sided RDMA on a queue pair of its own (verbs.h)
 */
#ifndef FARSIDE_LINK_H
#define FARSIDE_LINK_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "engine.h"

struct ne_link;

enum ne_io_op { NE_IO_READ = 1, NE_IO_WRITE = 2 };

/* One operation on one slab. The poster owns it, and leaves it alone from post() until poll() gives it back. */
struct ne_io {
	uint8_t op;			/* enum ne_io_op */
	int32_t status;			/* set when given back: 0 or -errno */
	uint32_t length;		/* bytes, at most NE_CLUSTER_BYTES */
	uint32_t lease;
	uint64_t token;
	uint64_t offset;		/* bytes from the slab's start */
	void *buf;			/* inside the worker's arena */
	void *base;			/* the slab's memory where it is mapped here, else NULL */
	uint64_t posted_ns;		/* CLOCK_MONOTONIC, set by the poster */
	struct ne_io *next;		/* the link's own chain */
	void *owner;			/* the poster's */
};

struct ne_link_ops {
	/* Takes the io, or -EAGAIN (too many outstanding: poll first), or -ENOTCONN. */
	int (*post)(struct ne_link *link, struct ne_io *io);
	/* Hands what was posted to the wire as far as it goes without blocking. */
	void (*submit)(struct ne_link *link);
	/* Up to max finished operations into done[]; returns how many. Never blocks. */
	int (*poll)(struct ne_link *link, struct ne_io **done, int max);
	/* Operations posted and not given back yet. */
	uint32_t (*outstanding)(const struct ne_link *link);
	/*
	 * The fd to sleep on and the poll(2) events wanted now, or -1 when there is none. *timeout_ns is always set: poll()
	 * has something at the latest so many nanoseconds from now (0 now, UINT64_MAX never by itself). POLLOUT: submit().
	 */
	int (*wait)(const struct ne_link *link, short *events, uint64_t *timeout_ns);
	/* Fails everything outstanding with -errno (nothing of it may land in io->buf afterwards) and kills the link. */
	void (*kill)(struct ne_link *link, int err);
	bool (*alive)(const struct ne_link *link);
	/* Frees the link. Everything has been given back, or is forgotten by its owner. */
	void (*destroy)(struct ne_link *link);
	/* True when io->base may be read and written directly by the worker, with no io at all. */
	bool direct;
};

struct ne_link {
	const struct ne_link_ops *ops;
	/* True when poll() is a system call, worth saving until wait()'s fd is ready; false when it only looks at memory. */
	bool asks_kernel;
};

/* What a worker lets its links and its disk register once: every io->buf lies in here. */
struct ne_arena { void *base; uint64_t bytes; };

int ne_shm_create(struct ne_link **ret);
/* keys: NE_WIRE_KEYS_BYTES of a connection with codes (wire.h), or NULL. */
int ne_tcp_create(int sock, const uint8_t *keys, struct ne_link **ret);

/* Rules shared by all threads, changed at any time by the control thread (plain atomics inside). */
struct ne_fault_rules {
	_Atomic uint32_t every[NE_FAULT_KINDS];
	_Atomic uint32_t delay_us;
	_Atomic uint32_t count[NE_FAULT_KINDS];
};
/* True for one operation in rules->every[kind]. Rules are only read; the counts beside them are written by all threads. */
static inline bool ne_fault_is_hit(const struct ne_fault_rules *rules, enum ne_fault kind)
{
	uint32_t every = atomic_load_explicit(&rules->every[kind], memory_order_relaxed);
	_Atomic uint32_t *count = (_Atomic uint32_t *)&rules->count[kind];

	return every && (atomic_fetch_add_explicit(count, 1, memory_order_relaxed) + 1) % every == 0;
}

static inline void ne_fault_rules_set(struct ne_fault_rules *rules, uint32_t kind, uint32_t every, uint32_t delay_us)
{
	if (kind == NE_FAULT_DELAY)
		atomic_store(&rules->delay_us, delay_us);
	atomic_store(&rules->count[kind], 0);
	atomic_store(&rules->every[kind], every);
}

/* Owns inner from here on. With no rule set it passes everything through (and is not `direct`). */
int ne_fault_create(struct ne_link *inner, const struct ne_fault_rules *rules, struct ne_link **ret);

/* --------------------------------------------------------------- the disk: one ring a thread */

struct ne_disk;

/* A disk operation; the same ownership rule as ne_io. buf and offset are multiples of NE_PAGE_BYTES. */
struct ne_dio {
	uint8_t op;			/* enum ne_io_op */
	int32_t status;			/* 0 or -errno (a short transfer is -EIO) */
	uint32_t length;		/* a multiple of NE_PAGE_BYTES, at most 1 MiB */
	uint64_t offset;
	void *buf;
	uint64_t posted_ns;
	struct ne_dio *next;
	void *owner;
};

/*
 * key: 64 bytes for AES-256-XTS (the tweak is the page number), or NULL. depth: operations at once, the rest queue
 * inside. Opens its own io_uring over a description of its own of fd (borrowed). arena is registered as fixed buffers where limits allow.
 */
int ne_disk_create(int fd, uint32_t depth, const uint8_t *key, const struct ne_arena *arena,
		   const struct ne_fault_rules *rules, struct ne_disk **ret);
/*
 * Waits until nobody else, and no operation left by a process that is gone, uses the file: what they still write would
 * come on top of what we write. -ETIMEDOUT after limit_ms.
 */
int ne_disk_settle(int fd, uint32_t limit_ms);
/*
 * Has in memory what `slots` operations of 128 KiB, the kernel's largest, write their ciphertext to, and runs no more than
 * so many at once from now on. From any thread. -ENOMEM; -EINVAL where the kernel has no MADV_POPULATE_WRITE.
 */
int ne_disk_prefault(struct ne_disk *disk, uint32_t slots);
void ne_disk_destroy(struct ne_disk *disk);	/* waits for what is in flight; NULL is fine */
void ne_disk_post(struct ne_disk *disk, struct ne_dio *dio);	/* always takes it */
void ne_disk_submit(struct ne_disk *disk);
int ne_disk_poll(struct ne_disk *disk, struct ne_dio **done, int max);
uint32_t ne_disk_outstanding(const struct ne_disk *disk);
bool ne_disk_queued(const struct ne_disk *disk);	/* something waits until poll() has seen the end of others */
bool ne_disk_unsubmitted(const struct ne_disk *disk);	/* the kernel has not taken all of it: submit again, soon */
int ne_disk_wait_fd(const struct ne_disk *disk);	/* readable when poll() has something (POLLIN) */

/* --------------------------------------------------------------- bytes */

/* Private memory, all zero and not there before it is touched, for munmap(); NULL without memory. */
static inline void *ne_zeros(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* Copies and returns the crc32c of what was copied, in one pass. */
uint32_t ne_copy_crc32c(void *restrict dst, const void *restrict src, size_t bytes);
/* True when the page (4096 bytes, any alignment) is all zero; quick to say no. */
bool ne_page_is_zero(const void *page);

#endif
