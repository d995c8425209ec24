/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_verbs.h - rdma-core's functions over one adapter that is a piece of this process, for tests of the RDMA transport.
 *
 * It keeps the rules that matter: reliable order, protection domains, rights, windows bound to one queue pair, what may
 * not be freed while something else uses it. And it can do what adapters do on bad days. As a shared library it stands
 * before rdma-core in any process that is started with it in LD_PRELOAD, and calls fake_reset().
 */
#ifndef FARSIDE_FAKE_VERBS_H
#define FARSIDE_FAKE_VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>

struct fake {
	bool has_windows;	/* type 2 */
	bool holds;		/* posted READs and WRITEs stay where they are until fake_release() */
	bool reorders;		/* the next two completions change places */
	bool loses_answers;	/* READs and WRITEs are done and never completed */
	enum ibv_wc_status fails; /* the next READ or WRITE completes with this */
	int register_errno;	/* registering fails with this */
	int devices;

	int objects;		/* made and not freed; 0 at the end, or something leaks */
	int registrations;	/* of memory, so far */
	int posts;		/* calls of ibv_post_send() with a READ or WRITE */
	int in_flight_max;	/* READs and WRITEs of one queue pair, at most so far */
	int signalled;		/* completions asked for */
	char broken[120];	/* a rule that somebody broke, or empty */
};

extern struct fake fake;

/* As it was before anything. Everything has been freed. */
void fake_reset(void);
/* The rule that somebody broke, or an empty text; for programs that can't read `fake`. */
const char *fake_broken(void);
/* Does what `holds` has kept. */
void fake_release(void);

#endif
