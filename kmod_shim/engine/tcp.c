/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp.c - the link to a donor over a stream socket (wire.h): requests are pipelined and answered in order.
 *
 * Every posted operation is in one ring of RING places until it is given back:
 *
 *	head             sent             tail
 *	  | sent, no answer | not all sent  |	(indices only grow; place = index % RING)
 *
 * submit() gathers headers and payloads of [sent, tail) into one sendmsg(). Because answers come in order and their
 * lengths are known, poll() scatters with one recvmsg() over [head, sent): headers into the ring, payloads straight
 * into io->buf. Where either call stopped in the middle, `out_bytes` or `in_bytes` says how far, and the next call goes
 * on from there. Both calls carry MSG_DONTWAIT, so the socket's own mode does not matter.
 *
 * Any surprise - end of stream, an error, a wrong magic, a wrong cookie, an answer nobody asked for - kills the link. A
 * dead link receives no more, so nothing lands in a buffer that was given back. Nothing is allocated after creation.
 */
#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "link.h"
#include "siphash.h"
#include "wire.h"

enum {
	RING = 256,	  /* operations outstanding; a power of two */
	SCATTER = 64,	  /* answers taken by one recvmsg() */
	ERRNO_MAX = 4095, /* what the kernel calls MAX_ERRNO; a larger status is nonsense */
};

struct place {
	struct ne_io *io;
	struct ne_wire_request request;
	uint64_t request_code; /* directly behind its head, as on the wire */
	struct ne_wire_reply reply;
	uint64_t reply_code;
};

_Static_assert(offsetof(struct place, request_code) == offsetof(struct place, request) + sizeof(struct ne_wire_request),
	       "a code stands behind its head");
_Static_assert(offsetof(struct place, reply_code) == offsetof(struct place, reply) + sizeof(struct ne_wire_reply),
	       "a code stands behind its head");

struct tcp {
	struct ne_link link;
	int sock;
	int err; /* negative once dead: what everything held is given back with */
	uint32_t head, sent, tail;
	uint32_t out_bytes; /* of the request at `sent`, header and payload, that have gone out */
	uint32_t in_bytes;  /* of the answer at `head`, header and payload, that have come in */
	bool blocked;	    /* the socket took less than it was given */
	uint64_t cookie;    /* of the next request; the one at `head` has cookie - (tail - head) */
	bool coded;
	uint64_t out_key[2], in_key[2];
	uint32_t request_bytes, reply_bytes; /* heads, with their codes */
	struct place ring[RING];
	struct iovec iov[2 * RING];
};

static struct tcp *to_tcp(const struct ne_link *link)
{
	return (struct tcp *)link;
}

static struct place *place_at(struct tcp *tcp, uint32_t index)
{
	return &tcp->ring[index % RING];
}

static void die(struct tcp *tcp, int err)
{
	if (tcp->err)
		return;
	tcp->err = -abs(err);
	shutdown(tcp->sock, SHUT_RDWR);
}

/* --- sending */

static int tcp_post(struct ne_link *link, struct ne_io *io)
{
	struct tcp *tcp = to_tcp(link);
	struct place *place = place_at(tcp, tcp->tail);

	if (tcp->err)
		return -ENOTCONN;
	if (tcp->tail - tcp->head == RING)
		return -EAGAIN;
	if (io->length == 0 || io->length > NE_WIRE_LENGTH_MAX)
		return -EINVAL;
	place->io = io;
	place->request = (struct ne_wire_request){
		.magic = NE_WIRE_REQUEST_MAGIC,
		.op = io->op == NE_IO_READ ? NE_WIRE_READ : NE_WIRE_WRITE,
		.lease = io->lease,
		.length = io->length,
		.offset = io->offset,
		.token = io->token,
		.cookie = tcp->cookie++,
	};
	if (tcp->coded)
		place->request_code = htole64(siphash(tcp->out_key, &place->request, sizeof(place->request)));
	tcp->tail++;
	return 0;
}

static uint32_t request_bytes(const struct tcp *tcp, const struct ne_io *io)
{
	return tcp->request_bytes + (io->op == NE_IO_READ ? 0 : io->length);
}

