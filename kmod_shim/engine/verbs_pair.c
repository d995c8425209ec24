/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_pair.c - the thread of a borrower's queue pair: makes it, gives out keys, destroys it. See verbs_export.c. */
#include "verbs_pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define HANDSHAKE_NS 5000000000ull /* from the hello to the queue pair; the borrower has less patience */
#define KEY_WAIT_NS  5000000000ull /* for the registrar; a GiB takes 54 ms [infiniswap §2.7.4.1] */
#define BIND_NS	     1000000000ull

enum {
	SQ_DEPTH = 4,
	BIND_NAP_NS = 20000,
	BIND_SPINS = 200, /* binding takes a few us where an adapter does it */
};

/* --- keys */

static bool bind_is_done(struct conn *conn, uint64_t id)
{
	uint64_t deadline_ns = now_ns() + BIND_NS;
	struct ibv_wc wc;
	int got;

	for (int looks = 0; now_ns() < deadline_ns; looks++) {
		got = ibv_poll_cq(conn->cq, 1, &wc);
		if (got < 0)
			return false;
		if (got && wc.wr_id == id)
			return wc.status == IBV_WC_SUCCESS;
		if (!got && looks >= BIND_SPINS)
			nanosleep(&(struct timespec){.tv_nsec = BIND_NAP_NS}, NULL);
	}
	return false;
}

/* A window of the whole region for this queue pair, or NULL. conn->lock is held. */
static struct ibv_mw *window_bind(struct conn *conn, const struct region *region, struct ibv_mr *mr)
{
	struct ibv_mw *mw = ibv_alloc_mw(conn->domain->pd, IBV_MW_TYPE_2);
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;

	if (!mw)
		return NULL;
	wr.wr_id = (uintptr_t)mw;
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = mr,
		.addr = (uintptr_t)region->addr,
		.length = region->bytes,
		.mw_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	};
	if (ibv_post_send(conn->id->qp, &wr, &bad) || !bind_is_done(conn, wr.wr_id)) {
		ibv_dealloc_mw(mw);
		return NULL;
	}
	mw->rkey = wr.bind_mw.rkey;
	return mw;
}

static struct window *window_of(struct conn *conn, uint32_t lease, uint64_t token)
{
	for (struct window *window = conn->windows; window; window = window->next)
		if (window->lease == lease && window->token == token)
			return window;
	return NULL;
}

static void window_free(struct window **at)
{
	struct window *window = *at;

	*at = window->next;
	if (window->mw)
		ibv_dealloc_mw(window->mw);
	free(window);
}

/* 0 and the region, registered in the connection's domain; or the errno to refuse with. registry->lock is held. */
static uint32_t key_check(struct conn *conn, const struct ne_verbs_ask *ask, struct region **ret, struct ibv_mr **mr)
{
	struct registry *registry = conn->registry;
	uint64_t deadline_ns = now_ns() + KEY_WAIT_NS;
	struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000),
				 .tv_nsec = (long)(deadline_ns % 1000000000)};
	bool tried_again = false;

	for (;;) {
		struct region *region = region_of_lease(registry, ask->lease);
		struct reg *reg;

		if (conn->peer.closing)
			return ECANCELED;
		if (!region)
			return ENOENT;
		if ((region->session ^ conn->peer.session) | (region->token ^ ask->token))
			return EACCES;
		reg = reg_of(region, conn->domain);
		if (reg && reg->mr) {
			*ret = region;
			*mr = reg->mr;
			return 0;
		}
		if (reg && (tried_again || region->is_busy))
			return EIO;
		if (reg) { /* it failed when nobody waited for it; there may be memory now */
			reg_forget(region, reg);
			tried_again = true;
		}
		pthread_cond_signal(&registry->work);
		if (pthread_cond_timedwait(&registry->changed, &registry->lock, &until))
			return EIO;
	}
}

/* conn->lock is held. */
static uint32_t key_make(struct conn *conn, const struct region *region, struct ibv_mr *mr, struct ne_verbs_key *ret)
{
	struct window *window = calloc(1, sizeof(*window));

	if (!window)
		return ENOMEM;
	if (conn->domain->has_windows) {
		window->mw = window_bind(conn, region, mr);
		if (!window->mw) {
			free(window);
			return EIO;
		}
	}
	window->lease = region->lease;
	window->token = region->token;
	window->key = (struct ne_verbs_key){
		.magic = NE_VERBS_KEY_MAGIC,
		.lease = region->lease,
		.rkey = window->mw ? window->mw->rkey : mr->rkey,
		.addr = (uintptr_t)region->addr,
		.bytes = region->bytes,
	};
	window->next = conn->windows;
	conn->windows = window;
	*ret = window->key;
	return 0;
}

