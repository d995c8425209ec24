/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - the interface of Farside's C data engine; other code uses nothing else of it.
 *
 * Two halves share one library:
 *   ne_device  the borrower: NBD transmission on connected sockets, served from donors' memory, a disk, or both
 *   ne_export  the donor: one-sided access to leased slabs for borrowers that come over TCP or by RDMA
 *
 * Rules that hold for every call
 *   - Functions return 0 or a positive count, or -errno. Results leave through the last parameter, only on success.
 *   - Handles are opaque. _create and _destroy are a pair; _destroy takes NULL.
 *   - A file descriptor handed in becomes the engine's on success, and stays the caller's on failure.
 *   - Control calls (everything here) come from one thread at a time. They never wait for a page, except where it says
 *     "blocks". Engine threads never call out: what happened is told by events, whose eventfd turns readable.
 *   - Units are in the names. Integers on the wire and in memory files are little-endian.
 */
#ifndef FARSIDE_ENGINE_H
#define FARSIDE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cffi: begin */

/* ------------------------------------------------------------------ limits */

enum {
	NE_PAGE_BYTES = 4096,		/* the unit of state, checksum and placement */
	NE_CLUSTER_BYTES = 2097152,	/* what Linux swap frees at once; also the size of an extent */
	NE_CLUSTER_PAGES = 512,
	NE_REQUEST_MAX_BYTES = 33554432, /* the largest NBD request that is served */
	NE_WORKERS_MAX = 16,		/* NBD connections at once; one thread each. Worker NE_MOVER is the mover */
	NE_MOVER = 16,
	NE_SESSION_CONNS_MAX = 64,	/* connections of one borrower to a donor: one a thread, old ones not yet gone */
	NE_MALFORMED_MAX = 64,		/* kept until ne_export_malformed_take() */
	NE_DONORS_MAX = 256,
	NE_SLABS_MAX = 65536,
	NE_HOMES = 3,			/* places a cluster may have: primary, replica, and one being filled */
};

/* ------------------------------------------------------- borrower: a device */

enum ne_protection {			/* what a page's second copy is */
	NE_PROTECT_DISK = 0,		/* the backup disk; a page is acknowledged when remote, and kept until on disk */
	NE_PROTECT_REPLICA = 1,		/* a second donor; acknowledged when both have it */
	NE_PROTECT_NONE = 2,		/* nothing: a lost donor loses pages (reads of them fail with EIO) */
	NE_PROTECT_BOTH = 3,		/* a second donor and the backup disk; acknowledged when both donors have it */
};

struct ne_params {
	uint64_t size_bytes;		/* device size, a multiple of NE_CLUSTER_BYTES, below 16 TiB */
	uint64_t slab_bytes;		/* power of two, 2 MiB to 1 GiB */
	uint64_t pending_bytes;		/* payload kept for the disk, per worker; a power of two, 16 MiB (then no request is larger) to 1 GiB */
	uint32_t workers;		/* 1..NE_WORKERS_MAX connections */
	uint32_t protection;		/* enum ne_protection */
	uint32_t deadline_ms;		/* a donor that owes an answer longer than this is suspected */
	uint32_t hedge_us;		/* no read is asked of another copy, too, before it is so old; see hedge.h */
	uint32_t spin_us;		/* longest busy wait before a worker sleeps; 0 never spins */
	uint32_t flush_wait_ms;		/* a write that finds pending full waits this long, then fails with EIO */
	uint32_t encrypt_disk;		/* 1: AES-256-XTS (OpenSSL), key made at creation, kept in the state memfd only */
	uint32_t encrypt_remote;	/* 1: what donors are given is sealed (seal.h); a successor's may differ */
};

struct ne_device;

/* Bytes that the state memfd must have for these parameters, or -EINVAL. */
int64_t ne_state_bytes(const struct ne_params *params);
/*
 * 0 when ne_device_create() will take this memfd, whoever serves the device now: it is empty, or its layout and params
 * are ours. -ESTALE when they are not. Changes nothing.
 */
int ne_state_check(const struct ne_params *params, int state_fd);

/*
 * Makes a device over state_fd (a memfd of ne_state_bytes(); sparse) and disk_fd (-1 without a disk; opened O_DIRECT,
 * at least size_bytes long). An empty memfd is initialised. One that another process left, alive or killed, is adopted:
 * pages, homes, slabs, pending payloads and unanswered requests are as they were. Adoption with other params fails
 * with -ESTALE. Both fds are borrowed: the caller keeps and closes them after ne_device_destroy().
 */
int ne_device_create(const struct ne_params *params, int state_fd, int disk_fd, struct ne_device **ret);
/* Stops every worker at a request boundary; afterwards the state memfd is ready for a successor. Blocks up to 2 s. */
int ne_device_stop(struct ne_device *dev);
/* Stops if still running, frees what this process holds. The state memfd keeps the device. */
void ne_device_destroy(struct ne_device *dev);
/* True when ne_device_create() adopted existing state. */
bool ne_device_adopted(const struct ne_device *dev);
/* Readable when ne_event_next() has something. Owned by the device. */
int ne_device_event_fd(const struct ne_device *dev);
/*
 * Has in memory what serving pages may touch: tables, and for each running worker its connection, rings, pending slots
 * and the part of replies and staging that small requests use. About pending_bytes + 27 MiB a worker. For a process that
 * locks its memory (mlockall with MCL_ONFAULT) and is swapped to: what it has now, it need not ask for when memory is
 * out. Before the first conn_attach. -ENOMEM; -EINVAL where the kernel has no MADV_POPULATE_WRITE (Linux below 5.14).
 */
