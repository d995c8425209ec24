/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c - start of the engine's threads. */
#include "thread.h"

#include <signal.h>

int thread_start(pthread_t *ret, size_t stack_bytes, void *(*main)(void *), void *arg)
{
	pthread_attr_t attr;
	sigset_t all, before;
	int err;

	pthread_attr_init(&attr);
	if (stack_bytes)
		pthread_attr_setstacksize(&attr, stack_bytes);
	/* A new thread inherits the mask: signals are for the process's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(ret, &attr, main, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return -err;
}