static void key_serve(struct conn *conn, const struct ne_verbs_ask *ask, struct ne_verbs_key *ret)
{
	struct window *window;
	struct region *region;
	struct ibv_mr *mr;
	uint32_t status;

	pthread_mutex_lock(&conn->registry->lock);
	status = key_check(conn, ask, &region, &mr);
	if (status) {
		pthread_mutex_unlock(&conn->registry->lock);
	} else {
		/* Who revokes waits for conn->lock under registry->lock: region and registration stay until this is let
		 * go.
		 */
		pthread_mutex_lock(&conn->lock);
		pthread_mutex_unlock(&conn->registry->lock);
		window = window_of(conn, ask->lease, ask->token); /* asked before, and forgotten there */
		if (window)
			*ret = window->key;
		else
			status = key_make(conn, region, mr, ret);
		pthread_mutex_unlock(&conn->lock);
	}
	if (status)
		*ret = (struct ne_verbs_key){.magic = NE_VERBS_KEY_MAGIC, .lease = ask->lease, .status = status};
	atomic_fetch_add_explicit(status ? &conn->refused : &conn->keys, 1, memory_order_relaxed);
}

/* Serves keys until the borrower goes, or control shuts the companion down. */
static void serve(struct conn *conn)
{
	for (;;) {
		struct pollfd pfd[2] = {{.fd = conn->peer.sock, .events = POLLIN},
					{.fd = conn->events->fd, .events = POLLIN}};
		struct verbs_event event;
		struct ne_verbs_ask ask;
		struct ne_verbs_key key;

		if (poll(pfd, 2, -1) < 0 && errno != EINTR)
			return;
		if (pfd[1].revents && !verbs_event_next(conn->events, conn->peer.sock, 0, &event) &&
		    (event.kind == RDMA_CM_EVENT_DISCONNECTED || event.kind == RDMA_CM_EVENT_DEVICE_REMOVAL))
			return;
		if (!pfd[0].revents)
			continue;
		if (verbs_receive(conn->peer.sock, &ask, sizeof(ask), now_ns() + HANDSHAKE_NS) ||
		    ask.magic != NE_VERBS_ASK_MAGIC)
			return;
		key_serve(conn, &ask, &key);
		if (verbs_send(conn->peer.sock, &key, sizeof(key)))
			return;
	}
}

void pair_end_keys(struct conn *conn, uint32_t lease)
{
	pthread_mutex_lock(&conn->lock); /* one that is being bound is bound first */
	for (struct window **at = &conn->windows; *at;) {
		if ((*at)->lease == lease)
			window_free(at);
		else
			at = &(*at)->next;
	}
	pthread_mutex_unlock(&conn->lock);
}

/* --- making the queue pair, and its end */

/* The session's domain on this adapter; made when this is the session's first connection. */
static int domain_join(struct conn *conn)
{
	struct registry *registry = conn->registry;
	struct domain *domain;

	pthread_mutex_lock(&registry->lock);
	domain = domain_of(registry, conn->peer.session, conn->id->verbs);
	if (domain) {
		domain->conns++;
		conn->domain = domain;
		pthread_cond_signal(&registry->work);
	}
	pthread_mutex_unlock(&registry->lock);
	return domain ? 0 : -ENOMEM;
}

static void domain_leave(struct conn *conn)
{
	pthread_mutex_lock(&conn->registry->lock);
	conn->domain->conns--;
	pthread_cond_signal(&conn->registry->work);
	pthread_mutex_unlock(&conn->registry->lock);
}

static void place_fill(const struct sockaddr_storage *at, struct ne_verbs_place *place)
{
	if (at->ss_family == AF_INET6) {
		memcpy(place->address, &((const struct sockaddr_in6 *)at)->sin6_addr, 16);
		return;
	}
	memset(place->address + 10, 0xff, 2);
	memcpy(place->address + 12, &((const struct sockaddr_in *)at)->sin_addr, 4);
}

