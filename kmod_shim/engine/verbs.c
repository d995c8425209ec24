/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs.c - the link to a donor by one-sided RDMA: READs and WRITEs on a reliable queue pair, without the donor's CPU.
 *
 * Two rings. Operations are in one, as in tcp.c; each is cut into pieces of at most BLOCK_BYTES, which go through
 * the blocks of a small memory that is registered once, when the link is made:
 *
 *	operations	head ... issued ... tail	given back at head, in order
 *	pieces		done ... posted			place = index % VERBS_DEPTH: work request, block, and what it is
 *of
 *
 * A piece is one work request, and VERBS_DEPTH of them are under way at most. submit() posts all there is room for in
 * one call. Every READ is signalled, because somebody waits for it, and the last WRITE of each batch: a queue pair
 * completes in order, so that one completion tells of all before it. A provider that breaks this order kills the link.
 *
 * Why blocks, when an adapter could reach the arena itself: registered memory is pinned, and the arena is 128 MiB a
 * worker, on a machine that is here because it has no memory left. A copy of 4 KiB costs less than its checksum. It
 * also means that whatever a dead queue pair still does, it does to memory of this link alone, and that an operation's
 * buffer may lie anywhere.
 *
 * Keys come over the companion (verbs.h), the first time that an operation names a lease; those behind it wait.
 *
 * To sleep: wait() arms the completion queue and looks once more; poll() takes the channel's event back. While nothing
 * is outstanding only the companion is listened to, which has nothing to say but its end.
 *
 * Any surprise kills the link: an error completion, a completion out of order, the companion's end or nonsense on it.
 * The queue pair is put into its error state at once and destroyed with the link. Nothing is allocated after creation.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "verbs_cm.h"

enum {
	RING = 256,		/* operations outstanding; a power of two */
	BLOCK_BYTES = 32 << 10, /* 16 of them: 512 KiB on their way, eight times what 100 Gb/s and 5 us need */
	BLOCKS_BYTES = VERBS_DEPTH * BLOCK_BYTES,
	CQ_ENTRIES = 2 * VERBS_DEPTH, /* a dead queue pair may add a completion for each that is not signalled */
	KEYS = 1024,		      /* leases of one donor remembered; another in the same place asks again */
	ERRNO_MAX = 4095,
};

struct place {
	struct ne_io *io;
	uint32_t left; /* bytes not known to have arrived */
	int32_t status;
};

struct piece {
	struct place *of;
	uint32_t at, length; /* within the operation */
	bool is_read, signalled;
};

struct key {
	uint64_t token, addr, bytes;
	uint32_t lease, rkey;
	bool known;
};

struct verbs {
	struct ne_link link;
	int sock, wait_fd; /* the companion; an epoll of it and the completion channel */
	int err;	   /* negative once dead */

	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *blocks;

	uint32_t head, issued, tail;
	uint32_t issued_bytes; /* of the operation at `issued` */
	uint32_t done, posted;
	bool armed; /* the channel will have an event, or has one, for the next completion */
	bool slept; /* wait() was called: the channel and the companion may have something */

	bool asking; /* a key request is under way, for the operation at `issued` */
	uint32_t heard;
	struct ne_verbs_key key_in;

	struct place ring[RING];
	struct piece piece[VERBS_DEPTH];
	struct ibv_send_wr wr[VERBS_DEPTH];
	struct ibv_sge sge[VERBS_DEPTH];
	struct key key[KEYS];
};

static struct verbs *to_verbs(const struct ne_link *link)
{
	return (struct verbs *)link;
}

static struct place *place_at(struct verbs *v, uint32_t index)
{
	return &v->ring[index % RING];
}

static void die(struct verbs *v, int err)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	if (v->err)
		return;
	v->err = -abs(err);
	ibv_modify_qp(v->id->qp, &attr, IBV_QP_STATE); /* no retry of it goes out any more */
	shutdown(v->sock, SHUT_RDWR);		       /* so the donor destroys its end */
}

/* --- keys */

static struct key *key_at(struct verbs *v, uint32_t lease)
{
	return &v->key[lease % KEYS];
}

