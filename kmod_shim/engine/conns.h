/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conns.h - connections of borrowers at a donor, each with a thread of its own, whatever carries the pages.
 *
 * The control thread alone changes the list. A connection's thread ends by itself when its borrower goes, and is waited
 * for by the next call of the control thread.
 */
#ifndef FARSIDE_CONNS_H
#define FARSIDE_CONNS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* First member of a connection. */
struct peer {
	struct peer *next;
	uint64_t session;
	pthread_t thread;
	int sock;	 /* lock; -1 once the thread has ended */
	bool ended;	 /* lock */
	bool closing;	 /* lock; it was told to end */
	uint64_t cpu_ns; /* lock; once ended */
};

struct peers {
	struct peer *first;
	pthread_mutex_t *lock;
	pthread_cond_t *changed; /* told when a connection is to end; NULL where no thread waits for one */
	/* Keeps the counters of a connection whose thread has ended, and frees it. lock is held. */
	void (*forget)(struct peers *peers, struct peer *peer);
};

/* Starts the thread of a connection that has its session and socket: main(peer). 0 or -errno. */
int peers_start(struct peers *peers, struct peer *peer, void *(*main)(void *));
/* Ends the session's connections (all: everybody's): they are told first, so that they end side by side. */
void peers_end(struct peers *peers, bool all, uint64_t session);
/* Forgets connections whose borrowers have gone. */
void peers_reap(struct peers *peers);

/* The last thing that a connection's thread does: closes the socket. */
void peer_leave(struct peers *peers, struct peer *peer);
/* CPU time of the connection's thread so far. lock is held. */
uint64_t peer_cpu_ns(const struct peer *peer);

#endif