int ne_device_prefault(struct ne_device *dev);

/* --- connections */

/*
 * Serves NBD transmission on sock (a connected stream socket, past the handshake) by worker `worker`. If the memfd says
 * that this worker had an unfinished connection it is resumed where it stopped; the socket must be the same one.
 * -EBUSY when the worker is in use by this process.
 */
int ne_conn_attach(struct ne_device *dev, uint32_t worker, int sock);
/*
 * The same for a client with TLS, past handshake and negotiation: the session too becomes the engine's on success. It
 * can't be passed on, so such a connection ends with this process, by a goodbye where ne_device_stop() ends it; what it
 * left in the memfd is ne_conn_forget()'s. Memory: about 140 KiB a session, and what GnuTLS takes for it.
 */
struct ne_tls_session;
int ne_conn_attach_tls(struct ne_device *dev, uint32_t worker, int sock, struct ne_tls_session *session);
/* True when the memfd holds an unfinished connection for this worker (ask after adoption). */
bool ne_conn_is_unfinished(const struct ne_device *dev, uint32_t worker);
/* Forgets an unfinished connection whose socket is gone: its unanswered writes are dropped (fenced). */
int ne_conn_forget(struct ne_device *dev, uint32_t worker);

/* --- TLS of clients, by GnuTLS, whose library is loaded by the first ne_tls_create() */

enum {
	NE_TLS_USERS_MAX = 1024,
	NE_TLS_USER_BYTES_MAX = 128,
	NE_TLS_KEY_BYTES_MIN = 16,
	NE_TLS_KEY_BYTES_MAX = 64,	/* 512 bits, what psktool makes at most */
	NE_TLS_REASON_BYTES = 256,	/* for one line, with its end */
	NE_TLS_WANTS_READ = 1,		/* what a step waits for: the socket is to be readable, writable */
	NE_TLS_WANTS_WRITE = 2,
};

struct ne_tls_psk {			/* a pre-shared key, and whose it is */
	const char *user;
	uint32_t user_bytes, key_bytes;
	const uint8_t *key;
};

struct ne_tls_keys {			/* who may come: pre-shared keys, certificates, or either */
	const struct ne_tls_psk *psk;
	uint32_t psks;
	const char *cert, *key;		/* ours, PEM; NULL: no certificates */
	const char *client_ca;		/* those that clients' certificates are of, PEM, with their revocation lists */
};

struct ne_tls;
/*
 * Copies all that it is given. reason[NE_TLS_REASON_BYTES]: why not, where it fails. -EINVAL: these keys can't be used;
 * -EOPNOTSUPP: a build without GnuTLS, or a machine; -ENOMEM.
 */
int ne_tls_create(const struct ne_tls_keys *keys, char *reason, struct ne_tls **ret);
/* Sessions that were begun with it go on. */
void ne_tls_destroy(struct ne_tls *tls);

/*
 * A session on a connected stream socket, which stays the caller's. TLS 1.3, or 1.2 with a cipher whose keys last as
 * long as the connection; both with keys that are gone with it. The calls below never wait, and read and write nothing
 * but records: what lies in the socket in the clear ends the handshake. One thread at a time calls a session.
 */
int ne_tls_begin(struct ne_tls *tls, int sock, struct ne_tls_session **ret);
/* 0: the client has proved itself; NE_TLS_WANTS_*: call again then. -EACCES, with a reason: it has not; -errno. */
int ne_tls_handshake(struct ne_tls_session *session, char *reason);
/* Clear bytes that were moved, at most `bytes`; 0: the client's stream has ended (read). -EAGAIN: none now; -errno. */
int ne_tls_read(struct ne_tls_session *session, void *to, uint32_t bytes);
/* After -EAGAIN, and for the rest: call again with what was not written. */
int ne_tls_write(struct ne_tls_session *session, const void *from, uint32_t bytes);
/* Who the client is, for the log: "TLS 1.3, PSK user n1", "TLS 1.2, certificate of CN=n1". text[NE_TLS_REASON_BYTES]. */
int ne_tls_describe(struct ne_tls_session *session, char *text);
/* Says goodbye as far as the socket takes it now, and forgets the keys. Takes NULL. */
void ne_tls_end(struct ne_tls_session *session);

/* --- donors and links. A donor is a small number chosen by the caller and kept across adoption. */

enum ne_donor_state {
	NE_DONOR_NONE = 0,
	NE_DONOR_UP = 1,
	NE_DONOR_SUSPECT = 2,		/* missed its deadline: writes go round it, reads prefer other copies */
	NE_DONOR_FAILED = 3,		/* fenced for good: nothing is read or written there again under these leases, and
					 * its links end */
};

int ne_donor_set(struct ne_device *dev, uint32_t donor, uint32_t state);
int ne_donor_get(const struct ne_device *dev, uint32_t donor);
/*
 * Gives worker (or NE_MOVER) an authenticated data connection to a TCP donor. Replaces, and closes, an older one. keys:
 * the 32 bytes of a connection with codes (wire.h), or NULL.
 */
