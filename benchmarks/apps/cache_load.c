/*
 * cache_load: plays a script of GETs and SETs against a Memcached on loopback, one request in flight a connection.
 *
 *   cache_load PORT SCRIPT CONNECTIONS
 *
 * Stores every key first and says "ready". Then each line "run MILLISECONDS" or "count REQUESTS" of standard input
 * is answered with one line of JSON. Ends with its input. The script is what benchmarks/apps/mix.py packs.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SET_BIT		(1u << 31)
#define MAX_KEY_BYTES	250
#define BUFFER_BYTES	(128 << 10)
#define MAX_SAMPLES	(1 << 20) /* a thread, a run: more than an emulated processor can serve in a minute */
#define MAX_CONNECTIONS 64

struct sizes {
	uint16_t key, value;
};

static struct {
	uint32_t keys, requests;
	const struct sizes *sizes;
	const uint32_t *request;
	char value[1 << 16];
} script;

static atomic_uint next_request, next_key;
static atomic_long requests_left;
static int64_t end_ns;
static int is_storing;

struct player {
	pthread_t thread;
	int fd;
	uint32_t count;
	uint32_t missed;
	float *latency_us;
	char *buffer;
};

static void die(const char *what)
{
	fprintf(stderr, "cache_load: %s: %s\n", what, errno ? strerror(errno) : "not as expected");
	exit(1);
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void read_script(const char *path)
{
	FILE *file = fopen(path, "rb");
	struct sizes *sizes;
	uint32_t *request;

	if (!file || fread(&script.keys, 4, 1, file) != 1 || fread(&script.requests, 4, 1, file) != 1)
		die(path);
	sizes = calloc(script.keys, sizeof(*sizes));
	request = calloc(script.requests, sizeof(*request));
	if (!sizes || !request || fread(sizes, sizeof(*sizes), script.keys, file) != script.keys ||
	    fread(request, sizeof(*request), script.requests, file) != script.requests)
		die(path);
	fclose(file);
	script.sizes = sizes;
	script.request = request;
	/* Not all alike: the pages of a cache are to be no easier to keep than a program's. */
	for (size_t i = 0; i < sizeof(script.value); i++)
		script.value[i] = (char)('!' + (i * 2654435761u >> 24) % 90);
}

static int dial(uint16_t port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)))
		die("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static void send_all(int fd, const char *from, size_t length)
{
	while (length) {
		ssize_t sent = write(fd, from, length);

		if (sent <= 0)
			die("write");
		from += sent;
		length -= (size_t)sent;
	}
}

/* Reads until what came ends with `tail`; its length. */
static size_t read_until(struct player *self, const char *tail)
{
	size_t length = 0, wanted = strlen(tail);

	do {
		ssize_t got = read(self->fd, self->buffer + length, BUFFER_BYTES - length);

		if (got <= 0)
			die("read");
		length += (size_t)got;
	} while (length < wanted || memcmp(self->buffer + length - wanted, tail, wanted));
	return length;
}

/* The key's number, made as long as its size says. */
static int put_key(char *to, uint32_t key)
{
	return sprintf(to, "%0*u", script.sizes[key].key, key);
}

static size_t put_set(char *to, uint32_t key, const char *more)
{
	char name[MAX_KEY_BYTES + 1];
	uint16_t length = script.sizes[key].value;
	int head;

	put_key(name, key);
	head = sprintf(to, "set %s 0 0 %u%s\r\n", name, length, more);
	memcpy(to + head, script.value + key % 997, length);
	memcpy(to + head + length, "\r\n", 2);
	return (size_t)head + length + 2;
}

static void store_all(struct player *self)
{
	for (uint32_t key = 0; key < script.keys; key++)
		send_all(self->fd, self->buffer, put_set(self->buffer, key, " noreply"));
	send_all(self->fd, "version\r\n", 9);
	read_until(self, "\r\n");
	if (strncmp(self->buffer, "VERSION", 7))
		die("storing");
}

static void ask(struct player *self, uint32_t request)
{
	uint32_t key = request & ~SET_BIT;

	if (request & SET_BIT) {
		send_all(self->fd, self->buffer, put_set(self->buffer, key, ""));
		read_until(self, "\r\n");
		if (strncmp(self->buffer, "STORED", 6))
			die("set");
		return;
	}
	size_t length = (size_t)sprintf(self->buffer, "get ");

	length += (size_t)put_key(self->buffer + length, key);
	memcpy(self->buffer + length, "\r\n", 2);
	send_all(self->fd, self->buffer, length + 2);
	/* No value holds a line's end: the first END that ends what came is the answer's. */
	self->missed += read_until(self, "END\r\n") == 5;
}

static void *play(void *argument)
{
	struct player *self = argument;
	int64_t began_ns = now_ns();

	/* At least once: a window in which nothing was answered has a latency too. */
	while ((!self->count || (began_ns < end_ns && atomic_fetch_sub(&requests_left, 1) > 0)) &&
	       self->count < MAX_SAMPLES) {
		uint32_t key = is_storing ? atomic_fetch_add(&next_key, 1) : 0;

		if (is_storing && key >= script.keys)
			break;
		ask(self,
		    is_storing ? key | SET_BIT : script.request[atomic_fetch_add(&next_request, 1) % script.requests]);
		int64_t done_ns = now_ns();

		self->latency_us[self->count++] = (float)(done_ns - began_ns) / 1e3f;
		began_ns = done_ns;
	}
	return NULL;
}

static int by_size(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static void run(struct player *players, int count, int64_t milliseconds, int64_t requests)
{
	int64_t began_ns = now_ns();
	size_t total = 0, missed = 0;
	float *all;

	/* The first request of each connection is made in any case. */
	atomic_store(&requests_left, requests ? requests - count : LONG_MAX);
	end_ns = milliseconds >= 0 ? began_ns + milliseconds * 1000000 : INT64_MAX;
	for (int i = 0; i < count; i++) {
		players[i].count = players[i].missed = 0;
		if (pthread_create(&players[i].thread, NULL, play, &players[i]))
			die("thread");
	}
	for (int i = 0; i < count; i++) {
		pthread_join(players[i].thread, NULL);
		total += players[i].count;
		missed += players[i].missed;
	}
	double seconds = (double)(now_ns() - began_ns) / 1e9;

	all = malloc((total + 1) * sizeof(*all));
	if (!all)
		die("memory");
	total = 0;
	for (int i = 0; i < count; i++) {
		memcpy(all + total, players[i].latency_us, players[i].count * sizeof(*all));
		total += players[i].count;
	}
	qsort(all, total, sizeof(*all), by_size);
	printf("{\"operations\": %zu, \"seconds\": %.4f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, "
	       "\"failed\": %zu}\n",
	       total, seconds, all[total / 2], all[total * 99 / 100], all[total - 1], missed);
	fflush(stdout);
	free(all);
}

int main(int argc, char **argv)
{
	static struct player players[MAX_CONNECTIONS];
	char line[64];
	int is_empty = argc == 5 && !strcmp(argv[4], "empty");
	int count = argc == 4 || is_empty ? atoi(argv[3]) : 0;

	if (count < 1 || count > MAX_CONNECTIONS) {
		fprintf(stderr, "usage: cache_load PORT SCRIPT CONNECTIONS [empty]\n");
		return 2;
	}
	read_script(argv[2]);
	for (int i = 0; i < count; i++) {
		players[i].fd = dial((uint16_t)atoi(argv[1]));
		players[i].buffer = malloc(BUFFER_BYTES);
		players[i].latency_us = malloc(MAX_SAMPLES * sizeof(float));
		if (!players[i].buffer || !players[i].latency_us)
			die("memory");
	}
	if (!is_empty)
		store_all(&players[0]);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		long milliseconds = -1, requests = 0;

		is_storing = !strcmp(line, "store\n");
		if (is_storing || sscanf(line, "run %ld", &milliseconds) == 1 ||
		    sscanf(line, "count %ld", &requests) == 1)
			run(players, count, milliseconds, requests);
	}
	return 0;
}
