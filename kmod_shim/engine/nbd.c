/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nbd.c - one NBD connection in transmission: two streams, requests, and recovery of both after a killed process.
 *
 * How it works
 *   Each turn receives what is there, parses all of it and starts every request; conn_flush() then commits (parsed,
 *   answered) with one store and sends all answers with one call. Requests that end at once never enter the log; the
 *   others have an entry, and come back in any order. Payloads that are not all there are received straight into the
 *   slots from which they go to donors and disk.
 *
 *   A request that cannot go on for now (its page is claimed, no room, no home) is deferred and tried again. A client
 *   that hangs up is fenced: what it sent and what has not begun is dropped.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <poll.h>
#include <unistd.h>

#include "core.h"
#include "tls.h"

#define NBD_REQUEST_MAGIC 0x25609513u
#define NBD_REPLY_MAGIC	  0x67446698u
#define NBD_FLAG_FUA	  1u
#define NBD_FLAG_NO_HOLE  2u

enum { NBD_READ, NBD_WRITE, NBD_DISC, NBD_FLUSH, NBD_TRIM, NBD_CACHE, NBD_WRITE_ZEROES };

struct nbd_request {
	uint32_t magic;
	uint16_t flags, type;
	uint64_t cookie, offset;
	uint32_t length;
} __attribute__((packed));

struct nbd_reply {
	uint32_t magic, error;
	uint64_t cookie;
} __attribute__((packed));

#define REQUEST_BYTES ((uint32_t)sizeof(struct nbd_request))
#define REPLY_BYTES   ((uint32_t)sizeof(struct nbd_reply))
#define BATCH_BYTES   (64u << 10)    /* received at once: the client sends on while these are served */
#define GATHER_BYTES  (32u << 10)    /* larger payloads go from the socket straight to their slots */
#define TRICKLE_BYTES (8u << 10)     /* what the kernel's driver sends at once of a write: its header, or one page */
#define STALE_NS      500000000ull   /* a request held up longer is served only if its connection still lives */
#define HOMELESS_NS   10000000000ull /* a write that no donor takes, and no disk, waits at least this long */

/* ------------------------------------------------------------------ streams */

static uint64_t transfer_end(const struct ne_transfer *t)
{
	return t->base + t->hdr.msg_len;
}

/* The other slot becomes current with no bytes moved: from here on the kernel's count is the position. */
static struct ne_transfer *transfer_next(struct ne_transfer t[2], _Atomic uint32_t *gen, uint64_t base, uint32_t iovs)
{
	uint32_t g = (atomic_load_explicit(gen, memory_order_relaxed) & 1) ^ 1;

	t[g].base = base;
	t[g].hdr.msg_len = 0;
	t[g].hdr.msg_hdr = (struct msghdr){.msg_iov = t[g].iov, .msg_iovlen = iovs};
	atomic_store_explicit(gen, g, memory_order_release);
	return &t[g];
}

static struct ne_transfer *transfer_peek(struct ne_transfer t[2], const _Atomic uint32_t *gen)
{
	return &t[(atomic_load_explicit(gen, memory_order_relaxed) & 1) ^ 1];
}

static void commit(struct worker *w)
{
	struct ne_conn_state *cs = w->cs;
	uint32_t g = (atomic_load_explicit(&cs->commit_gen, memory_order_relaxed) & 1) ^ 1;

	if (cs->commit[g ^ 1].parsed != w->rx_parsed || cs->commit[g ^ 1].answered != w->tx_tail) {
		cs->commit[g].parsed = w->rx_parsed;
		cs->commit[g].answered = w->tx_tail;
		atomic_store_explicit(&cs->commit_gen, g, memory_order_release);
		w->tx_committed = w->tx_tail;
	}
	while (w->freed_n)
		cs->log[w->freed[--w->freed_n]].state = LOG_FREE;
}