int ne_link_attach_tcp(struct ne_device *dev, uint32_t donor, uint32_t worker, int sock, const uint8_t *keys);
/*
 * Makes a queue pair to an RDMA donor on an authenticated data connection (see ne_export_conn_rdma), for one worker.
 * Blocks up to limit_ms, and may be called from any thread. -EOPNOTSUPP in a build without rdma-core; -ENODEV and what
 * rdma_cm says where there is no way; the socket then stays the caller's.
 */
struct ne_link;
int ne_rdma_connect(int sock, uint32_t limit_ms, struct ne_link **ret);
/* Reads a few bytes of a lease by it, or says why that can't be done; blocks up to limit_ms. */
int ne_link_probe(struct ne_link *link, uint32_t lease, uint64_t token, uint32_t limit_ms);
/* Frees a link that no worker was given. */
void ne_link_discard(struct ne_link *link);
/* Gives worker (or NE_MOVER) a link that ne_rdma_connect() made; it is the engine's on success. */
int ne_link_attach_rdma(struct ne_device *dev, uint32_t donor, uint32_t worker, struct ne_link *link);
/* Tells every worker that the donor's slabs are memory of this host (see ne_slab_add's memfd). */
int ne_link_attach_shm(struct ne_device *dev, uint32_t donor);

/*
 * Fault layer: wraps every link to this donor, present and future. kind is an enum ne_fault; one in `every` operations
 * (1 = all, 0 = off) is hit, counted from the first. delay_us is for NE_FAULT_DELAY. Rules of different kinds stack.
 */
enum ne_fault {
	NE_FAULT_DELAY = 0,
	NE_FAULT_ERROR = 1,		/* the operation completes with -EIO */
	NE_FAULT_SHORT = 2,		/* half of it happens, then the link dies */
	NE_FAULT_DISCONNECT = 3,	/* the link dies before it */
	NE_FAULT_CORRUPT = 4,		/* one byte of a READ's answer, or of what a WRITE stores, is flipped */
	NE_FAULT_HANG = 5,		/* it never completes */
	NE_FAULT_KINDS = 6,
};
int ne_fault_set(struct ne_device *dev, uint32_t donor, uint32_t kind, uint32_t every, uint32_t delay_us);
/* Operations that the donor's present rules have hit; one that is taken off takes its hits along. */
uint64_t ne_fault_hits(const struct ne_device *dev, uint32_t donor);
/* The same for the disk: NE_FAULT_ERROR, NE_FAULT_DELAY and NE_FAULT_SHORT on disk writes. */
int ne_disk_fault_set(struct ne_device *dev, uint32_t kind, uint32_t every, uint32_t delay_us);

/* --- slabs (leases) and clusters */

struct ne_slab_info {
	uint32_t slab;			/* our number, 0..NE_SLABS_MAX-1, chosen by the caller, free to reuse after removal */
	uint32_t donor;
	uint32_t lease;			/* the donor's number for it */
	uint32_t epoch;
	uint64_t token;			/* proves the lease on a data connection */
	uint32_t state;			/* enum ne_slab_state; on input ignored */
	uint32_t reserved;
};

enum ne_slab_state { NE_SLAB_NONE = 0, NE_SLAB_LIVE = 1, NE_SLAB_DRAINING = 2, NE_SLAB_GONE = 3 };

/* memfd: the slab's memory for a donor on this host (sealed against shrinking, else -EPERM), or -1. */
int ne_slab_add(struct ne_device *dev, const struct ne_slab_info *info, int memfd);
/* After adoption: gives back the memory of a slab that the state already knows. */
int ne_slab_remap(struct ne_device *dev, uint32_t slab, int memfd);
int ne_slab_get(const struct ne_device *dev, uint32_t slab, struct ne_slab_info *ret);
/* Forgets a slab that no cluster uses (after NE_EVENT_SLAB_DRAINED); -EBUSY otherwise. */
int ne_slab_remove(struct ne_device *dev, uint32_t slab);

/*
 * Adds extent `extent` (of NE_CLUSTER_BYTES) of `slab` as a home of the cluster: new writes go to it. With protection
 * NE_PROTECT_DISK and NONE at most one such home takes writes: mapping a second makes the first a source to drain from.
 * With replicas the cluster's pages that one donor has are copied to it in the background.
 * Returns the home's index (0..NE_HOMES-1), -ENOSPC when all are taken, -EBUSY while the cluster is being drained.
 */
int ne_cluster_map(struct ne_device *dev, uint32_t cluster, uint32_t slab, uint32_t extent);
struct ne_home_info { uint32_t slab; uint32_t extent; uint32_t writable; uint32_t valid; };
int ne_cluster_get(const struct ne_device *dev, uint32_t cluster, struct ne_home_info ret[3]);
/* Pages of the cluster with content that is not zero; and of these, how many are held by some donor. */
int ne_cluster_count(const struct ne_device *dev, uint32_t cluster, uint32_t ret[2]);

/*
 * Moves everything off a slab, in the background, by the mover. A cluster that has another writable home gets its pages
 * copied there first; the others fall back to disk (pages that are not on disk yet are saved first). deadline_ms counts
 * from now: when it passes, copying stops and the rest falls back at once. What the disk refuses, or has not written by
 * then, is kept in memory, up to pending_bytes more than the workers' (see ne_pending_bytes), until the disk has it;
 * without a disk until another home has it. Beyond that it is lost, and counted in the event. Ends with
 * NE_EVENT_SLAB_DRAINED; from then on no thread touches the slab. fail=true: the donor is gone, nothing is read from the
 * slab. Called again while it runs, the new deadline and fail count from now on.
 */