/* A listener for this one queue pair. */
static int listen_once(struct conn *conn, struct ne_verbs_place *place)
{
	int err = verbs_channel_create(&conn->events);

	if (err)
		return err;
	if (rdma_create_id(conn->events, &conn->listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(conn->listener, (struct sockaddr *)&conn->at) || rdma_listen(conn->listener, 1))
		return -errno;
	if (!conn->listener->verbs)
		return -ENODEV; /* it was bound to an address that no adapter has */
	if (getrandom(&place->nonce, sizeof(place->nonce), 0) != sizeof(place->nonce))
		return -EIO;
	place->port = ntohs(rdma_get_src_port(conn->listener));
	place_fill(&conn->at, place);
	return 0;
}

/* The connection request that knows the nonce. */
static int await_request(struct conn *conn, uint64_t nonce, uint64_t deadline_ns)
{
	struct verbs_event event;
	int err;

	for (;;) {
		err = verbs_event_expect(conn->events, conn->peer.sock, deadline_ns, RDMA_CM_EVENT_CONNECT_REQUEST,
					 &event);
		if (err)
			return err;
		if (event.said.magic == NE_VERBS_PRIVATE_MAGIC && event.said.nonce == nonce) {
			conn->id = event.id;
			return 0;
		}
		rdma_reject(event.id, NULL, 0);
		rdma_destroy_id(event.id);
	}
}

static int accept_pair(struct conn *conn, uint64_t nonce, uint64_t deadline_ns)
{
	struct ne_verbs_private say = {.magic = NE_VERBS_PRIVATE_MAGIC, .nonce = nonce};
	struct rdma_conn_param param = verbs_conn_param(conn->id, &say);
	struct verbs_event event;
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = SQ_DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	};

	conn->cq = ibv_create_cq(conn->id->verbs, 2 * SQ_DEPTH, NULL, NULL, 0);
	if (!conn->cq)
		return -errno;
	attr.send_cq = conn->cq;
	attr.recv_cq = conn->cq;
	if (rdma_create_qp(conn->id, conn->domain->pd, &attr) || rdma_accept(conn->id, &param))
		return -errno;
	return verbs_event_expect(conn->events, conn->peer.sock, deadline_ns, RDMA_CM_EVENT_ESTABLISHED, &event);
}

static int handshake(struct conn *conn)
{
	uint64_t deadline_ns = now_ns() + HANDSHAKE_NS;
	struct ne_verbs_place place = {.magic = NE_VERBS_PLACE_MAGIC};
	struct ne_verbs_hello hello;
	int err, sent;

	err = verbs_receive(conn->peer.sock, &hello, sizeof(hello), deadline_ns);
	if (err || hello.magic != NE_VERBS_HELLO_MAGIC || hello.flags)
		return err ? err : -EPROTO;
	err = listen_once(conn, &place);
	place.status = (uint32_t)-err;
	sent = verbs_send(conn->peer.sock, &place, sizeof(place));
	if (!err)
		err = sent;
	if (!err)
		err = await_request(conn, place.nonce, deadline_ns);
	if (!err)
		err = domain_join(conn);
	if (!err)
		err = accept_pair(conn, place.nonce, deadline_ns);
	return err;
}

/* The queue pair takes nothing more in from the first line on. A window must go before its queue pair can. */
static void pair_destroy(struct conn *conn)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	if (conn->id && conn->id->qp)
		ibv_modify_qp(conn->id->qp, &attr, IBV_QP_STATE);
	pthread_mutex_lock(&conn->lock);
	while (conn->windows)
		window_free(&conn->windows);
	pthread_mutex_unlock(&conn->lock);
	if (conn->id && conn->id->qp)
		rdma_destroy_qp(conn->id);
	if (conn->cq)
		ibv_destroy_cq(conn->cq);
	if (conn->id)
		rdma_destroy_id(conn->id);
	if (conn->listener)
		rdma_destroy_id(conn->listener);
	if (conn->events)
		rdma_destroy_event_channel(conn->events);
	if (conn->domain)
		domain_leave(conn);
}

void *pair_main(void *arg)
{
	struct conn *conn = arg;

	pthread_setname_np(pthread_self(), "fs-rdma");
	if (!handshake(conn)) {
		rdma_destroy_id(conn->listener); /* it was for this one */
		conn->listener = NULL;
		serve(conn);
	}
	pair_destroy(conn);
	peer_leave(conn->peers, &conn->peer);
	return NULL;
}
