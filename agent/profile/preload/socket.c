/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.c - what a process sends over IP sockets.
 *
 * How it works
 *   Each function that sends stands here under its libc name, calls the real one, and notes what that took. Which
 *   descriptors are sockets of a network is asked of the kernel once each and kept in a table; whatever opens, closes
 *   or copies a descriptor makes it forget. What closes one unseen (fclose, a system call of its own) leaves an old
 *   answer there, so the kernel is asked again where a plain write is large enough to matter.
 *
 * Not seen: io_uring, system calls made without libc (Go), static programs, stdio on a socket.
 */
#include "ring.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <fcntl.h>

#define FDS		   65536
#define ASK_AGAIN_AT_BYTES 65536u /* copying as much takes longer than the question */

static _Atomic uint16_t flows[FDS];
static _Atomic uint32_t last_flow;

/* --- the real functions, looked up once; before our constructor has run, other libraries' may call */

#define REAL(name)                                                                           \
	({                                                                                   \
		static __typeof__(&name) _Atomic found;                                      \
		__typeof__(&name) real = atomic_load_explicit(&found, memory_order_relaxed); \
		if (__builtin_expect(!real, 0)) {                                            \
			real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                   \
			atomic_store_explicit(&found, real, memory_order_relaxed);           \
		}                                                                            \
		real;                                                                        \
	})

/* A libc without this function: nobody can have been linked with it. */
#define REAL_OR(name, otherwise)                         \
	({                                               \
		__typeof__(&name) real_one = REAL(name); \
		if (__builtin_expect(!real_one, 0)) {    \
			errno = ENOSYS;                  \
			return otherwise;                \
		}                                        \
		real_one;                                \
	})

/* --- descriptors */

static uint16_t ask(int fd)
{
	int domain = AF_UNSPEC, kept = errno;
	socklen_t length = sizeof(domain);
	uint16_t flow = FLOW_NONE;

	if (!getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) && (domain == AF_INET || domain == AF_INET6))
		flow = (uint16_t)(1 + atomic_fetch_add_explicit(&last_flow, 1, memory_order_relaxed) % FLOW_MAX);
	errno = kept;
	atomic_store_explicit(&flows[fd], flow, memory_order_relaxed);
	return flow;
}

static void forget(int fd)
{
	if (fd >= 0 && fd < FDS)
		atomic_store_explicit(&flows[fd], FLOW_UNKNOWN, memory_order_relaxed);
}

static void forget_range(unsigned first, unsigned last)
{
	for (unsigned fd = first; fd <= last && fd < FDS; fd++)
		if (atomic_load_explicit(&flows[fd], memory_order_relaxed))
			forget((int)fd);
}

static void note(int fd, size_t asked, ssize_t taken)
{
	uint16_t flow;

	if (!ring || taken <= 0)
		return;
	if (fd < 0 || fd >= FDS) {
		ring_problem(RING_FDS_UNSEEN);
		return;
	}
	flow = atomic_load_explicit(&flows[fd], memory_order_relaxed);
	if (flow == FLOW_NONE)
		return;
	if (flow == FLOW_UNKNOWN)
		flow = ask(fd);
	if (flow != FLOW_NONE)
		ring_note(flow, (uint64_t)taken, (size_t)taken < asked ? EVENT_INCOMPLETE : 0);
}

/* Of functions that write to files as well. */
static void note_plain(int fd, size_t asked, ssize_t taken)
{
	uint16_t flow;

	if (ring && taken >= (ssize_t)ASK_AGAIN_AT_BYTES && fd >= 0 && fd < FDS) {
		flow = atomic_load_explicit(&flows[fd], memory_order_relaxed);
		if (flow != FLOW_UNKNOWN && flow != FLOW_NONE) {
			int type, kept = errno;
			socklen_t length = sizeof(type);

			if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length))
				forget(fd);
			errno = kept;
		}
	}
	note(fd, asked, taken);
}

