/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_nbd.c - libFuzzer target for NBD transmission: an input is a client of a real device, threads and all.
 *
 * How it works
 *   Two devices stand for the whole run, one with a disk and half of it mapped, one with nothing but a donor's memory.
 *   Byte 0 of the input says which, and how the client behaves (enum manner); byte 1 seeds where the stream is cut.
 *   The rest is the stream itself, or records that become requests, nearly all of them sound, with their payloads.
 *   Cookies are put in here, so that each answer names its request.
 *
 *   Beside what the sanitizers see:
 *   - every answer has the magic, a known error, a cookie that was asked and had no answer yet, and nothing around it
 *   - a sound request succeeds and an unsound one does not, and each is answered, also when the engine is replaced by
 *     a successor at any byte; only a client that hangs up without waiting forgoes its answers
 *   - a page that is read has the checksum of what was written there, where only one write can have been the last
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine.h"

enum manner {
	NO_DISK = 1,	/* which device */
	RECORDS = 2,	/* the rest is records */
	WAITS = 4,	/* has its answers before it says or does anything unsound, or hangs up */
	ONE_BY_ONE = 8, /* has the answer before it sends the next request */
	REPLACE = 0x70, /* all of its bits: the engine is replaced at some byte of the stream */
};

enum {
	DEVICE_BYTES = 2 * NE_CLUSTER_BYTES,
	PAGES = DEVICE_BYTES / NE_PAGE_BYTES,
	STREAM_BYTES = 6 << 20,
	ASKED_MAX = 600,
	RECORD_BYTES = 8,
	REQUEST_BYTES = 28,
	REPLY_BYTES = 16,
	HANG_MS = 20000, /* an answer takes microseconds, but the machine may be busy */
	FLAGS_KNOWN = 3, /* FUA, NO_HOLE */
};

enum { READ, WRITE, DISC, FLUSH, TRIM, CACHE, ZEROES };

#define REQUEST_MAGIC 0x25609513u
#define REPLY_MAGIC   0x67446698u

struct request {
	uint32_t magic;
	uint16_t flags, type;
	uint64_t cookie, offset;
	uint32_t length;
} __attribute__((packed));

struct reply {
	uint32_t magic, error;
	uint64_t cookie;
} __attribute__((packed));

__attribute__((noreturn)) static void wrong(const char *what)
{
	fprintf(stderr, "fuzz_nbd: %s (errno %s)\n", what, strerror(errno));
	abort();
}

/* False when nothing came for too long. The fuzzer's own clock interrupts now and then. */
static bool wait_for(struct pollfd *p)
{
	int rc = poll(p, 1, HANG_MS);

	return rc > 0 || (rc < 0 && errno == EINTR);
}

static uint32_t chance;

/* A number below `most`, often one that matters: 0, little, or all. */
static size_t some(size_t most)
{
	chance = chance * 1664525u + 1013904223u;
	switch (chance >> 30) {
	case 0:
		return most < 30 ? most : chance >> 8 & 31;
	case 1:
		return most ? (chance >> 8) % most : 0;
	default:
		return most;
	}
}

/* --- the devices */

struct shadow {
	uint32_t crc;
	uint32_t writes; /* of this input, that no answer has put in order */
	bool known;
};

struct plane {
	struct ne_params params;
	struct ne_device *dev;
	int state_fd, disk_fd, slab_fd;
	struct shadow page[PAGES];
};

static struct plane planes[2];
static uint32_t zero_crc;

static int memory(uint64_t bytes)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		wrong("no memory");
	return fd;
}

static int disk(void)
{
	char name[] = "fuzz-disk-XXXXXX";
	int plain = mkstemp(name), direct = open(name, O_RDWR | O_DIRECT | O_CLOEXEC);

	if (plain < 0 || posix_fallocate(plain, 0, DEVICE_BYTES))
		wrong("no disk");
	unlink(name);
	if (direct < 0)
		return plain;
	close(plain);
	return direct;
}

static void plane_open(struct plane *p)
{
	if (ne_device_create(&p->params, p->state_fd, p->disk_fd, &p->dev) || ne_link_attach_shm(p->dev, 0))
		wrong("no device");
}