int ne_slab_drain(struct ne_device *dev, uint32_t slab, uint32_t deadline_ms, bool fail);
/* The same for one cluster's home on that slab; ends with NE_EVENT_CLUSTER_DRAINED. Used for TRIMmed clusters. */
int ne_cluster_drain(struct ne_device *dev, uint32_t cluster, uint32_t slab);

/*
 * From now on (true) pages that the disk alone has are copied to their cluster's writable home, in the background, as far
 * as the disk can be read; and NE_EVENT_WANT tells of clusters with such pages that have none. Off at first, in each
 * process. What could not be copied stays in ne_pages_disk_alone(), and is tried again.
 */
void ne_lift_set(struct ne_device *dev, bool on);

/* --- events */

enum ne_event_kind {
	NE_EVENT_NONE = 0,
	NE_EVENT_WANT = 1,		/* a: cluster. It was written (or see ne_lift_set) and has no writable home. Told once until mapped */
	NE_EVENT_CLUSTER_FREE = 2,	/* a: cluster. TRIM left no page in it */
	NE_EVENT_LINK_DOWN = 3,		/* a: donor, b: worker, c: errno */
	NE_EVENT_DONOR_SUSPECT = 4,	/* a: donor. The engine has set NE_DONOR_SUSPECT */
	NE_EVENT_SLAB_DRAINED = 5,	/* a: slab, b: pages copied to other donors, c: pages left to disk, d: pages lost */
	NE_EVENT_CLUSTER_DRAINED = 6,	/* a: cluster, b: slab, c: pages left to disk, d: pages lost */
	NE_EVENT_CONN_CLOSED = 7,	/* a: worker, b: 0 for NBD_CMD_DISC, else errno */
	NE_EVENT_DISK_ERROR = 8,	/* a: errno, b: first page */
	NE_EVENT_CHECKSUM = 9,		/* a: donor (or UINT32_MAX for disk), b: page, c: 1: all zeros. That copy was dropped */
};

struct ne_event { uint32_t kind; uint32_t a; uint32_t b; uint32_t c; uint32_t d; };

/*
 * 1 and an event, or 0 when there is none. A ring that is half full takes no more WANT, CLUSTER_FREE, DISK_ERROR and
 * CHECKSUM, a full one takes none. WANT comes again; free clusters are also to be looked for; the others are counted.
 */
int ne_event_next(struct ne_device *dev, struct ne_event *ret);

/* --- what is going on. Counters only grow; they start at zero in each process. */

enum { NE_LATENCY_BUCKETS = 32 };	/* bucket i counts durations in [2^i, 2^(i+1)) ns */

struct ne_stats {
	uint64_t requests_read, requests_write, requests_flush, requests_trim, requests_zero, requests_other;
	uint64_t requests_error;	/* answered with an error */
	uint64_t pages_in_remote, pages_in_replica, pages_in_disk, pages_in_pending, pages_in_zero; /* page-ins by source */
	uint64_t pages_out_remote, pages_out_replica, pages_out_disk, pages_out_zero;
	uint64_t pages_lost;		/* of reads answered EIO: no copy was left, or none could be read */
	uint64_t pages_moved;		/* copied from donor to donor by the mover */
	uint64_t checksum_errors, disk_errors, link_errors, reads_hedged, reads_retried, writes_round;
	uint64_t writes_fenced;		/* dropped because their connection was dead */
	uint64_t hedges_won;		/* of reads_hedged: the second copy was there first */
	uint64_t hedges_no_budget, hedges_overload; /* late reads not hedged at once: too many were; the second copy is too slow */
	uint64_t waits_pending;		/* requests that found pending full */
	uint64_t sleeps, spins;
	uint64_t latency_read[32], latency_write[32]; /* request parsed to reply queued */
	uint64_t longest_request_ns;
};

/* Sums over all workers into *ret. */
int ne_stats_get(const struct ne_device *dev, struct ne_stats *ret);
/* The age from which on reads of the donor are hedged now, at the worker where that is longest. */
uint64_t ne_hedge_ns(const struct ne_device *dev, uint32_t donor);
/* Payload bytes waiting for the disk now, all workers; with what a drain keeps (see ne_slab_drain). */
uint64_t ne_pending_bytes(const struct ne_device *dev);
/*
 * Pages that one donor alone has, though the protection promises a second copy: their write went round a donor, a copy
 * was lost or damaged, or the disk refused it. What a suspect donor has counts until the donor has failed. With replicas
 * the mover writes the second copy again as soon as another writable home's donor is up; with a disk the next write of
 * the page does.
 */
uint64_t ne_pages_exposed(const struct ne_device *dev);
/* With replicas: pages that one donor has and no second, which the mover mends likewise, whatever the disk has; else 0. */
uint64_t ne_pages_single(const struct ne_device *dev);
/* Pages that the disk alone has: what no donor was given, and what came back from one. A disk that breaks loses them. */
uint64_t ne_pages_disk_alone(const struct ne_device *dev);
/* Pages that have a copy anywhere: at donors, on the disk, or on their way there. */
uint64_t ne_pages_filled(const struct ne_device *dev);
/* Pages that donors have in the clear: all of them without encrypt_remote, else what the mover has still to seal. */
uint64_t ne_pages_clear(const struct ne_device *dev);
/*
 * Cumulative page I/O (in + out) per cluster since creation, wrapping at 2^32, summed over workers into ret[clusters].
 * Cheap: the caller reads it once a second for the EWMA.
 */
