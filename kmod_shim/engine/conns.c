/* SPDX-License-Identifier: Apache-2.0 */
/* conns.c - list of a donor's connections: how they are added, told to end, and forgotten. */
#include "conns.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "engine.h"
#include "thread.h"

/* Takes *at off the list; its thread has ended or is about to. */
static void peer_forget(struct peers *peers, struct peer **at)
{
	struct peer *peer = *at;

	pthread_join(peer->thread, NULL);
	pthread_mutex_lock(peers->lock);
	*at = peer->next;
	peers->forget(peers, peer);
	pthread_mutex_unlock(peers->lock);
}

/* lock is held. */
static void peer_shutdown(const struct peers *peers, struct peer *peer)
{
	peer->closing = true;
	if (peer->sock >= 0)
		shutdown(peer->sock, SHUT_RDWR);
	if (peers->changed)
		pthread_cond_broadcast(peers->changed);
}

void peers_end(struct peers *peers, bool all, uint64_t session)
{
	struct peer **at = &peers->first;

	pthread_mutex_lock(peers->lock);
	for (struct peer *peer = peers->first; peer; peer = peer->next)
		if (all || peer->session == session)
			peer_shutdown(peers, peer);
	pthread_mutex_unlock(peers->lock);
	while (*at) {
		if (all || (*at)->session == session)
			peer_forget(peers, at);
		else
			at = &(*at)->next;
	}
}

void peers_reap(struct peers *peers)
{
	struct peer **at = &peers->first;

	while (*at) {
		bool ended;

		pthread_mutex_lock(peers->lock);
		ended = (*at)->ended;
		pthread_mutex_unlock(peers->lock);
		if (ended)
			peer_forget(peers, at);
		else
			at = &(*at)->next;
	}
}

/* A borrower that opens more than all its threads need loses its oldest one: it may be half open, with nobody behind.
 */
static void peers_make_room(struct peers *peers, uint64_t session)
{
	struct peer **oldest = NULL;
	uint32_t n = 0;

	for (struct peer **at = &peers->first; *at; at = &(*at)->next)
		if ((*at)->session == session) {
			oldest = at;
			n++;
		}
	if (n < NE_SESSION_CONNS_MAX)
		return;
	pthread_mutex_lock(peers->lock);
	peer_shutdown(peers, *oldest);
	pthread_mutex_unlock(peers->lock);
	peer_forget(peers, oldest);
}

int peers_start(struct peers *peers, struct peer *peer, void *(*main)(void *))
{
	int err;

	peers_reap(peers);
	peers_make_room(peers, peer->session);
	/* A unix socket has no such option, and no such delay. */
	setsockopt(peer->sock, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	err = thread_start(&peer->thread, SMALL_STACK_BYTES, main, peer);
	if (!err) {
		peer->next = peers->first;
		peers->first = peer;
	}
	return err;
}

void peer_leave(struct peers *peers, struct peer *peer)
{
	shutdown(peer->sock, SHUT_RDWR);
	pthread_mutex_lock(peers->lock);
	close(peer->sock);
	peer->sock = -1;
	peer->cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	peer->ended = true;
	pthread_mutex_unlock(peers->lock);
}

uint64_t peer_cpu_ns(const struct peer *peer)
{
	clockid_t clock;

	if (peer->ended)
		return peer->cpu_ns;
	return pthread_getcpuclockid(peer->thread, &clock) ? 0 : clock_ns(clock);
}