static void plane_make(struct plane *p, bool has_disk)
{
	struct ne_slab_info slab = {.slab = 1, .donor = 0, .lease = 1, .epoch = 1, .token = 7};

	p->params = (struct ne_params){
		.size_bytes = DEVICE_BYTES,
		.slab_bytes = DEVICE_BYTES,
		.pending_bytes = 16 << 20,
		.workers = 1,
		.protection = has_disk ? NE_PROTECT_DISK : NE_PROTECT_NONE,
		.deadline_ms = HANG_MS,
		.hedge_us = 1000000,
		.flush_wait_ms = HANG_MS,
	};
	p->state_fd = memory((uint64_t)ne_state_bytes(&p->params));
	p->slab_fd = memory(DEVICE_BYTES);
	p->disk_fd = has_disk ? disk() : -1;
	plane_open(p);
	if (ne_donor_set(p->dev, 0, NE_DONOR_UP) || ne_slab_add(p->dev, &slab, dup(p->slab_fd)) ||
	    ne_cluster_map(p->dev, 0, 1, 0) < 0 || (!has_disk && ne_cluster_map(p->dev, 1, 1, 1) < 0))
		wrong("no slab");
	for (int i = 0; i < PAGES; i++)
		p->page[i] = (struct shadow){.crc = zero_crc, .known = true};
}

static void planes_end(void)
{
	for (int i = 0; i < 2; i++)
		ne_device_destroy(planes[i].dev);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static const uint8_t zeros[NE_PAGE_BYTES];

	(void)argc;
	(void)argv;
	zero_crc = ne_crc32c(zeros, sizeof(zeros));
	plane_make(&planes[0], true);
	plane_make(&planes[1], false);
	atexit(planes_end);
	return 0;
}

/* --- what the client says */

struct asked {
	uint16_t type;
	bool sound, answered;
	uint32_t page, pages;
	size_t at; /* where the request begins in the stream */
};

static uint8_t stream[STREAM_BYTES];
static size_t stream_bytes;
static struct asked asked[ASKED_MAX];
static uint32_t asked_n;
static size_t sound_bytes; /* of the stream: whole requests, before the first bad magic, fragment, or DISC */
static bool says_goodbye;

static void write_records(const uint8_t *data, size_t bytes)
{
	stream_bytes = 0;
	for (; bytes >= RECORD_BYTES; data += RECORD_BYTES, bytes -= RECORD_BYTES) {
		uint16_t type = data[0] % 8;
		uint32_t pages = 1 + (data[3] & 64 ? data[3] & 63 : data[3] & 3);
		uint32_t payload = type == WRITE ? pages * NE_PAGE_BYTES : 0;
		struct request request = {
			.magic = htonl(data[1] == 255 ? 0 : REQUEST_MAGIC),
			.flags = htons(data[1] % 4),
			.type = htons(type),
			.offset = htobe64(type == FLUSH ? 0 : ((data[4] | data[5] << 8) % (PAGES + 1)) * 4096ull),
			.length = htonl(type == FLUSH ? 0 : pages * NE_PAGE_BYTES - (data[2] == 255)),
		};

		if (sizeof(request) + payload > STREAM_BYTES - stream_bytes)
			break;
		memcpy(stream + stream_bytes, &request, sizeof(request));
		for (uint32_t i = 0; i < payload; i++)
			stream[stream_bytes + sizeof(request) + i] =
				data[6] ? data[6] + i / NE_PAGE_BYTES * data[7] : 0;
		stream_bytes += sizeof(request) + payload;
	}
}

static bool is_sound(const struct request *r, uint16_t type, uint64_t offset, uint32_t length)
{
	if (type > ZEROES || ntohs(r->flags) & ~FLAGS_KNOWN)
		return false;
	if (type == FLUSH)
		return !offset && !length;
	return length && offset <= DEVICE_BYTES && length <= DEVICE_BYTES - offset && !(offset % NE_PAGE_BYTES) &&
	       !(length % NE_PAGE_BYTES);
}

/* Finds the requests, gives each its cookie, and counts who writes which page. */
static void understand(struct plane *p)
{
	size_t at = 0;

	asked_n = 0;
	says_goodbye = false;
	for (; stream_bytes - at >= REQUEST_BYTES && asked_n < ASKED_MAX; asked_n++) {
		struct request r;
		struct asked *a = &asked[asked_n];
		uint64_t payload;

		memcpy(&r, stream + at, sizeof(r));
		if (r.magic != htonl(REQUEST_MAGIC))
			break;
		*a = (struct asked){.type = ntohs(r.type), .at = at};
		says_goodbye = a->type == DISC;
		payload = a->type == WRITE ? ntohl(r.length) : 0;
		if (says_goodbye || payload > stream_bytes - at - REQUEST_BYTES)
			break;
		a->sound = is_sound(&r, a->type, be64toh(r.offset), ntohl(r.length));
		a->page = (uint32_t)(be64toh(r.offset) / NE_PAGE_BYTES);
		a->pages = a->sound ? ntohl(r.length) / NE_PAGE_BYTES : 0;
		r.cookie = asked_n;
		memcpy(stream + at, &r, sizeof(r));
		at += REQUEST_BYTES + payload;
	}
	if (asked_n == ASKED_MAX)
		stream_bytes = at;
	sound_bytes = at;
	for (uint32_t i = 0; i < asked_n; i++)
		for (uint32_t k = 0; asked[i].type != READ && asked[i].type != CACHE && k < asked[i].pages; k++)
			p->page[asked[i].page + k].writes++;
}

