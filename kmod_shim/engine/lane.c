/* SPDX-License-Identifier: Apache-2.0 */
/* lane.c - lane.h's regions and frames. */
#include "lane.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "siphash.h"

enum {
	LINE_BYTES = 64,
	BUFFER_BYTES = 16 << 10, /* heads that come in one call */
	/*
	 * Of each buffer of a TCP socket; four chunks. The kernel's own choice grows until what is on its way is in no
	 * cache any more, which costs a seventh of the processor time of 100 MB.
	 */
	SOCKET_BYTES = 1 << 20,
	RECEIVED = 16, /* calls before others have their turn */
	GATHERED = 64, /* frames that go out in one call */
	FIRST_ITEMS = 64,
};

/* ---------------------------------------------------------------------- region */

static const uint32_t element_bytes[] = {
	[NE_DTYPE_F32] = 4, [NE_DTYPE_F16] = 2, [NE_DTYPE_BF16] = 2,
	[NE_DTYPE_F64] = 8, [NE_DTYPE_I32] = 4, [NE_DTYPE_I64] = 8,
};

static uint64_t on_line(uint64_t bytes)
{
	return (bytes + LINE_BYTES - 1) & ~(uint64_t)(LINE_BYTES - 1);
}

uint64_t layout_bytes(const struct layout *layout, uint32_t chunk)
{
	return layout->counts[chunk] * element_bytes[layout->dtypes[chunk]];
}

uint64_t layout_array_bytes(const struct layout *layout, uint32_t chunk)
{
	return layout->counts[chunk] * sizeof(float);
}

uint64_t layout_state_bytes(const struct layout *layout, uint32_t chunk)
{
	return layout->arrays * on_line(layout_array_bytes(layout, chunk));
}

uint32_t layout_keeper(const struct layout *layout, uint32_t chunk)
{
	return chunk % layout->members;
}

static bool is_job(const struct ne_job *job)
{
	uint64_t bytes = 0;

	if (!job->members || job->members > NE_MEMBERS_MAX || !job->chunks || job->chunks > NE_JOB_CHUNKS_MAX)
		return false;
	if (job->rule > NE_RULE_ADAMW || !job->groups || job->groups > NE_JOB_GROUPS_MAX)
		return false;
	for (uint32_t i = 0; i < job->chunks; i++) {
		const struct ne_job_chunk *chunk = &job->chunk[i];

		if (chunk->dtype > NE_DTYPE_I64 || chunk->group >= job->groups || !chunk->count)
			return false;
		if (chunk->count * element_bytes[chunk->dtype] > NE_CHUNK_BYTES_MAX)
			return false;
		if (chunk->dtype >= NE_DTYPE_F64 && job->rule != NE_RULE_SUM)
			return false;
		bytes += chunk->count * element_bytes[chunk->dtype];
	}
	return bytes <= NE_JOB_BYTES_MAX;
}

static uint32_t arrays_of(const struct ne_job *job)
{
	if (job->rule == NE_RULE_SUM || job->rule == NE_RULE_MEAN)
		return 0;
	return job->rule == NE_RULE_SGD ? 2 : 3;
}

int layout_make(struct layout *layout, const struct ne_job *job)
{
	uint64_t n = job->chunks;

	memset(layout, 0, sizeof(*layout));
	if (!is_job(job))
		return -EINVAL;
	layout->members = job->members;
	layout->chunks = job->chunks;
	layout->rule = job->rule;
	layout->group_count = job->groups;
	layout->arrays = arrays_of(job);
	layout->sum_only = layout->arrays == 0;
	layout->counts = calloc(n, 4 * sizeof(uint64_t) + 2);
	if (!layout->counts)
		return -ENOMEM;
	layout->offsets = layout->counts + n;
	layout->masters = layout->offsets + n;
	layout->kept = layout->masters + n;
	layout->dtypes = (uint8_t *)(layout->kept + n);
	layout->groups = layout->dtypes + n;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t keeper = layout_keeper(layout, i);

		layout->counts[i] = job->chunk[i].count;
		layout->dtypes[i] = job->chunk[i].dtype;
		layout->groups[i] = job->chunk[i].group;
		layout->offsets[i] = layout->area_bytes;
		layout->masters[i] = layout->master_bytes;
		layout->kept[i] = layout->kept_bytes[keeper];
		layout->area_bytes += on_line(layout_bytes(layout, i));
		layout->master_bytes += layout_state_bytes(layout, i);
		layout->kept_bytes[keeper] += layout_state_bytes(layout, i);
	}
	return 0;
}