static uint32_t answer_bytes(const struct tcp *tcp, const struct ne_io *io)
{
	return tcp->reply_bytes + (io->op == NE_IO_READ ? io->length : 0);
}

/* Adds what is left of a header and of the payload behind it, of which `skip` bytes are done already. */
static int add_parts(struct iovec *iov, void *header, uint32_t header_bytes, void *payload, uint32_t total,
		     uint32_t skip)
{
	int count = 0;

	if (skip < header_bytes) {
		iov[count++] = (struct iovec){(uint8_t *)header + skip, header_bytes - skip};
		skip = header_bytes;
	}
	if (skip < total)
		iov[count++] = (struct iovec){(uint8_t *)payload + (skip - header_bytes), total - skip};
	return count;
}

static void sent_bytes(struct tcp *tcp, size_t bytes)
{
	while (bytes) {
		uint32_t left = request_bytes(tcp, place_at(tcp, tcp->sent)->io) - tcp->out_bytes;

		if (bytes < left) {
			tcp->out_bytes += bytes;
			return;
		}
		bytes -= left;
		tcp->out_bytes = 0;
		tcp->sent++;
	}
}

static void tcp_submit(struct ne_link *link)
{
	struct tcp *tcp = to_tcp(link);

	while (tcp->sent != tcp->tail && !tcp->err) {
		struct msghdr msg = {.msg_iov = tcp->iov};
		uint32_t skip = tcp->out_bytes;
		ssize_t bytes;

		for (uint32_t i = tcp->sent; i != tcp->tail; i++, skip = 0) {
			struct place *place = place_at(tcp, i);

			msg.msg_iovlen += add_parts(tcp->iov + msg.msg_iovlen, &place->request, tcp->request_bytes,
						    place->io->buf, request_bytes(tcp, place->io), skip);
		}
		bytes = sendmsg(tcp->sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (bytes < 0 && errno == EINTR)
			continue;
		if (bytes < 0 && errno != EAGAIN) {
			die(tcp, errno);
			return;
		}
		tcp->blocked = bytes < 0;
		if (tcp->blocked)
			return;
		sent_bytes(tcp, bytes);
	}
}

/* --- receiving */

static bool reply_is_sound(const struct tcp *tcp, const struct place *place)
{
	const struct ne_wire_reply *reply = &place->reply;

	if (tcp->coded && le64toh(place->reply_code) != siphash(tcp->in_key, reply, sizeof(*reply)))
		return false;
	return reply->magic == NE_WIRE_REPLY_MAGIC && reply->status <= ERRNO_MAX &&
	       reply->cookie == tcp->cookie - (tcp->tail - tcp->head);
}

/* Accounts for bytes that recvmsg() has put in place; finished operations leave the ring. */
static int received_bytes(struct tcp *tcp, size_t bytes, struct ne_io **done)
{
	int count = 0;

	while (bytes) {
		struct place *place = place_at(tcp, tcp->head);
		uint32_t total = answer_bytes(tcp, place->io);
		uint32_t part = bytes < total - tcp->in_bytes ? bytes : total - tcp->in_bytes;
		bool had_header = tcp->in_bytes >= tcp->reply_bytes;

		bytes -= part;
		tcp->in_bytes += part;
		if (!had_header && tcp->in_bytes >= tcp->reply_bytes && !reply_is_sound(tcp, place)) {
			die(tcp, EPROTO);
			break;
		}
		if (tcp->in_bytes == total) {
			place->io->status = -(int32_t)place->reply.status;
			done[count++] = place->io;
			tcp->in_bytes = 0;
			tcp->head++;
		}
	}
	return count;
}

/* One recvmsg() for up to max answers. Returns how many were finished; *drained: the socket has no more. */
static int receive(struct tcp *tcp, struct ne_io **done, int max, bool *drained)
{
	struct msghdr msg = {.msg_iov = tcp->iov};
	uint32_t skip = tcp->in_bytes, end = tcp->sent;
	size_t wanted = 0;
	uint8_t stray;
	ssize_t bytes;

	if (end - tcp->head > (uint32_t)max)
		end = tcp->head + max;
	for (uint32_t i = tcp->head; i != end; i++, skip = 0) {
		struct place *place = place_at(tcp, i);

		wanted += answer_bytes(tcp, place->io) - skip;
		msg.msg_iovlen += add_parts(tcp->iov + msg.msg_iovlen, &place->reply, tcp->reply_bytes, place->io->buf,
					    answer_bytes(tcp, place->io), skip);
	}
	if (end == tcp->head) { /* nothing is owed: only the end of the stream can come */
		tcp->iov[0] = (struct iovec){&stray, 1};
		msg.msg_iovlen = 1;
	}
	do {
		bytes = recvmsg(tcp->sock, &msg, MSG_DONTWAIT);
	} while (bytes < 0 && errno == EINTR);
	*drained = bytes < (ssize_t)wanted || end == tcp->head;
	if (bytes > 0 && end != tcp->head)
		return received_bytes(tcp, bytes, done);
	if (bytes >= 0)
		die(tcp, bytes ? EPROTO : ECONNRESET);
	else if (errno != EAGAIN)
		die(tcp, errno);
	return 0;
}

static int give_back(struct tcp *tcp, struct ne_io **done, int max)
{
	int count = 0;

	for (; tcp->head != tcp->tail && count < max; tcp->head++) {
		done[count] = place_at(tcp, tcp->head)->io;
		done[count++]->status = tcp->err;
	}
	tcp->sent = tcp->head;
	tcp->in_bytes = 0;
	tcp->out_bytes = 0;
	return count;
}

/* With nothing outstanding this is one system call that looks whether the peer is still there. */
static int tcp_poll(struct ne_link *link, struct ne_io **done, int max)
{
	struct tcp *tcp = to_tcp(link);
	bool drained = false;
	int count = 0;

	if (tcp->blocked)
		tcp_submit(link);
	while (!tcp->err && count < max && !drained) {
		count += receive(tcp, done + count, max - count < SCATTER ? max - count : SCATTER, &drained);
		if (count && tcp->head == tcp->sent)
			break; /* all that was owed has come */
	}
	if (tcp->err)
		count += give_back(tcp, done + count, max - count);
	return count;
}

/* --- the rest */

static uint32_t tcp_outstanding(const struct ne_link *link)
{
	return to_tcp(link)->tail - to_tcp(link)->head;
}

static int tcp_wait(const struct ne_link *link, short *events, uint64_t *timeout_ns)
{
	const struct tcp *tcp = to_tcp(link);

	*events = 0;
	*timeout_ns = UINT64_MAX;
	if (tcp->err) {
		*timeout_ns = tcp->head == tcp->tail ? UINT64_MAX : 0;
		return -1;
	}
	*events = POLLIN | (tcp->blocked ? POLLOUT : 0);
	return tcp->sock;
}

static void tcp_kill(struct ne_link *link, int err)
{
	die(to_tcp(link), err);
}

static bool tcp_alive(const struct ne_link *link)
{
	return !to_tcp(link)->err;
}

static void tcp_destroy(struct ne_link *link)
{
	close(to_tcp(link)->sock);
	free(to_tcp(link));
}

static const struct ne_link_ops tcp_ops = {
	.post = tcp_post,
	.submit = tcp_submit,
	.poll = tcp_poll,
	.outstanding = tcp_outstanding,
	.wait = tcp_wait,
	.kill = tcp_kill,
	.alive = tcp_alive,
	.destroy = tcp_destroy,
};

int ne_tcp_create(int sock, const uint8_t *keys, struct ne_link **ret)
{
	struct tcp *tcp = calloc(1, sizeof(*tcp));
	struct place *place = tcp ? &tcp->ring[0] : NULL;

	if (!tcp)
		return -ENOMEM;
	tcp->coded = keys != NULL;
	if (keys) {
		memcpy(tcp->out_key, keys, sizeof(tcp->out_key));
		memcpy(tcp->in_key, keys + sizeof(tcp->out_key), sizeof(tcp->in_key));
	}
	tcp->request_bytes = sizeof(place->request) + (keys ? sizeof(place->request_code) : 0);
	tcp->reply_bytes = sizeof(place->reply) + (keys ? sizeof(place->reply_code) : 0);
	tcp->link = (struct ne_link){.ops = &tcp_ops, .asks_kernel = true};
	tcp->sock = sock;
	/* A unix socket has no such option, and no such delay. */
	setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	*ret = &tcp->link;
	return 0;
}
