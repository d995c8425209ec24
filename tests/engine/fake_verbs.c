/* SPDX-License-Identifier: Apache-2.0 */
/* fake_verbs.c - see fake_verbs.h. One lock over everything: it is about order, not speed. */
#include "fake_verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { WRS_MAX = 64, WCS_MAX = 64, EVENTS_MAX = 8, PRIVATE_BYTES = 196, PORT_FIRST = 20000 };

struct fake fake;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_context context;
static struct ibv_device device = {.name = "fake0"};
static int ports, keys;

#define BREAK(what) (fake.broken[0] ? (void)0 : (void)snprintf(fake.broken, sizeof(fake.broken), "%s", what))

struct fake_event {
	struct rdma_cm_event pub;
	uint8_t said[PRIVATE_BYTES];
};

struct fake_events {
	struct rdma_event_channel pub;
	struct fake_event *queue[EVENTS_MAX];
	int count;
};

struct fake_id {
	struct rdma_cm_id pub;
	struct fake_id *next, *peer;
	int port; /* of a listener, or where it connects to */
	bool listens, established;
};

struct fake_cq {
	struct ibv_cq pub;
	struct ibv_wc wc[WCS_MAX];
	int count;
	bool armed;
};

struct fake_pd {
	struct ibv_pd pub;
	int users;
};

struct fake_mr {
	struct ibv_mr pub;
	struct fake_mr *next;
	int access, windows;
};

struct fake_mw {
	struct ibv_mw pub;
	struct fake_mw *next;
	struct fake_qp *qp; /* NULL: not bound */
	struct fake_mr *mr;
	uint64_t addr, length;
};

struct sent {
	struct ibv_send_wr wr;
	struct ibv_sge sge;
};

struct fake_qp {
	struct ibv_qp pub;
	struct fake_id *id;
	struct sent sent[WRS_MAX];
	int count, depth, windows;
};

static struct fake_id *ids;
static struct fake_mr *mrs;
static struct fake_mw *mws;

static void *make(size_t bytes)
{
	fake.objects++;
	return calloc(1, bytes);
}

static void drop(void *object)
{
	fake.objects--;
	free(object);
}

static void ring_bell(int fd)
{
	eventfd_write(fd, 1);
}

/* --- completions and work */

static void complete(struct fake_cq *cq, uint64_t id, enum ibv_wc_status status, uint32_t qp_num)
{
	if (cq->count == WCS_MAX) {
		BREAK("a completion queue ran over");
		return;
	}
	cq->wc[cq->count++] = (struct ibv_wc){.wr_id = id, .status = status, .qp_num = qp_num};
	if (fake.reorders && cq->count >= 2) {
		struct ibv_wc last = cq->wc[cq->count - 1];

		cq->wc[cq->count - 1] = cq->wc[cq->count - 2];
		cq->wc[cq->count - 2] = last;
		fake.reorders = false;
	}
	if (cq->armed && cq->pub.channel) {
		cq->armed = false;
		ring_bell(cq->pub.channel->fd);
	}
}

static struct fake_qp *peer_of(const struct fake_qp *qp)
{
	return qp->id && qp->id->peer ? (struct fake_qp *)qp->id->peer->pub.qp : NULL;
}

/* The memory that the key gives this peer, or NULL. */
static uint8_t *reach(const struct fake_qp *peer, uint32_t rkey, uint64_t addr, uint32_t length)
{
	for (struct fake_mw *mw = mws; mw; mw = mw->next)
		if (mw->pub.rkey == rkey && mw->qp == peer && mw->pub.pd == peer->pub.pd && addr >= mw->addr &&
		    addr + length <= mw->addr + mw->length)
			return (uint8_t *)(uintptr_t)addr;
	for (struct fake_mr *mr = mrs; mr; mr = mr->next)
		if (mr->pub.rkey == rkey && mr->pub.pd == peer->pub.pd && mr->access & IBV_ACCESS_REMOTE_WRITE &&
		    addr >= (uintptr_t)mr->pub.addr && addr + length <= (uintptr_t)mr->pub.addr + mr->pub.length)
			return (uint8_t *)(uintptr_t)addr;
	return NULL;
}

static enum ibv_wc_status transfer(struct fake_qp *qp, const struct sent *sent)
{
	struct fake_qp *peer = peer_of(qp);
	const struct ibv_send_wr *wr = &sent->wr;
	uint8_t *there, *here = (uint8_t *)(uintptr_t)sent->sge.addr;