int ne_activity_get(const struct ne_device *dev, uint32_t clusters, uint32_t *ret);

/* ---------------------------------------------------------- donor: exports */

struct ne_export;

int ne_export_create(struct ne_export **ret);
/* Ends every connection and thread. Slab memory is the caller's and must outlive this call. */
void ne_export_destroy(struct ne_export *exp);
/*
 * Lets connections of `session` reach [addr, addr+bytes) as lease `lease` (0..65535) with this token, until revoked.
 * -EEXIST when the lease is in use.
 */
int ne_export_lease(struct ne_export *exp, uint32_t lease, uint64_t session, uint64_t token, void *addr, uint64_t bytes);
/* Blocks (microseconds, at most one request) until no thread touches it; then the memory may be reused. */
int ne_export_revoke(struct ne_export *exp, uint32_t lease);
/* Serves data requests on sock, past the control handshake, with a thread of its own. keys: as ne_link_attach_tcp(). */
int ne_export_conn(struct ne_export *exp, uint64_t session, int sock, const uint8_t *keys);
/*
 * Gives the session a queue pair beside sock, past the control handshake, with a thread that then sleeps: the borrower
 * reads and writes leased memory by RDMA. address: this machine's on the RDMA network; NULL or empty: the one that sock
 * came to. -EOPNOTSUPP in a build without rdma-core.
 */
int ne_export_conn_rdma(struct ne_export *exp, uint64_t session, int sock, const char *address);
/* Any thread: memory that may be leased soon. It is registered ahead, for the RDMA sessions that there are. */
int ne_export_offer(struct ne_export *exp, void *addr, uint64_t bytes);
/* Any thread: the end of that; blocks until no adapter has it registered. Leases of it have been revoked before. */
int ne_export_withdraw(struct ne_export *exp, void *addr);
/* Ends the session's connections; blocks until their threads are gone, so that nothing of them can land any more. */
int ne_export_fence(struct ne_export *exp, uint64_t session);
/*
 * ret[NE_MALFORMED_MAX]: the sessions of which connections have ended, since the last call, by what is no request or has
 * a wrong code, once for each connection. Returns how many; what was not kept is counted in refused alone.
 */
int ne_export_malformed_take(struct ne_export *exp, uint64_t *ret);
struct ne_export_stats {
	uint64_t reads, writes, read_bytes, write_bytes, refused, connections;
	uint64_t cpu_ns;		/* time that serving threads have spent on a CPU */
	uint64_t rdma_connections;	/* queue pairs now; what moves through them no CPU counts */
	uint64_t rdma_keys;		/* given out, one for each queue pair and lease */
	uint64_t rdma_registered_bytes;	/* now; memory counts once for each session that it is registered for */
};
int ne_export_stats_get(struct ne_export *exp, struct ne_export_stats *ret);

/* ------------------------------------------------------------- aggregation */

enum {
	NE_MEMBERS_MAX = 64,		/* of one job */
	NE_REDUCTION_MAX = 67108864,	/* elements of one call */
	NE_JOB_CHUNKS_MAX = 65536,
	NE_JOB_GROUPS_MAX = 64,		/* parameter groups of an optimizer */
	NE_CHUNK_BYTES_MAX = 1048576,
	NE_THREADS_MAX = 64,		/* of an Aggregator */
	NE_REGION_LEASE = 0,		/* a member's region, at a queue pair of ne_kv_export() */
};

enum ne_dtype {				/* of gradients and results */
	NE_DTYPE_F32 = 0,
	NE_DTYPE_F16 = 1,		/* these two: widened exactly, summed in float32, rounded to nearest even */
	NE_DTYPE_BF16 = 2,
	NE_DTYPE_F64 = 3,		/* these three: NE_RULE_SUM alone; integers wrap */
	NE_DTYPE_I32 = 4,
	NE_DTYPE_I64 = 5,
};

enum ne_rule {				/* what becomes of the gradients */
	NE_RULE_SUM = 0,		/* the result is their sum */
	NE_RULE_MEAN = 1,		/* the sum divided by their number */
	NE_RULE_SGD = 2,		/* these three: parameters, after the optimizer's step with the mean */
	NE_RULE_ADAM = 3,
	NE_RULE_ADAMW = 4,
};

struct ne_hyper {			/* an optimizer's numbers, as torch.optim names them */
	double lr, weight_decay;
	double momentum;		/* NE_RULE_SGD; dampening is 0 */
	double beta1, beta2, eps;	/* NE_RULE_ADAM, NE_RULE_ADAMW; betas below 1 */
	uint32_t nesterov;		/* NE_RULE_SGD; needs a momentum */
};

