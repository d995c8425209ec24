/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nbd_load.c - a light and fair NBD load generator.
 *
 * One thread a connection, blocking sockets, no spinning: on a small machine a client that spins would take the CPU
 * from the server it measures. All requests that became possible go out in one sendmsg, one recv takes all replies
 * that are there, so a batching server finds batches and a naive one is not held up. An operation's time runs from just
 * before its sendmsg to just after the recv that brought its last byte.
 *
 * Every page that is written starts with a stamp made of its page number; the first page of every read reply is
 * checked for it, so that a server which answers quickly and wrongly is caught (--no-stamp for servers that store
 * nothing).
 *
 *   nbd_load --unix PATH [--export NAME] --rw read|write|fill [--block B] [--depth N] [--connections C]
 *            [--seconds S] [--warmup S] [--size B] [--seed N] [--no-stamp]
 *
 * Prints "ready" when all connections stand, waits for a line on stdin, runs, prints one line of JSON, and keeps its
 * connections until stdin ends: the caller can read the servers' CPU time while their threads are still there.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "nbd_wire.h"

enum {
	PAGE_BYTES = 4096,
	RECEIVE_BYTES = 256 * 1024,
	DEPTH_MAX = 256,
	CONNECTIONS_MAX = 64,
	STAMP_BYTES = 8,
	/* Latency histogram: 256 linear steps in each power of two, so a value is known to 0.4 %. */
	STEP_BITS = 8,
	STEPS = 1 << STEP_BITS,
	BUCKETS = 48 * STEPS,
};
#define STAMP	  0x9e3779b97f4a7c15ULL
#define SECOND_NS 1000000000ULL

enum rw { RW_READ, RW_WRITE, RW_FILL };

static struct {
	const char *path;
	const char *export;
	enum rw rw;
	uint32_t block_bytes, depth, connections;
	uint64_t run_ns, warmup_ns, size_bytes, seed;
	bool stamp;
} opt = {.export = "",
	 .block_bytes = PAGE_BYTES,
	 .depth = 1,
	 .connections = 1,
	 .run_ns = SECOND_NS,
	 .seed = 1,
	 .stamp = true};

struct slot {
	uint64_t offset, start_ns;
	uint32_t generation;
	bool is_busy;
	char *payload; /* what this slot writes; NULL for reads */
};

struct connection {
	pthread_t thread;
	int sock;
	int error; /* 0, or the -errno that ended the run early */
	uint64_t random;
	uint64_t fill_at;
	uint32_t in_flight;
	struct slot slot[DEPTH_MAX];
	uint32_t free_slot[DEPTH_MAX], free_count;
	/* The reply that is being received. */
	uint32_t payload_left;
	struct slot *receiving;
	uint64_t issued, completed, measured, failed, misread;
	uint64_t sum_ns, min_ns, max_ns;
	uint64_t first_ns, last_ns; /* of the measured completions */
	uint64_t bucket[BUCKETS];
};

static struct connection *connections[CONNECTIONS_MAX];
static pthread_barrier_t start_line;
static uint64_t begin_ns, end_ns; /* the measured window; written before the barrier falls */

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * SECOND_NS + (uint64_t)ts.tv_nsec;
}

static uint64_t next_random(uint64_t *state) /* xorshift64* */
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL;
}