	if (fake.fails) {
		enum ibv_wc_status status = fake.fails;

		fake.fails = IBV_WC_SUCCESS;
		return status;
	}
	if (!peer || peer->pub.state == IBV_QPS_ERR)
		return IBV_WC_RETRY_EXC_ERR;
	there = reach(peer, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, sent->sge.length);
	if (!there) {
		peer->pub.state = IBV_QPS_ERR;
		return IBV_WC_REM_ACCESS_ERR;
	}
	memcpy(wr->opcode == IBV_WR_RDMA_READ ? here : there, wr->opcode == IBV_WR_RDMA_READ ? there : here,
	       sent->sge.length);
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status bind_window(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
	struct fake_mw *mw = (struct fake_mw *)wr->bind_mw.mw;
	struct fake_mr *mr = (struct fake_mr *)wr->bind_mw.bind_info.mr;

	if (mr->pub.pd != qp->pub.pd || mw->pub.pd != qp->pub.pd || !(mr->access & IBV_ACCESS_MW_BIND) ||
	    mr->access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE) || wr->bind_mw.rkey == mw->pub.rkey)
		return IBV_WC_MW_BIND_ERR;
	mw->pub.rkey = wr->bind_mw.rkey;
	mw->qp = qp;
	mw->mr = mr;
	mw->addr = wr->bind_mw.bind_info.addr;
	mw->length = wr->bind_mw.bind_info.length;
	mr->windows++;
	qp->windows++;
	return IBV_WC_SUCCESS;
}

static void work(struct fake_qp *qp)
{
	int done = 0;

	for (; done < qp->count; done++) {
		struct sent *sent = &qp->sent[done];
		bool moves = sent->wr.opcode != IBV_WR_BIND_MW;
		enum ibv_wc_status status;

		if (moves && fake.holds && qp->pub.state != IBV_QPS_ERR)
			break;
		if (qp->pub.state == IBV_QPS_ERR)
			status = IBV_WC_WR_FLUSH_ERR;
		else
			status = moves ? transfer(qp, sent) : bind_window(qp, &sent->wr);
		if (status)
			qp->pub.state = IBV_QPS_ERR;
		if (moves && fake.loses_answers)
			continue;
		if (status || sent->wr.send_flags & IBV_SEND_SIGNALED)
			complete((struct fake_cq *)qp->pub.send_cq, sent->wr.wr_id, status, qp->pub.qp_num);
	}
	qp->count -= done;
	memmove(qp->sent, qp->sent + done, qp->count * sizeof(*qp->sent));
}

static int post_send(struct ibv_qp *pub, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)pub;

	pthread_mutex_lock(&lock);
	fake.posts += wr->opcode != IBV_WR_BIND_MW;
	for (; wr; wr = wr->next) {
		if (qp->count == qp->depth) {
			pthread_mutex_unlock(&lock);
			*bad = wr;
			return ENOMEM;
		}
		qp->sent[qp->count] = (struct sent){.wr = *wr};
		if (wr->num_sge)
			qp->sent[qp->count].sge = wr->sg_list[0];
		qp->count++;
		fake.signalled += (wr->send_flags & IBV_SEND_SIGNALED) != 0;
		if (qp->count > fake.in_flight_max)
			fake.in_flight_max = qp->count;
	}
	work(qp);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int poll_cq(struct ibv_cq *pub, int max, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)pub;
	int count;

	pthread_mutex_lock(&lock);
	count = cq->count < max ? cq->count : max;
	memcpy(wc, cq->wc, count * sizeof(*wc));
	cq->count -= count;
	memmove(cq->wc, cq->wc + count, cq->count * sizeof(*wc));
	pthread_mutex_unlock(&lock);
	return count;
}

static int req_notify_cq(struct ibv_cq *pub, int solicited)
{
	(void)solicited;
	pthread_mutex_lock(&lock);
	((struct fake_cq *)pub)->armed = true;
	pthread_mutex_unlock(&lock);
	return 0;
}

const char *fake_broken(void)
{
	return fake.broken;
}

void fake_release(void)
{
	pthread_mutex_lock(&lock);
	fake.holds = false;
	for (struct fake_id *id = ids; id; id = id->next)
		if (id->pub.qp)
			work((struct fake_qp *)id->pub.qp);
	pthread_mutex_unlock(&lock);
}

/* --- memory */