/* The caller's vectors are read only where the kernel has read them without a fault. */
static size_t asked_of(const struct iovec *parts, size_t count, ssize_t taken)
{
	return ring && taken > 0 ? TOTAL_BYTES(parts, count, iov_len) : 0;
}

/* A function under its libc name: it calls the real one, and does something with what that returned, `got`. */
#define STANDS_IN(type, name, noted, parameters, ...)      \
	EXPORT type name parameters                        \
	{                                                  \
		type got = REAL_OR(name, -1)(__VA_ARGS__); \
                                                           \
		noted;                                     \
		return got;                                \
	}

/* --- what sends */

/* A table: clang-format would break its rows. */
/* clang-format off */
STANDS_IN(ssize_t, send, note(fd, bytes, got), (int fd, const void *from, size_t bytes, int flags),
	  fd, from, bytes, flags)
STANDS_IN(ssize_t, sendto, note(fd, bytes, got),
	  (int fd, const void *from, size_t bytes, int flags, __CONST_SOCKADDR_ARG to, socklen_t length),
	  fd, from, bytes, flags, to, length)
STANDS_IN(ssize_t, sendmsg, note(fd, got > 0 ? asked_of(message->msg_iov, message->msg_iovlen, got) : 0, got),
	  (int fd, const struct msghdr *message, int flags), fd, message, flags)
STANDS_IN(ssize_t, write, note_plain(fd, bytes, got), (int fd, const void *from, size_t bytes), fd, from, bytes)
STANDS_IN(ssize_t, writev, note_plain(fd, asked_of(parts, count > 0 ? (size_t)count : 0, got), got),
	  (int fd, const struct iovec *parts, int count), fd, parts, count)

/* A file's end may be what stopped these, so nothing says whether the message goes on: each call is one. */
STANDS_IN(ssize_t, sendfile, note_plain(to, 0, got), (int to, int from, off_t *offset, size_t bytes),
	  to, from, offset, bytes)
STANDS_IN(ssize_t, sendfile64, note_plain(to, 0, got), (int to, int from, off64_t *offset, size_t bytes),
	  to, from, offset, bytes)
STANDS_IN(ssize_t, splice, note_plain(to, 0, got),
	  (int from, off64_t *from_offset, int to, off64_t *to_offset, size_t bytes, unsigned flags),
	  from, from_offset, to, to_offset, bytes, flags)
/* clang-format on */

EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	int done = REAL_OR(sendmmsg, -1)(fd, messages, count, flags);

	for (int at = 0; ring && at < done; at++)
		note(fd, TOTAL_BYTES(messages[at].msg_hdr.msg_iov, messages[at].msg_hdr.msg_iovlen, iov_len),
		     messages[at].msg_len);
	return done;
}

/* --- what makes a descriptor another one */

/* A table: clang-format would break its rows. */
/* clang-format off */
STANDS_IN(int, socket, forget(got), (int domain, int type, int protocol), domain, type, protocol)
STANDS_IN(int, accept, forget(got), (int listener, __SOCKADDR_ARG from, socklen_t *length), listener, from, length)
STANDS_IN(int, accept4, forget(got), (int listener, __SOCKADDR_ARG from, socklen_t *length, int flags),
	  listener, from, length, flags)
STANDS_IN(int, dup2, if (got != fd) forget(got), (int fd, int as), fd, as)
STANDS_IN(int, dup3, forget(got), (int fd, int as, int flags), fd, as, flags)
STANDS_IN(int, close_range, if (!got) forget_range(first, last), (unsigned first, unsigned last, int flags),
	  first, last, flags)
/* clang-format on */

EXPORT int close(int fd)
{
	forget(fd); /* first: once it is closed, another thread may get its number */
	return REAL_OR(close, -1)(fd);
}

EXPORT void closefrom(int first)
{
	__typeof__(&closefrom) real = REAL(closefrom);

	if (real)
		real(first);
	forget_range(first > 0 ? (unsigned)first : 0, FDS);
}
