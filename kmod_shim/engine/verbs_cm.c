/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_cm.c - waits of both ends while an RDMA link is made. The page path does not use it. */
#include "verbs_cm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

bool ne_verbs_is_built(void)
{
	return true;
}

int ne_rdma_devices(void)
{
	struct ibv_device **list;
	int count = 0;

	list = ibv_get_device_list(&count);
	if (!list)
		return errno == ENOSYS ? 0 : -errno; /* ENOSYS: the kernel has no InfiniBand at all */
	ibv_free_device_list(list);
	return count;
}

/* Milliseconds for poll(): rounded up, so that it does not spin for the last one. */
static int left_ms(uint64_t deadline_ns)
{
	uint64_t now = now_ns();

	return now >= deadline_ns ? 0 : (int)((deadline_ns - now) / 1000000 + 1);
}

int verbs_receive(int sock, void *buf, size_t bytes, uint64_t deadline_ns)
{
	size_t have = 0;

	while (have < bytes) {
		struct pollfd pfd = {.fd = sock, .events = POLLIN};
		ssize_t got = recv(sock, (uint8_t *)buf + have, bytes - have, MSG_DONTWAIT);

		if (got > 0)
			have += got;
		else if (got == 0)
			return -ECONNRESET;
		else if (errno != EAGAIN && errno != EINTR)
			return -errno;
		else if (now_ns() >= deadline_ns)
			return -ETIMEDOUT;
		else
			poll(&pfd, 1, left_ms(deadline_ns));
	}
	return 0;
}

int verbs_send(int sock, const void *buf, size_t bytes)
{
	ssize_t sent;

	do {
		sent = send(sock, buf, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	if (sent < 0)
		return -errno;
	return (size_t)sent == bytes ? 0 : -EPIPE;
}

int verbs_channel_create(struct rdma_event_channel **ret)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	if (!channel)
		return -errno;
	if (fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) ||
	    fcntl(channel->fd, F_SETFD, FD_CLOEXEC)) {
		rdma_destroy_event_channel(channel);
		return -EIO;
	}
	*ret = channel;
	return 0;
}

static int event_take(struct rdma_event_channel *channel, struct verbs_event *ret)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(channel, &event))
		return -errno;
	*ret = (struct verbs_event){.kind = event->event, .status = event->status, .id = event->id};
	if (event->param.conn.private_data && event->param.conn.private_data_len >= sizeof(ret->said))
		memcpy(&ret->said, event->param.conn.private_data, sizeof(ret->said));
	rdma_ack_cm_event(event);
	return 0;
}

int verbs_event_next(struct rdma_event_channel *channel, int sock, uint64_t deadline_ns, struct verbs_event *ret)
{
	for (;;) {
		struct pollfd pfd[2] = {{.fd = channel->fd, .events = POLLIN}, {.fd = sock, .events = POLLRDHUP}};
		int err = event_take(channel, ret);

		if (err != -EAGAIN)
			return err;
		if (now_ns() >= deadline_ns)
			return deadline_ns ? -ETIMEDOUT : -EAGAIN;
		if (poll(pfd, 2, left_ms(deadline_ns)) > 0 && pfd[1].revents)
			return -ECONNRESET;
	}
}

static int event_errno(const struct verbs_event *event)
{
	switch (event->kind) {
	case RDMA_CM_EVENT_REJECTED:
		return -ECONNREFUSED;
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_ADDR_ERROR:
		return event->status < 0 ? event->status : -EHOSTUNREACH;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		return -ENODEV;
	default:
		return event->status < 0 ? event->status : -EPROTO;
	}
}

int verbs_event_expect(struct rdma_event_channel *channel, int sock, uint64_t deadline_ns, enum rdma_cm_event_type kind,
		       struct verbs_event *ret)
{
	int err = verbs_event_next(channel, sock, deadline_ns, ret);

	return err ? err : ret->kind == kind ? 0 : event_errno(ret);
}

static uint8_t at_most_depth(int n)
{
	return n < 1 ? 1 : n < VERBS_DEPTH ? (uint8_t)n : VERBS_DEPTH;
}

struct rdma_conn_param verbs_conn_param(struct rdma_cm_id *id, const struct ne_verbs_private *say)
{
	struct ibv_device_attr attr = {0};

	if (ibv_query_device(id->verbs, &attr)) /* then with one READ at a time, which every device has */
		attr.max_qp_rd_atom = attr.max_qp_init_rd_atom = 1;
	return (struct rdma_conn_param){
		.private_data = say,
		.private_data_len = sizeof(*say),
		.responder_resources = at_most_depth(attr.max_qp_rd_atom),
		.initiator_depth = at_most_depth(attr.max_qp_init_rd_atom),
		.retry_count = VERBS_RETRIES,
		.rnr_retry_count = VERBS_RETRIES,
	};
}
