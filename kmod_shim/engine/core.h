/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.h - shared state of the files of the engine (state.c, device.c, figures.c, worker.c, nbd.c, page.c, slots.c,
 * inflight.c, writeback.c, mover.c, lift.c): the state that outlives a process, and the rules of it.
 *
 * How it works
 *   The state memfd holds, for the whole device: donors, slabs, clusters (homes), pages; and for each worker: the
 *   connection's stream positions, the log of unanswered requests, the rx ring, the tx buffer, and an arena of payload
 *   slots and staging. A process that dies, even by SIGKILL between two instructions, leaves it so that the next one
 *   goes on; nobody needs to have been told.
 *
 *   Page word a (one atomic):  bits 0-31 sequence | R0 R1 R2 | DISK | PEND | LOST | CLAIM | WIP | DBUSY | SEALED
 *                              | 48-63 epoch
 *   Page word b (one atomic):  bits 0-31 crc32c of the newest content | 32-63 pending slot (global number)
 *     - No source bit and not LOST: the page is zero.
 *     - CLAIM: one request (or the mover) owns changes to the page's homes. Taken by compare-and-swap, never waited
 *       for: who does not get it comes back later. Readers ignore it.
 *     - WIP: b and the sources do not fit together just now (nanoseconds; only ever set by the claim's owner).
 *     - PEND: the newest content is in a slot. It is the first source of a read, and goes when the disk has it.
 *     - DBUSY: a disk write of this page is in flight, of this content or of older. The next waits: that is the order.
 *     - SEALED: donors have this content encrypted, by the page's number, this sequence and the epoch (seal.h). It comes
 *       and goes with a new sequence, or comes while no donor has the page. The epoch is the process that wrote it,
 *       counted: one that was killed may have given a donor what it never published, and its successor uses that
 *       sequence for something else. Version 2 of this state did not know SEALED: what donors had then is in the clear,
 *       is read so, and the mover writes it anew, sealed.
 *     - A page whose only source is one donor is exposed: a second copy was promised (unless protection is none) and is
 *       missing. Every change of a source goes through page_swap(), so that each cluster's count of them is exact; with
 *       replicas the mover writes the second copy again, at another donor, for all pages that a single donor has,
 *       which are counted in the same way. The counts are made anew from the words at adoption.
 *     - A page whose only source is the disk is lost with it; those are counted in the same way, and the mover copies
 *       them to a donor where it is told to (lift.c).
 *     - A new sequence drops every older copy in the same store, so a stale copy cannot be found.
 *   A read accepts what matches the crc of a (sequence, crc) pair that was current after the read had come. A mismatch
 *   with unchanged words is corruption: that copy is dropped, the next source asked.
 *
 *   Home word (one atomic, three a cluster): valid | writable | slab | extent | generation. Users take the slab (their
 *   own counter, no shared line), then look again whether the home still stands; the mover clears the home, then waits
 *   for all counters. Writers load homes after they have claimed, so after a home lost its writable bit a page that is
 *   seen unclaimed will not get a copy there any more.
 *
 *   Streams: recvmmsg() and sendmmsg() store the number of bytes moved in the memfd themselves, inside the system call,
 *   so the position of both streams is exact at any moment of death. The pair (parsed, answered) moves by one store.
 *
 * Rejected: direct mapping of device ranges to slabs (Linux strides over the device, so every slab would go hot at
 * 3 %); a lock a cluster; copying homes under RCU (needs allocation).
 */
#ifndef FARSIDE_CORE_H
#define FARSIDE_CORE_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

#include "clock.h"
#include "engine.h"
#include "hedge.h"
#include "link.h"
#include "seal.h"

#define STATE_MAGIC 0x3145544154534546ull /* "FESTATE1" */
#define STATE_VERSION 3u
#define STATE_VERSION_CLEAR 2u		/* the same layout; adopted, and from then on a 3 */

/* page word a */
#define P_SEQ 0xffffffffull
#define P_R0 (1ull << 32)
#define P_R(i) (P_R0 << (i))
#define P_RALL (7ull << 32)
#define P_DISK (1ull << 35)
#define P_PEND (1ull << 36)
#define P_LOST (1ull << 37)
#define P_CLAIM (1ull << 38)
#define P_WIP (1ull << 39)
#define P_DBUSY (1ull << 40)
#define P_SEALED (1ull << 41)
#define P_EPOCH_SHIFT 48
#define P_EPOCH (0xffffull << P_EPOCH_SHIFT)
/* What a copy at a donor must be: page_seal_first() seals a page without another sequence. */
#define P_CONTENT (P_SEQ | P_SEALED | P_EPOCH)
#define P_SOURCES (P_RALL | P_DISK | P_PEND)

/* home word */
#define H_VALID (1ull << 63)
#define H_WRITE (1ull << 62)
#define H_MAKE(slab, extent, gen) \
	(H_VALID | ((uint64_t)(gen) & 0x3fffffff) << 32 | (uint64_t)(slab) << 12 | (uint64_t)(extent))
#define H_SLAB(h) ((uint32_t)((h) >> 12) & 0xfffff)
#define H_EXTENT(h) ((uint32_t)(h) & 0xfff)

#define LOG_DEPTH 256
#define RX_BYTES (256u << 10)
#define TX_BYTES (34u << 20)
#define STAGING_BYTES (64u << 20)
#define TX_SOFT_BYTES (1u << 20)     /* more unsent than this: no further request is begun */
#define THREADS (NE_WORKERS_MAX + 1)

struct ne_page {
	_Atomic uint64_t a, b;
};

struct ne_cluster {
	_Atomic uint64_t home[NE_HOMES];
	_Atomic uint32_t wanted;	/* WANT was told and nothing mapped since */
	_Atomic uint32_t generation;
};

struct ne_slab_rec {
	_Atomic uint32_t state;
	uint32_t donor, lease, epoch;
	uint64_t token;
	uint64_t reserved;
};

enum { SOCK_NONE = -1, SOCK_FORGET = -2 }; /* worker->sock_mail */

enum { LOG_FREE = 0, LOG_ACTIVE = 1, LOG_RECEIVING = 2 };

/* One unanswered request. It counts when rx_pos < parsed and not (tx_pos < answered); see commit. */
struct ne_log {
	uint64_t rx_pos;		/* stream position of its header */
	uint64_t tx_pos;		/* where its answer starts; UINT64_MAX before */
	uint64_t cookie, offset;
	uint64_t slot_pos;		/* arena position of its payload, UINT64_MAX without */
	uint32_t length;
	uint16_t type, flags;
	uint32_t state;
	uint32_t error;			/* errno decided before the payload was in (it is swallowed), or 0 */
};

/* A transfer whose length the kernel itself writes down: the stream position is base + hdr.msg_len. */
struct ne_transfer {
	uint64_t base;
	struct mmsghdr hdr;
	struct iovec iov[2];
};

struct ne_conn_state {
	uint32_t live;			/* a connection is or was being served */
	_Atomic uint32_t commit_gen, rx_gen, tx_gen;
	struct { uint64_t parsed, answered; } commit[2];
	struct ne_transfer rx[2], tx[2];
	uint64_t goodbye_pos;		/* behind DISC, or 0 */
	uint64_t tx_base;		/* stream position of the first byte of the tx buffer */
	struct ne_log log[LOG_DEPTH];
};

struct ne_state_head {
	uint64_t magic;
	uint32_t version;
	_Atomic uint32_t ready;
	struct ne_params params;
	uint8_t disk_key[64];
	_Atomic uint32_t donor_state[NE_DONORS_MAX];
	uint32_t epoch;			/* processes that have served the device, modulo 2^16 */
};

/* ---------------------------------------------------------------- ring of pages with out-of-order release */

struct ring {
	uint8_t *mem;			/* pages of memory */
	uint8_t *held;			/* holders of each page, 0 = free */
	uint32_t *stamp;		/* which take each page is of; NULL where nobody asks */
	_Atomic uint32_t takes, used;	/* takes so far; pages held now */
	uint32_t tail, pages;		/* where to look next; a power of two */
};

/* OLD: a disk write that the last process left; the request, done again, has its own. */
enum { HOLD_REQ = 1, HOLD_DISK = 2, HOLD_OLD = 4 };

static inline uint32_t ring_index(const struct ring *r, uint64_t pos) { return (uint32_t)(pos & (r->pages - 1)); }
static inline uint8_t *ring_at(const struct ring *r, uint64_t pos)
{
	return r->mem + (uint64_t)ring_index(r, pos) * NE_PAGE_BYTES;
}

/* ---------------------------------------------------------------- in-process objects */

struct ne_device;
struct worker;

/* A request being worked on; stands beside its log entry. */
struct req {
	struct ne_log *log;
	uint64_t start_ns;
	uint32_t pages;
	uint32_t serial;		/* tells a disk write that its request has been answered */
	uint32_t cursor;		/* pages issued so far */
	uint32_t done;			/* READ: pages that have their content */
	uint32_t ops;			/* parts in flight that must end before it may be answered */
	uint32_t disk_left;		/* disk writes of it not ended */
	uint32_t tries;
	int error;
	uint8_t stage;			/* enum req_stage */
	uint8_t avoid;			/* READ: homes not to ask (hedged) */
	bool hedged;			/* READ: a second copy has been asked for some of it */
	bool claimed;			/* WRITE and the like: its pages are claimed */
	bool need_disk, deferred, again;
	struct rio *rios;		/* READ: all its parts */
	uint64_t defer_since_ns;
	struct req *next;		/* deferred list */
	const uint8_t **src;		/* READ: where each page's content stands; NULL = not yet */
	uint32_t flush_takes[THREADS];	/* FLUSH: whatever was taken up to these must be on disk */
};

enum req_stage { RQ_FREE, RQ_RECEIVING, RQ_RUNNING, RQ_ANSWERING };

/* Remote write of a run of pages to up to three homes; owns the claims. */
struct wop {
	struct req *req;
	uint32_t first, n;
	uint32_t left;			/* ios in flight */
	uint64_t rbits;			/* homes that have it */
	uint64_t sealed_pos;		/* where it stands in the stage, sealed; UINT64_MAX: it is not */
	struct wop *next;
};

/* One operation on one link, and what it is for. */
struct act {
	struct ne_io io;
	uint8_t home;
	bool waiting;			/* its link was full */
	uint32_t donor, entered;
	struct wop *wop;
	struct rio *rio;
	struct act *prev, *next;	/* by age; next alone: the free list, and those that wait for their link */
};

/* A read of a run of pages from one source into staging. */
struct rio {
	struct req *req;		/* NULL: answered without it */
	uint32_t first, n, at;		/* pages; index of the first within the request */
	uint64_t stage_pos;
	uint64_t word;			/* home that was asked; nothing for the disk */
	uint8_t home;			/* 0..2, or HOME_DISK, or HOME_HERE */
	bool ended;
	bool hedged, refused, won;	/* a second copy: was asked, or there is none; was not asked; was quicker */
	struct ne_dio dio;
	uint64_t posted_ns;
	struct rio *next;
};

/* A disk write of a run of pages out of slots. */
struct dop {
	struct ne_dio dio;
	struct req *req;
	uint32_t serial;		/* of req when this was made */
	uint32_t first, n;
	uint64_t slot_pos;
	uint8_t attempts, hold;
	bool stuck;			/* the disk has refused it often; tried once a second */
	uint64_t retry_ns;
	struct dop *next;
};

enum { HOME_DISK = 3, HOME_HERE = 4 };

#define LIFT_PAGES 128u

/* The mover's: a run of pages on its way from the disk to a donor. See lift.c. */
struct lift {
	struct ne_dio dio;
	uint32_t first, n;		/* the run; n = 0: none is under way */
	bool ended;			/* the disk has answered */
	uint32_t cursor;		/* the page to look at next */
	uint32_t single_until;		/* up to there one page at a time: a run of these could not be read */
	uint32_t failures;		/* reads that failed, one after the other; a few at most are counted */
	uint32_t resume;		/* page of each cluster to go on at, in this round, where these were a few */
	uint32_t sequence[LIFT_PAGES];	/* of the contents that the disk was asked for */
	uint64_t begun_ns, rest_until_ns;
};

struct worker {
	struct ne_device *dev;
	uint32_t idx;
	pthread_t thread;
	bool started;
	int kick_fd;
	_Atomic uint32_t kicked;

	/* connection */
	int sock;
	_Atomic int sock_mail;		/* -1, or a socket to take */
	struct ne_tls_session *tls;	/* of sock; NULL: it is clear */
	struct ne_tls_session *_Atomic tls_mail; /* that of sock_mail, put there before it */
	_Atomic uint32_t busy;		/* a socket is, or will be, served */
	struct ne_conn_state *cs;
	uint8_t *rx, *tx;
	uint64_t rx_parsed, rx_tail, tx_head, tx_tail, tx_committed;
	struct req *receiving;		/* payload goes straight to its slots */
	uint32_t log_next;
	uint32_t active;		/* requests logged and not answered */
	bool closing, hup;		/* the client said DISC; the client is gone */
	bool dropped, tx_blocked;
	int close_error;
	uint64_t last_rx_ns;
	/* Sockets that had no more when they were last asked. Only the poll knows of more; asking again would cost a call. */
	bool rx_drained;
	bool trickles;			/* of the request at the end of the stream a small part has come */
	uint64_t nap_ns;		/* until when the rest of it is not looked for; 0: not begun */
	uint64_t fresh[NE_DONORS_MAX / 64]; /* had nothing outstanding before what was posted last */
	uint64_t link_quiet[NE_DONORS_MAX / 64];
	uint32_t turns; /* since the last poll */
	uint64_t short_since_ns;	/* since when slots are short, or 0 */
	bool is_full;			/* a write waits for slots where it is */
	uint32_t answering;		/* requests that wait for room in tx */
	uint64_t parsed_ns;		/* when parsing last got on, or had nothing to do */
	uint32_t freed_n;
	uint32_t freed[LOG_DEPTH];	/* log entries to free after the commit */

	/* engine parts */
	struct ring slots, stage;
	uint64_t *stage_word;		/* of each staged page of a read: P_CONTENT of what was asked for */
	uint32_t *stage_crc;
	struct ne_seal *seal;
	struct ne_link *links[NE_DONORS_MAX];
	uint32_t link_list[NE_DONORS_MAX], link_n;
	struct ne_link *_Atomic link_mail[NE_DONORS_MAX];
	_Atomic uint64_t mail_bits[NE_DONORS_MAX / 64];
	_Atomic uint64_t failed_bits[NE_DONORS_MAX / 64]; /* donors given up, whose links are to go */
	uint64_t dirty[NE_DONORS_MAX / 64]; /* links with posts not submitted */
	struct ne_disk *disk;
	_Atomic uint32_t *inflight;	/* slab * 2 + phase: operations of ours on it */
	struct req reqs[LOG_DEPTH];
	struct req sync_req;		/* for requests that end at once */
	struct ne_log sync_log;
	struct req *deferred, **deferred_end;
	struct act *acts, *act_free, *act_old, *act_new;
	struct wop *wops, *wop_free;
	struct rio *rios, *rio_free;
	uint32_t act_waiting;
	int link_err[NE_DONORS_MAX];
	uint64_t heard_ns[NE_DONORS_MAX]; /* when the donor last answered, or was first asked anew */
	struct hedge_times donor_times[NE_DONORS_MAX], disk_times;
	struct hedge_budget budget;
	_Atomic uint64_t late_ns[NE_DONORS_MAX]; /* to be told: when its reads are late, at the earliest; 0: not known */
	uint64_t patience_ns;		/* the age at which the first read, of whichever donor, is slow */
	struct dop *dops, *dop_free;
	struct dop *dop_wait, **dop_wait_end; /* parked behind another write of the page, or for a retry */
	struct dop *dop_kept, **dop_kept_end; /* nobody waits for them: they go to the disk with what else comes soon */
	uint32_t kept_pages;
	uint64_t kept_ns;		/* since when the first of them waits */
	_Atomic uint32_t hurry;		/* somebody else waits for what we have for the disk */
	bool disk_awaited;		/* something waits for what the disk does now */
	bool disk_dirty;
	uint8_t *bounce;

	/* sleeping */
	bool spin_on, spinning;
	uint64_t idle_since_ns, looked_ns;
	_Atomic uint32_t stop;
	_Atomic int start_rc;

	struct lift lift;
	uint8_t *pool;			/* everything of this process that is not in the memfd */
	uint64_t pool_bytes;
	struct recovered { uint32_t page, slot, n; } *recovered;
	uint32_t recovered_n, recovered_max;
	struct ne_stats stats;
};

struct slab_live {			/* this process's face of a slab */
	uint8_t *_Atomic base;
	_Atomic uint32_t phase;		/* which of two counters an operation takes; flipped to wait for the older ones */
	_Atomic uint64_t deadline_ns;	/* of the drain; 0: none in this process */
	_Atomic bool fail;
};

struct job {
	enum { JOB_SLAB_DRAIN, JOB_CLUSTER_DRAIN } kind;
	uint32_t slab, cluster;
};

struct ne_device {
	struct ne_params params;
	uint32_t clusters, pages;
	uint64_t sealed;		/* P_SEALED and our epoch where what is written from now on is sealed, else 0 */
	bool adopted, stopped;
	int disk_fd, event_fd;
	uint8_t *map;
	uint64_t map_bytes;
	struct ne_state_head *head;
	struct ne_slab_rec *slabs;
	struct ne_cluster *cluster;
	struct ne_page *page;
	uint32_t *activity;		/* [THREADS][clusters] */
	_Atomic int32_t *exposed;	/* [clusters]: pages with one copy only; below 0 for a moment, between two threads */
	_Atomic int32_t *single;	/* [clusters]: with replicas, pages that one donor has and no second; likewise */
	_Atomic int32_t *disk_alone;	/* [clusters]: pages that the disk alone has; likewise */
	_Atomic int32_t *clear;		/* [clusters]: pages that donors have in the clear; likewise */
	_Atomic int32_t *filled;	/* [clusters]: pages that have a copy anywhere; likewise */
	_Atomic uint32_t lifting;	/* the mover copies those to donors */
	struct slab_live *live;
	_Atomic uint32_t donor_direct[NE_DONORS_MAX]; /* slabs are memory here */
	_Atomic uint32_t donor_faulty[NE_DONORS_MAX]; /* a fault rule stands: no direct access */
	struct ne_fault_rules *faults;	/* [NE_DONORS_MAX] */
	struct ne_fault_rules disk_faults;
	struct worker *worker[THREADS];
	_Atomic uint32_t spinners;
	_Atomic uint32_t disk_stuck;	/* disk writes that fail again and again */
	uint32_t spinners_max;
	/* events: many writers, one reader */
	struct event_slot { _Atomic uint32_t full; struct ne_event ev; } *events;
	_Atomic uint64_t event_tail, event_head;
	/* jobs: the control thread writes, the mover reads */
	struct job *jobs;
	_Atomic uint64_t job_tail, job_head;
};

#define EVENTS 4096u
#define JOBS 65536u

/* ---------------------------------------------------------------- small things */

static inline uint64_t hedge_floor_ns(const struct ne_params *p) { return (uint64_t)p->hedge_us * 1000; }

/* now may be a turn's, and older than then: no time has passed in that case. */
static inline uint64_t elapsed_ns(uint64_t now, uint64_t then) { return now > then ? now - then : 0; }

static inline uint32_t slots_per_worker(const struct ne_device *dev)
{
	return (uint32_t)(dev->params.pending_bytes / NE_PAGE_BYTES);
}

/* Slots have one number each, whosever they are: page word b tells it. */
static inline uint32_t slot_number(const struct worker *w, uint64_t pos)
{
	return w->idx * slots_per_worker(w->dev) + ring_index(&w->slots, pos);
}

static inline uint8_t *slot_memory(const struct ne_device *dev, uint32_t slot)
{
	return ring_at(&dev->worker[slot / slots_per_worker(dev)]->slots, slot);
}

/* True when the page of that word, which is p's, stands in the slot. */
static inline bool stands_in(const struct ne_page *p, uint64_t a, uint32_t slot)
{
	return (a & (P_PEND | P_WIP)) == P_PEND && (uint32_t)(atomic_load(&p->b) >> 32) == slot;
}

/* Where the page stands in the slab of a home, in bytes. */
static inline uint64_t extent_offset(uint64_t word, uint32_t page)
{
	return (uint64_t)H_EXTENT(word) * NE_CLUSTER_BYTES + (uint64_t)(page % NE_CLUSTER_PAGES) * NE_PAGE_BYTES;
}

static inline bool donor_is(const struct ne_device *dev, uint32_t donor, uint32_t state)
{
	return atomic_load_explicit(&dev->head->donor_state[donor], memory_order_acquire) == state;
}

/* Claims are per page and never waited for. */
static inline bool page_claim(struct ne_page *p)
{
	uint64_t a = atomic_load_explicit(&p->a, memory_order_relaxed);

	return !(a & P_CLAIM) && atomic_compare_exchange_strong(&p->a, &a, a | P_CLAIM);
}

static inline bool has_replicas(const struct ne_device *dev)
{
	return dev->params.protection == NE_PROTECT_REPLICA || dev->params.protection == NE_PROTECT_BOTH;
}

static inline bool has_disk(const struct ne_params *params)
{
	return params->protection == NE_PROTECT_DISK || params->protection == NE_PROTECT_BOTH;
}

static inline bool page_is_exposed(uint64_t a)
{
	uint64_t sources = a & P_SOURCES;

	return sources & P_RALL && !(sources & (sources - 1));
}

static inline bool page_is_single(uint64_t a)
{
	uint64_t homes = a & P_RALL;

	return homes && !(homes & (homes - 1));
}

static inline bool page_is_on_disk_alone(uint64_t a) { return (a & P_SOURCES) == P_DISK; }
static inline bool page_is_filled(uint64_t a) { return a & P_SOURCES; }
static inline bool page_is_clear(uint64_t a) { return a & P_RALL && !(a & P_SEALED); }

/* As is what memory has that was taken from its slab: a donor's on this host (shm.c). */
static inline bool page_is_zeros(const uint8_t *mem)
{
	return !mem[0] && !memcmp(mem, mem + 1, NE_PAGE_BYTES - 1);
}

/* What tells a content of a page from all others that it had or will have: the tweak beside the page's number. */
static inline uint64_t content_of(uint64_t a) { return (a & P_SEQ) | a >> P_EPOCH_SHIFT << 32; }

/* One step of a compare-and-swap loop over a page's word: false, and the word in *a, when it was another. */
static inline bool page_swap(struct ne_device *dev, struct ne_page *p, uint64_t *a, uint64_t to)
{
	int32_t exposed = page_is_exposed(to) - page_is_exposed(*a);
	int32_t single = page_is_single(to) - page_is_single(*a);
	int32_t alone = page_is_on_disk_alone(to) - page_is_on_disk_alone(*a);
	int32_t clear = page_is_clear(to) - page_is_clear(*a);
	int32_t filled = page_is_filled(to) - page_is_filled(*a);
	uint64_t cluster = (uint64_t)(p - dev->page) / NE_CLUSTER_PAGES;

	if (!atomic_compare_exchange_weak(&p->a, a, to))
		return false;
	if (exposed && dev->params.protection != NE_PROTECT_NONE)
		atomic_fetch_add(&dev->exposed[cluster], exposed);
	if (single && has_replicas(dev))
		atomic_fetch_add(&dev->single[cluster], single);
	if (alone)
		atomic_fetch_add(&dev->disk_alone[cluster], alone);
	if (clear)
		atomic_fetch_add(&dev->clear[cluster], clear);
	if (filled) /* seldom: a page that is written again stays filled */
		atomic_fetch_add(&dev->filled[cluster], filled);
	return true;
}

/* Changes bits of a page whose sequence is the caller's to know: sets `set`, clears `clear`. */
static inline void page_change(struct ne_device *dev, struct ne_page *p, uint64_t set, uint64_t clear)
{
	uint64_t a = atomic_load_explicit(&p->a, memory_order_relaxed);

	while (!page_swap(dev, p, &a, (a & ~clear) | set))
		;
}

/* The word without some of its copies: with none left the page is lost, not zero. */
static inline uint64_t without_copy(uint64_t a, uint64_t bits)
{
	a &= ~bits;
	return a & P_SOURCES ? a : a | P_LOST;
}

/*
 * Takes slab of home h of the cluster for an operation; false when the home is no longer the word we saw. The counter
 * is ours alone, the fence makes the mover see it before we look at the home again.
 */
static inline bool slab_enter(struct worker *w, struct ne_cluster *c, int home, uint64_t word, uint32_t *entered)
{
	uint32_t slab = H_SLAB(word);

	*entered = slab * 2 + (atomic_load(&w->dev->live[slab].phase) & 1);
	atomic_fetch_add(&w->inflight[*entered], 1);
	if ((atomic_load(&c->home[home]) & ~H_WRITE) == (word & ~H_WRITE))
		return true;
	atomic_fetch_sub(&w->inflight[*entered], 1);
	return false;
}

static inline void slab_leave(struct worker *w, uint32_t entered)
{
	atomic_fetch_sub_explicit(&w->inflight[entered], 1, memory_order_release);
}

/* device.c */
#define CONN_STATE_BYTES (128u << 10)
_Static_assert(sizeof(struct ne_conn_state) <= CONN_STATE_BYTES, "room for the connection's state");
void dev_event(struct ne_device *dev, uint32_t kind, uint32_t a, uint32_t b, uint32_t c, uint32_t d);

/* state.c */
static inline uint64_t page_up(uint64_t bytes)
{
	return (bytes + NE_PAGE_BYTES - 1) & ~(uint64_t)(NE_PAGE_BYTES - 1);
}

bool params_are_good(const struct ne_params *p);
/* What all threads share of the memfd: head, slabs, clusters and pages. */
uint64_t state_common_bytes(const struct ne_params *p);
uint64_t worker_offset(const struct ne_device *dev, uint32_t idx);
int state_map(struct ne_device *dev, int fd);
/* Makes a new state, or finds that there is one to adopt. -ESTALE: it does not fit. */
int state_begin(struct ne_device *dev);
int state_adopt_pages(struct ne_device *dev);

/* worker.c */
int worker_create(struct ne_device *dev, uint32_t idx, struct worker **ret);
void worker_destroy(struct worker *w);
int worker_start(struct worker *w);
void worker_stop(struct worker *w);
void worker_kick(struct worker *w);
void worker_take_mail(struct worker *w);
bool worker_disk_turn(struct worker *w);
void worker_hurry(struct worker *w);
void worker_disk_ended(struct worker *w, struct ne_dio *dio);
int worker_recover_slot(struct worker *w, uint32_t page, uint32_t slot);
void worker_recover_done(struct worker *w);

/* nbd.c */
void conn_begin(struct worker *w, int sock, struct ne_tls_session *tls);
/* The end of a connection with TLS, which no other process can go on with; what it owes stays in the memfd. */
void conn_goodbye(struct worker *w);
bool conn_turn(struct worker *w, uint64_t now);
bool conn_deferred(struct worker *w, uint64_t now);
bool conn_flush(struct worker *w);
void conn_recover(struct worker *w);
/* Puts a request aside, to be looked at again soon. */
void req_defer(struct worker *w, struct req *rq);
/* Ends a request whose parts have ended: queues its answer; a READ's content is copied from rq->src. */
void req_answer(struct worker *w, struct req *rq);

/* page.c: the page path. 0: under way or answered; -EBUSY: overlaps or no home now; -EAGAIN: no room now */
int page_write(struct worker *w, struct req *rq, const uint8_t *payload);
void page_forget_slot(struct ne_device *dev, struct ne_page *p, uint32_t slot);
void page_write_abandon(struct worker *w, struct req *rq);
int page_zero(struct worker *w, struct req *rq);
/* Tells, once until it is mapped, that the cluster wants a home; nothing where it has one. */
void page_tell_wanted(struct worker *w, uint32_t cluster);
/* Puts the whole request's content at dst if no waiting is needed. 0, -EAGAIN, or -EIO. */
int page_read_now(struct worker *w, struct req *rq, uint8_t *dst);
int page_read(struct worker *w, struct req *rq);
void page_req_release(struct worker *w, struct req *rq);

/* slots.c */
/* n contiguous pages, held with `hold`; UINT64_MAX when there is no room now. */
uint64_t ring_take(struct ring *r, uint32_t n, uint8_t hold);
void ring_hold(struct ring *r, uint64_t pos, uint8_t hold);
void ring_drop(struct ring *r, uint64_t pos, uint32_t n, uint8_t hold);

/* inflight.c: what is in flight to donors */
struct ne_link *worker_link(struct worker *w, uint32_t donor);
/* What a link is asked for n pages at a home of theirs, from `page` on. */
struct ne_io home_operation(const struct ne_device *dev, uint8_t op, uint64_t word, uint32_t page, uint32_t n,
			    void *buf);
struct act *act_make(struct worker *w, uint8_t op, uint8_t home, uint64_t word, uint32_t page, uint32_t n, void *buf,
		     uint32_t entered);
bool act_post(struct worker *w, struct act *act);
bool act_poll(struct worker *w);
void act_link_drop(struct worker *w, uint32_t donor);
uint64_t act_patience_ns(const struct worker *w);
void act_timers(struct worker *w, uint64_t now);
/* A donor whose times are not known, as it has been reached anew. */
void act_times_begin(struct worker *w, uint32_t donor);
/* The disk has answered a read. */
void act_disk_took(struct worker *w, const struct ne_dio *dio);
bool slab_is_in_reach(struct worker *w, uint32_t slab, uint8_t **base);
uint8_t *direct_base(const struct ne_device *dev, uint32_t slab);

/* writeback.c: payload slots to disk */
void dop_make(struct worker *w, struct req *rq, uint32_t first, uint32_t n, uint64_t slot_pos);
void dop_done(struct worker *w, struct ne_dio *dio);
void dop_retry(struct worker *w, uint64_t now);
void dop_hurry(struct worker *w);
uint64_t dop_kept_left_ns(const struct worker *w, uint64_t now);

/* page.c, called by inflight.c when an operation ends */
void page_read_ended(struct worker *w, struct rio *rio, int status);
void page_write_ended(struct worker *w, struct act *act);
/* Times of what the read's second copy would come from, NULL for memory of this host; false: there is none. */
bool page_second(struct worker *w, const struct rio *rio, const struct hedge_times **ret);
void page_hedge(struct worker *w, struct rio *rio);

bool disk_mark(struct ne_page *p);

/* mover.c */
void *mover_main(void *arg);

#endif