static uint32_t bucket_of(uint64_t ns)
{
	if (ns < STEPS)
		return (uint32_t)ns;

	uint32_t shift = 63 - (uint32_t)__builtin_clzll(ns) - STEP_BITS;
	uint32_t bucket = ((shift + 1) << STEP_BITS) + (uint32_t)((ns >> shift) & (STEPS - 1));

	return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

static double bucket_middle_ns(uint32_t bucket)
{
	uint32_t octave = bucket >> STEP_BITS;

	if (octave == 0)
		return bucket;
	return ((double)(STEPS + (bucket & (STEPS - 1))) + 0.5) * (double)(1ULL << (octave - 1));
}

/* ------------------------------------------------------------------ connecting */

static int ask_go(int sock, uint64_t *size)
{
	uint32_t name = (uint32_t)strlen(opt.export);
	struct nbd_option head = {htobe64(NBD_OPTION_MAGIC), htobe32(NBD_OPT_GO), htobe32(name + 6)};
	uint32_t name_be = htobe32(name);
	uint16_t no_infos = 0;
	struct iovec iov[4] = {{&head, sizeof(head)}, {&name_be, 4}, {(void *)opt.export, name}, {&no_infos, 2}};
	int ret = send_all(sock, iov, 4);

	while (ret == 0) {
		struct nbd_option_reply reply;
		char data[1024];
		uint32_t length;

		ret = recv_all(sock, &reply, sizeof(reply));
		if (ret)
			break;
		length = be32toh(reply.length);
		if (be64toh(reply.magic) != NBD_OPTION_REPLY_MAGIC || length > sizeof(data))
			return -EPROTO;
		ret = recv_all(sock, data, length);
		if (ret)
			break;
		if (be32toh(reply.type) == NBD_REP_ACK)
			return 0;
		if (be32toh(reply.type) != NBD_REP_INFO)
			return -ENOPROTOOPT;
		if (length >= sizeof(struct nbd_info_export)) {
			struct nbd_info_export info;

			memcpy(&info, data, sizeof(info));
			if (be16toh(info.type) == NBD_INFO_EXPORT)
				*size = be64toh(info.size);
		}
	}
	return ret;
}

static int connect_nbd(uint64_t *size)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct {
		uint64_t magic, option_magic;
		uint16_t flags;
	} __attribute__((packed)) hello;
	uint32_t flags = htobe32(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES);
	struct iovec iov = {&flags, sizeof(flags)};
	int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int ret;

	if (sock < 0 || strlen(opt.path) >= sizeof(address.sun_path))
		return sock < 0 ? -errno : -ENAMETOOLONG;
	strcpy(address.sun_path, opt.path);
	ret = connect(sock, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
	if (ret == 0)
		ret = recv_all(sock, &hello, sizeof(hello));
	if (ret == 0 && (be64toh(hello.magic) != NBD_MAGIC || be64toh(hello.option_magic) != NBD_OPTION_MAGIC))
		ret = -EPROTO;
	if (ret == 0)
		ret = send_all(sock, &iov, 1);
	if (ret == 0)
		ret = ask_go(sock, size);
	if (ret)
		close(sock);
	return ret ? ret : sock;
}

/* ------------------------------------------------------------------ the load */

static void stamp_payload(struct slot *slot)
{
	for (uint32_t at = 0; at < opt.block_bytes; at += PAGE_BYTES) {
		uint64_t stamp = ((slot->offset + at) / PAGE_BYTES + 1) * STAMP;

		memcpy(slot->payload + at, &stamp, STAMP_BYTES);
	}
}

/* Takes a free slot and says where its operation goes; NULL when nothing is to be issued any more. */
static struct slot *next_operation(struct connection *conn, uint64_t now)
{
	struct slot *slot;

	if (!conn->free_count || (opt.rw == RW_FILL ? conn->fill_at >= opt.size_bytes : now >= end_ns))
		return NULL;
	slot = &conn->slot[conn->free_slot[--conn->free_count]];
	if (opt.rw == RW_FILL) {
		slot->offset = conn->fill_at;
		conn->fill_at += opt.block_bytes;
	} else {
		slot->offset = (uint64_t)(((unsigned __int128)next_random(&conn->random) *
					   (opt.size_bytes / opt.block_bytes)) >>
					  64) *
			       opt.block_bytes;
	}
	slot->generation++;
	slot->is_busy = true;
	return slot;
}

/* Issues everything that may be issued, in one go. */
static int issue(struct connection *conn)
{
	struct nbd_request request[DEPTH_MAX];
	struct iovec iov[2 * DEPTH_MAX];
	uint32_t count = 0, vectors = 0;
	uint64_t now = now_ns();
	struct slot *slot;

	while ((slot = next_operation(conn, now))) {
		uint64_t handle = (uint64_t)slot->generation << 32 | (uint32_t)(slot - conn->slot);

		request[count] = (struct nbd_request){htobe32(NBD_REQUEST_MAGIC),
						      0,
						      htobe16(opt.rw == RW_READ ? NBD_CMD_READ : NBD_CMD_WRITE),
						      handle,
						      htobe64(slot->offset),
						      htobe32(opt.block_bytes)};
		iov[vectors++] = (struct iovec){&request[count++], sizeof(*request)};
		if (opt.rw != RW_READ) {
			stamp_payload(slot);
			iov[vectors++] = (struct iovec){slot->payload, opt.block_bytes};
		}
		slot->start_ns = now;
	}
	conn->issued += count;
	conn->in_flight += count;
	return count ? send_all(conn->sock, iov, vectors) : 0;
}

static void complete(struct connection *conn, struct slot *slot, uint64_t now)
{
	uint64_t took_ns = now - slot->start_ns;

	slot->is_busy = false;
	conn->free_slot[conn->free_count++] = (uint32_t)(slot - conn->slot);
	conn->in_flight--;
	conn->completed++;
	if (now < begin_ns || now > end_ns)
		return;
	if (!conn->measured++)
		conn->first_ns = now;
	conn->last_ns = now;
	conn->bucket[bucket_of(took_ns)]++;
	conn->sum_ns += took_ns;
	if (took_ns < conn->min_ns || conn->measured == 1)
		conn->min_ns = took_ns;
	if (took_ns > conn->max_ns)
		conn->max_ns = took_ns;
}

static void check_stamp(struct connection *conn, const struct slot *slot, const char *data)
{
	uint64_t expected = (slot->offset / PAGE_BYTES + 1) * STAMP;

	if (opt.stamp && memcmp(data, &expected, STAMP_BYTES))
		conn->misread++;
}

/* Works through what has been received: bytes left over (part of a header), or -errno. */
static ssize_t parse(struct connection *conn, char *buf, size_t bytes, uint64_t now)
{
	size_t at = 0;
	const size_t head_bytes = sizeof(struct nbd_reply) + (opt.rw == RW_READ ? STAMP_BYTES : 0);

	while (at < bytes) {
		if (conn->payload_left) {
			size_t part = conn->payload_left < bytes - at ? conn->payload_left : bytes - at;

			at += part;
			conn->payload_left -= (uint32_t)part;
			if (!conn->payload_left)
				complete(conn, conn->receiving, now);
			continue;
		}

		struct nbd_reply reply;
		struct slot *slot;

		if (bytes - at < sizeof(reply))
			break;
		memcpy(&reply, buf + at, sizeof(reply));
		slot = &conn->slot[(uint32_t)reply.handle % DEPTH_MAX];
		if (be32toh(reply.magic) != NBD_REPLY_MAGIC || (uint32_t)reply.handle >= opt.depth || !slot->is_busy ||
		    slot->generation != reply.handle >> 32)
			return -EPROTO;
		if (reply.error) {
			conn->failed++;
			at += sizeof(reply);
			complete(conn, slot, now);
			continue;
		}
		if (bytes - at < head_bytes)
			break;
		if (opt.rw == RW_READ)
			check_stamp(conn, slot, buf + at + sizeof(reply));
		at += sizeof(reply);
		if (opt.rw == RW_READ) {
			conn->receiving = slot;
			conn->payload_left = opt.block_bytes;
		} else {
			complete(conn, slot, now);
		}
	}
	memmove(buf, buf + at, bytes - at);
	return (ssize_t)(bytes - at);
}

static void *run(void *arg)
{
	struct connection *conn = arg;
	char *buf = malloc(RECEIVE_BYTES);
	size_t held = 0;

	pthread_barrier_wait(&start_line); /* everybody is here: main takes the time */
	pthread_barrier_wait(&start_line);
	conn->error = buf ? issue(conn) : -ENOMEM;
	while (!conn->error && conn->in_flight) {
		ssize_t got = recv(conn->sock, buf + held, RECEIVE_BYTES - held, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			conn->error = got ? -errno : -EPIPE;
			break;
		}
		got = parse(conn, buf, held + (size_t)got, now_ns());
		if (got < 0) {
			conn->error = (int)got;
			break;
		}
		held = (size_t)got;
		conn->error = issue(conn);
	}
	free(buf);
	return NULL;
}

static int prepare(uint32_t number)
{
	struct connection *conn = calloc(1, sizeof(*conn));
	uint64_t size = 0;

	if (!conn)
		return -ENOMEM;
	connections[number] = conn;
	conn->random = (opt.seed + number) * STAMP | 1;
	conn->sock = connect_nbd(&size);
	if (conn->sock < 0)
		return conn->sock;
	if (!opt.size_bytes)
		opt.size_bytes = size;
	if (opt.size_bytes > size || opt.size_bytes < opt.block_bytes)
		return -ERANGE;
	for (uint32_t i = 0; i < opt.depth; i++) {
		conn->free_slot[conn->free_count++] = opt.depth - 1 - i;
		if (opt.rw == RW_READ)
			continue;
		conn->slot[i].payload = malloc(opt.block_bytes);
		if (!conn->slot[i].payload)
			return -ENOMEM;
		for (uint32_t at = 0; at + 8 <= opt.block_bytes; at += 8) {
			uint64_t word = next_random(&conn->random);

			memcpy(conn->slot[i].payload + at, &word, 8);
		}
	}
	return 0;
}

/* ------------------------------------------------------------------ the report */

static double percentile_ns(const uint64_t *bucket, uint64_t total, double share)
{
	uint64_t wanted = (uint64_t)((double)total * share), seen = 0;

	for (uint32_t i = 0; i < BUCKETS; i++) {
		seen += bucket[i];
		if (seen > wanted)
			return bucket_middle_ns(i);
	}
	return 0;
}

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * SECOND_NS + (uint64_t)ts.tv_nsec;
}