struct ne_reduction {
	uint32_t dtype, rule;		/* enum ne_dtype, enum ne_rule */
	uint32_t members;		/* gradients, 1..NE_MEMBERS_MAX */
	uint32_t results;		/* copies of the result that are wanted, 0..NE_MEMBERS_MAX */
	uint64_t count;			/* elements of each, at most NE_REDUCTION_MAX */
	const void *const *gradients;	/* in rank order; aligned to an element, as all that follows */
	void *const *outputs;		/* each is a gradient's own memory, or overlaps nothing else here */
	uint32_t past_caches;		/* 1: caches do not hold the results until somebody reads them; the same bits */
	uint64_t step;			/* an optimizer's: of this chunk's update, from 1 */
	struct ne_hyper hyper;
	const float *from[3];		/* an optimizer's: parameters, momentum or first moment, second moment, before */
	float *to[3];			/* and after; to[i] is from[i], or overlaps nothing else here */
};

/*
 * Reduces one chunk. The sum s is g0, then s + g in rank order, each rounded to the format that sums; the mean is s / n.
 * With fma() for a product and sum that are rounded once, all in float32, scalars computed in double and rounded once:
 *
 *	SGD	g = fma(wd, p, g)   b = momentum * b + g (first step: g)   d = b, or nesterov: fma(momentum, b, g)
 *		p = fma(-lr, d, p)
 *	Adam	g = fma(wd, p, g)   m = fma(1 - beta1, g - m, m)   v = fma((1 - beta2) * g, g, v * beta2)
 *		p = p + -(lr / c1) * m / (sqrt(v) / sqrt(c2) + eps)   c = 1 - beta^step
 *		beta1 of 0.5 and less: m = fma(w - 1, g - m, g), w = 1 - beta1, as torch interpolates
 *	AdamW	p = p * (1 - lr * wd) in place of the first formula, then as Adam
 *
 * Terms of a weight decay or momentum of 0 are left out, and with SGD's momentum of 0 from[1] and to[1] are not touched.
 * NaN and infinities pass as IEEE 754 has it; of two NaN that meet either may stay. -EINVAL for anything outside of the
 * limits above, and then nothing is written.
 */
int ne_reduce(const struct ne_reduction *reduction);
/* For tests and measurements: true gives up the CPU's vector instructions, false takes them again. 1 when without. */
int ne_reduce_portable(bool portable);

struct ne_job_chunk {
	uint64_t count;			/* elements, 1 and more; at most NE_CHUNK_BYTES_MAX */
	uint32_t dtype;			/* enum ne_dtype */
	uint32_t group;			/* of the optimizer's numbers */
};

struct ne_job {				/* what all members of a job and its Aggregators agree on */
	uint32_t members;		/* 1..NE_MEMBERS_MAX */
	uint32_t chunks;		/* 1..NE_JOB_CHUNKS_MAX */
	uint32_t groups;		/* 1..NE_JOB_GROUPS_MAX */
	uint32_t rule;			/* enum ne_rule */
	uint32_t hold;			/* a result goes to a member when that asks for it: ne_kv_ask() */
	const struct ne_job_chunk *chunk;
};

/*
 * An Aggregator: updates chunks for the members of many jobs. Each job is served by one of `threads` threads, by its
 * number; beside each another one copies chunks to and from other Aggregators. Control calls come from any thread, and wait
 * at most for one batch of frames. memory_bytes bounds masters, and what comes inline or by RDMA, of the chunks that are here.
 */
struct ne_aggregator;
/* -EINVAL: threads is not 1..NE_THREADS_MAX; -ENOMEM. */
int ne_aggregator_create(uint64_t memory_bytes, uint32_t threads, struct ne_aggregator **ret);
/* Ends all lanes and the thread; calls that are under way come back, later ones may fail with -ESHUTDOWN. */
void ne_aggregator_stop(struct ne_aggregator *aggregator);
/* No other call is under way. */
void ne_aggregator_destroy(struct ne_aggregator *aggregator);
/* None of its chunks is here yet. -EEXIST, -EINVAL, -ENOMEM. */
int ne_aggregator_add_job(struct ne_aggregator *aggregator, uint64_t id, const struct ne_job *job);
/* Ends its lanes. -ENOENT. */
int ne_aggregator_drop_job(struct ne_aggregator *aggregator, uint64_t id);
struct ne_place {			/* a plan's word on a run of chunks; Aggregators have numbers below NE_MEMBERS_MAX */
	uint32_t me;			/* this Aggregator */
	uint32_t owner, next_owner;
	uint64_t epoch;			/* of the owner, above 0 */
	uint64_t next_epoch;		/* of the next owner, above `epoch`; 0: there is none, and chunks stay */
};
/*
 * Who owns chunks [first, first + count). A move names the next owner and its epoch; its end makes that the owner under
 * the same epoch. Any other change of owner has a new epoch. A word that is older than the last is ignored, so whole plans
 * may be repeated. -ENOENT, -EINVAL; -ENOMEM: the run would go beyond memory_bytes, and nothing of it is taken.
 */
int ne_aggregator_plan(struct ne_aggregator *aggregator, uint64_t id, uint32_t first, uint32_t count,
		       const struct ne_place *place);
/*
 * The lane on which chunks of a job go to another Aggregator: connected, its other end has proved who it is, and is given
 * to attach_previous there. `number` is the other Aggregator's. One that is there ends. Takes fd; keys as of ne_lane.
 * -ENOENT, -EINVAL, -ENOMEM.
 */
int ne_aggregator_attach_next(struct ne_aggregator *aggregator, uint64_t id, uint32_t number, int fd,
			      const uint8_t *keys);