/* The key of the operation's lease; NULL when it has to be asked for first, which this does. */
static const struct key *key_of(struct verbs *v, const struct ne_io *io)
{
	struct ne_verbs_ask ask = {NE_VERBS_ASK_MAGIC, io->lease, io->token};
	struct key *key = key_at(v, io->lease);
	int err;

	if (key->known && key->lease == io->lease && key->token == io->token)
		return key;
	if (v->asking)
		return NULL;
	key->known = false;
	v->asking = true;
	v->heard = 0;
	err = verbs_send(v->sock, &ask, sizeof(ask));
	if (err)
		die(v, err);
	return NULL;
}

/* Ends the operation at `issued`, of which nothing is under way, before it began. */
static void refuse(struct verbs *v, int32_t status)
{
	struct place *place = place_at(v, v->issued++);

	place->status = status;
	place->left = 0;
}

static void key_came(struct verbs *v)
{
	const struct ne_verbs_key *in = &v->key_in;
	const struct ne_io *io = place_at(v, v->issued)->io;
	struct key *key = key_at(v, io->lease);

	v->asking = false;
	if (in->magic != NE_VERBS_KEY_MAGIC || in->lease != io->lease || in->status > ERRNO_MAX) {
		die(v, EPROTO);
		return;
	}
	if (in->status) {
		refuse(v, -(int32_t)in->status);
		return;
	}
	*key = (struct key){io->token, in->addr, in->bytes, io->lease, in->rkey, true};
}

/* Takes what the companion has: the key that was asked for, or its end. */
static void hear(struct verbs *v)
{
	uint8_t stray, *to = v->asking ? (uint8_t *)&v->key_in + v->heard : &stray;
	size_t room = v->asking ? sizeof(v->key_in) - v->heard : 1;
	ssize_t got;

	do {
		got = recv(v->sock, to, room, MSG_DONTWAIT);
	} while (got < 0 && errno == EINTR);
	if (got < 0 && errno == EAGAIN)
		return;
	if (got <= 0) {
		die(v, got ? errno : ECONNRESET);
	} else if (!v->asking) {
		die(v, EPROTO);
	} else {
		v->heard += got;
		if (v->heard == sizeof(v->key_in))
			key_came(v);
	}
}

/* --- out */

static int verbs_post(struct ne_link *link, struct ne_io *io)
{
	struct verbs *v = to_verbs(link);

	if (v->err)
		return -ENOTCONN;
	if (v->tail - v->head == RING)
		return -EAGAIN;
	if (io->length == 0 || io->length > NE_CLUSTER_BYTES)
		return -EINVAL;
	*place_at(v, v->tail++) = (struct place){.io = io, .left = io->length};
	return 0;
}

/* The next piece of the operation at `issued` becomes the work request at `posted`. */
static void piece_make(struct verbs *v, const struct key *key)
{
	uint32_t i = v->posted % VERBS_DEPTH, at = v->issued_bytes;
	struct place *place = place_at(v, v->issued);
	const struct ne_io *io = place->io;
	uint32_t length = io->length - at < BLOCK_BYTES ? io->length - at : BLOCK_BYTES;
	bool is_read = io->op == NE_IO_READ;
	uint8_t *block = v->blocks + (size_t)i * BLOCK_BYTES;

	if (!is_read)
		memcpy(block, (const uint8_t *)io->buf + at, length);
	v->piece[i] = (struct piece){place, at, length, is_read, is_read};
	v->sge[i] = (struct ibv_sge){(uintptr_t)block, length, v->mr->lkey};
	v->wr[i] = (struct ibv_send_wr){
		.wr_id = v->posted,
		.sg_list = &v->sge[i],
		.num_sge = 1,
		.opcode = is_read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
		.send_flags = is_read ? IBV_SEND_SIGNALED : 0,
		.wr.rdma = {.remote_addr = key->addr + io->offset + at, .rkey = key->rkey},
	};
	v->posted++;
	v->issued_bytes += length;
	if (v->issued_bytes == io->length) {
		v->issued_bytes = 0;
		v->issued++;
	}
}

/* Makes work requests as far as there are blocks and keys; returns how many. */
static uint32_t pieces_make(struct verbs *v)
{
	uint32_t from = v->posted;

	while (v->issued != v->tail && v->posted - v->done < VERBS_DEPTH && !v->err) {
		const struct ne_io *io = place_at(v, v->issued)->io;
		const struct key *key = key_of(v, io);

		if (!key)
			break;
		if (io->offset > key->bytes || io->length > key->bytes - io->offset)
			refuse(v, -EINVAL);
		else
			piece_make(v, key);
	}
	return v->posted - from;
}

