/* SPDX-License-Identifier: Apache-2.0 */
/*
 * aggregator.h - what the files of an Aggregator share: aggregator.c serves members, aggregator_rdma.c by RDMA, aggregator_move.c moves chunks
 * to and from other Aggregators, aggregator_control.c has the calls for one server, aggregator_threads.c those of engine.h.
 *
 * Threads and locks
 *	An Aggregator has as many servers as it was given threads, and each job is at one of them, by its number. Servers
 *	share nothing but the memory that they may take. Each has a thread that updates, and one that moves.
 *	The server's thread updates chunks. It holds `lock` while it works, never while it sleeps.
 *	The mover copies chunks. It holds `move_lock` while it works, and takes `lock` for moments only. It reads the
 *	contents of chunks that LEFT, which nobody writes, and writes those of chunks that are COMING, which nobody reads:
 *	without `lock`, so a copy never stops an update.
 *	A call that changes who owns what, or that drops contents, takes both, move_lock first. So it knows what the mover
 *	is in the middle of, and cuts that lane if the contents must not be used any more.
 */
#ifndef FARSIDE_AGGREGATOR_H
#define FARSIDE_AGGREGATOR_H

#include <pthread.h>

#include <stdatomic.h>

#include "chunk.h"
#include "lane.h"

enum {
	JOBS_MAX = 1024,
	EVENTS = 256,	/* that wait for Python */
	READY = 64,	/* sockets of one look */
	HYPERS = 2,	/* numbers of a group that are known: those of now, and of the iteration before */
	BULK_FRAMES = 16,	/* of copies that are on their way at a time, on one lane */
	LEAVE_PARTS = 8,	/* a job's contents leave in that many iterations, */
	LEAVE_BYTES = 8 << 20,	/* but so much may leave in one */
	WAKE = -1,
	RDMA_TAG = 1 << 24,	/* beside a member's: its queue pair */
};

struct numbers {
	uint64_t from; /* iteration; 0: none yet */
	struct ne_hyper hyper;
};

struct member {
	struct lane lane;
	bool is_there;
	bool is_refused;	/* it was told that its numbers are not rank 0's */
	uint32_t watched;	/* what epoll looks for */
	struct rdma *rdma;	/* aggregator_rdma.c; NULL: none */
	uint64_t held_ns;	/* since when a frame waits for its plan; 0: none does */
	uint8_t *region;
	uint8_t *inlined;	/* two areas of gradients */
	struct ne_hyper hyper;	/* numbers that are coming in */
};

/* What is on its way to another Aggregator: the chunk, and whether it is the version before. */
struct copying {
	uint32_t chunk;
	bool is_before;
};

/* A lane to or from another Aggregator. move_lock guards it. */
struct bulk {
	struct lane lane;
	bool is_there;
	uint32_t watched;
	uint64_t life;		/* next: of the process at the other end; 0: not known yet */
	uint32_t cursor;	/* next: where the search for chunks to copy goes on */
	struct copying copying[BULK_FRAMES];	/* next: in the order in which they are sent */
	uint32_t copying_first, copying_count;
	uint32_t placing;	/* previous: the chunk whose contents come in; chunks: none */
};

enum wanted_copy {
	WANTS_BEFORE = 1,
	WANTS_COPY = 2,
};

/* One chunk's moves, beside its ne_chunk. */
struct move {
	uint64_t epoch, next_epoch;	/* the plan's last word */
	uint64_t known_epoch, known_next_epoch; /* those of the chunk for which what follows is true */
	uint64_t sent_to;		/* LEFT: life of the next owner that was sent the copy; 0: nobody */
	uint64_t before;		/* COMING: 1 + the version before that has come ahead; 0: none */
	uint8_t owner, next;		/* numbers of Aggregators, by that word */
	uint8_t told, news;		/* bits 1 << (kind - NE_AGGREGATOR_COPIED): of this epoch, and those that nobody has had */
	bool went_ahead;		/* LEAVING, LEFT: the version before has been asked for */
	bool is_copied;			/* LEFT: the next owner has said so */
	bool is_held;			/* its contents count in the job's memory */
	bool waits;			/* SERVING: it may leave, but not yet with the next update */
};