int ne_aggregator_attach_previous(struct ne_aggregator *aggregator, uint64_t id, uint32_t number, int fd,
				  const uint8_t *keys);
struct ne_lane {			/* a member's lane, as its Aggregator gets it */
	int fd;				/* a connected stream socket, whose other end has proved who it is */
	int region;			/* the member's memory file, if it is on this host; -1: payload comes inline */
	/*
	 * 32 bytes where both ends agreed on codes of heads, of this connection alone: the key of the heads that go out
	 * here, then of those that come in. NULL: heads have no codes.
	 */
	const uint8_t *keys;
	/*
	 * A queue pair to the member (ne_kv_export()) by which gradients and results go, or NULL. It is the engine's in any
	 * case, also where this call fails. token: as given there.
	 */
	struct ne_link *link;
	uint64_t token;
	const void *greeting;		/* goes out before the first frame, once nothing can be refused any more; short */
	uint32_t greeting_bytes;
};
/*
 * A lane of that rank that is there ends. -ENOENT, -EINVAL: rank, or a region that is too short; -EPERM: a region that is
 * not sealed against shrinking; -ENOMEM; -EPIPE: the greeting did not go out. Takes fd and region.
 */
int ne_aggregator_attach(struct ne_aggregator *aggregator, uint64_t id, uint32_t rank, const struct ne_lane *lane);

/*
 * Faults of its lanes, those to other Aggregators too: as ne_fault_set(), and a frame that goes out is an operation.
 * NE_FAULT_CORRUPT flips a byte of its head; NE_FAULT_DELAY holds the thread up that sends. -EINVAL.
 */
int ne_aggregator_fault_set(struct ne_aggregator *aggregator, uint32_t kind, uint32_t every, uint32_t delay_us);

enum ne_aggregator_event_kind {
	NE_AGGREGATOR_NONE = 0,
	/* error: why; EPIPE: the member closed it; ETIMEDOUT: it was ahead of the plan; EBADMSG: a head with a wrong code */
	NE_AGGREGATOR_LANE_ENDED = 1,
	NE_AGGREGATOR_LOST = 2,		/* chunk: nobody has a version to go on from. The job can't go on */
	/* These five for chunks [chunk, chunk + count) under `epoch`. None of them is lost. */
	NE_AGGREGATOR_COPIED = 3,	/* they came here whole */
	NE_AGGREGATOR_PUSHED = 4,	/* all members have come here with them; with COPIED the move is at its end */
	NE_AGGREGATOR_BROKEN_HERE = 5,	/* this process came in the middle of their move: the next owner must become owner */
	NE_AGGREGATOR_BROKEN_THERE = 6, /* the next owner did, after it was sent them: this one must stay owner */
	NE_AGGREGATOR_FREED = 7,	/* they are not here any more */
	/* A lane between Aggregators has ended; rank: the other one's number, error: why */
	NE_AGGREGATOR_NEXT_ENDED = 8,
	NE_AGGREGATOR_PREVIOUS_ENDED = 9,
};

struct ne_aggregator_event {
	uint32_t kind, rank, chunk, count, error;
	uint64_t epoch, job;
};
int ne_aggregator_event_fd(struct ne_aggregator *aggregator);
/* 1: an event; 0: none is left. Of more than 256 ends of lanes that wait the newest are dropped. */
int ne_aggregator_next_event(struct ne_aggregator *aggregator, struct ne_aggregator_event *ret);
/*
 * What has been said of moves that are under way: 1: the first run from chunk `from` on of COPIED, PUSHED, BROKEN_HERE or
 * BROKEN_THERE; 0: there is none. -ENOENT, -EINVAL.
 */
int ne_aggregator_told(struct ne_aggregator *aggregator, uint64_t id, uint32_t kind, uint32_t from,
		       struct ne_aggregator_event *ret);

struct ne_aggregator_stats {		/* of one job, since it was added */
	uint64_t updates, busy_ns;	/* processor time of updates */
	/* Of each update, in bytes that its members pushed: the square of its size, and its size by its busy_ns. Summed. */
	double size_squares, size_times;
	uint64_t pushed_bytes, result_bytes; /* of gradients and results, by whatever way */
	uint64_t memory_bytes;
	uint64_t wrong_codes;		/* heads whose code was not their sender's; each ended its lane */
	uint32_t lanes;
	uint32_t shm_lanes, rdma_lanes;	/* of these; all others have everything inline */
	uint32_t uncoded_lanes;		/* of these: neither on this host nor with codes */
	uint32_t waits_for;		/* lowest rank whose push is lacking where others have pushed; members: none */
	uint32_t has_served;		/* chunks are owned here, and a version of each is known */
	uint64_t serves;		/* the lowest of these versions */
};
int ne_aggregator_job_stats(struct ne_aggregator *aggregator, uint64_t id, struct ne_aggregator_stats *ret);

/*
 * A member's half: its region, and its lanes to all Aggregators of the job. One thread of its own receives. push, wait
 * and the like come from any thread. A child of fork() has no part in it: its copies of the lanes are closed at once, so
 * that they end with the member, and each call there answers -EBADF; its destroy frees memory alone.
 */