static uint32_t new_key(void)
{
	return (uint32_t)++keys << 8;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct fake_mr *mr;

	pthread_mutex_lock(&lock);
	fake.registrations++;
	if (fake.register_errno) {
		errno = fake.register_errno;
		pthread_mutex_unlock(&lock);
		return NULL;
	}
	mr = make(sizeof(*mr));
	mr->pub = (struct ibv_mr){.context = &context, .pd = pd, .addr = addr, .length = length};
	mr->pub.lkey = mr->pub.rkey = new_key();
	mr->access = access;
	mr->next = mrs;
	mrs = mr;
	((struct fake_pd *)pd)->users++;
	pthread_mutex_unlock(&lock);
	return &mr->pub;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	(void)iova;
	return ibv_reg_mr(pd, addr, length, (int)access);
}

int ibv_dereg_mr(struct ibv_mr *pub)
{
	struct fake_mr *mr = (struct fake_mr *)pub, **at = &mrs;

	pthread_mutex_lock(&lock);
	if (mr->windows)
		BREAK("memory with windows was taken back");
	while (*at != mr)
		at = &(*at)->next;
	*at = mr->next;
	((struct fake_pd *)pub->pd)->users--;
	drop(mr);
	pthread_mutex_unlock(&lock);
	return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct fake_mw *mw;

	if (!fake.has_windows) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	pthread_mutex_lock(&lock);
	mw = make(sizeof(*mw));
	mw->pub = (struct ibv_mw){.context = &context, .pd = pd, .rkey = new_key(), .type = type};
	mw->next = mws;
	mws = mw;
	((struct fake_pd *)pd)->users++;
	pthread_mutex_unlock(&lock);
	return &mw->pub;
}

static int dealloc_mw(struct ibv_mw *pub)
{
	struct fake_mw *mw = (struct fake_mw *)pub, **at = &mws;

	pthread_mutex_lock(&lock);
	while (*at != mw)
		at = &(*at)->next;
	*at = mw->next;
	if (mw->qp) {
		mw->qp->windows--;
		mw->mr->windows--;
	}
	((struct fake_pd *)pub->pd)->users--;
	drop(mw);
	pthread_mutex_unlock(&lock);
	return 0;
}

/* --- what is made and freed */

void fake_reset(void)
{
	fake = (struct fake){.has_windows = true, .devices = 1};
	context.device = &device;
	context.ops.post_send = post_send;
	context.ops.poll_cq = poll_cq;
	context.ops.req_notify_cq = req_notify_cq;
	context.ops.alloc_mw = alloc_mw;
	context.ops.dealloc_mw = dealloc_mw;
}

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(fake.devices + 1, sizeof(*list));

	for (int i = 0; i < fake.devices; i++)
		list[i] = &device;
	*count = fake.devices;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

int ibv_query_device(struct ibv_context *of, struct ibv_device_attr *attr)
{
	(void)of;
	memset(attr, 0, sizeof(*attr));
	attr->max_qp_rd_atom = 128;
	attr->max_qp_init_rd_atom = 16;
	attr->device_cap_flags = fake.has_windows ? IBV_DEVICE_MEM_WINDOW_TYPE_2B : 0;
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *of)
{
	struct fake_pd *pd;

	pthread_mutex_lock(&lock);
	pd = make(sizeof(*pd));
	pd->pub.context = of;
	pthread_mutex_unlock(&lock);
	return &pd->pub;
}

int ibv_dealloc_pd(struct ibv_pd *pub)
{
	pthread_mutex_lock(&lock);
	if (((struct fake_pd *)pub)->users)
		BREAK("a protection domain in use was freed");
	drop(pub);
	pthread_mutex_unlock(&lock);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *of)
{
	struct ibv_comp_channel *channel;

	pthread_mutex_lock(&lock);
	channel = make(sizeof(*channel));
	channel->context = of;
	channel->fd = eventfd(0, EFD_CLOEXEC);
	pthread_mutex_unlock(&lock);
	return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	pthread_mutex_lock(&lock);
	if (channel->refcnt)
		BREAK("a completion channel in use was freed");
	close(channel->fd);
	drop(channel);
	pthread_mutex_unlock(&lock);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *of, int cqe, void *said, struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *cq;

	(void)vector;
	pthread_mutex_lock(&lock);
	cq = make(sizeof(*cq));
	cq->pub = (struct ibv_cq){.context = of, .channel = channel, .cq_context = said, .cqe = cqe};
	if (channel) {
		channel->refcnt++;
		cq->pub.cq_context = cq;
	}
	pthread_mutex_unlock(&lock);
	return &cq->pub;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	pthread_mutex_lock(&lock);
	if (cq->channel)
		cq->channel->refcnt--;
	drop(cq);
	pthread_mutex_unlock(&lock);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **said)
{
	eventfd_t bells;

	if (eventfd_read(channel->fd, &bells))
		return -1;
	*cq = NULL; /* one queue a channel, and it is only acknowledged */
	*said = NULL;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int events)
{
	(void)cq, (void)events;
}