static uint32_t written_crc(const struct asked *a, uint32_t page)
{
	const uint8_t *payload = stream + a->at + REQUEST_BYTES;

	return a->type == WRITE ? ne_crc32c(payload + (uint64_t)page * NE_PAGE_BYTES, NE_PAGE_BYTES) : zero_crc;
}

/* An answered write is the page's content if no other can be; with ONE_BY_ONE it is in any case. */
static void learn(struct plane *p, const struct asked *a, bool in_order)
{
	for (uint32_t k = 0; k < a->pages; k++) {
		struct shadow *s = &p->page[a->page + k];

		if (in_order || s->writes == 1) {
			s->crc = written_crc(a, k);
			s->known = true;
		}
	}
}

/* --- what comes back */

struct talk {
	struct plane *p;
	int sock, server_end;
	bool in_order, ended, is_over; /* by what the client sees; because a predecessor has ended it */
	size_t sent, replace_at;
	uint32_t answered;
	struct asked *now; /* a READ whose data is coming */
	uint32_t now_page, part_bytes;
	uint8_t part[NE_PAGE_BYTES]; /* of a reply's header, or of a page */
};

static void take_page(struct talk *t)
{
	const struct shadow *s = &t->p->page[t->now->page + t->now_page];

	if (s->known && (t->in_order || !s->writes) && ne_crc32c(t->part, NE_PAGE_BYTES) != s->crc)
		wrong("a page has another content than was written");
	if (++t->now_page == t->now->pages)
		t->now = NULL;
}

static bool is_known(uint32_t error)
{
	static const uint32_t errors[] = {EPERM, EIO, ENOMEM, EINVAL, ENOSPC, EOVERFLOW, EOPNOTSUPP, ESHUTDOWN};

	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (error == errors[i])
			return true;
	return !error;
}

static void take_reply(struct talk *t)
{
	struct asked *a;
	struct reply r;

	memcpy(&r, t->part, sizeof(r));
	if (r.magic != htonl(REPLY_MAGIC) || !is_known(ntohl(r.error)))
		wrong("no reply at all");
	if (r.cookie >= asked_n || asked[r.cookie].answered)
		wrong(r.cookie >= asked_n ? "an answer to nothing" : "a second answer");
	a = &asked[r.cookie];
	if (a->sound == (r.error != 0))
		wrong(a->sound ? "a sound request failed" : "an unsound request succeeded");
	a->answered = true;
	t->answered++;
	if (!a->sound || a->type == FLUSH || a->type == CACHE)
		return;
	if (a->type == READ)
		t->now = a;
	else
		learn(t->p, a, t->in_order);
	t->now_page = 0;
}

static void take(struct talk *t, const uint8_t *data, size_t bytes)
{
	while (bytes) {
		uint32_t whole = t->now ? NE_PAGE_BYTES : REPLY_BYTES;
		size_t part = bytes < whole - t->part_bytes ? bytes : whole - t->part_bytes;

		memcpy(t->part + t->part_bytes, data, part);
		t->part_bytes += part;
		data += part;
		bytes -= part;
		if (t->part_bytes < whole)
			continue;
		t->part_bytes = 0;
		if (t->now)
			take_page(t);
		else
			take_reply(t);
	}
}

static void listen_once(struct talk *t)
{
	static uint8_t buf[1 << 18];
	ssize_t got = recv(t->sock, buf, 1 + some(sizeof(buf) - 1), MSG_DONTWAIT);

	if (got > 0)
		take(t, buf, (size_t)got);
	else if (!got || errno == ECONNRESET)
		t->ended = true;
	else if (errno != EAGAIN)
		wrong("recv");
}

static void say_once(struct talk *t, size_t until)
{
	ssize_t sent = send(t->sock, stream + t->sent, 1 + some(until - t->sent - 1), MSG_DONTWAIT | MSG_NOSIGNAL);

	if (sent > 0)
		t->sent += (size_t)sent;
	else if (errno != EAGAIN && errno != EPIPE && errno != ECONNRESET)
		wrong("send");
}