static void verbs_submit(struct ne_link *link)
{
	struct verbs *v = to_verbs(link);
	uint32_t first = v->posted, count, last;
	struct ibv_send_wr *bad;
	int err;

	if (v->err || v->issued == v->tail)
		return;
	count = pieces_make(v);
	if (!count || v->err)
		return;
	last = (first + count - 1) % VERBS_DEPTH;
	for (uint32_t i = first; i + 1 != first + count; i++)
		v->wr[i % VERBS_DEPTH].next = &v->wr[(i + 1) % VERBS_DEPTH];
	v->wr[last].send_flags = IBV_SEND_SIGNALED;
	v->piece[last].signalled = true;
	err = ibv_post_send(v->id->qp, &v->wr[first % VERBS_DEPTH], &bad);
	if (err)
		die(v, err);
}

/* --- in */

static int wc_errno(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
	case IBV_WC_RESP_TIMEOUT_ERR:
		return ETIMEDOUT;
	case IBV_WC_REM_ACCESS_ERR: /* the lease was revoked while this was under way, or the key is another's */
		return EACCES;
	case IBV_WC_WR_FLUSH_ERR:
		return ECONNRESET;
	case IBV_WC_REM_INV_REQ_ERR:
	case IBV_WC_REM_OP_ERR:
		return EREMOTEIO;
	default:
		return EIO;
	}
}

static void land(struct verbs *v, uint32_t index)
{
	const struct piece *piece = &v->piece[index % VERBS_DEPTH];
	struct place *place = piece->of;

	if (piece->is_read)
		memcpy((uint8_t *)place->io->buf + piece->at, v->blocks + (size_t)(index % VERBS_DEPTH) * BLOCK_BYTES,
		       piece->length);
	place->left -= piece->length;
}

/* A completion: it tells of its own piece, and of the WRITEs before it. */
static void completed(struct verbs *v, const struct ibv_wc *wc)
{
	uint32_t index = (uint32_t)wc->wr_id;

	if (wc->status != IBV_WC_SUCCESS) {
		die(v, wc_errno(wc->status));
		return;
	}
	if (index - v->done >= v->posted - v->done || !v->piece[index % VERBS_DEPTH].signalled) {
		die(v, EPROTO);
		return;
	}
	for (uint32_t i = v->done; i != index; i++)
		if (v->piece[i % VERBS_DEPTH].signalled) {
			die(v, EPROTO); /* that one should have come first */
			return;
		}
	for (; v->done != index + 1; v->done++)
		land(v, v->done);
}

static void reap(struct verbs *v)
{
	struct ibv_wc wc[VERBS_DEPTH];
	int got;

	if (v->done == v->posted || v->err)
		return;
	got = ibv_poll_cq(v->cq, VERBS_DEPTH, wc);
	for (int i = 0; i < got && !v->err; i++)
		completed(v, &wc[i]);
	if (got < 0)
		die(v, EIO);
}

static bool is_ready(struct verbs *v)
{
	return v->head != v->issued && !place_at(v, v->head)->left;
}

static int give_back(struct verbs *v, struct ne_io **done, int max)
{
	int count = 0;

	for (; count < max && (v->err ? v->head != v->tail : is_ready(v)); v->head++) {
		struct place *place = place_at(v, v->head);

		place->io->status = place->left ? v->err : place->status;
		done[count++] = place->io;
	}
	return count;
}

/* The channel's event only says: look. Its descriptor does not block. */
static void take_channel_event(struct verbs *v)
{
	struct ibv_cq *cq;
	void *context;

	if (!v->armed || ibv_get_cq_event(v->channel, &cq, &context))
		return;
	ibv_ack_cq_events(cq, 1);
	v->armed = false;
}

static int verbs_poll(struct ne_link *link, struct ne_io **done, int max)
{
	struct verbs *v = to_verbs(link);

	if (v->slept && !v->err)
		take_channel_event(v);
	reap(v);
	if (!v->err && (v->slept || v->asking || v->head == v->tail))
		hear(v);
	v->slept = false;
	verbs_submit(link);
	return give_back(v, done, max);
}

/* --- the rest */

