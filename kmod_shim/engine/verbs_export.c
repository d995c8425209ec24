/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs_export.c - the donor's end of RDMA links: queue pairs, registered memory and keys. It moves no page.
 *
 * How it works
 *   Each connection has a thread that makes the queue pair (verbs.h), and then sleeps until the borrower asks for a key
 *   or goes. A borrower's session has one protection domain an adapter, so that no key can ever reach what another
 *   borrower has. Memory is registered by the registrar, a thread that compares what should be registered where with
 *   what is, and mends the first difference, until there is none:
 *
 *	offered (ready, nobody's)	in the domain of every session there is, with no remote right whatever
 *	leased				in its borrower's domain only
 *	spent, or withdrawn		nowhere
 *
 *   So a lease takes no registration: that was made when the slab was, and all that is left to do is to bind a type-2
 *   window to the borrower's queue pair when it asks for its key. An adapter without such windows has only whole
 *   regions to give rights with; there what is offered can't be registered ahead, and is when it is leased.
 *
 * Guarantees
 *   - After ne_verbs_export_revoke() no key of the lease is good: its windows are deallocated (or its registration is),
 *     which the adapter confirms.
 *   - After ne_verbs_export_fence() the session's queue pairs do not exist: what is still on its way finds nobody.
 *   - A key names one lease, checked with session and token, and is good for one queue pair.
 *
 * Locks: exp->lock holds regions, domains and the list of connections; conn->lock, taken inside of it, holds the
 * connection's windows while one is bound. Registering and joining threads, which take long, are done under neither.
 */
#include "verbs_cm.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HANDSHAKE_NS 5000000000ull /* from the hello to the queue pair; the borrower has less patience */
#define KEY_WAIT_NS  5000000000ull /* for the registrar; a GiB takes 54 ms [infiniswap §2.7.4.1] */
#define BIND_NS	     1000000000ull

enum {
	STACK_BYTES = 256 << 10,
	SQ_DEPTH = 4,
	BIND_NAP_NS = 20000,
	BIND_SPINS = 200, /* binding takes a few us where an adapter does it */
};

enum region_state { OFFERED, LEASED, SPENT };

/* A region in a domain. */
struct reg {
	struct reg *next;
	struct domain *domain;
	struct ibv_mr *mr; /* NULL: it was tried, and failed */
};

struct region {
	struct region *next;
	uint8_t *addr;
	uint64_t bytes;
	enum region_state state;
	bool was_offered; /* else it is known from its lease alone, and ends with it */
	bool is_busy;	  /* the registrar has it */
	uint32_t lease;
	uint64_t session, token;
	struct reg *regs;
};

struct domain {
	struct domain *next;
	uint64_t session;
	struct ibv_context *verbs;
	struct ibv_pd *pd;
	bool has_windows;
	uint32_t conns, busy;
	bool is_used; /* as of the registrar's last look */
};

struct window {
	struct window *next;
	uint32_t lease;
	uint64_t token;
	struct ibv_mw *mw;
	struct ne_verbs_key key;
};

struct conn {
	struct conn *next;
	struct ne_verbs_export *exp;
	uint64_t session;
	pthread_t thread;
	int sock;	 /* exp->lock; -1 once the thread has ended */
	bool ended;	 /* exp->lock */
	bool closing;	 /* exp->lock; it has been told to end */
	uint64_t cpu_ns; /* once ended */
	_Atomic uint64_t keys, refused;
	struct sockaddr_storage at; /* where its listener is */

	/* The thread's own. */
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener, *id;
	struct ibv_cq *cq;
	struct domain *domain;

	pthread_mutex_t lock; /* windows, while one is bound or taken away */
	struct window *windows;
};

struct ne_verbs_export {
	pthread_mutex_t lock;
	pthread_cond_t work;	/* for the registrar */
	pthread_cond_t changed; /* by it, or a region's state */
	pthread_t registrar;
	bool has_registrar, ending;
	struct region *regions;
	struct domain *domains;
	struct conn *conns;
	struct ne_export_stats past;
};

/* --- regions and domains; exp->lock is held */

static struct region *region_of_memory(struct ne_verbs_export *exp, const void *addr)
{
	for (struct region *region = exp->regions; region; region = region->next)
		if (region->addr == addr)
			return region;
	return NULL;
}

static struct region *region_of_lease(struct ne_verbs_export *exp, uint32_t lease)
{
	for (struct region *region = exp->regions; region; region = region->next)
		if (region->state == LEASED && region->lease == lease)
			return region;
	return NULL;
}

static struct reg *reg_of(const struct region *region, const struct domain *domain)
{
	for (struct reg *reg = region->regs; reg; reg = reg->next)
		if (reg->domain == domain)
			return reg;
	return NULL;
}

/* A domain is used while its session has a queue pair, or anything leased that its next queue pair will want. */
static void domains_look(struct ne_verbs_export *exp)
{
	for (struct domain *domain = exp->domains; domain; domain = domain->next)
		domain->is_used = domain->conns > 0;
	for (const struct region *region = exp->regions; region; region = region->next)
		for (struct domain *domain = exp->domains; domain && region->state == LEASED; domain = domain->next)
			domain->is_used |= region->session == domain->session;
}

static bool belongs_in(const struct region *region, const struct domain *domain)
{
	if (region->state == SPENT || !domain->is_used)
		return false;
	return region->state == LEASED ? region->session == domain->session : domain->has_windows;
}

/* Rights of a registration: with windows none of its own, so that nobody reaches it before one is bound. */
static int access_in(const struct domain *domain)
{
	return IBV_ACCESS_LOCAL_WRITE |
	       (domain->has_windows ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
}

static void reg_free(struct reg *reg)
{
	if (reg->mr)
		ibv_dereg_mr(reg->mr);
	free(reg);
}

/* Takes the registration off the region's list. */
static void reg_unlink(struct region *region, struct reg *reg)
{
	struct reg **at = &region->regs;

	while (*at != reg)
		at = &(*at)->next;
	*at = reg->next;
}

static void region_unlink(struct ne_verbs_export *exp, struct region *region)
{
	struct region **at = &exp->regions;

	while (*at != region)
		at = &(*at)->next;
	*at = region->next;
}

static void wait_until_idle(struct ne_verbs_export *exp, const struct region *region)
{
	while (region->is_busy)
		pthread_cond_wait(&exp->changed, &exp->lock);
}

/* --- the registrar */

/* Registers, or takes back, with the lock let go; the region can't go meanwhile, nor the domain. */
static void registrar_register(struct ne_verbs_export *exp, struct region *region, struct domain *domain)
{
	struct reg *reg = calloc(1, sizeof(*reg));

	region->is_busy = true;
	domain->busy++;
	pthread_mutex_unlock(&exp->lock);
	if (reg) {
		reg->domain = domain;
		reg->mr = ibv_reg_mr(domain->pd, region->addr, region->bytes, access_in(domain));
	}
	pthread_mutex_lock(&exp->lock);
	region->is_busy = false;
	domain->busy--;
	if (reg) {
		reg->next = region->regs;
		region->regs = reg;
	}
	pthread_cond_broadcast(&exp->changed);
}

static void registrar_take_back(struct ne_verbs_export *exp, struct region *region, struct reg *reg)
{
	struct domain *domain = reg->domain;

	reg_unlink(region, reg);
	region->is_busy = true;
	domain->busy++;
	pthread_mutex_unlock(&exp->lock);
	reg_free(reg);
	pthread_mutex_lock(&exp->lock);
	region->is_busy = false;
	domain->busy--;
	pthread_cond_broadcast(&exp->changed);
}

static bool registrar_add(struct ne_verbs_export *exp, enum region_state state)
{
	for (struct region *region = exp->regions; region; region = region->next)
		for (struct domain *domain = exp->domains; domain; domain = domain->next)
			if (region->state == state && !region->is_busy && belongs_in(region, domain) &&
			    !reg_of(region, domain)) {
				registrar_register(exp, region, domain);
				return true;
			}
	return false;
}

static bool registrar_remove(struct ne_verbs_export *exp)
{
	for (struct region *region = exp->regions; region; region = region->next)
		for (struct reg *reg = region->regs; reg; reg = reg->next)
			if (!region->is_busy && !belongs_in(region, reg->domain)) {
				registrar_take_back(exp, region, reg);
				return true;
			}
	return false;
}

static bool domain_has_regions(const struct ne_verbs_export *exp, const struct domain *domain)
{
	for (const struct region *region = exp->regions; region; region = region->next)
		if (reg_of(region, domain))
			return true;
	return false;
}

static bool registrar_close_domain(struct ne_verbs_export *exp)
{
	for (struct domain **at = &exp->domains; *at; at = &(*at)->next) {
		struct domain *domain = *at;

		if (domain->is_used || domain->busy || domain_has_regions(exp, domain))
			continue;
		*at = domain->next;
		ibv_dealloc_pd(domain->pd);
		free(domain);
		return true;
	}
	return false;
}

/* One difference mended: what somebody may be waiting for first. False when there is none. */
static bool registrar_step(struct ne_verbs_export *exp)
{
	domains_look(exp);
	return registrar_add(exp, LEASED) || registrar_add(exp, OFFERED) || registrar_remove(exp) ||
	       registrar_close_domain(exp);
}

static void *registrar_main(void *arg)
{
	struct ne_verbs_export *exp = arg;

	pthread_setname_np(pthread_self(), "fs-registrar");
	pthread_mutex_lock(&exp->lock);
	while (!exp->ending)
		if (!registrar_step(exp))
			pthread_cond_wait(&exp->work, &exp->lock);
	pthread_mutex_unlock(&exp->lock);
	return NULL;
}

/* --- keys, in a connection's thread */

static bool bind_is_done(struct conn *conn, uint64_t id)
{
	uint64_t deadline_ns = verbs_now_ns() + BIND_NS;
	struct ibv_wc wc;
	int got;

	for (int looks = 0; verbs_now_ns() < deadline_ns; looks++) {
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

/* 0 and the region, registered in the connection's domain; or the errno to refuse with. exp->lock is held. */
static uint32_t key_check(struct conn *conn, const struct ne_verbs_ask *ask, struct region **ret, struct ibv_mr **mr)
{
	struct ne_verbs_export *exp = conn->exp;
	uint64_t deadline_ns = verbs_now_ns() + KEY_WAIT_NS;
	struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000),
				 .tv_nsec = (long)(deadline_ns % 1000000000)};
	bool tried_again = false;

	for (;;) {
		struct region *region = region_of_lease(exp, ask->lease);
		struct reg *reg;

		if (conn->closing)
			return ECANCELED;
		if (!region)
			return ENOENT;
		if ((region->session ^ conn->session) | (region->token ^ ask->token))
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
			reg_unlink(region, reg);
			reg_free(reg);
			tried_again = true;
		}
		pthread_cond_signal(&exp->work);
		if (pthread_cond_timedwait(&exp->changed, &exp->lock, &until))
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

	pthread_mutex_lock(&conn->exp->lock);
	status = key_check(conn, ask, &region, &mr);
	if (status) {
		pthread_mutex_unlock(&conn->exp->lock);
	} else {
		/* Who revokes waits for conn->lock under exp->lock: region and registration stay until this is let go.
		 */
		pthread_mutex_lock(&conn->lock);
		pthread_mutex_unlock(&conn->exp->lock);
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
		struct pollfd pfd[2] = {{.fd = conn->sock, .events = POLLIN},
					{.fd = conn->events->fd, .events = POLLIN}};
		struct verbs_event event;
		struct ne_verbs_ask ask;
		struct ne_verbs_key key;

		if (poll(pfd, 2, -1) < 0 && errno != EINTR)
			return;
		if (pfd[1].revents && !verbs_event_next(conn->events, conn->sock, 0, &event) &&
		    (event.kind == RDMA_CM_EVENT_DISCONNECTED || event.kind == RDMA_CM_EVENT_DEVICE_REMOVAL))
			return;
		if (!pfd[0].revents)
			continue;
		if (verbs_receive(conn->sock, &ask, sizeof(ask), verbs_now_ns() + HANDSHAKE_NS) ||
		    ask.magic != NE_VERBS_ASK_MAGIC)
			return;
		key_serve(conn, &ask, &key);
		if (verbs_send(conn->sock, &key, sizeof(key)))
			return;
	}
}

/* --- making the queue pair, in a connection's thread */

static bool device_has_windows(struct ibv_context *verbs)
{
	struct ibv_device_attr attr;

	return !ibv_query_device(verbs, &attr) &&
	       attr.device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B);
}

static struct domain *domain_make(struct ne_verbs_export *exp, uint64_t session, struct ibv_context *verbs)
{
	struct domain *domain = calloc(1, sizeof(*domain));

	if (!domain)
		return NULL;
	domain->session = session;
	domain->verbs = verbs;
	domain->has_windows = device_has_windows(verbs);
	domain->pd = ibv_alloc_pd(verbs);
	if (!domain->pd) {
		free(domain);
		return NULL;
	}
	domain->next = exp->domains;
	exp->domains = domain;
	return domain;
}

/* The session's domain on this adapter; made when this is the session's first connection. */
static int domain_join(struct conn *conn)
{
	struct ne_verbs_export *exp = conn->exp;
	struct domain *domain;

	pthread_mutex_lock(&exp->lock);
	for (domain = exp->domains; domain; domain = domain->next)
		if (domain->session == conn->session && domain->verbs == conn->id->verbs)
			break;
	if (!domain)
		domain = domain_make(exp, conn->session, conn->id->verbs);
	if (domain) {
		domain->conns++;
		conn->domain = domain;
		pthread_cond_signal(&exp->work);
	}
	pthread_mutex_unlock(&exp->lock);
	return domain ? 0 : -ENOMEM;
}

static void domain_leave(struct conn *conn)
{
	pthread_mutex_lock(&conn->exp->lock);
	conn->domain->conns--;
	pthread_cond_signal(&conn->exp->work);
	pthread_mutex_unlock(&conn->exp->lock);
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
		err = verbs_event_expect(conn->events, conn->sock, deadline_ns, RDMA_CM_EVENT_CONNECT_REQUEST, &event);
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
	return verbs_event_expect(conn->events, conn->sock, deadline_ns, RDMA_CM_EVENT_ESTABLISHED, &event);
}

static int handshake(struct conn *conn)
{
	uint64_t deadline_ns = verbs_now_ns() + HANDSHAKE_NS;
	struct ne_verbs_place place = {.magic = NE_VERBS_PLACE_MAGIC};
	struct ne_verbs_hello hello;
	int err, sent;

	err = verbs_receive(conn->sock, &hello, sizeof(hello), deadline_ns);
	if (err || hello.magic != NE_VERBS_HELLO_MAGIC || hello.flags)
		return err ? err : -EPROTO;
	err = listen_once(conn, &place);
	place.status = (uint32_t)-err;
	sent = verbs_send(conn->sock, &place, sizeof(place));
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

static uint64_t thread_cpu_ns(clockid_t clock)
{
	struct timespec spent;

	return clock_gettime(clock, &spent) ? 0 : spent.tv_sec * 1000000000ull + spent.tv_nsec;
}

static void *conn_main(void *arg)
{
	struct conn *conn = arg;

	pthread_setname_np(pthread_self(), "fs-rdma");
	if (!handshake(conn)) {
		rdma_destroy_id(conn->listener); /* it was for this one */
		conn->listener = NULL;
		serve(conn);
	}
	pair_destroy(conn);

	pthread_mutex_lock(&conn->exp->lock);
	close(conn->sock);
	conn->sock = -1;
	conn->cpu_ns = thread_cpu_ns(CLOCK_THREAD_CPUTIME_ID);
	conn->ended = true;
	pthread_mutex_unlock(&conn->exp->lock);
	return NULL;
}

/* --- control calls */

static void conn_add_stats(struct conn *conn, struct ne_export_stats *sum)
{
	clockid_t clock;

	sum->rdma_keys += conn->keys;
	sum->refused += conn->refused;
	if (conn->ended)
		sum->cpu_ns += conn->cpu_ns;
	else if (pthread_getcpuclockid(conn->thread, &clock) == 0)
		sum->cpu_ns += thread_cpu_ns(clock);
}

/* Waits for the connection's thread and forgets it. The control thread alone takes connections off the list. */
static void conn_destroy(struct conn *conn)
{
	struct ne_verbs_export *exp = conn->exp;
	struct conn **at = &exp->conns;

	pthread_join(conn->thread, NULL);
	pthread_mutex_lock(&exp->lock);
	while (*at != conn)
		at = &(*at)->next;
	*at = conn->next;
	conn_add_stats(conn, &exp->past);
	pthread_mutex_unlock(&exp->lock);
	pthread_mutex_destroy(&conn->lock);
	free(conn);
}

/* Frees connections whose borrowers have gone. */
static void reap(struct ne_verbs_export *exp)
{
	struct conn *conn, *next;
	bool ended;

	for (conn = exp->conns; conn; conn = next) {
		next = conn->next;
		pthread_mutex_lock(&exp->lock);
		ended = conn->ended;
		pthread_mutex_unlock(&exp->lock);
		if (ended)
			conn_destroy(conn);
	}
}

void ne_verbs_export_fence(struct ne_verbs_export *exp, bool all, uint64_t session)
{
	struct conn *next;

	pthread_mutex_lock(&exp->lock);
	for (struct conn *conn = exp->conns; conn; conn = conn->next) /* all are told first: they end side by side */
		if ((all || conn->session == session) && conn->sock >= 0) {
			conn->closing = true;
			shutdown(conn->sock, SHUT_RDWR);
		}
	pthread_cond_broadcast(&exp->changed); /* one may be waiting for the registrar */
	pthread_mutex_unlock(&exp->lock);
	for (struct conn *conn = exp->conns; conn; conn = next) {
		next = conn->next;
		if (all || conn->session == session)
			conn_destroy(conn);
	}
}

int ne_verbs_export_create(struct ne_verbs_export **ret)
{
	struct ne_verbs_export *exp = calloc(1, sizeof(*exp));
	pthread_condattr_t monotonic;

	if (!exp)
		return -ENOMEM;
	pthread_mutex_init(&exp->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&exp->work, &monotonic);
	pthread_cond_init(&exp->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	*ret = exp;
	return 0;
}

static void registrar_stop(struct ne_verbs_export *exp)
{
	pthread_mutex_lock(&exp->lock);
	exp->ending = true;
	pthread_cond_signal(&exp->work);
	pthread_mutex_unlock(&exp->lock);
	if (exp->has_registrar)
		pthread_join(exp->registrar, NULL);
}

void ne_verbs_export_destroy(struct ne_verbs_export *exp)
{
	if (!exp)
		return;
	ne_verbs_export_fence(exp, true, 0);
	registrar_stop(exp);
	while (exp->regions) {
		struct region *region = exp->regions;

		exp->regions = region->next;
		while (region->regs) {
			struct reg *reg = region->regs;

			region->regs = reg->next;
			reg_free(reg);
		}
		free(region);
	}
	while (exp->domains) {
		struct domain *domain = exp->domains;

		exp->domains = domain->next;
		ibv_dealloc_pd(domain->pd);
		free(domain);
	}
	pthread_cond_destroy(&exp->work);
	pthread_cond_destroy(&exp->changed);
	pthread_mutex_destroy(&exp->lock);
	free(exp);
}

static struct region *region_make(struct ne_verbs_export *exp, void *addr, uint64_t bytes)
{
	struct region *region = calloc(1, sizeof(*region));

	if (!region)
		return NULL;
	region->addr = addr;
	region->bytes = bytes;
	region->next = exp->regions;
	exp->regions = region;
	return region;
}

int ne_verbs_export_offer(struct ne_verbs_export *exp, void *addr, uint64_t bytes)
{
	struct region *region;

	pthread_mutex_lock(&exp->lock);
	region = region_make(exp, addr, bytes);
	if (region)
		region->was_offered = true;
	pthread_cond_signal(&exp->work);
	pthread_mutex_unlock(&exp->lock);
	return region ? 0 : -ENOMEM;
}

/* Takes the region away from all domains, and forgets it; exp->lock is let go meanwhile and held again afterwards. */
static void region_end(struct ne_verbs_export *exp, struct region *region)
{
	wait_until_idle(exp, region);
	region_unlink(exp, region);
	for (struct reg *reg = region->regs; reg; reg = reg->next)
		reg->domain->busy++;
	pthread_mutex_unlock(&exp->lock);
	for (struct reg *reg = region->regs; reg; reg = reg->next)
		if (reg->mr)
			ibv_dereg_mr(reg->mr);
	pthread_mutex_lock(&exp->lock);
	while (region->regs) {
		struct reg *reg = region->regs;

		region->regs = reg->next;
		reg->domain->busy--;
		free(reg);
	}
	free(region);
	pthread_cond_signal(&exp->work);
}

void ne_verbs_export_withdraw(struct ne_verbs_export *exp, void *addr)
{
	struct region *region;

	pthread_mutex_lock(&exp->lock);
	region = region_of_memory(exp, addr);
	if (region)
		region_end(exp, region);
	pthread_mutex_unlock(&exp->lock);
}

int ne_verbs_export_lease(struct ne_verbs_export *exp, uint32_t lease, uint64_t session, uint64_t token, void *addr,
			  uint64_t bytes)
{
	struct region *region;

	pthread_mutex_lock(&exp->lock);
	region = region_of_memory(exp, addr);
	if (!region)
		region = region_make(exp, addr, bytes);
	if (region) {
		region->state = LEASED;
		region->bytes = bytes;
		region->lease = lease;
		region->session = session;
		region->token = token;
		pthread_cond_signal(&exp->work);
	}
	pthread_mutex_unlock(&exp->lock);
	return region ? 0 : -ENOMEM;
}

static void windows_take_away(struct conn *conn, uint32_t lease)
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

/* Registrations that were keys themselves. */
static void rights_take_away(struct ne_verbs_export *exp, struct region *region)
{
	struct reg **at = &region->regs;

	wait_until_idle(exp, region);
	while (*at) {
		struct reg *reg = *at;

		if (reg->domain->has_windows) {
			at = &reg->next;
			continue;
		}
		*at = reg->next;
		reg_free(reg);
	}
}

void ne_verbs_export_revoke(struct ne_verbs_export *exp, uint32_t lease)
{
	struct region *region;

	pthread_mutex_lock(&exp->lock);
	region = region_of_lease(exp, lease);
	if (region) {
		region->state = SPENT; /* from here on no key is given */
		pthread_cond_broadcast(&exp->changed);
		for (struct conn *conn = exp->conns; conn; conn = conn->next)
			if (conn->session == region->session)
				windows_take_away(conn, lease);
		rights_take_away(exp, region);
		if (!region->was_offered)
			region_end(exp, region);
		pthread_cond_signal(&exp->work);
	}
	pthread_mutex_unlock(&exp->lock);
	reap(exp);
}

/* Where the listener is to be: `address`, or where the companion came to. */
static int conn_address(int sock, const char *address, struct sockaddr_storage *ret)
{
	struct sockaddr_in *in = (struct sockaddr_in *)ret;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ret;
	socklen_t bytes = sizeof(*ret);

	memset(ret, 0, sizeof(*ret));
	if (address && *address) {
		in->sin_family = AF_INET;
		if (inet_pton(AF_INET, address, &in->sin_addr) == 1)
			return 0;
		in6->sin6_family = AF_INET6;
		return inet_pton(AF_INET6, address, &in6->sin6_addr) == 1 ? 0 : -EINVAL;
	}
	if (getsockname(sock, (struct sockaddr *)ret, &bytes))
		return -errno;
	if (ret->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
		struct sockaddr_in plain = {.sin_family = AF_INET};

		memcpy(&plain.sin_addr, in6->sin6_addr.s6_addr + 12, 4);
		memset(ret, 0, sizeof(*ret));
		*in = plain;
	}
	if (ret->ss_family == AF_INET)
		in->sin_port = 0;
	else if (ret->ss_family == AF_INET6)
		in6->sin6_port = 0;
	else
		return -EAFNOSUPPORT;
	return 0;
}

static int thread_start(pthread_t *ret, void *(*main)(void *), void *arg)
{
	pthread_attr_t attr;
	sigset_t all, before;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	/* A new thread inherits the mask: signals are for the process's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(ret, &attr, main, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return -err;
}

static int registrar_start(struct ne_verbs_export *exp)
{
	int err;

	if (exp->has_registrar)
		return 0;
	err = thread_start(&exp->registrar, registrar_main, exp);
	exp->has_registrar = !err;
	return err;
}

int ne_verbs_export_conn(struct ne_verbs_export *exp, uint64_t session, int sock, const char *address)
{
	struct conn *conn = calloc(1, sizeof(*conn));
	int err;

	reap(exp);
	if (!conn)
		return -ENOMEM;
	conn->exp = exp;
	conn->session = session;
	conn->sock = sock;
	pthread_mutex_init(&conn->lock, NULL);
	err = conn_address(sock, address, &conn->at);
	if (!err)
		err = registrar_start(exp);
	setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	/* The lock makes the thread wait with its end until it is on the list. */
	pthread_mutex_lock(&exp->lock);
	if (!err)
		err = thread_start(&conn->thread, conn_main, conn);
	if (!err) {
		conn->next = exp->conns;
		exp->conns = conn;
	}
	pthread_mutex_unlock(&exp->lock);
	if (err) {
		pthread_mutex_destroy(&conn->lock);
		free(conn);
	}
	return err;
}

void ne_verbs_export_stats(struct ne_verbs_export *exp, struct ne_export_stats *add)
{
	pthread_mutex_lock(&exp->lock);
	add->rdma_keys += exp->past.rdma_keys;
	add->refused += exp->past.refused;
	add->cpu_ns += exp->past.cpu_ns;
	for (struct conn *conn = exp->conns; conn; conn = conn->next) {
		add->rdma_connections += !conn->ended;
		conn_add_stats(conn, add);
	}
	for (const struct region *region = exp->regions; region; region = region->next)
		for (const struct reg *reg = region->regs; reg; reg = reg->next)
			add->rdma_registered_bytes += reg->mr ? region->bytes : 0;
	pthread_mutex_unlock(&exp->lock);
}
