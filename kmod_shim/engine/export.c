/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.c - the donor's side of wire.h: lets borrowers read and write leased slabs, without Python.
 *
 * How it works
 *   A connection has one thread and two buffers: `in`, which recvmsg() fills and requests are parsed from, and
 *   `spill`, for answers that the socket would not take at once. One round of the thread is
 *
 *	receive what has come -> [ parse, check, copy WRITEs, gather READs, send ] -> spill what is left -> next
 *	                           ^ under the mark                            ^
 *
 * Revoking without a lock on the data path
 *   A thread touches slab memory only while its `mark` is odd. It makes it odd first and looks at the lease after
 *   that; revoke() closes the lease first and looks at the marks after that (both sequentially consistent), and waits
 *   for each odd mark to move. So either the thread sees the closed lease, or revoke() sees the mark. Nothing under
 *   the mark can block on the peer: every system call there carries MSG_DONTWAIT, and one round is bounded by
 *   ROUND_BYTES. A lease is looked at again for every piece of a long WRITE.
 *
 * Guarantees
 *   - No byte reaches a slab before the whole request header is checked: magic, bounds, lease, session, token.
 *   - After ne_export_revoke() no thread touches that memory; after ne_export_fence() no thread of the session lives.
 *   - A refused request is answered in its turn, and its payload swallowed. A header that cannot be understood ends the
 *     connection, because the stream's position is lost.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "conns.h"
#include "engine.h"
#include "link.h"
#include "siphash.h"
#include "verbs.h"
#include "wire.h"

enum {
	LEASES = 65536,
	IN_BYTES = 256 << 10,
	ROUND_REQUESTS = 128,		  /* answers in one sendmsg() */
	ROUND_BYTES = NE_WIRE_LENGTH_MAX, /* READ payload in one round */
	CODE_BYTES = 8,
	SPILL_BYTES = ROUND_BYTES + ROUND_REQUESTS * ((int)sizeof(struct ne_wire_reply) + CODE_BYTES),
	SPIN_NS = 30000,    /* longest busy wait for the next request */
	SPIN_CORES_MIN = 4, /* with fewer the core that spins is the one that a client or its worker waits for */
	SPIN_MISSES = 2,
	REVOKE_SPINS = 64, /* looks at a mark before sleeping between looks */
	REVOKE_SLEEP_NS = 20000,
};

struct lease {
	uint64_t session, token;
	uint8_t *addr;
	uint64_t bytes;
	_Atomic bool live; /* the other fields hold still while this is true and until revoke() has returned */
};

/* As on the wire; the code only on connections that have them. */
struct coded_request {
	struct ne_wire_request head;
	uint64_t code;
};

struct coded_reply {
	struct ne_wire_reply head;
	uint64_t code;
};

struct conn {
	struct peer peer;
	struct ne_export *exp;

	/* What other threads look at. */
	_Atomic uint32_t mark __attribute__((aligned(64))); /* odd while slab memory may be touched */
	_Atomic uint64_t reads, writes, read_bytes, write_bytes, refused;

	bool coded;
	uint64_t in_key[2], out_key[2];

	/* The thread's own. */
	uint64_t heads;		      /* requests so far, which their cookies count where they have codes */
	uint32_t in_from, in_to;      /* what of `in` is received and not parsed yet */
	struct ne_wire_request write; /* the WRITE whose payload is coming in, while write_left > 0 */
	uint32_t write_left;
	uint32_t write_status;
	bool broken;		 /* the stream makes no sense any more */
	bool malformed;		 /* and that for what came: no request, or one with a wrong code */
	bool drained;		 /* the last receive took all there was */
	bool backlog;		 /* the round was full: `in` holds more requests */
	uint64_t idle_ns;	 /* since when there is nothing to do, or 0 */
	uint32_t spins;		 /* how many more may be in vain; 0: sleep at once */
	uint32_t answers, parts; /* of this round */
	uint32_t round_bytes;
	struct coded_reply reply[ROUND_REQUESTS];
	struct iovec iov[2 * ROUND_REQUESTS];
	uint8_t in[IN_BYTES];
	uint8_t spill[SPILL_BYTES];
};

struct ne_export {
	struct lease *leases;
	bool may_spin;
	uint8_t *zeros;	      /* NE_WIRE_LENGTH_MAX, read-only, for refused READs; all the kernel's zero page */
	pthread_mutex_t lock; /* peers; never taken while serving */
	struct peers peers;
	struct ne_export_stats past;	      /* of connections that are gone */
	uint64_t malformed[NE_MALFORMED_MAX]; /* lock; sessions */
	uint32_t malformed_n;		      /* lock */
	struct ne_verbs_export *verbs;	      /* NULL in a build without rdma-core */
};