static uint32_t verbs_outstanding(const struct ne_link *link)
{
	return to_verbs(link)->tail - to_verbs(link)->head;
}

/* More is to be cut into pieces, and none is under way whose end would wake anybody. */
static bool is_idle(const struct verbs *v)
{
	return v->issued != v->tail && v->done == v->posted && !v->asking;
}

/* Asked before a sleep: arms the completion queue. What came before that would not be told, so it looks again. */
static int verbs_wait(const struct ne_link *link, short *events, uint64_t *timeout_ns)
{
	struct verbs *v = to_verbs(link);

	*events = 0;
	*timeout_ns = UINT64_MAX;
	if (!v->err && v->head == v->tail) {
		*events = POLLIN;
		return v->sock;
	}
	if (!v->err && !v->armed && ibv_req_notify_cq(v->cq, 0))
		die(v, EIO);
	v->armed = true;
	v->slept = true;
	reap(v);
	if (v->err || is_ready(v) || is_idle(v))
		*timeout_ns = v->head == v->tail ? UINT64_MAX : 0;
	*events = v->err ? 0 : POLLIN;
	return v->err ? -1 : v->wait_fd;
}

static void verbs_kill(struct ne_link *link, int err)
{
	die(to_verbs(link), err);
}

static bool verbs_alive(const struct ne_link *link)
{
	return !to_verbs(link)->err;
}

/* Whatever there is of it, in the order that the library wants. */
static void free_all(struct verbs *v)
{
	if (v->id && v->id->qp)
		rdma_destroy_qp(v->id);
	if (v->mr)
		ibv_dereg_mr(v->mr);
	if (v->cq)
		ibv_destroy_cq(v->cq);
	if (v->channel)
		ibv_destroy_comp_channel(v->channel);
	if (v->pd)
		ibv_dealloc_pd(v->pd);
	if (v->id)
		rdma_destroy_id(v->id);
	if (v->events)
		rdma_destroy_event_channel(v->events);
	if (v->blocks)
		munmap(v->blocks, BLOCKS_BYTES);
	if (v->wait_fd >= 0)
		close(v->wait_fd);
	free(v);
}

static void verbs_destroy(struct ne_link *link)
{
	struct verbs *v = to_verbs(link);

	close(v->sock);
	free_all(v);
}

static const struct ne_link_ops verbs_ops = {
	.post = verbs_post,
	.submit = verbs_submit,
	.poll = verbs_poll,
	.outstanding = verbs_outstanding,
	.wait = verbs_wait,
	.kill = verbs_kill,
	.alive = verbs_alive,
	.destroy = verbs_destroy,
};

/* --- making one */

/* Why the library gave no pointer. */
static int missing(void)
{
	return errno ? -errno : -ENOMEM;
}