void layout_free(struct layout *layout)
{
	free(layout->counts);
	memset(layout, 0, sizeof(*layout));
}

static uint32_t gradient_areas(const struct layout *layout)
{
	return layout->sum_only ? 1 : 2;
}

uint64_t layout_region_bytes(const struct layout *layout, uint32_t rank)
{
	return (gradient_areas(layout) + 1) * layout->area_bytes + 2 * layout->kept_bytes[rank];
}

uint64_t layout_gradient(const struct layout *layout, uint32_t chunk, uint64_t iteration)
{
	return (layout->sum_only ? 0 : (iteration & 1) * layout->area_bytes) + layout->offsets[chunk];
}

uint64_t layout_result(const struct layout *layout, uint32_t chunk)
{
	return gradient_areas(layout) * layout->area_bytes + layout->offsets[chunk];
}

uint64_t layout_start(const struct layout *layout, uint32_t chunk, uint64_t version)
{
	return layout_gradient(layout, chunk, version);
}

uint64_t layout_kept(const struct layout *layout, uint32_t chunk, uint64_t version)
{
	return (gradient_areas(layout) + 1) * layout->area_bytes +
	       (version & 1) * layout->kept_bytes[layout_keeper(layout, chunk)] + layout->kept[chunk];
}

/* ------------------------------------------------------------------------ lanes */

int lane_open(struct lane *lane, int fd, bool is_shm, const uint8_t *keys, uint32_t limit)
{
	int flags = fcntl(fd, F_GETFL), one = 1, window = SOCKET_BYTES;

	memset(lane, 0, sizeof(*lane));
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC))
		return -errno;
	/* Of a unix socket it is refused, and not needed. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (!is_shm) {
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &window, sizeof(window));
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window));
	}
	lane->buffer = malloc(BUFFER_BYTES);
	lane->items = calloc(FIRST_ITEMS, sizeof(*lane->items));
	if (!lane->buffer || !lane->items) {
		lane_abandon(lane);
		return -ENOMEM;
	}
	lane->fd = fd;
	lane->is_shm = is_shm;
	lane->size = FIRST_ITEMS;
	lane->limit = limit;
	lane->is_coded = keys != NULL;
	lane->head_bytes = keys ? sizeof(lane->in) : sizeof(lane->in.frame);
	if (keys) {
		memcpy(lane->out_key, keys, sizeof(lane->out_key));
		memcpy(lane->in_key, keys + sizeof(lane->out_key), sizeof(lane->in_key));
	}
	lane->head_left = lane->head_bytes;
	lane->in_part = LANE_PARTS;
	return 0;
}

void lane_abandon(struct lane *lane)
{
	free(lane->buffer);
	free(lane->items);
	memset(lane, 0, sizeof(*lane));
	lane->fd = -1;
}

void lane_close(struct lane *lane)
{
	if (lane->buffer)
		close(lane->fd);
	lane_abandon(lane);
}

/* Of a head and of how many went before it in its direction. */
static uint64_t code_of(const uint64_t key[2], const struct frame *frame, uint64_t heads)
{
	struct {
		struct frame frame;
		uint64_t heads;
	} said = {*frame, htole64(heads)};

	return htole64(siphash(key, &said, sizeof(said)));
}