static void report(uint64_t spent_cpu_ns, uint64_t started_ns, uint64_t finished_ns)
{
	static uint64_t bucket[BUCKETS];
	uint64_t completed = 0, measured = 0, failed = 0, misread = 0, sum_ns = 0, min_ns = UINT64_MAX, max_ns = 0;
	double window_s = (double)(opt.rw == RW_FILL ? finished_ns - started_ns : end_ns - begin_ns) / 1e9;
	int error = 0;

	for (uint32_t i = 0; i < opt.connections; i++) {
		struct connection *conn = connections[i];

		completed += conn->completed;
		measured += conn->measured;
		failed += conn->failed;
		misread += conn->misread;
		sum_ns += conn->sum_ns;
		if (conn->measured && conn->min_ns < min_ns)
			min_ns = conn->min_ns;
		if (conn->max_ns > max_ns)
			max_ns = conn->max_ns;
		if (conn->error)
			error = conn->error;
		for (uint32_t b = 0; b < BUCKETS; b++)
			bucket[b] += conn->bucket[b];
	}
	printf("{\"operations\": %" PRIu64 ", \"operations_total\": %" PRIu64 ", \"window_s\": %.6f, "
	       "\"iops\": %.1f, \"bytes_per_s\": %.0f, \"mean_ns\": %.0f, \"min_ns\": %" PRIu64 ", \"p50_ns\": %.0f, "
	       "\"p99_ns\": %.0f, \"p999_ns\": %.0f, \"max_ns\": %" PRIu64 ", \"failed\": %" PRIu64
	       ", \"misread\": %" PRIu64 ", \"cpu_s\": %.6f, \"error\": %d}\n",
	       measured, completed, window_s, (double)measured / window_s,
	       (double)measured * opt.block_bytes / window_s, measured ? (double)sum_ns / (double)measured : 0,
	       measured ? min_ns : 0, percentile_ns(bucket, measured, 0.5), percentile_ns(bucket, measured, 0.99),
	       percentile_ns(bucket, measured, 0.999), max_ns, failed, misread, (double)spent_cpu_ns / 1e9, error);
	fflush(stdout);
}

