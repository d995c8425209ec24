/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_load.c - two processes that send to each other over TCP, for measuring what a preloaded library costs.
 *
 *     profile_load ping BYTES ROUNDS              a message there and back, nothing else: the worst case
 *     profile_load train BYTES ROUNDS COMPUTE_US  a worker that computes, sends 32 tensors, and gets the model back
 *     profile_load alone BYTES ROUNDS             datagrams that nobody takes: what one call costs
 *
 * Prints nanoseconds a round, and CPU nanoseconds of both processes a round. Alone both are the CPU time of a call in
 * the best thousand, which other programs on the machine disturb least.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	TENSORS = 32,
};

static uint64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void send_all(int fd, const char *from, size_t bytes)
{
	while (bytes) {
		ssize_t sent = send(fd, from, bytes, 0);

		if (sent < 0)
			fail("send");
		from += sent;
		bytes -= (size_t)sent;
	}
}

static void receive_all(int fd, char *to, size_t bytes)
{
	while (bytes) {
		ssize_t got = recv(fd, to, bytes, 0);

		if (got <= 0)
			fail("recv");
		bytes -= (size_t)got;
	}
}

/* Both ends of a connection over loopback. */
static void connect_pair(int ends[2])
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&at, &length))
		fail("listen");
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (ends[0] < 0 || connect(ends[0], (struct sockaddr *)&at, sizeof(at)))
		fail("connect");
	ends[1] = accept(listener, NULL, NULL);
	if (ends[1] < 0)
		fail("accept");
	close(listener);
	for (int end = 0; end < 2; end++)
		setsockopt(ends[end], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* Half the model is one tensor, as in a skewed one. */
static void send_model(int fd, const char *model, size_t bytes)
{
	size_t largest = bytes / 2, other = (bytes - largest) / (TENSORS - 1);

	send_all(fd, model, bytes - other * (TENSORS - 1));
	for (int tensor = 1; tensor < TENSORS; tensor++)
		send_all(fd, model, other);
}

static void compute(uint64_t ns)
{
	uint64_t end_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) + ns;

	while (now_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns)
		;
}

static int send_alone(const char *message, size_t bytes, long rounds)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(at);
	int sink = socket(AF_INET, SOCK_DGRAM, 0), from = socket(AF_INET, SOCK_DGRAM, 0), least = 1;
	uint64_t best_ns = UINT64_MAX;

	if (sink < 0 || from < 0 || bind(sink, (struct sockaddr *)&at, sizeof(at)) ||
	    setsockopt(sink, SOL_SOCKET, SO_RCVBUF, &least, sizeof(least)) ||
	    getsockname(sink, (struct sockaddr *)&at, &length) || connect(from, (struct sockaddr *)&at, sizeof(at)))
		fail("datagrams");
	for (long thousand = 0; thousand < rounds / 1000; thousand++) {
		uint64_t begin_ns = now_ns(CLOCK_THREAD_CPUTIME_ID), took_ns;

		for (int at_once = 0; at_once < 1000; at_once++)
			if (send(from, message, bytes, 0) < 0)
				fail("send");
		took_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns;
		if (took_ns < best_ns)
			best_ns = took_ns;
	}
	printf("%.1f %.1f\n", (double)best_ns / 1000, (double)best_ns / 1000);
	return 0;
}

int main(int count, char **arguments)
{
	int is_training = count == 5 && !strcmp(arguments[1], "train");
	size_t bytes = count > 3 ? strtoul(arguments[2], NULL, 10) : 0;
	long rounds = count > 3 ? strtol(arguments[3], NULL, 10) : 0;
	uint64_t compute_ns = is_training ? strtoull(arguments[4], NULL, 10) * 1000 : 0, begin_ns;
	char *model = calloc(1, bytes + 1);
	struct rusage used[2];
	double cpu_ns = 0;
	int ends[2];
	pid_t child;

	if (!bytes || rounds <= 0 || !model)
		return 2;
	if (!strcmp(arguments[1], "alone"))
		return send_alone(model, bytes, rounds);
	connect_pair(ends);
	child = fork();
	if (child < 0)
		fail("fork");
	if (!child) {
		for (long at = 0; at < rounds; at++) {
			receive_all(ends[1], model, bytes);
			if (is_training)
				send_model(ends[1], model, bytes);
			else
				send_all(ends[1], model, bytes);
		}
		return 0;
	}
	begin_ns = now_ns(CLOCK_MONOTONIC);
	for (long at = 0; at < rounds; at++) {
		if (is_training) {
			compute(compute_ns);
			send_model(ends[0], model, bytes);
		} else {
			send_all(ends[0], model, bytes);
		}
		receive_all(ends[0], model, bytes);
	}
	begin_ns = now_ns(CLOCK_MONOTONIC) - begin_ns;
	if (waitpid(child, NULL, 0) != child || getrusage(RUSAGE_SELF, &used[0]) ||
	    getrusage(RUSAGE_CHILDREN, &used[1]))
		fail("wait");
	for (int one = 0; one < 2; one++)
		cpu_ns += 1e9 * (double)(used[one].ru_utime.tv_sec + used[one].ru_stime.tv_sec) +
			  1e3 * (double)(used[one].ru_utime.tv_usec + used[one].ru_stime.tv_usec);
	printf("%.1f %.1f\n", (double)begin_ns / (double)rounds, cpu_ns / (double)rounds);
	return 0;
}