struct ne_kv;
/* Makes and maps the region. -ENOMEM, -EINVAL. */
int ne_kv_create(const struct ne_job *job, uint32_t rank, struct ne_kv **ret);
/* Ends all lanes and the thread. Who waits comes back with -ESHUTDOWN. */
void ne_kv_stop(struct ne_kv *kv);
/* No other call is under way. */
void ne_kv_destroy(struct ne_kv *kv);
int ne_kv_region(struct ne_kv *kv);	/* its memory file, which stays the kv's */
void *ne_kv_gradient(struct ne_kv *kv, uint32_t chunk, uint64_t iteration);
void *ne_kv_result(struct ne_kv *kv, uint32_t chunk);
/*
 * The job's first start: each of its members calls this once, and one that comes anew does not. All chunks are at
 * `version`: with sum only at every member; with a server's optimizer at rank 0 alone, whose parameters lie where results
 * do. The others have nothing, and are given it. state, at rank 0, which is copied: for each chunk in order the optimizer's
 * arrays of float32, parameters first, one behind the other; NULL: those behind the parameters are zero. -EINVAL, -ENOMEM.
 *
 * A member that comes anew is given all chunks by the Aggregators, at the last version that all of them have. Until then
 * it holds nothing.
 */
int ne_kv_start(struct ne_kv *kv, uint64_t version, const void *state);
/*
 * Copies parameters and optimizer state of chunks that are held at `version`, without a push under way, from their owners:
 * in the layout of ne_kv_start's state. Nothing of them can be pushed meanwhile. -EAGAIN: not at this version, or pushed;
 * -EINVAL: sum only, or another number of bytes; -EBUSY: a fetch is under way; -ETIMEDOUT, -ESTALE, -ENOMEM.
 */
int ne_kv_fetch(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t version, void *to, uint64_t bytes,
		int timeout_ms);
/* Who owns chunks [first, first + count): a number of ne_kv_attach's. An older epoch than is known is ignored. */
int ne_kv_own(struct ne_kv *kv, uint32_t first, uint32_t count, uint32_t aggregator, uint64_t epoch);
/*
 * A lane to an Aggregator, below NE_MEMBERS_MAX. is_shm: it has the region. keys: as of ne_lane. pair: of ne_kv_export(), if
 * the Aggregator's end has its link; NULL: gradients and results are inline, or in the region. One that is there ends. Takes
 * fd and pair.
 */
int ne_kv_attach(struct ne_kv *kv, uint32_t aggregator, int fd, bool is_shm, const uint8_t *keys,
		 struct ne_export *pair);
/*
 * Gives an Aggregator a queue pair that reaches the region, beside a connection whose other end has proved who it is and
 * calls ne_rdma_connect(). token: what the Aggregator must know. Until ne_kv_attach() has taken it, it is the caller's to
 * ne_export_destroy(). Takes sock. -EOPNOTSUPP in a build without rdma-core, -ENOMEM.
 */
int ne_kv_export(struct ne_kv *kv, int sock, uint64_t token, struct ne_export **ret);
/* Faults of its lanes, as ne_aggregator_fault_set()'s. -EINVAL. */
int ne_kv_fault_set(struct ne_kv *kv, uint32_t kind, uint32_t every, uint32_t delay_us);
/* The optimizer's numbers of a group from this iteration on. Rank 0's count; who says others gets -EDOM from ne_kv_wait(). */
int ne_kv_hyper(struct ne_kv *kv, uint32_t group, uint64_t iteration, const struct ne_hyper *hyper);
/*
 * The gradients of [first, first + count) are in place. absent: this member has none, and zeros are in place; with a
 * server's optimizer, a chunk for which all members are absent keeps its parameters and state, and has the next version.
 * -EAGAIN: a result of the iteration before is lacking.
 */
int ne_kv_push(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t iteration, bool absent);
/*
 * hold: the results of an iteration that was pushed are wanted now. On one host the place of results may be written
 * before that. -EAGAIN: not pushed; -EINVAL: not a job with hold.
 */
int ne_kv_ask(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t iteration);
/* hold: blocks until all these pushes have been taken, by the lanes that there are. Errors as ne_kv_wait's; -EAGAIN. */
int ne_kv_wait_taken(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t iteration, int timeout_ms);
/* 1: all of them are held, and `ret` is the lowest version; 0: one is not held. */
int ne_kv_version(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t *ret);
/* Blocks until all of them are at `version` or beyond. -ETIMEDOUT; -ESTALE: the job can't go on. timeout_ms < 0: none. */
int ne_kv_wait(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t version, int timeout_ms);
/*
 * Blocks until a lane has ended, for good or not, or a chunk has moved to an Aggregator without one: its number;
 * -ETIMEDOUT; -ESTALE as above; -ESHUTDOWN: destroy.
 */
int ne_kv_wait_lane(struct ne_kv *kv, int timeout_ms);

/* ------------------------------------------------------------------- tools */

uint32_t ne_crc32c(const void *data, size_t bytes);
/* "uring,aes,..." what this build has. */
const char *ne_features(void);
/* RDMA devices of this machine, or -EOPNOTSUPP in a build without rdma-core. */
int ne_rdma_devices(void);
/* mmaps bytes of a memfd shared and read-write (huge: try huge pages first), populated; NULL on failure. */
void *ne_map(int fd, uint64_t bytes);
int ne_unmap(void *addr, uint64_t bytes);

/* cffi: end */

#endif