/* The first part with bytes to come; NULL: the payload is whole. */
static struct part *next_part(struct lane *lane)
{
	while (lane->in_part < LANE_PARTS && !lane->in_parts[lane->in_part].bytes)
		lane->in_part++;
	return lane->in_part < LANE_PARTS ? &lane->in_parts[lane->in_part] : NULL;
}

static void fill(struct part *part, const uint8_t *from, uint64_t bytes)
{
	memcpy(part->at, from, bytes);
	part->at = (uint8_t *)part->at + bytes;
	part->bytes -= bytes;
}

/* Once for each head. */
static int check_head(struct lane *lane)
{
	const struct frame *frame = &lane->in.frame;

	if (lane->is_coded && lane->in.code != code_of(lane->in_key, frame, lane->in_heads++))
		return -EBADMSG;
	return frame->magic != FRAME_MAGIC || frame->reserved || frame->bytes > FRAME_PAYLOAD_MAX ? -EPROTO : 0;
}

static int begin_frame(struct lane *lane, const struct lane_owner *calls, void *owner)
{
	const struct frame *frame = &lane->in.frame;
	uint64_t bytes = 0;
	int err;

	memset(lane->in_parts, 0, sizeof(lane->in_parts));
	lane->in_part = 0;
	if (!frame->bytes)
		return 0;
	err = calls->place(owner, frame, lane->in_parts);
	if (err < 0)
		return err;
	for (int i = 0; i < LANE_PARTS; i++)
		bytes += lane->in_parts[i].bytes;
	return bytes == frame->bytes ? 0 : -EPROTO;
}

static int held(struct lane *lane, enum lane_hold hold, int err)
{
	if (err == -EAGAIN)
		lane->hold = hold;
	return err;
}

/* What is in the buffer goes to where it belongs, frame by frame. */
static int drain(struct lane *lane, const struct lane_owner *calls, void *owner)
{
	struct part *part;
	int err;

	for (;;) {
		uint32_t there = lane->end - lane->begin;

		if (lane->head_left) {
			uint32_t bytes = there < lane->head_left ? there : lane->head_left;

			memcpy((uint8_t *)&lane->in + lane->head_bytes - lane->head_left, lane->buffer + lane->begin,
			       bytes);
			lane->begin += bytes;
			lane->head_left -= bytes;
			if (lane->head_left)
				return 0;
			err = check_head(lane);
			if (!err)
				err = begin_frame(lane, calls, owner);
			if (err < 0)
				return held(lane, LANE_HELD_HEAD, err);
			continue;
		}
		part = next_part(lane);
		if (!part) {
			err = calls->take(owner, &lane->in.frame);
			if (err < 0)
				return held(lane, LANE_HELD_FRAME, err);
			lane->head_left = lane->head_bytes;
			continue;
		}
		if (!there)
			return 0;
		there = there < part->bytes ? there : part->bytes;
		fill(part, lane->buffer + lane->begin, there);
		lane->begin += there;
	}
}

int lane_resume(struct lane *lane, const struct lane_owner *calls, void *owner)
{
	enum lane_hold hold = lane->hold;
	int err = 0;

	lane->hold = LANE_FLOWS;
	if (hold == LANE_HELD_HEAD)
		err = begin_frame(lane, calls, owner);
	if (err < 0)
		return held(lane, hold, err);
	return drain(lane, calls, owner);
}