int ibv_modify_qp(struct ibv_qp *pub, struct ibv_qp_attr *attr, int mask)
{
	(void)mask;
	pthread_mutex_lock(&lock);
	pub->state = attr->qp_state;
	work((struct fake_qp *)pub);
	pthread_mutex_unlock(&lock);
	return 0;
}

/* --- the connection manager */

static int push(struct fake_id *id, enum rdma_cm_event_type kind, struct fake_id *about, const void *said,
		uint8_t bytes)
{
	struct fake_events *channel = (struct fake_events *)id->pub.channel;
	struct fake_event *event;

	if (channel->count == EVENTS_MAX)
		return -1;
	event = calloc(1, sizeof(*event));
	event->pub.id = &about->pub;
	event->pub.event = kind;
	if (said) {
		memcpy(event->said, said, bytes);
		event->pub.param.conn.private_data = event->said;
		event->pub.param.conn.private_data_len = PRIVATE_BYTES;
	}
	channel->queue[channel->count++] = event;
	ring_bell(channel->pub.fd);
	return 0;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct fake_events *channel;

	pthread_mutex_lock(&lock);
	channel = make(sizeof(*channel));
	channel->pub.fd = eventfd(0, EFD_SEMAPHORE);
	pthread_mutex_unlock(&lock);
	return &channel->pub;
}

void rdma_destroy_event_channel(struct rdma_event_channel *pub)
{
	struct fake_events *channel = (struct fake_events *)pub;

	pthread_mutex_lock(&lock);
	for (struct fake_id *id = ids; id; id = id->next)
		if (id->pub.channel == pub)
			BREAK("an event channel in use was freed");
	for (int i = 0; i < channel->count; i++)
		free(channel->queue[i]);
	close(pub->fd);
	drop(channel);
	pthread_mutex_unlock(&lock);
}

int rdma_get_cm_event(struct rdma_event_channel *pub, struct rdma_cm_event **event)
{
	struct fake_events *channel = (struct fake_events *)pub;
	eventfd_t bell;

	if (eventfd_read(pub->fd, &bell))
		return -1;
	pthread_mutex_lock(&lock);
	*event = &channel->queue[0]->pub;
	memmove(channel->queue, channel->queue + 1, --channel->count * sizeof(*channel->queue));
	pthread_mutex_unlock(&lock);
	return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	free(event);
	return 0;
}

static struct fake_id *id_make(struct rdma_event_channel *channel, void *said)
{
	struct fake_id *id = make(sizeof(*id));

	id->pub.channel = channel;
	id->pub.context = said;
	id->next = ids;
	ids = id;
	return id;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **ret, void *said, enum rdma_port_space space)
{
	(void)space;
	pthread_mutex_lock(&lock);
	*ret = &id_make(channel, said)->pub;
	pthread_mutex_unlock(&lock);
	return 0;
}

static void forget_peer(struct fake_id *id)
{
	if (!id->peer)
		return;
	if (id->established)
		push(id->peer, RDMA_CM_EVENT_DISCONNECTED, id->peer, NULL, 0);
	id->peer->peer = NULL;
	id->peer = NULL;
}

int rdma_destroy_id(struct rdma_cm_id *pub)
{
	struct fake_id *id = (struct fake_id *)pub, **at = &ids;

	pthread_mutex_lock(&lock);
	if (pub->qp)
		BREAK("an id with a queue pair was freed");
	forget_peer(id);
	while (*at != id)
		at = &(*at)->next;
	*at = id->next;
	drop(id);
	pthread_mutex_unlock(&lock);
	return 0;
}

int rdma_resolve_addr(struct rdma_cm_id *pub, struct sockaddr *from, struct sockaddr *to, int limit_ms)
{
	struct fake_id *id = (struct fake_id *)pub;

	(void)from, (void)limit_ms;
	pthread_mutex_lock(&lock);
	id->port = ntohs(((struct sockaddr_in *)to)->sin_port);
	pub->verbs = &context;
	push(id, RDMA_CM_EVENT_ADDR_RESOLVED, id, NULL, 0);
	pthread_mutex_unlock(&lock);
	return 0;
}

