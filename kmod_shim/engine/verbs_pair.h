/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_pair.h - one borrower's queue pair at the donor, and its thread. Needs rdma-core. */
#ifndef FARSIDE_VERBS_PAIR_H
#define FARSIDE_VERBS_PAIR_H

#include <stdatomic.h>

#include "conns.h"
#include "verbs_registry.h"

struct window {
	struct window *next;
	uint32_t lease;
	uint64_t token;
	struct ibv_mw *mw;
	struct ne_verbs_key key;
};

struct conn {
	struct peer peer;
	struct peers *peers; /* its lock is registry->lock */
	struct registry *registry;
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

/* The thread; arg is a struct conn with peer, peers, registry, at and lock. */
void *pair_main(void *arg);
/* No key of the lease opens anything by this queue pair when this returns. registry->lock is held. */
void pair_end_keys(struct conn *conn, uint32_t lease);

#endif