int lane_receive(struct lane *lane, const struct lane_owner *calls, void *owner)
{
	if (lane->hold)
		return -EAGAIN;
	for (int calls_left = RECEIVED; calls_left; calls_left--) {
		struct part *part = lane->head_left ? NULL : next_part(lane);
		struct iovec iov[2] = {{lane->buffer, BUFFER_BYTES}, {0}};
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 1};
		bool is_short;
		ssize_t got;
		int err;

		/* A payload goes to its place at once, and what comes behind it into the buffer. */
		if (part) {
			iov[1] = iov[0];
			iov[0] = (struct iovec){part->at, part->bytes};
			msg.msg_iovlen = 2;
		}
		got = recvmsg(lane->fd, &msg, MSG_DONTWAIT);
		if (got == 0)
			return -EPIPE;
		if (got < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -errno;
		is_short = (uint64_t)got < iov[0].iov_len + iov[1].iov_len;
		if (part) {
			uint64_t placed = (uint64_t)got < part->bytes ? (uint64_t)got : part->bytes;

			part->at = (uint8_t *)part->at + placed;
			part->bytes -= placed;
			got -= placed;
		}
		lane->begin = 0;
		lane->end = got;
		err = drain(lane, calls, owner);
		if (err < 0)
			return err;
		/* That was all. What comes now is told by the next look at the socket. */
		if (is_short)
			return 0;
	}
	return 0;
}

static int grow(struct lane *lane)
{
	uint32_t size = 2 * lane->size;
	struct lane_item *items;

	if (lane->count >= lane->limit)
		return -ENOBUFS;
	if (lane->count < lane->size)
		return 0;
	items = calloc(size, sizeof(*items));
	if (!items)
		return -ENOMEM;
	for (uint32_t i = 0; i < lane->count; i++)
		items[i] = lane->items[(lane->first + i) % lane->size];
	free(lane->items);
	lane->items = items;
	lane->size = size;
	lane->first = 0;
	return 0;
}

/* Every rule counts every frame. Bits 1 << enum ne_fault. */
static uint32_t roll(const struct ne_fault_rules *rules)
{
	uint32_t hits = 0;

	for (int kind = 0; kind < NE_FAULT_KINDS; kind++)
		hits |= (uint32_t)ne_fault_is_hit(rules, kind) << kind;
	return hits;
}

uint64_t lane_wait(struct lane *lane, uint32_t transfers)
{
	lane->items[(lane->first + lane->count - 1) % lane->size].waits = transfers;
	return lane->taken + lane->count - 1;
}

void lane_go_on(struct lane *lane, uint64_t item)
{
	lane->items[(lane->first + (item - lane->taken)) % lane->size].waits--;
}