/* Sends up to there, and listens until `answers` have come, or to the end. */
static void converse(struct talk *t, size_t until, uint32_t answers, bool to_the_end)
{
	while (!t->ended && (t->sent < until || t->answered < answers || t->now || to_the_end)) {
		struct pollfd p = {.fd = t->sock, .events = POLLIN | (t->sent < until ? POLLOUT : 0)};

		if (!wait_for(&p))
			wrong("no answer");
		if (p.revents & (POLLIN | POLLHUP | POLLERR))
			listen_once(t);
		if (p.revents & POLLOUT && !t->ended)
			say_once(t, until);
	}
	if (t->ended && t->answered < answers)
		wrong("the server hung up early");
}

/* --- one connection */

static void begin(struct talk *t)
{
	int pair[2], rc;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		wrong("socketpair");
	t->sock = pair[0];
	t->server_end = dup(pair[1]);
	while ((rc = ne_conn_attach(t->p->dev, 0, pair[1])) == -EBUSY)
		sched_yield(); /* it tells that a connection is over just before it can take the next */
	if (rc)
		wrong("attach");
}

static bool has_been_ended(int sock)
{
	struct pollfd p = {.fd = sock, .events = POLLRDHUP};

	return poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP);
}

static void replace(struct talk *t)
{
	struct plane *p = t->p;

	ne_device_destroy(p->dev);
	t->is_over = has_been_ended(t->sock);
	plane_open(p);
	if (!ne_device_adopted(p->dev) || ne_slab_remap(p->dev, 1, dup(p->slab_fd)))
		wrong("no successor");
	if (!t->is_over && ne_conn_attach(p->dev, 0, dup(t->server_end)))
		wrong("attach by the successor");
}

/* Goes on to that byte of the stream and until so many answers have come. */
static void go_on(struct talk *t, size_t until, uint32_t answers)
{
	if (t->replace_at <= until && !t->ended) {
		converse(t, t->replace_at, 0, false);
		t->replace_at = SIZE_MAX;
		replace(t);
	}
	converse(t, until, answers, false);
}

static void speak(struct talk *t, uint8_t manner)
{
	bool waits = manner & WAITS;

	for (uint32_t i = 1; manner & ONE_BY_ONE && i < asked_n; i++)
		go_on(t, asked[i].at, i);
	if (waits)
		go_on(t, sound_bytes, asked_n);
	go_on(t, stream_bytes, 0);
	if (!says_goodbye)
		shutdown(t->sock, SHUT_WR);
	converse(t, stream_bytes, waits || says_goodbye ? asked_n : 0, true);
	if ((t->part_bytes || t->now) && (waits || says_goodbye))
		wrong("half an answer");
}

/* Waits until the engine is through with the connection. */
static void finish(struct talk *t)
{
	struct pollfd p = {.fd = ne_device_event_fd(t->p->dev), .events = POLLIN};
	struct ne_event event = {0};

	close(t->sock);
	while (!t->is_over && event.kind != NE_EVENT_CONN_CLOSED)
		if (!ne_event_next(t->p->dev, &event) && !wait_for(&p))
			wrong("the connection does not end");
	close(t->server_end);
	for (int i = 0; i < PAGES; i++) {
		struct shadow *s = &t->p->page[i];

		if (s->writes > 1)
			s->known = t->in_order && s->known;
		s->writes = 0;
	}
}

/* A write without an answer may have happened or not. */
static void forget_unanswered(struct plane *p)
{
	for (uint32_t i = 0; i < asked_n; i++)
		for (uint32_t k = 0; !asked[i].answered && asked[i].type != READ && k < asked[i].pages; k++)
			p->page[asked[i].page + k].known = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct talk t;

	if (bytes < 2 || bytes > STREAM_BYTES)
		return 0;
	chance = data[1] * 2654435761u;
	if (data[0] & RECORDS) {
		write_records(data + 2, bytes - 2);
	} else {
		stream_bytes = bytes - 2;
		memcpy(stream, data + 2, stream_bytes);
	}
	t = (struct talk){.p = &planes[data[0] & NO_DISK], .in_order = (data[0] & ONE_BY_ONE) != 0};
	understand(t.p);
	/* Not behind DISC: who says goodbye hangs up, and a successor finds that by itself. */
	t.replace_at = (data[0] & REPLACE) == REPLACE ? some(says_goodbye ? sound_bytes : stream_bytes) : SIZE_MAX;
	begin(&t);
	speak(&t, data[0]);
	forget_unanswered(t.p);
	finish(&t);
	return 0;
}