/* A counter with one writer needs no locked add. */
static void count(_Atomic uint64_t *counter, uint64_t by)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by, memory_order_relaxed);
}

/* --- under the mark */

static void mark_enter(struct conn *conn)
{
	atomic_fetch_add(&conn->mark, 1);
}

static void mark_leave(struct conn *conn)
{
	atomic_fetch_add_explicit(&conn->mark, 1, memory_order_release);
}

/* 0 and the slab's memory, or the errno to refuse with. The answer holds until the mark is left. */
static uint32_t lease_check(const struct conn *conn, const struct ne_wire_request *request, uint8_t **ret)
{
	const struct lease *lease;

	if (request->lease >= LEASES)
		return ENOENT;
	lease = &conn->exp->leases[request->lease];
	if (!atomic_load(&lease->live))
		return ENOENT;
	if ((lease->session ^ conn->peer.session) | (lease->token ^ request->token))
		return EACCES;
	if (request->offset > lease->bytes || request->length > lease->bytes - request->offset)
		return EINVAL;
	*ret = lease->addr + request->offset;
	return 0;
}

static void answer(struct conn *conn, const struct ne_wire_request *request, uint32_t status)
{
	struct coded_reply *reply = &conn->reply[conn->answers++];
	uint32_t code_bytes = conn->coded ? CODE_BYTES : 0;

	reply->head = (struct ne_wire_reply){NE_WIRE_REPLY_MAGIC, status, request->cookie};
	if (conn->coded)
		reply->code = htole64(siphash(conn->out_key, &reply->head, sizeof(reply->head)));
	conn->iov[conn->parts++] = (struct iovec){reply, sizeof(reply->head) + code_bytes};
	if (status)
		count(&conn->refused, 1);
}

static void serve_read(struct conn *conn, const struct ne_wire_request *request)
{
	uint8_t *from = conn->exp->zeros;
	uint32_t status = lease_check(conn, request, &from);

	answer(conn, request, status);
	conn->iov[conn->parts++] = (struct iovec){from, request->length};
	conn->round_bytes += request->length;
	if (!status) {
		count(&conn->reads, 1);
		count(&conn->read_bytes, request->length);
	}
}

/* Where the next byte of the WRITE under way belongs, or NULL when it is refused and its payload only swallowed. */
static uint8_t *write_target(struct conn *conn)
{
	uint8_t *to = NULL;

	if (conn->write_status)
		return NULL;
	conn->write_status = lease_check(conn, &conn->write, &to);
	return conn->write_status ? NULL : to + (conn->write.length - conn->write_left);
}

/* `bytes` of the payload have been copied, or thrown away. */
static void write_advance(struct conn *conn, uint32_t bytes)
{
	conn->write_left -= bytes;
	if (conn->write_left)
		return;
	answer(conn, &conn->write, conn->write_status);
	if (!conn->write_status) {
		count(&conn->writes, 1);
		count(&conn->write_bytes, conn->write.length);
	}
}

static void write_from_in(struct conn *conn)
{
	uint32_t bytes = conn->in_to - conn->in_from;
	uint8_t *to = write_target(conn);

	if (bytes > conn->write_left)
		bytes = conn->write_left;
	if (to)
		memcpy(to, conn->in + conn->in_from, bytes);
	conn->in_from += bytes;
	write_advance(conn, bytes);
}

static bool code_is_sound(struct conn *conn, const struct coded_request *coded)
{
	return !conn->coded || (coded->head.cookie == conn->heads++ &&
				le64toh(coded->code) == siphash(conn->in_key, &coded->head, sizeof(coded->head)));
}

static bool request_is_sound(const struct ne_wire_request *request)
{
	return request->magic == NE_WIRE_REQUEST_MAGIC && request->flags == 0 &&
	       (request->op == NE_WIRE_READ || request->op == NE_WIRE_WRITE) && request->length > 0 &&
	       request->length <= NE_WIRE_LENGTH_MAX;
}