static void delay(const struct ne_fault_rules *rules)
{
	uint32_t us = rules->delay_us;

	nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

static void spoil(const struct lane *lane, struct lane_item *item, uint32_t hits)
{
	item->spoilt = hits & 1u << NE_FAULT_DISCONNECT ? LANE_CUT
		       : hits & 1u << NE_FAULT_SHORT	? LANE_HALF
		       : hits & 1u << NE_FAULT_HANG	? LANE_STUCK
							: LANE_SOUND;
	/* What is sure to be noticed: payload has no code. */
	if (hits & 1u << NE_FAULT_CORRUPT && lane->is_coded)
		item->head.frame.chunk ^= 1;
	else if (hits & 1u << NE_FAULT_CORRUPT)
		item->head.frame.magic ^= 1;
}

int lane_put(struct lane *lane, const struct frame *frame, const struct part *parts, uint32_t count)
{
	uint32_t hits = lane->rules ? roll(lane->rules) : 0;
	struct lane_item *item;
	struct frame *head;
	int err = hits & 1u << NE_FAULT_ERROR ? -EIO : grow(lane);

	if (err)
		return err;
	if (hits & 1u << NE_FAULT_DELAY)
		delay(lane->rules);
	item = &lane->items[(lane->first + lane->count++) % lane->size];
	memset(item->parts, 0, sizeof(item->parts));
	item->waits = 0;
	head = &item->head.frame;
	*head = *frame;
	head->magic = FRAME_MAGIC;
	head->bytes = 0;
	for (uint32_t i = 0; i < count; i++) {
		item->parts[i] = parts[i];
		head->bytes += parts[i].bytes;
	}
	/* Frames go out in the order in which they are put. */
	if (lane->is_coded)
		item->head.code = code_of(lane->out_key, head, lane->out_heads++);
	spoil(lane, item, hits);
	return 0;
}

int lane_put_copy(struct lane *lane, const struct frame *frame, const void *payload, uint32_t bytes)
{
	struct part part = {NULL, bytes};
	int err = bytes > LANE_COPY_BYTES ? -EINVAL : lane_put(lane, frame, &part, 1);

	if (!err)
		memcpy(lane->items[(lane->first + lane->count - 1) % lane->size].copy, payload, bytes);
	return err;
}

static uint64_t item_bytes(const struct lane *lane, const struct lane_item *item)
{
	return lane->head_bytes + item->head.frame.bytes;
}

/* Adds what is left of an item behind `skip` of its bytes. */
static int gather(const struct lane *lane, struct lane_item *item, uint64_t skip, struct iovec *iov)
{
	struct part parts[LANE_PARTS + 1] = {{&item->head, lane->head_bytes}};
	int used = 0;

	memcpy(parts + 1, item->parts, sizeof(item->parts));
	if (!parts[1].at)
		parts[1].at = item->copy;
	for (int i = 0; i <= LANE_PARTS; i++) {
		uint64_t over = skip < parts[i].bytes ? skip : parts[i].bytes;

		skip -= over;
		if (parts[i].bytes > over)
			iov[used++] = (struct iovec){(uint8_t *)parts[i].at + over, parts[i].bytes - over};
	}
	return used;
}

/* Whole items in front that go out in one call. */
static uint32_t sound_items(const struct lane *lane)
{
	uint32_t count = 0;

	while (count < lane->count && count < GATHERED) {
		const struct lane_item *item = &lane->items[(lane->first + count) % lane->size];

		if (item->spoilt != LANE_SOUND || item->waits)
			break;
		count++;
	}
	return count;
}

/* Ends a lane at its first item, which a rule has hit; 0: it waits, or is stuck. */
static int fail(struct lane *lane)
{
	struct lane_item *item = &lane->items[lane->first];
	struct iovec iov[LANE_PARTS + 1];
	struct msghdr msg = {.msg_iov = iov};
	uint64_t half = item_bytes(lane, item) / 2;

	if (item->spoilt == LANE_STUCK || item->waits)
		return 0;
	if (item->spoilt == LANE_HALF) {
		msg.msg_iovlen = gather(lane, item, 0, iov);
		for (size_t i = 0; i < msg.msg_iovlen; i++) {
			iov[i].iov_len = iov[i].iov_len < half ? iov[i].iov_len : half;
			half -= iov[i].iov_len;
		}
		(void)!sendmsg(lane->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	return -ECONNRESET;
}

int lane_send(struct lane *lane)
{
	lane->is_blocked = false;
	while (lane->count) {
		struct iovec iov[GATHERED * (LANE_PARTS + 1)];
		struct msghdr msg = {.msg_iov = iov};
		uint32_t count = sound_items(lane);
		ssize_t sent;

		if (!count)
			return fail(lane);
		for (uint32_t i = 0; i < count; i++)
			msg.msg_iovlen += gather(lane, &lane->items[(lane->first + i) % lane->size], i ? 0 : lane->sent,
						 iov + msg.msg_iovlen);
		sent = sendmsg(lane->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		lane->is_blocked = sent < 0 && (errno == EAGAIN || errno == EINTR);
		if (sent < 0)
			return lane->is_blocked ? 1 : -errno;
		lane->sent += sent;
		while (lane->count && lane->sent >= item_bytes(lane, &lane->items[lane->first])) {
			lane->sent -= item_bytes(lane, &lane->items[lane->first]);
			lane->first = (lane->first + 1) % lane->size;
			lane->count--;
			lane->taken++;
		}
	}
	return 0;
}