static bool tx_flush(struct worker *w)
{
	bool any = false;

	while (w->tx_head < w->tx_committed && w->sock >= 0) {
		struct ne_transfer *t = transfer_peek(w->cs->tx, &w->cs->tx_gen);
		int rc;

		t->iov[0] = (struct iovec){w->tx + (w->tx_head - w->cs->tx_base), w->tx_committed - w->tx_head};
		t = transfer_next(w->cs->tx, &w->cs->tx_gen, w->tx_head, 1);
		if (w->tls)
			rc = ne_tls_sendmmsg(w->tls, &t->hdr);
		else
			rc = sendmmsg(w->sock, &t->hdr, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (rc < 0 && errno == EINTR)
			continue;
		if (rc < 0 && errno != EAGAIN) {
			w->hup = true;
			w->close_error = errno;
		}
		w->tx_blocked = rc < 0;
		if (rc < 0)
			break;
		w->tx_head = transfer_end(t);
		any = true;
	}
	if (w->tx_head == w->tx_tail && w->tx_head == w->tx_committed)
		w->cs->tx_base = w->tx_tail; /* all gone: begin at the front, which the cache still has */
	return any;
}

static uint8_t *tx_room(struct worker *w, uint32_t bytes)
{
	uint64_t at = w->tx_tail - w->cs->tx_base;

	return at + bytes <= TX_BYTES ? w->tx + at : NULL;
}

static void put_reply(uint8_t *at, uint64_t cookie, int error)
{
	struct nbd_reply r = {htonl(NBD_REPLY_MAGIC), htonl((uint32_t)error), cookie};

	memcpy(at, &r, sizeof(r));
}

static void rx_copy(const struct worker *w, uint64_t pos, void *to, uint32_t bytes)
{
	uint32_t at = (uint32_t)(pos & (RX_BYTES - 1)), front = RX_BYTES - at;

	if (front > bytes)
		front = bytes;
	memcpy(to, w->rx + at, front);
	memcpy((uint8_t *)to + front, w->rx, bytes - front);
}

static bool peer_has_hung_up(const struct worker *w)
{
	struct pollfd p = {.fd = w->sock, .events = POLLRDHUP};

	return poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

/* ------------------------------------------------------------------ requests */

static void count_latency(struct worker *w, const struct req *rq, uint64_t now)
{
	uint64_t ns = elapsed_ns(now, rq->start_ns);
	uint32_t bucket = ns ? 63 - (uint32_t)__builtin_clzll(ns) : 0;

	if (bucket >= NE_LATENCY_BUCKETS)
		bucket = NE_LATENCY_BUCKETS - 1;
	if (rq->log->type == NBD_READ)
		w->stats.latency_read[bucket]++;
	else if (rq->log->type == NBD_WRITE)
		w->stats.latency_write[bucket]++;
	if (ns > w->stats.longest_request_ns)
		w->stats.longest_request_ns = ns;
}

static struct req *req_make(struct worker *w, const struct nbd_request *nr, uint64_t now)
{
	for (uint32_t k = 0; k < LOG_DEPTH; k++) {
		uint32_t i = (w->log_next + k) % LOG_DEPTH;
		struct req *rq = &w->reqs[i];

		if (rq->stage != RQ_FREE || w->cs->log[i].state != LOG_FREE)
			continue;
		w->log_next = i + 1;
		*rq->log = (struct ne_log){.rx_pos = w->rx_parsed,
					   .tx_pos = UINT64_MAX,
					   .cookie = nr->cookie,
					   .offset = nr->offset,
					   .slot_pos = UINT64_MAX,
					   .length = nr->length,
					   .type = nr->type,
					   .flags = nr->flags,
					   .state = LOG_FREE};
		__atomic_store_n(&rq->log->state, LOG_ACTIVE, __ATOMIC_RELEASE);
		*rq = (struct req){.log = rq->log,
				   .src = rq->src,
				   .serial = rq->serial,
				   .start_ns = now,
				   .pages = nr->length / NE_PAGE_BYTES,
				   .stage = RQ_RUNNING};
		w->active++;
		return rq;
	}
	return NULL;
}

/* Lets go of everything a request holds. Its log entry is freed by the next commit. */
static void req_free(struct worker *w, struct req *rq)
{
	page_req_release(w, rq);
	w->answering -= rq->stage == RQ_ANSWERING;
	if (rq->log->slot_pos != UINT64_MAX) {
		page_write_abandon(w, rq); /* nothing to do after a success */
		ring_drop(&w->slots, rq->log->slot_pos, rq->pages, HOLD_REQ);
	}
	rq->serial++;
	rq->stage = RQ_FREE;
	w->freed[w->freed_n++] = (uint32_t)(rq - w->reqs);
	w->active--;
}

static void req_unmake(struct worker *w, struct req *rq)
{
	rq->log->state = LOG_FREE;
	rq->stage = RQ_FREE;
	rq->serial++;
	w->active--;
}

void req_defer(struct worker *w, struct req *rq)
{
	if (rq->deferred || rq->stage == RQ_FREE)
		return;
	rq->deferred = true;
	if (!rq->defer_since_ns)
		rq->defer_since_ns = now_ns();
	rq->next = NULL;
	*w->deferred_end = rq;
	w->deferred_end = &rq->next;
}

void req_answer(struct worker *w, struct req *rq)
{
	struct ne_log *log = rq->log;
	bool data = log->type == NBD_READ && !rq->error;
	uint32_t bytes = REPLY_BYTES + (data ? log->length : 0);
	uint8_t *at;

	if (rq->again && !rq->error) { /* no donor took it: find new homes */
		rq->again = false;
		rq->claimed = false;
		req_defer(w, rq);
		return;
	}
	if (rq->need_disk && rq->disk_left && !rq->error)
		return; /* the last disk write brings us back */
	if (rq->deferred)
		return; /* it stands in the list; from there it comes here again */
	if (w->dropped) {
		req_free(w, rq);
		return;
	}
	at = tx_room(w, bytes);
	if (!at) {
		rq->stage = RQ_ANSWERING;
		w->answering++;
		req_defer(w, rq);
		return;
	}
	put_reply(at, log->cookie, rq->error);
	if (data)
		for (uint32_t i = 0; i < rq->pages; i++)
			memcpy(at + REPLY_BYTES + (uint64_t)i * NE_PAGE_BYTES, rq->src[i], NE_PAGE_BYTES);
	log->tx_pos = w->tx_tail;
	w->tx_tail += bytes;
	w->stats.requests_error += rq->error != 0;
	count_latency(w, rq, now_ns());
	req_free(w, rq);
}

/* True when none of what these takes and older ones brought still waits for the disk. */
static bool disk_has_all(const struct ring *r, uint32_t takes)
{
	for (uint32_t i = 0; r->used && i < r->pages; i++)
		if (__atomic_load_n(&r->held[i], __ATOMIC_ACQUIRE) & (HOLD_DISK | HOLD_OLD) &&
		    (int32_t)(__atomic_load_n(&r->stamp[i], __ATOMIC_RELAXED) - takes) <= 0)
			return false;
	return true;
}

static bool flush_is_done(struct worker *w, struct req *rq)
{
	for (uint32_t i = 0; i < THREADS && w->dev->disk_fd >= 0; i++)
		if (!disk_has_all(&w->dev->worker[i]->slots, rq->flush_takes[i]))
			return false;
	return true;
}

static void flush_begin(struct worker *w, struct req *rq)
{
	for (uint32_t i = 0; i < THREADS; i++) {
		struct worker *other = w->dev->worker[i];

		rq->flush_takes[i] = other->slots.takes;
		if (other == w) {
			worker_hurry(w);
		} else if (other->slots.used && i != NE_MOVER) {
			atomic_store(&other->hurry, 1);
			worker_kick(other);
		}
	}
}

/* Starts a request, or goes on with one. 0: it goes by itself; else it is to be looked at again. */
static int req_run(struct worker *w, struct req *rq)
{
	switch (rq->log->type) {
	case NBD_READ:
		if (!rq->cursor)
			memset(rq->src, 0, rq->pages * sizeof(*rq->src));
		return page_read(w, rq);
	case NBD_WRITE:
		return page_write(w, rq, NULL);
	case NBD_TRIM:
	case NBD_WRITE_ZEROES:
		return page_zero(w, rq);
	default: /* FLUSH */
		if (!rq->cursor) {
			rq->cursor = 1;
			flush_begin(w, rq);
		}
		if (!flush_is_done(w, rq))
			return -EBUSY;
		req_answer(w, rq);
		return 0;
	}
}

/* Goes on with a request; what can't go on now is looked at again. */
static void req_go(struct worker *w, struct req *rq)
{
	if (req_run(w, rq))
		req_defer(w, rq);
}

/* A write or trim that has not begun and whose connection is gone must not begin any more. */
static bool is_fenced(struct worker *w, struct req *rq, uint64_t now)
{
	if (rq->log->type == NBD_READ || rq->claimed || rq->ops)
		return false;
	if (elapsed_ns(now, rq->defer_since_ns) > STALE_NS && !w->hup)
		w->hup = peer_has_hung_up(w);
	return w->hup;
}

static void deferred_one(struct worker *w, struct req *rq, uint64_t now)
{
	uint64_t patience = (uint64_t)w->dev->params.flush_wait_ms * 1000000;

	if (rq->log->type == NBD_FLUSH && atomic_load(&w->dev->disk_stuck) &&
	    elapsed_ns(now, rq->defer_since_ns) > patience)
		rq->error = EIO;
	if (patience < HOMELESS_NS)
		patience = HOMELESS_NS;
	if (rq->stage == RQ_ANSWERING) {
		rq->stage = RQ_RUNNING;
		w->answering--;
		req_answer(w, rq);
		return;
	}
	if (rq->error && !rq->ops && !(rq->claimed && rq->cursor < rq->pages)) { /* claims held: finish it first */
		req_answer(w, rq);
		return;
	}
	if (is_fenced(w, rq, now)) {
		w->stats.writes_fenced++;
		req_free(w, rq);
		return;
	}
	if (rq->log->type == NBD_WRITE && !rq->claimed && !rq->ops && elapsed_ns(now, rq->defer_since_ns) > patience) {
		rq->error = EIO; /* when in doubt fail the write, never a read */
		req_answer(w, rq);
		return;
	}
	req_go(w, rq);
}

bool conn_deferred(struct worker *w, uint64_t now)
{
	struct req *rq = w->deferred, *next;

	w->deferred = NULL;
	w->deferred_end = &w->deferred;
	for (; rq; rq = next) {
		next = rq->next;
		rq->deferred = false;
		deferred_one(w, rq, now);
	}
	return w->deferred != NULL;
}

/* ------------------------------------------------------------------ parsing */

static int request_check(const struct worker *w, const struct nbd_request *nr)
{
	uint64_t size = w->dev->params.size_bytes;

	if (nr->type > NBD_WRITE_ZEROES || nr->flags & ~(NBD_FLAG_FUA | NBD_FLAG_NO_HOLE))
		return EINVAL;
	if (nr->type == NBD_FLUSH)
		return nr->length || nr->offset ? EINVAL : 0;
	if (!nr->length)
		return EINVAL;
	if (nr->offset > size || nr->length > size - nr->offset)
		return nr->type == NBD_WRITE || nr->type == NBD_WRITE_ZEROES ? ENOSPC : EINVAL;
	if (nr->offset % NE_PAGE_BYTES || nr->length % NE_PAGE_BYTES)
		return EINVAL;
	if (nr->type <= NBD_WRITE && nr->length > NE_REQUEST_MAX_BYTES)
		return nr->type == NBD_READ ? EOVERFLOW : EINVAL;
	if (nr->type == NBD_WRITE && nr->length > w->dev->params.pending_bytes)
		return EINVAL;
	return 0;
}

static void reply_now(struct worker *w, const struct nbd_request *nr, int error)
{
	put_reply(tx_room(w, REPLY_BYTES), nr->cookie, error);
	w->tx_tail += REPLY_BYTES;
	w->stats.requests_error += error != 0;
}

/* Begins to take a payload that is not all here: into its slots, or nowhere if the answer is an error already. */
static bool receive_begin(struct worker *w, const struct nbd_request *nr, int error, uint64_t slot_pos, uint64_t now)
{
	struct req *rq = req_make(w, nr, now);
	uint32_t here = (uint32_t)(w->rx_tail - w->rx_parsed) - REQUEST_BYTES;

	if (!rq)
		return false;
	rq->stage = RQ_RECEIVING;
	rq->log->state = LOG_RECEIVING;
	rq->log->error = (uint32_t)error;
	rq->log->slot_pos = slot_pos;
	if (!error)
		rx_copy(w, w->rx_parsed + REQUEST_BYTES, ring_at(&w->slots, slot_pos), here);
	w->rx_parsed = w->rx_tail;
	w->receiving = rq;
	return true;
}

static void receive_end(struct worker *w)
{
	struct req *rq = w->receiving;

	w->receiving = NULL;
	rq->stage = RQ_RUNNING;
	rq->log->state = LOG_ACTIVE;
	rq->error = (int)rq->log->error;
	if (rq->error)
		req_answer(w, rq);
	else
		req_go(w, rq);
}

/* No slot is free: the write waits where it is, and fails when that has lasted too long. True: fail it. */
static bool pending_is_exhausted(struct worker *w, uint64_t now)
{
	if (!w->short_since_ns) {
		w->short_since_ns = now;
		w->stats.waits_pending++;
	}
	w->is_full = true;
	worker_hurry(w);
	return elapsed_ns(now, w->short_since_ns) > (uint64_t)w->dev->params.flush_wait_ms * 1000000;
}

/* A slot was free. That one shortage costs everybody one wait at most, it must really be over. */
static void shortage_ends(struct worker *w)
{
	w->is_full = false;
	if (w->slots.used < w->slots.pages / 2)
		w->short_since_ns = 0;
}

/* Whether a payload that is not all here is awaited in the ring: a small one, and one that is there for the most part.
 */
static bool comes_by_the_ring(uint32_t length, uint64_t here)
{
	return length <= GATHER_BYTES || (length <= RX_BYTES / 2 && here >= length / 2);
}

/* A request at the parse position, of which all is here. False: there are too many. */
static bool req_begin(struct worker *w, const struct nbd_request *nr, uint64_t now)
{
	struct req *rq = req_make(w, nr, now);

	if (rq)
		req_go(w, rq);
	return rq;
}

/* A WRITE at the parse position. False: it has to wait. */
static bool parse_write(struct worker *w, const struct nbd_request *nr, int error, uint64_t now)
{
	uint64_t here = w->rx_tail - w->rx_parsed - REQUEST_BYTES, pos = w->rx_parsed + REQUEST_BYTES;
	uint32_t pages = nr->length / NE_PAGE_BYTES, at = (uint32_t)(pos & (RX_BYTES - 1));
	const uint8_t *payload = w->rx + at;
	struct req *rq;
	int rc;

	if (here < nr->length) {
		uint64_t slot_pos = UINT64_MAX;

		if (!error && comes_by_the_ring(nr->length, here)) {
			w->is_full = false; /* that there was no slot a moment ago must not keep the rest out */
			return false;	    /* it comes with the next receive */
		}
		if (!error) {
			slot_pos = ring_take(&w->slots, pages, HOLD_REQ);
			if (slot_pos == UINT64_MAX && !pending_is_exhausted(w, now))
				return false;
			if (slot_pos == UINT64_MAX)
				error = EIO;
			else
				shortage_ends(w);
		}
		if (receive_begin(w, nr, error, slot_pos, now))
			return true;
		if (slot_pos != UINT64_MAX)
			ring_drop(&w->slots, slot_pos, pages, HOLD_REQ);
		return false;
	}
	if (error) {
		reply_now(w, nr, error);
		w->rx_parsed = pos + nr->length;
		return true;
	}
	if (at + nr->length > RX_BYTES) {
		rx_copy(w, pos, w->bounce, nr->length);
		payload = w->bounce;
	}
	rq = req_make(w, nr, now);
	if (!rq)
		return false;
	rc = page_write(w, rq, payload);
	if (rc == -EBUSY && rq->log->slot_pos == UINT64_MAX) {
		rq->log->slot_pos = ring_take(&w->slots, pages, HOLD_REQ);
		if (rq->log->slot_pos == UINT64_MAX)
			rc = -EAGAIN;
		else
			memcpy(ring_at(&w->slots, rq->log->slot_pos), payload, nr->length);
	} else if (rc && rq->log->slot_pos != UINT64_MAX) {
		/* begun, or begun in part, without having copied all of it */
		memcpy(ring_at(&w->slots, rq->log->slot_pos), payload, nr->length);
	}
	if (rc == -EAGAIN && rq->log->slot_pos == UINT64_MAX) {
		req_unmake(w, rq);
		if (!pending_is_exhausted(w, now))
			return false;
		reply_now(w, nr, EIO);
	} else {
		shortage_ends(w);
		if (rc)
			req_defer(w, rq);
	}
	w->rx_parsed = pos + nr->length;
	return true;
}

static bool parse_read(struct worker *w, const struct nbd_request *nr, uint64_t now)
{
	struct req *rq = &w->sync_req;
	uint8_t *at = tx_room(w, REPLY_BYTES + nr->length);
	int rc = -EAGAIN;

	*rq->log = (struct ne_log){.type = NBD_READ, .offset = nr->offset};
	rq->pages = nr->length / NE_PAGE_BYTES;
	rq->start_ns = now;
	if (at)
		rc = page_read_now(w, rq, at + REPLY_BYTES);
	if (!rc) {
		put_reply(at, nr->cookie, 0);
		w->tx_tail += REPLY_BYTES + nr->length;
		count_latency(w, rq, now_ns());
	} else if (rc == -EIO) {
		reply_now(w, nr, EIO);
	} else if (!req_begin(w, nr, now)) {
		return false;
	}
	w->rx_parsed += REQUEST_BYTES;
	return true;
}

static void count_request(struct worker *w, uint16_t type)
{
	uint64_t *counter[] = {[NBD_READ] = &w->stats.requests_read,
			       [NBD_WRITE] = &w->stats.requests_write,
			       [NBD_FLUSH] = &w->stats.requests_flush,
			       [NBD_TRIM] = &w->stats.requests_trim,
			       [NBD_WRITE_ZEROES] = &w->stats.requests_zero};

	if (type <= NBD_WRITE_ZEROES && counter[type])
		++*counter[type];
	else
		w->stats.requests_other++;
}

/* One request at the parse position. False: nothing more can be done for now. */
static bool parse_one(struct worker *w, uint64_t now)
{
	struct nbd_request nr;
	int error;

	if (w->rx_tail - w->rx_parsed < REQUEST_BYTES || !tx_room(w, REPLY_BYTES))
		return false;
	if (w->tx_tail - w->tx_head > TX_SOFT_BYTES || w->freed_n > LOG_DEPTH - 2)
		return false;
	rx_copy(w, w->rx_parsed, &nr, REQUEST_BYTES);
	if (nr.magic != htonl(NBD_REQUEST_MAGIC)) {
		w->hup = true;
		w->close_error = EPROTO;
		return false;
	}
	nr.flags = ntohs(nr.flags);
	nr.type = ntohs(nr.type);
	nr.offset = be64toh(nr.offset);
	nr.length = ntohl(nr.length);
	error = request_check(w, &nr);
	if (nr.type == NBD_WRITE) {
		if (!parse_write(w, &nr, error, now))
			return false;
	} else if (nr.type == NBD_DISC) {
		w->closing = true;
		w->rx_parsed += REQUEST_BYTES;
		w->cs->goodbye_pos = w->rx_parsed;
		return false;
	} else if (error || nr.type == NBD_CACHE) {
		reply_now(w, &nr, error);
		w->rx_parsed += REQUEST_BYTES;
	} else if (nr.type == NBD_READ) {
		if (w->answering || !parse_read(w, &nr, now))
			return false;
	} else {
		if (!req_begin(w, &nr, now))
			return false;
		w->rx_parsed += REQUEST_BYTES;
	}
	count_request(w, nr.type);
	return true;
}

/* ------------------------------------------------------------------ receiving */

/* Where the next bytes go: the ring, or behind what has come of a large payload. 0 when there is no room. */
static uint32_t receive_where(struct worker *w, struct iovec iov[2])
{
	uint32_t used = (uint32_t)(w->rx_tail - w->rx_parsed), at = (uint32_t)(w->rx_tail & (RX_BYTES - 1));
	uint32_t room = RX_BYTES - used < BATCH_BYTES ? RX_BYTES - used : BATCH_BYTES, front = RX_BYTES - at;

	if (w->receiving) {
		const struct ne_log *log = w->receiving->log;
		uint64_t got = w->rx_tail - log->rx_pos - REQUEST_BYTES, left = log->length - got;

		if (log->error)
			iov[0] = (struct iovec){w->bounce, left < RX_BYTES ? left : RX_BYTES};
		else
			iov[0] = (struct iovec){ring_at(&w->slots, log->slot_pos) + got, left};
		return 1;
	}
	if (!room)
		return 0;
	iov[0] = (struct iovec){w->rx + at, room < front ? room : front};
	iov[1] = (struct iovec){w->rx, room < front ? 0 : room - front};
	return iov[1].iov_len ? 2 : 1;
}

static bool receive(struct worker *w, uint64_t now)
{
	struct ne_transfer *t = transfer_peek(w->cs->rx, &w->cs->rx_gen);
	uint32_t iovs = receive_where(w, t->iov);
	bool late = elapsed_ns(now, w->last_rx_ns) > STALE_NS;
	size_t room;
	int rc;

	if (!iovs || w->rx_drained)
		return false;
	t = transfer_next(w->cs->rx, &w->cs->rx_gen, w->rx_tail, iovs);
	room = t->iov[0].iov_len + (iovs > 1 ? t->iov[1].iov_len : 0);
	if (w->tls) {
		rc = ne_tls_recvmmsg(w->tls, &t->hdr);
		/* At the end of the stream the socket has nothing more, but we have heard of it. */
		w->rx_drained = rc < 0 || (t->hdr.msg_len < room && !ne_tls_is_over(w->tls));
	} else {
		rc = recvmmsg(w->sock, &t->hdr, 1, MSG_DONTWAIT, NULL);
		w->rx_drained = rc < 0 || t->hdr.msg_len < room;
	}
	w->last_rx_ns = now;
	if (rc < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (rc < 0 || !t->hdr.msg_len) {
		w->hup = true;
		w->close_error = rc < 0 ? errno : ECONNRESET;
		return true;
	}
	if (late && peer_has_hung_up(w)) { /* sent long ago by somebody who has given up: fence it */
		w->hup = true;
		w->close_error = ETIMEDOUT;
		w->stats.writes_fenced++;
		return true;
	}
	w->rx_tail = transfer_end(t);
	w->trickles = t->hdr.msg_len <= TRICKLE_BYTES;
	w->nap_ns = 0;
	if (w->receiving) {
		w->rx_parsed = w->rx_tail;
		if (w->rx_tail == w->receiving->log->rx_pos + REQUEST_BYTES + w->receiving->log->length)
			receive_end(w);
	}
	return true;
}

/* ------------------------------------------------------------------ connections */

static void streams_reset(struct worker *w)
{
	struct ne_conn_state *cs = w->cs;

	memset(cs, 0, sizeof(*cs));
	w->rx_parsed = w->rx_tail = w->tx_head = w->tx_tail = w->tx_committed = 0;
	w->freed_n = 0;
}

void conn_begin(struct worker *w, int sock, struct ne_tls_session *tls)
{
	w->sock = sock;
	w->tls = tls;
	w->hup = w->dropped = w->tx_blocked = w->rx_drained = false;
	w->closing = w->cs->live && w->cs->goodbye_pos && w->cs->goodbye_pos <= w->rx_parsed;
	w->close_error = 0;
	w->short_since_ns = 0;
	w->trickles = false;
	w->is_full = false;
	w->last_rx_ns = w->parsed_ns = now_ns();
	if (w->cs->live) { /* resumed: log_recover() has set the positions; patience begins now */
		for (struct req *rq = w->deferred; rq; rq = rq->next)
			rq->defer_since_ns = w->last_rx_ns;
		return;
	}
	streams_reset(w);
	w->cs->live = 1;
}

/* The client is gone: what has not begun is dropped, what has is awaited. True when nothing is left. */
static bool conn_drop(struct worker *w)
{
	w->dropped = true;
	w->receiving = NULL;
	w->deferred = NULL;
	w->deferred_end = &w->deferred;
	for (uint32_t i = 0; i < LOG_DEPTH; i++) {
		struct req *rq = &w->reqs[i];

		if (rq->stage == RQ_FREE)
			continue;
		if (rq->deferred && rq->log->type != NBD_READ && !rq->claimed)
			w->stats.writes_fenced++;
		rq->deferred = false;
		if (rq->log->type == NBD_WRITE && (rq->ops || (rq->claimed && rq->cursor < rq->pages))) {
			if (rq->claimed && rq->cursor < rq->pages)
				req_defer(w, rq); /* claims held: it must be finished */
			continue;
		}
		req_free(w, rq);
	}
	return !w->active;
}

void conn_goodbye(struct worker *w)
{
	if (!w->tls)
		return;
	ne_tls_end(w->tls);
	w->tls = NULL;
	shutdown(w->sock, SHUT_RDWR);
	close(w->sock);
	w->sock = -1;
}

static void conn_end(struct worker *w)
{
	commit(w);
	conn_goodbye(w);
	if (w->sock >= 0) {
		shutdown(w->sock,
			 SHUT_RDWR); /* a supervisor holds a duplicate: the client must see the end all the same */
		close(w->sock);
	}
	w->sock = -1;
	w->hup = false;
	w->cs->live = 0;
	streams_reset(w);
	atomic_store(&w->busy, 0); /* before the event: who hears of it may attach at once */
	dev_event(w->dev, NE_EVENT_CONN_CLOSED, w->idx, (uint32_t)w->close_error, 0, 0);
}

/* One turn for the connection. */
bool conn_turn(struct worker *w, uint64_t now)
{
	bool any = false;

	if (!w->closing && !w->hup && !atomic_load_explicit(&w->stop, memory_order_relaxed)) {
		any = receive(w, now);
		if (w->receiving || w->rx_tail == w->rx_parsed)
			w->parsed_ns = now;
		else if (elapsed_ns(now, w->parsed_ns) > STALE_NS && peer_has_hung_up(w))
			w->hup = true; /* what stands here was sent long ago, by somebody who has given up */
		while (!w->hup && !w->receiving && parse_one(w, now)) {
			w->parsed_ns = now;
			any = true;
		}
		if (!w->receiving && w->rx_tail == w->rx_parsed)
			w->trickles = false; /* nothing is missing */
	}
	if (w->hup) {
		if (conn_drop(w))
			conn_end(w);
		return true;
	}
	if (w->closing && !w->active && w->tx_head == w->tx_tail) {
		conn_end(w);
		return true;
	}
	return any;
}

/* Makes the answers count, and sends them. */
bool conn_flush(struct worker *w)
{
	commit(w);
	return tx_flush(w);
}

/* ------------------------------------------------------------------ taking over what another process left */

/*
 * A payload that was being received straight into its slots: what came since the last commit is there too, whatever the
 * log says. True when some of it has not come yet.
 */
static bool recover_payload(struct worker *w, struct ne_log *log, uint64_t committed)
{
	uint64_t end = log->rx_pos + REQUEST_BYTES + log->length;

	if (log->type != NBD_WRITE || end <= committed)
		return false;
	w->rx_parsed = w->rx_tail;
	log->state = w->rx_tail < end ? LOG_RECEIVING : LOG_ACTIVE;
	return w->rx_tail < end;
}

/* The stream positions and the unanswered requests, exactly as they were when the last process stopped. */
static void log_recover(struct worker *w)
{
	struct ne_conn_state *cs = w->cs;
	uint32_t g = atomic_load(&cs->commit_gen) & 1;

	if (!cs->live)
		return;
	w->rx_parsed = cs->commit[g].parsed;
	w->rx_tail = transfer_end(&cs->rx[atomic_load(&cs->rx_gen) & 1]);
	w->tx_head = transfer_end(&cs->tx[atomic_load(&cs->tx_gen) & 1]);
	w->tx_tail = w->tx_committed = cs->commit[g].answered;
	if (w->tx_head < cs->tx_base)
		w->tx_head = cs->tx_base;
	for (uint32_t i = 0; i < LOG_DEPTH; i++) {
		struct ne_log *log = &cs->log[i];
		struct req *rq = &w->reqs[i];

		if (log->state == LOG_FREE)
			continue;
		if (log->rx_pos >= cs->commit[g].parsed || log->tx_pos < w->tx_tail) {
			log->state = LOG_FREE;
			continue;
		}
		log->tx_pos = UINT64_MAX;
		*rq = (struct req){.log = log,
				   .src = rq->src,
				   .start_ns = now_ns(),
				   .stage = RQ_RUNNING,
				   .pages = log->length / NE_PAGE_BYTES};
		w->active++;
		for (uint32_t k = 0; log->slot_pos != UINT64_MAX && k < rq->pages; k++)
			ring_hold(&w->slots, log->slot_pos + k, HOLD_REQ);
		rq->error = (int)log->error;
		if (recover_payload(w, log, cs->commit[g].parsed)) {
			rq->stage = RQ_RECEIVING;
			rq->error = 0;
			w->receiving = rq;
		} else {
			req_defer(w, rq);
		}
	}
}

void conn_recover(struct worker *w)
{
	log_recover(w);
	if (!w->cs->live)
		streams_reset(w);
}
