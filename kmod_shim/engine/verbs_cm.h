/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_cm.h - waits, with a deadline, for messages of the companion and the connection manager. Needs rdma-core. */
#ifndef FARSIDE_VERBS_CM_H
#define FARSIDE_VERBS_CM_H

#include <rdma/rdma_cma.h>

#include "clock.h"
#include "verbs.h"

enum {
	VERBS_DEPTH = 16,	/* work requests of a queue pair on their way; Infiniswap's code had one, Fastswap 16 */
	VERBS_RETRIES = 6,	/* 7 is "for ever" on soft RoCE, as Linux 6.1 has it: a dead peer would never be noticed */
	VERBS_ACK_TIMEOUT = 14,	/* 4.096 us * 2^14 = 67 ms, so that all retries end within half a second */
};

/* All `bytes` within the deadline, or -errno: -ECONNRESET when the peer has gone, -ETIMEDOUT. */
int verbs_receive(int sock, void *buf, size_t bytes, uint64_t deadline_ns);
/* Small and rare enough that a socket which does not take it at once is broken: -errno. */
int verbs_send(int sock, const void *buf, size_t bytes);

/* What is kept of an event; the rest is given back to the library at once. */
struct verbs_event {
	enum rdma_cm_event_type kind;
	int status;
	struct rdma_cm_id *id;
	struct ne_verbs_private said;	/* zero where the peer said nothing */
};

int verbs_channel_create(struct rdma_event_channel **ret);
/* The next event, or -errno: -ECONNRESET when the companion closes, -ETIMEDOUT, -EAGAIN when ahead of a deadline of 0. */
int verbs_event_next(struct rdma_event_channel *channel, int sock, uint64_t deadline_ns, struct verbs_event *ret);
/* Waits for an event of this kind; any other is a failure, as an errno. */
int verbs_event_expect(struct rdma_event_channel *channel, int sock, uint64_t deadline_ns,
		       enum rdma_cm_event_type kind, struct verbs_event *ret);
/* What both ends tell rdma_connect() and rdma_accept(). */
struct rdma_conn_param verbs_conn_param(struct rdma_cm_id *id, const struct ne_verbs_private *say);

#endif