static int parse_options(int argc, char **argv)
{
	static const struct option known[] = {
		{"unix", 1, NULL, 'u'},	   {"export", 1, NULL, 'e'},   {"rw", 1, NULL, 'r'},
		{"block", 1, NULL, 'b'},   {"depth", 1, NULL, 'd'},    {"connections", 1, NULL, 'c'},
		{"seconds", 1, NULL, 's'}, {"warmup", 1, NULL, 'w'},   {"size", 1, NULL, 'z'},
		{"seed", 1, NULL, 'n'},	   {"no-stamp", 0, NULL, 'x'}, {NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (c) {
		case 'u':
			opt.path = optarg;
			break;
		case 'e':
			opt.export = optarg;
			break;
		case 'r':
			opt.rw = !strcmp(optarg, "read") ? RW_READ : !strcmp(optarg, "write") ? RW_WRITE : RW_FILL;
			break;
		case 'b':
			opt.block_bytes = (uint32_t)strtoul(optarg, NULL, 10);
			break;
		case 'd':
			opt.depth = (uint32_t)strtoul(optarg, NULL, 10);
			break;
		case 'c':
			opt.connections = (uint32_t)strtoul(optarg, NULL, 10);
			break;
		case 's':
			opt.run_ns = (uint64_t)(strtod(optarg, NULL) * 1e9);
			break;
		case 'w':
			opt.warmup_ns = (uint64_t)(strtod(optarg, NULL) * 1e9);
			break;
		case 'z':
			opt.size_bytes = strtoull(optarg, NULL, 10);
			break;
		case 'n':
			opt.seed = strtoull(optarg, NULL, 10);
			break;
		case 'x':
			opt.stamp = false;
			break;
		default:
			return -EINVAL;
		}
	}
	if (!opt.path || !opt.depth || opt.depth > DEPTH_MAX || !opt.connections ||
	    opt.connections > (opt.rw == RW_FILL ? 1 : CONNECTIONS_MAX) || opt.block_bytes < PAGE_BYTES ||
	    opt.block_bytes % PAGE_BYTES)
		return -EINVAL;
	return 0;
}

int main(int argc, char **argv)
{
	char line[64];
	uint64_t started_ns, cpu_before_ns;
	int ret = parse_options(argc, argv);

	for (uint32_t i = 0; ret == 0 && i < opt.connections; i++)
		ret = prepare(i);
	if (ret) {
		fprintf(stderr, "nbd_load: %s\n", strerror(-ret));
		return 1;
	}
	pthread_barrier_init(&start_line, NULL, opt.connections + 1);
	for (uint32_t i = 0; i < opt.connections; i++)
		if (pthread_create(&connections[i]->thread, NULL, run, connections[i]))
			return 1;
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	pthread_barrier_wait(&start_line);
	cpu_before_ns = cpu_ns();
	started_ns = now_ns();
	begin_ns = started_ns + opt.warmup_ns;
	end_ns = opt.rw == RW_FILL ? UINT64_MAX : begin_ns + opt.run_ns;
	pthread_barrier_wait(&start_line);
	for (uint32_t i = 0; i < opt.connections; i++)
		pthread_join(connections[i]->thread, NULL);
	report(cpu_ns() - cpu_before_ns, started_ns, now_ns());
	if (fgets(line, sizeof(line), stdin))
		return 1;
	return 0;
}
