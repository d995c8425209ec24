/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - start of the engine's threads. */
#ifndef FARSIDE_THREAD_H
#define FARSIDE_THREAD_H

#include <pthread.h>

/* A thread that serves one connection needs little; a donor may have hundreds. */
enum { SMALL_STACK_BYTES = 256 << 10 };

/* A thread that no signal disturbs, or -errno. stack_bytes: 0 for the system's own. */
int thread_start(pthread_t *ret, size_t stack_bytes, void *(*main)(void *), void *arg);

#endif