/* True when the next request could be taken: enough has come in, and the round has room for its answer. */
static bool next_request(struct conn *conn)
{
	uint32_t bytes = sizeof(struct ne_wire_request) + (conn->coded ? CODE_BYTES : 0);
	struct coded_request coded = {0};
	struct ne_wire_request request;

	if (conn->in_to - conn->in_from < bytes)
		return false;
	memcpy(&coded, conn->in + conn->in_from, bytes);
	request = coded.head;
	if (request_is_sound(&request) && request.op == NE_WIRE_READ &&
	    request.length > ROUND_BYTES - conn->round_bytes) {
		conn->backlog = true; /* it is looked at again */
		return false;
	}
	if (!request_is_sound(&request) || !code_is_sound(conn, &coded)) {
		count(&conn->refused, 1);
		conn->broken = true;
		conn->malformed = true;
		return false;
	}
	conn->in_from += bytes;
	if (request.op == NE_WIRE_READ) {
		serve_read(conn, &request);
	} else {
		conn->write = request;
		conn->write_left = request.length;
		conn->write_status = 0;
	}
	return true;
}

/* Everything in `in` that this round has room for. */
static void serve_round(struct conn *conn)
{
	conn->backlog = false;
	while (conn->answers < ROUND_REQUESTS) {
		if (conn->write_left && conn->in_from == conn->in_to)
			return;
		if (conn->write_left)
			write_from_in(conn);
		else if (!next_request(conn))
			return;
	}
	conn->backlog = true;
}

