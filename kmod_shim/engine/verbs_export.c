/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs_export.c - the donor's end of RDMA links: queue pairs, registered memory and keys. It moves no page.
 *
 * Each connection has a thread that makes the queue pair (verbs_pair.c), and then sleeps until the borrower asks for a
 * key or goes. Memory is registered ahead, in the background (verbs_registry.h); all that is left to do for a key is to
 * bind a type-2 window to the borrower's queue pair.
 *
 * Guarantees
 *   - After ne_verbs_export_revoke() no key of the lease is good: its windows are deallocated (or its registration is),
 *     which the adapter confirms.
 *   - After ne_verbs_export_fence() the session's queue pairs do not exist: what is still on its way finds nobody.
 *   - A key names one lease, checked with session and token, and is good for one queue pair.
 *
 * Locks: registry.lock holds regions, domains and the list of connections; conn->lock, taken inside of it, holds the
 * connection's windows while one is bound. Registering and joining threads, which take long, are done under neither.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "verbs_pair.h"

struct ne_verbs_export {
	struct registry registry;
	struct peers peers; /* registry.lock */
	struct ne_export_stats past;
};

static void conn_add_stats(const struct conn *conn, struct ne_export_stats *sum)
{
	sum->rdma_keys += conn->keys;
	sum->refused += conn->refused;
	sum->cpu_ns += peer_cpu_ns(&conn->peer);
}

static void conn_forget(struct peers *peers, struct peer *peer)
{
	struct ne_verbs_export *exp =
		(struct ne_verbs_export *)((char *)peers - offsetof(struct ne_verbs_export, peers));
	struct conn *conn = (struct conn *)peer;

	conn_add_stats(conn, &exp->past);
	pthread_mutex_destroy(&conn->lock);
	free(conn);
}

void ne_verbs_export_fence(struct ne_verbs_export *exp, bool all, uint64_t session)
{
	peers_end(&exp->peers, all, session);
}

int ne_verbs_export_create(struct ne_verbs_export **ret)
{
	struct ne_verbs_export *exp = calloc(1, sizeof(*exp));

	if (!exp)
		return -ENOMEM;
	registry_init(&exp->registry);
	exp->peers =
		(struct peers){.lock = &exp->registry.lock, .changed = &exp->registry.changed, .forget = conn_forget};
	*ret = exp;
	return 0;
}

void ne_verbs_export_destroy(struct ne_verbs_export *exp)
{
	if (!exp)
		return;
	ne_verbs_export_fence(exp, true, 0);
	registry_end(&exp->registry);
	free(exp);
}

int ne_verbs_export_offer(struct ne_verbs_export *exp, void *addr, uint64_t bytes)
{
	struct region *region;

	pthread_mutex_lock(&exp->registry.lock);
	region = region_make(&exp->registry, addr, bytes);
	if (region)
		region->was_offered = true;
	pthread_cond_signal(&exp->registry.work);
	pthread_mutex_unlock(&exp->registry.lock);
	return region ? 0 : -ENOMEM;
}

void ne_verbs_export_withdraw(struct ne_verbs_export *exp, void *addr)
{
	struct region *region;

	pthread_mutex_lock(&exp->registry.lock);
	region = region_of_memory(&exp->registry, addr);
	if (region)
		region_end(&exp->registry, region);
	pthread_mutex_unlock(&exp->registry.lock);
}

int ne_verbs_export_lease(struct ne_verbs_export *exp, uint32_t lease, uint64_t session, uint64_t token, void *addr,
			  uint64_t bytes)
{
	struct region *region;

	pthread_mutex_lock(&exp->registry.lock);
	region = region_of_memory(&exp->registry, addr);
	if (!region)
		region = region_make(&exp->registry, addr, bytes);
	if (region) {
		region->state = LEASED;
		region->bytes = bytes;
		region->lease = lease;
		region->session = session;
		region->token = token;
		pthread_cond_signal(&exp->registry.work);
	}
	pthread_mutex_unlock(&exp->registry.lock);
	return region ? 0 : -ENOMEM;
}

void ne_verbs_export_revoke(struct ne_verbs_export *exp, uint32_t lease)
{
	struct region *region;

	pthread_mutex_lock(&exp->registry.lock);
	region = region_of_lease(&exp->registry, lease);
	if (region) {
		region->state = SPENT; /* from here on no key is given */
		pthread_cond_broadcast(&exp->registry.changed);
		for (struct peer *peer = exp->peers.first; peer; peer = peer->next)
			if (peer->session == region->session)
				pair_end_keys((struct conn *)peer, lease);
		region_end_rights(&exp->registry, region);
		if (!region->was_offered)
			region_end(&exp->registry, region);
		pthread_cond_signal(&exp->registry.work);
	}
	pthread_mutex_unlock(&exp->registry.lock);
	peers_reap(&exp->peers);
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

int ne_verbs_export_conn(struct ne_verbs_export *exp, uint64_t session, int sock, const char *address)
{
	struct conn *conn = calloc(1, sizeof(*conn));
	int err;

	if (!conn)
		return -ENOMEM;
	conn->registry = &exp->registry;
	conn->peers = &exp->peers;
	conn->peer.session = session;
	conn->peer.sock = sock;
	pthread_mutex_init(&conn->lock, NULL);
	err = conn_address(sock, address, &conn->at);
	if (!err)
		err = registry_start(&exp->registry);
	if (!err)
		err = peers_start(&exp->peers, &conn->peer, pair_main);
	if (err) {
		pthread_mutex_destroy(&conn->lock);
		free(conn);
	}
	return err;
}

void ne_verbs_export_stats(struct ne_verbs_export *exp, struct ne_export_stats *add)
{
	pthread_mutex_lock(&exp->registry.lock);
	add->rdma_keys += exp->past.rdma_keys;
	add->refused += exp->past.refused;
	add->cpu_ns += exp->past.cpu_ns;
	for (struct peer *peer = exp->peers.first; peer; peer = peer->next) {
		add->rdma_connections += !peer->ended;
		conn_add_stats((struct conn *)peer, add);
	}
	for (const struct region *region = exp->registry.regions; region; region = region->next)
		for (const struct reg *reg = region->regs; reg; reg = reg->next)
			add->rdma_registered_bytes += reg->mr ? region->bytes : 0;
	pthread_mutex_unlock(&exp->registry.lock);
}