struct job {
	uint64_t id;
	uint32_t index;
	struct layout layout;
	struct ne_chunk *states;
	struct move *moves;
	uint8_t *wants;		/* enum wanted_copy, by chunk */
	uint8_t *masters[2];
	uint8_t *is_carried;	/* SGD: both masters have the same momentum, by chunk */
	uint8_t *results; /* an area: sum only with inline members, or formats that are narrower than the master */
	struct member member[NE_MEMBERS_MAX];
	struct bulk *next[NE_MEMBERS_MAX], *previous[NE_MEMBERS_MAX];
	struct numbers *numbers; /* by member and group, HYPERS each */
	uint32_t *due;		 /* a ring of chunks */
	uint8_t *is_due;
	uint64_t (*absent)[2];	/* members without a gradient, by chunk and the iteration's parity */
	uint64_t (*pulls)[2];	/* hold: members that want a result, by chunk and the iteration's parity */
	uint64_t *owed;		/* hold: members that have yet to want the last result */
	uint64_t *unwritten;	/* hold: those whose last result no update has written to their region */
	bool hold;
	uint32_t due_first, due_count;
	uint64_t turn_ns; /* processor time that its turns have had */
	uint64_t held_area_bytes, held_master_bytes;
	uint32_t inline_members;
	uint32_t bulks;	/* lanes to and from other Aggregators */
	uint64_t leaves_at, leaving_bytes; /* the last version with which chunks leave, and how much they are */
	bool is_lost;
	bool has_results;
	bool has_news;
	bool has_plan;		/* since frames were held */
	bool has_freed;
	struct ne_aggregator_stats stats;
};

/* Of all servers of an Aggregator. */
struct budget {
	uint64_t limit_bytes;
	_Atomic uint64_t used_bytes;
};

struct server {
	struct budget *budget;
	const struct ne_fault_rules *rules;
	pthread_t thread, mover;
	pthread_mutex_t move_lock, lock;
	int poll, wake, move_poll, move_wake, event_fd;
	bool stops;
	bool wakes_mover;
	uint32_t held;	/* lanes with a frame that waits */
	uint32_t rdmas;	/* lanes with a queue pair */
	uint64_t life;	/* names this process to others; never 0 */
	uint64_t turn_ns; /* of the job whose turn was last */
	struct job *jobs[JOBS_MAX];
	uint32_t jobs_end;	/* behind the last one */
	uint8_t *scratch, *move_scratch; /* payload that nobody wants */
	struct ne_aggregator_event events[EVENTS];
	uint32_t event_first, event_count;
};

/* One frame's way through the handlers. */
struct source {
	struct server *aggregator;
	struct job *job;
	uint32_t rank;
};

/* ------------------------------------------------------------- aggregator.c */

void *serve(void *aggregator);
/* Queues a frame to a member; false: it has no lane, or that is about to end. */
bool put(struct job *job, uint32_t rank, uint32_t chunk, struct frame frame, const struct part *parts, uint32_t count);
/* A gradient is where pushed() says. */
int take_push(struct source *source, const struct frame *frame);
/* Where the gradient of a member that is not on this host goes. */
uint8_t *pushed(struct job *job, uint32_t rank, uint32_t chunk, uint64_t iteration);
/* An event of a chunk, and all that follows from it. -EAGAIN: it waits for a plan. */
int step(struct source *source, uint32_t chunk, struct ne_chunk_event event);
void end_lane(struct server *a, struct job *job, uint32_t rank, int err);
/* The job can't go on. */
void tell_lost(struct job *job, uint32_t rank);
void tell(struct server *a, struct ne_aggregator_event event);
void wake(int fd);
float *master(struct job *job, uint32_t chunk, uint64_t version);
bool is_narrow(const struct job *job, uint32_t chunk);
uint64_t member_tag(const struct job *job, uint32_t rank);

