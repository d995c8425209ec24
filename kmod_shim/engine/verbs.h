/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs.h - pages by one-sided RDMA: interface for engine and exporter, and the messages between both ends.
 *
 * An RDMA link is a queue pair beside an authenticated data connection (daemon/control/protocol.py), the companion. On the
 * companion both ends agree on the queue pair, the borrower asks for keys, and each learns that the other has gone:
 *
 *	borrower                                          donor (a thread of its own, asleep but for these)
 *	  hello                                    ->
 *	                                           <-  place: where a listener waits for this one queue pair
 *	  rdma_connect, with the place's nonce     =>  rdma_accept, into the session's protection domain
 *	  key request: a lease and its token       ->  checked as a TCP request is; a window bound to this queue pair
 *	                                           <-  key: address, rkey, length, or the errno that refuses it
 *	  RDMA READ, RDMA WRITE                    =>  nobody: the adapter does it
 *
 * A key is asked for when a link first touches a lease, so once a slab and link, never for a page. It belongs to the
 * queue pair: revoking a lease takes its windows away, and fencing a session destroys its queue pairs, so that nothing
 * under way can land afterwards.
 *
 * verbs.c is the borrower's end; verbs_export.c, verbs_pair.c and verbs_registry.c are the donor's; verbs_cm.c is what
 * both wait with. verbs_none.c stands in for them where the engine is built without rdma-core.
 */
#ifndef FARSIDE_VERBS_H
#define FARSIDE_VERBS_H

#include "engine.h"
#include "link.h"

/* True in a build with rdma-core. */
bool ne_verbs_is_built(void);

/*
 * The donor's side. Regions are memory that is, or may soon be, lent. A build without rdma-core makes no ne_verbs_export,
 * and so has none of the functions that take one: they are weak.
 */
#define NE_VERBS_WEAK __attribute__((weak))
struct ne_verbs_export;
int ne_verbs_export_create(struct ne_verbs_export **ret);	/* -EOPNOTSUPP without rdma-core */
void NE_VERBS_WEAK ne_verbs_export_destroy(struct ne_verbs_export *exp);
/* Memory that may be leased soon: it is registered ahead for the sessions there are. */
int NE_VERBS_WEAK ne_verbs_export_offer(struct ne_verbs_export *exp, void *addr, uint64_t bytes);
/* The memory is going: no adapter has it any more when this returns. 0 too where it was never offered. */
void NE_VERBS_WEAK ne_verbs_export_withdraw(struct ne_verbs_export *exp, void *addr);
int NE_VERBS_WEAK ne_verbs_export_lease(struct ne_verbs_export *exp, uint32_t lease, uint64_t session, uint64_t token,
					void *addr, uint64_t bytes);
/* No key of the lease is good any more when this returns. */
void NE_VERBS_WEAK ne_verbs_export_revoke(struct ne_verbs_export *exp, uint32_t lease);
/* address: where queue pairs of this connection are to be made, or NULL for the address that sock came to. */
int NE_VERBS_WEAK ne_verbs_export_conn(struct ne_verbs_export *exp, uint64_t session, int sock, const char *address);
/* Ends the session's queue pairs (all: everybody's); returns when they are destroyed. */
void NE_VERBS_WEAK ne_verbs_export_fence(struct ne_verbs_export *exp, bool all, uint64_t session);
void NE_VERBS_WEAK ne_verbs_export_stats(struct ne_verbs_export *exp, struct ne_export_stats *add);

/* ------------------------------------------------------------------ on the companion, little-endian */

#define NE_VERBS_HELLO_MAGIC 0x31485652u	/* "RVH1", the digit is the version */
#define NE_VERBS_PLACE_MAGIC 0x31505652u	/* "RVP1" */
#define NE_VERBS_ASK_MAGIC 0x31415652u		/* "RVA1" */
#define NE_VERBS_KEY_MAGIC 0x314b5652u		/* "RVK1" */
#define NE_VERBS_PRIVATE_MAGIC 0x31515652u	/* "RVQ1" */

struct ne_verbs_hello {
	uint32_t magic;
	uint32_t flags;			/* must be 0 */
};

struct ne_verbs_place {			/* 40 bytes */
	uint32_t magic;
	uint32_t status;		/* 0, or the errno that says why there is no queue pair to be had */
	uint64_t nonce;			/* what the connection request must carry */
	uint8_t address[16];		/* IPv6, or IPv4 mapped into it */
	uint16_t port;			/* of the rdma_cm listener */
	uint16_t reserved[3];
};

/* Private data of rdma_connect() and rdma_accept(); the fabric pads it with zeros, so it says itself what it is. */
struct ne_verbs_private {
	uint32_t magic;
	uint32_t reserved;
	uint64_t nonce;
};

struct ne_verbs_ask {			/* one at a time: the next when the key has come */
	uint32_t magic;
	uint32_t lease;
	uint64_t token;
};

struct ne_verbs_key {			/* 32 bytes */
	uint32_t magic;
	uint32_t status;		/* 0, or an errno: EACCES token or session, ENOENT lease revoked, EIO it can't be had */
	uint32_t lease;
	uint32_t rkey;
	uint64_t addr;
	uint64_t bytes;
};

_Static_assert(sizeof(struct ne_verbs_place) == 40, "wire size");
_Static_assert(sizeof(struct ne_verbs_key) == 32, "wire size");

#endif