/* Sends the round's answers as far as the socket takes them now; what it does not take moves to `spill`. */
static uint32_t send_round(struct conn *conn)
{
	struct msghdr msg = {.msg_iov = conn->iov, .msg_iovlen = conn->parts};
	uint32_t spilled = 0;
	ssize_t sent;

	if (!conn->parts)
		return 0;
	do {
		sent = sendmsg(conn->peer.sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	if (sent < 0 && errno != EAGAIN)
		conn->broken = true;
	if (sent < 0)
		sent = 0;
	for (uint32_t i = 0; i < conn->parts && !conn->broken; i++) {
		size_t skip = (size_t)sent < conn->iov[i].iov_len ? (size_t)sent : conn->iov[i].iov_len;

		memcpy(conn->spill + spilled, (uint8_t *)conn->iov[i].iov_base + skip, conn->iov[i].iov_len - skip);
		spilled += conn->iov[i].iov_len - skip;
		sent -= skip;
	}
	conn->answers = 0;
	conn->parts = 0;
	conn->round_bytes = 0;
	return spilled;
}

/*
 * Payload of a WRITE goes straight to its slab, and what follows it to `in`: then this stands under the mark, and must
 * not wait (MSG_DONTWAIT). Returns as recvmsg() does.
 */
static ssize_t receive(struct conn *conn, int flags)
{
	struct iovec iov[2];
	struct msghdr msg = {.msg_iov = iov};
	uint8_t *to = conn->write_left && conn->in_from == conn->in_to ? write_target(conn) : NULL;
	uint32_t direct = to ? conn->write_left : 0;
	ssize_t bytes;

	if (conn->in_from) {
		memmove(conn->in, conn->in + conn->in_from, conn->in_to - conn->in_from);
		conn->in_to -= conn->in_from;
		conn->in_from = 0;
	}
	if (direct)
		iov[msg.msg_iovlen++] = (struct iovec){to, direct};
	iov[msg.msg_iovlen++] = (struct iovec){conn->in + conn->in_to, IN_BYTES - conn->in_to};
	bytes = recvmsg(conn->peer.sock, &msg, flags);
	if (bytes <= 0)
		return bytes;
	conn->drained = (size_t)bytes < direct + iov[msg.msg_iovlen - 1].iov_len;
	if (direct)
		write_advance(conn, bytes < direct ? bytes : direct);
	conn->in_to += bytes > direct ? bytes - direct : 0;
	return bytes;
}

/* --- outside the mark: where a thread may wait for its peer */

static void wait_for(struct conn *conn, short events)
{
	struct pollfd pfd = {.fd = conn->peer.sock, .events = events};

	poll(&pfd, 1, -1);
}

static void send_spill(struct conn *conn, uint32_t bytes)
{
	uint32_t done = 0;

	while (done < bytes && !conn->broken) {
		ssize_t sent = send(conn->peer.sock, conn->spill + done, bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent > 0)
			done += sent;
		else if (errno == EAGAIN)
			wait_for(conn, POLLOUT);
		else if (errno != EINTR)
			conn->broken = true;
	}
}

static void spin_again(struct conn *conn)
{
	conn->spins = conn->exp->may_spin ? SPIN_MISSES : 0;
}

/*
 * Nothing has come: looks again for a while where that pays off, giving the CPU to whoever wants it between looks, and
 * sleeps otherwise. A sleep that turns out shorter than SPIN_NS says that spinning would have been the better choice;
 * SPIN_MISSES spins in vain end it. With few cores the core that spins is the one that a client waits for: no spinning.
 */
static void wait_for_request(struct conn *conn)
{
	uint64_t now = now_ns(), gap_ns;

	if (!conn->idle_ns)
		conn->idle_ns = now;
	if (conn->spins && now - conn->idle_ns < SPIN_NS) {
		sched_yield();
		return;
	}
	wait_for(conn, POLLIN);
	gap_ns = now_ns() - conn->idle_ns;
	conn->idle_ns = 0;
	if (conn->spins)
		conn->spins--;
	if (gap_ns < SPIN_NS)
		spin_again(conn);
}

/* With nothing under way that must be under the mark, and nobody to spin for, one call waits and receives. */
static bool may_wait_receiving(const struct conn *conn)
{
	return !conn->exp->may_spin && conn->drained && !conn->backlog && !conn->write_left;
}

static void serve(struct conn *conn)
{
	while (!conn->broken) {
		bool waits = may_wait_receiving(conn);
		ssize_t received = 1;
		uint32_t spilled = 0;
		int err = 0;

		if (waits) {
			received = receive(conn, 0);
			err = errno;
		}
		mark_enter(conn);
		if (!waits && !conn->backlog) {
			received = receive(conn, MSG_DONTWAIT);
			err = errno;
		}
		if (received > 0) {
			if (conn->idle_ns)
				spin_again(conn); /* it has paid off */
			conn->idle_ns = 0;
			serve_round(conn);
			spilled = send_round(conn);
		}
		mark_leave(conn);

		if (spilled)
			send_spill(conn, spilled);
		if (received < 0 && err == EAGAIN)
			wait_for_request(conn);
		else if (received == 0 || (received < 0 && err != EINTR))
			return;
	}
}

/* Beyond what is kept they are only counted. */
static void malformed_note(struct ne_export *exp, uint64_t session)
{
	pthread_mutex_lock(&exp->lock);
	if (exp->malformed_n < NE_MALFORMED_MAX)
		exp->malformed[exp->malformed_n++] = session;
	pthread_mutex_unlock(&exp->lock);
}

static void *conn_main(void *arg)
{
	struct conn *conn = arg;

	pthread_setname_np(pthread_self(), "fs-export");
	serve(conn);
	if (conn->malformed)
		malformed_note(conn->exp, conn->peer.session);
	peer_leave(&conn->exp->peers, &conn->peer);
	return NULL;
}

/* --- control calls */

/* exp->lock is held. */
static void conn_add_stats(const struct conn *conn, struct ne_export_stats *sum)
{
	sum->reads += conn->reads;
	sum->writes += conn->writes;
	sum->read_bytes += conn->read_bytes;
	sum->write_bytes += conn->write_bytes;
	sum->refused += conn->refused;
	sum->cpu_ns += peer_cpu_ns(&conn->peer);
}

static void conn_forget(struct peers *peers, struct peer *peer)
{
	struct conn *conn = (struct conn *)peer;

	(void)peers;
	conn_add_stats(conn, &conn->exp->past);
	munmap(conn, sizeof(*conn));
}

int ne_export_create(struct ne_export **ret)
{
	struct ne_export *exp = calloc(1, sizeof(*exp));

	if (!exp)
		return -ENOMEM;
	exp->may_spin = sysconf(_SC_NPROCESSORS_ONLN) >= SPIN_CORES_MIN;
	exp->leases = calloc(LEASES, sizeof(*exp->leases));
	exp->zeros = mmap(NULL, NE_WIRE_LENGTH_MAX, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_mutex_init(&exp->lock, NULL);
	exp->peers = (struct peers){.lock = &exp->lock, .forget = conn_forget};
	if (!exp->leases || exp->zeros == MAP_FAILED || (ne_verbs_is_built() && ne_verbs_export_create(&exp->verbs))) {
		ne_export_destroy(exp);
		return -ENOMEM;
	}
	*ret = exp;
	return 0;
}

void ne_export_destroy(struct ne_export *exp)
{
	if (!exp)
		return;
	peers_end(&exp->peers, true, 0);
	if (exp->verbs)
		ne_verbs_export_destroy(exp->verbs);
	pthread_mutex_destroy(&exp->lock);
	if (exp->zeros != MAP_FAILED)
		munmap(exp->zeros, NE_WIRE_LENGTH_MAX);
	free(exp->leases);
	free(exp);
}

int ne_export_lease(struct ne_export *exp, uint32_t number, uint64_t session, uint64_t token, void *addr,
		    uint64_t bytes)
{
	struct lease *lease;

	if (number >= LEASES || !addr || !bytes)
		return -EINVAL;
	lease = &exp->leases[number];
	if (lease->live)
		return -EEXIST;
	if (exp->verbs && ne_verbs_export_lease(exp->verbs, number, session, token, addr, bytes))
		return -ENOMEM;
	lease->session = session;
	lease->token = token;
	lease->addr = addr;
	lease->bytes = bytes;
	lease->live = true;
	return 0;
}

/* Waits until the thread has left the round it may be in. */
static void wait_for_mark(const struct conn *conn)
{
	uint32_t mark = conn->mark;

	for (int looks = 0; (mark & 1) && conn->mark == mark; looks++)
		if (looks >= REVOKE_SPINS)
			nanosleep(&(struct timespec){.tv_nsec = REVOKE_SLEEP_NS}, NULL);
}

int ne_export_revoke(struct ne_export *exp, uint32_t number)
{
	if (number >= LEASES || !exp->leases[number].live)
		return -ENOENT;
	exp->leases[number].live = false;
	for (const struct peer *peer = exp->peers.first; peer; peer = peer->next)
		wait_for_mark((const struct conn *)peer);
	if (exp->verbs)
		ne_verbs_export_revoke(exp->verbs, number);
	peers_reap(&exp->peers);
	return 0;
}

int ne_export_conn(struct ne_export *exp, uint64_t session, int sock, const uint8_t *keys)
{
	struct conn *conn;
	int err;

	conn = mmap(NULL, sizeof(*conn), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (conn == MAP_FAILED)
		return -ENOMEM;
	fcntl(sock, F_SETFL, fcntl(sock, F_GETFL) & ~O_NONBLOCK); /* who must not wait says so in each call */
	conn->exp = exp;
	conn->coded = keys != NULL;
	if (keys) {
		memcpy(conn->in_key, keys, sizeof(conn->in_key));
		memcpy(conn->out_key, keys + sizeof(conn->in_key), sizeof(conn->out_key));
	}
	conn->peer.session = session;
	conn->peer.sock = sock;
	err = peers_start(&exp->peers, &conn->peer, conn_main);
	if (err)
		munmap(conn, sizeof(*conn));
	return err;
}

int ne_export_fence(struct ne_export *exp, uint64_t session)
{
	peers_end(&exp->peers, false, session);
	if (exp->verbs)
		ne_verbs_export_fence(exp->verbs, false, session);
	return 0;
}

int ne_export_conn_rdma(struct ne_export *exp, uint64_t session, int sock, const char *address)
{
	return exp->verbs ? ne_verbs_export_conn(exp->verbs, session, sock, address) : -EOPNOTSUPP;
}

int ne_export_offer(struct ne_export *exp, void *addr, uint64_t bytes)
{
	return exp->verbs ? ne_verbs_export_offer(exp->verbs, addr, bytes) : 0;
}

int ne_export_withdraw(struct ne_export *exp, void *addr)
{
	if (exp->verbs)
		ne_verbs_export_withdraw(exp->verbs, addr);
	return 0;
}

int ne_export_malformed_take(struct ne_export *exp, uint64_t *ret)
{
	uint32_t n;

	pthread_mutex_lock(&exp->lock);
	n = exp->malformed_n;
	memcpy(ret, exp->malformed, n * sizeof(*ret));
	exp->malformed_n = 0;
	pthread_mutex_unlock(&exp->lock);
	return (int)n;
}

int ne_export_stats_get(struct ne_export *exp, struct ne_export_stats *ret)
{
	struct ne_export_stats sum = exp->past;

	pthread_mutex_lock(&exp->lock);
	for (struct peer *peer = exp->peers.first; peer; peer = peer->next) {
		sum.connections += !peer->ended;
		conn_add_stats((const struct conn *)peer, &sum);
	}
	pthread_mutex_unlock(&exp->lock);
	if (exp->verbs)
		ne_verbs_export_stats(exp->verbs, &sum);
	*ret = sum;
	return 0;
}