static int watch(struct verbs *v, int fd)
{
	struct epoll_event event = {.events = EPOLLIN};

	return epoll_ctl(v->wait_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

static int make_blocks(struct verbs *v)
{
	void *blocks = mmap(NULL, BLOCKS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (blocks == MAP_FAILED)
		return -errno;
	v->blocks = blocks;
	/* A child of a fork would make the kernel copy what the adapter writes to, and we would see the other copy. */
	if (madvise(blocks, BLOCKS_BYTES, MADV_DONTFORK))
		return -errno;
	v->mr = ibv_reg_mr(v->pd, blocks, BLOCKS_BYTES, IBV_ACCESS_LOCAL_WRITE);
	return v->mr ? 0 : missing();
}

static int make_queues(struct verbs *v)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = VERBS_DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	};

	v->pd = ibv_alloc_pd(v->id->verbs);
	if (!v->pd)
		return missing();
	v->channel = ibv_create_comp_channel(v->id->verbs);
	if (!v->channel)
		return missing();
	v->cq = ibv_create_cq(v->id->verbs, CQ_ENTRIES, NULL, v->channel, 0);
	if (!v->cq)
		return missing();
	attr.send_cq = v->cq;
	attr.recv_cq = v->cq;
	if (rdma_create_qp(v->id, v->pd, &attr))
		return -errno;
	return make_blocks(v);
}

static int make_waiting(struct verbs *v)
{
	int err;

	if (fcntl(v->channel->fd, F_SETFL, fcntl(v->channel->fd, F_GETFL) | O_NONBLOCK))
		return -errno;
	v->wait_fd = epoll_create1(EPOLL_CLOEXEC);
	if (v->wait_fd < 0)
		return -errno;
	err = watch(v, v->sock);
	return err ? err : watch(v, v->channel->fd);
}

/* Where the donor's listener is. */
static void place_address(const struct ne_verbs_place *place, struct sockaddr_storage *ret)
{
	struct in6_addr address;

	memset(ret, 0, sizeof(*ret));
	memcpy(&address, place->address, sizeof(address));
	if (IN6_IS_ADDR_V4MAPPED(&address)) {
		struct sockaddr_in *in = (struct sockaddr_in *)ret;

		in->sin_family = AF_INET;
		in->sin_port = htons(place->port);
		memcpy(&in->sin_addr, place->address + 12, 4);
	} else {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ret;

		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(place->port);
		in6->sin6_addr = address;
	}
}

static int ask_place(int sock, uint64_t deadline_ns, struct ne_verbs_place *ret)
{
	struct ne_verbs_hello hello = {.magic = NE_VERBS_HELLO_MAGIC};
	int err = verbs_send(sock, &hello, sizeof(hello));

	if (!err)
		err = verbs_receive(sock, ret, sizeof(*ret), deadline_ns);
	if (err)
		return err;
	if (ret->magic != NE_VERBS_PLACE_MAGIC || ret->status > ERRNO_MAX)
		return -EPROTO;
	return -(int)ret->status;
}

/* Finds the device and the way there. */
static int resolve(struct verbs *v, const struct ne_verbs_place *place, uint64_t deadline_ns)
{
	int limit_ms = (int)((deadline_ns - now_ns()) / 1000000) + 1;
	uint8_t ack_timeout = VERBS_ACK_TIMEOUT;
	struct sockaddr_storage to;
	struct verbs_event event;
	int err = verbs_channel_create(&v->events);

	if (err)
		return err;
	place_address(place, &to);
	if (rdma_create_id(v->events, &v->id, v, RDMA_PS_TCP) ||
	    rdma_resolve_addr(v->id, NULL, (struct sockaddr *)&to, limit_ms))
		return -errno;
	err = verbs_event_expect(v->events, v->sock, deadline_ns, RDMA_CM_EVENT_ADDR_RESOLVED, &event);
	if (err)
		return err;
	/* Else a dead donor is noticed after 16 s. Kernels before 5.1 have no such option: our own deadline is left. */
	rdma_set_option(v->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout, sizeof(ack_timeout));
	if (rdma_resolve_route(v->id, limit_ms))
		return -errno;
	return verbs_event_expect(v->events, v->sock, deadline_ns, RDMA_CM_EVENT_ROUTE_RESOLVED, &event);
}

static int connect_pair(struct verbs *v, const struct ne_verbs_place *place, uint64_t deadline_ns)
{
	struct ne_verbs_private say = {.magic = NE_VERBS_PRIVATE_MAGIC, .nonce = place->nonce};
	struct rdma_conn_param param = verbs_conn_param(v->id, &say);
	struct verbs_event event;
	int err;

	if (rdma_connect(v->id, &param))
		return -errno;
	err = verbs_event_expect(v->events, v->sock, deadline_ns, RDMA_CM_EVENT_ESTABLISHED, &event);
	if (err)
		return err;
	/* Whoever answered there: only the donor has been told the nonce. */
	return event.said.magic == say.magic && event.said.nonce == say.nonce ? 0 : -EPROTO;
}

int ne_rdma_connect(int sock, uint32_t limit_ms, struct ne_link **ret)
{
	uint64_t deadline_ns = now_ns() + limit_ms * 1000000ull;
	struct verbs *v = calloc(1, sizeof(*v));
	struct ne_verbs_place place;
	int err;

	if (!v)
		return -ENOMEM;
	v->link.ops = &verbs_ops;
	v->sock = sock;
	v->wait_fd = -1;
	/* A unix socket has no such option, and no such delay. */
	setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	err = ask_place(sock, deadline_ns, &place);
	if (!err)
		err = resolve(v, &place, deadline_ns);
	if (!err)
		err = make_queues(v);
	if (!err)
		err = make_waiting(v);
	if (!err)
		err = connect_pair(v, &place, deadline_ns);
	if (err) {
		free_all(v);
		return err;
	}
	*ret = &v->link;
	return 0;
}