/* ------------------------------------------------------- aggregator_control.c */

/* As the calls of engine.h, for the jobs of one server. event_fd is its Aggregator's. */
int server_create(struct budget *budget, const struct ne_fault_rules *rules, int event_fd, uint64_t life,
		  struct server **ret);
void server_stop(struct server *server);
void server_destroy(struct server *server);
int server_add_job(struct server *server, uint64_t id, const struct ne_job *job);
int server_drop_job(struct server *server, uint64_t id);
int server_plan(struct server *server, uint64_t id, uint32_t first, uint32_t count, const struct ne_place *place);
int server_attach(struct server *server, uint64_t id, uint32_t rank, const struct ne_lane *lane);
int server_next_event(struct server *server, struct ne_aggregator_event *ret);
int server_told(struct server *server, uint64_t id, uint32_t kind, uint32_t from, struct ne_aggregator_event *ret);
int server_job_stats(struct server *server, uint64_t id, struct ne_aggregator_stats *ret);

struct job *find(struct server *a, uint64_t id);
/* A place for results that go by a lane, where members have sums only and are all on this host. */
int make_results(struct job *job);
void unmap(void *at, uint64_t bytes);
/* Gives back the memory of chunks that are gone, once no lane sends from it. */
void release_freed(struct server *a, struct job *job);

/* ---------------------------------------------------------- aggregator_rdma.c */

/* Takes the link, in any case. */
int rdma_begin(struct server *a, const struct ne_lane *lane, struct rdma **ret);
void rdma_end(struct server *a, struct rdma *rdma);
/* A push: its gradient is read. -EAGAIN: not now, and rdma_waits(). */
int rdma_take_push(struct source *source, const struct frame *frame);
/* Whether a frame behind pushes has to wait until they are whole; frames keep their order. */
bool rdma_must_wait(struct rdma *rdma);
/* Whether a frame waits for pushes that are whole by now. */
bool rdma_may_go_on(struct rdma *rdma);
/* Contents go to the member's region, and the frame behind them. */
void rdma_put_result(struct job *job, uint32_t rank, uint32_t chunk, struct frame frame, const struct part *parts,
		     uint32_t count);
void rdma_tell(struct rdma *rdma);
/* Takes what has ended. */
void rdma_poll(struct server *a, struct job *job, uint32_t rank);
/* Hands over what was asked for. Before a sleep; returns ms until the next look at the latest, -1: when it is told. */
int rdma_submit(struct server *a, struct job *job, uint32_t rank);
bool rdma_is_reading(const struct rdma *rdma);

/* ---------------------------------------------------------- aggregator_move.c */

int server_attach_next(struct server *server, uint64_t id, uint32_t number, int fd, const uint8_t *keys);
int server_attach_previous(struct server *server, uint64_t id, uint32_t number, int fd, const uint8_t *keys);
void *move_chunks(void *aggregator);
/* What has become of a chunk after a step: copies that are due, words for the manager. Under `lock`. */
void move_follow(struct server *a, struct job *job, uint32_t chunk, const struct ne_chunk_todo *todo);
/* A plan's word is about to be given to the chunk (under both locks), and has been. */
void move_plan(struct server *a, struct job *job, uint32_t chunk);
/*
 * Whether a chunk that is served here may leave with its next update, for which it counts from now on; it waits for one
 * after that otherwise. All that leave with one update stand still until they have been copied, and the job's members
 * with them: so few do.
 */
bool move_may_leave(struct job *job, uint32_t chunk);
/* A chunk that waits has been updated. Under `lock`. */
void move_on(struct server *a, struct job *job, uint32_t chunk);
void end_bulks(struct server *a, struct job *job);
void free_bulks(struct job *job);

#endif