int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t bytes)
{
	(void)id, (void)bytes;
	if (level != RDMA_OPTION_ID || name != RDMA_OPTION_ID_ACK_TIMEOUT || *(uint8_t *)value != 14)
		BREAK("an option was set that nobody planned");
	return 0;
}

int rdma_resolve_route(struct rdma_cm_id *id, int limit_ms)
{
	(void)limit_ms;
	pthread_mutex_lock(&lock);
	push((struct fake_id *)id, RDMA_CM_EVENT_ROUTE_RESOLVED, (struct fake_id *)id, NULL, 0);
	pthread_mutex_unlock(&lock);
	return 0;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	(void)addr;
	if (fake.devices)
		id->verbs = &context;
	return 0;
}

int rdma_listen(struct rdma_cm_id *pub, int backlog)
{
	struct fake_id *id = (struct fake_id *)pub;

	(void)backlog;
	pthread_mutex_lock(&lock);
	id->listens = true;
	id->port = PORT_FIRST + ports++;
	pthread_mutex_unlock(&lock);
	return 0;
}

__be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return htons((uint16_t)((struct fake_id *)id)->port);
}

int rdma_create_qp(struct rdma_cm_id *pub, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct fake_qp *qp;

	pthread_mutex_lock(&lock);
	qp = make(sizeof(*qp));
	qp->pub = (struct ibv_qp){.context = &context, .pd = pd, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq};
	qp->pub.state = IBV_QPS_INIT;
	qp->depth = (int)attr->cap.max_send_wr;
	qp->id = (struct fake_id *)pub;
	pub->qp = &qp->pub;
	((struct fake_pd *)pd)->users++;
	pthread_mutex_unlock(&lock);
	return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *pub)
{
	struct fake_qp *qp = (struct fake_qp *)pub->qp;

	pthread_mutex_lock(&lock);
	if (qp->windows)
		BREAK("a queue pair with windows was freed");
	((struct fake_pd *)qp->pub.pd)->users--;
	pub->qp = NULL;
	drop(qp);
	pthread_mutex_unlock(&lock);
}

static bool param_is_good(const struct rdma_conn_param *param)
{
	return param->retry_count <= 6 && param->responder_resources == 16 && param->initiator_depth == 16 &&
	       param->private_data_len <= 56;
}

int rdma_connect(struct rdma_cm_id *pub, struct rdma_conn_param *param)
{
	struct fake_id *id = (struct fake_id *)pub, *listener, *request;

	pthread_mutex_lock(&lock);
	if (!param_is_good(param))
		BREAK("what rdma_connect was told");
	for (listener = ids; listener; listener = listener->next)
		if (listener->listens && listener->port == id->port)
			break;
	if (!listener) {
		push(id, RDMA_CM_EVENT_UNREACHABLE, id, NULL, 0);
	} else {
		request = id_make(listener->pub.channel, NULL);
		request->pub.verbs = &context;
		request->peer = id;
		id->peer = request;
		push(listener, RDMA_CM_EVENT_CONNECT_REQUEST, request, param->private_data, param->private_data_len);
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

int rdma_accept(struct rdma_cm_id *pub, struct rdma_conn_param *param)
{
	struct fake_id *id = (struct fake_id *)pub;

	pthread_mutex_lock(&lock);
	if (!param_is_good(param))
		BREAK("what rdma_accept was told");
	if (id->peer) {
		pub->qp->state = IBV_QPS_RTS;
		if (id->peer->pub.qp)
			id->peer->pub.qp->state = IBV_QPS_RTS;
		id->established = id->peer->established = true;
		push(id->peer, RDMA_CM_EVENT_ESTABLISHED, id->peer, param->private_data, param->private_data_len);
		push(id, RDMA_CM_EVENT_ESTABLISHED, id, NULL, 0);
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

int rdma_reject(struct rdma_cm_id *pub, const void *said, uint8_t bytes)
{
	struct fake_id *id = (struct fake_id *)pub;

	(void)said, (void)bytes;
	pthread_mutex_lock(&lock);
	if (id->peer)
		push(id->peer, RDMA_CM_EVENT_REJECTED, id->peer, NULL, 0);
	pthread_mutex_unlock(&lock);
	return 0;
}
