/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs_registry.h - the donor's memory registrations for each session. Needs rdma-core.
 *
 * A borrower's session has one protection domain an adapter, so that no key can ever reach what another borrower has.
 * Memory is registered by the registrar, a thread that compares what should be registered where with what is, and
 * fixes the first difference, until there is none:
 *
 *	offered (ready, nobody's)	in the domain of every session there is, with no remote right whatever
 *	leased				in its borrower's domain only
 *	spent, or withdrawn		nowhere
 *
 * So a lease takes no registration: that was made when the slab was. An adapter without type-2 windows has only whole
 * regions to give rights with; there what is offered can't be registered ahead, and is when it is leased.
 *
 * registry->lock is held for every call and field here but where it says otherwise. Registering takes long and is done
 * without it; a region is_busy, and a domain's `busy` above 0, meanwhile, and neither goes.
 */
#ifndef FARSIDE_VERBS_REGISTRY_H
#define FARSIDE_VERBS_REGISTRY_H

#include <pthread.h>

#include "verbs_cm.h"

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

struct registry {
	pthread_mutex_t lock;
	pthread_cond_t work;	/* for the registrar */
	pthread_cond_t changed; /* by it, or a region's state */
	pthread_t thread;
	bool has_thread, ending;
	struct region *regions;
	struct domain *domains;
};

/* Without the lock. The thread is started by the first queue pair: a donor without any has no use for it. */
void registry_init(struct registry *registry);
int registry_start(struct registry *registry);
void registry_end(struct registry *registry);

struct region *region_of_memory(struct registry *registry, const void *addr);
struct region *region_of_lease(struct registry *registry, uint32_t lease);
struct region *region_make(struct registry *registry, void *addr, uint64_t bytes);	/* offered; NULL without memory */
/* Takes the region away from all domains, and forgets it. Lets the lock go meanwhile. */
void region_end(struct registry *registry, struct region *region);
/* Ends registrations that were keys themselves: those of adapters without windows. */
void region_end_rights(struct registry *registry, struct region *region);
/* The region's registration in the domain, or NULL; its mr is NULL when that failed. */
struct reg *reg_of(const struct region *region, const struct domain *domain);
void reg_forget(struct region *region, struct reg *reg);
/* The session's domain on this adapter, made if need be; NULL without memory. */
struct domain *domain_of(struct registry *registry, uint64_t session, struct ibv_context *verbs);

#endif
