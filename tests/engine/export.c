/* SPDX-License-Identifier: Apache-2.0 */
/* The donor: what it refuses, what it survives, and that after a revoke or a fence nothing moves any more. */
#include <pthread.h>
#include <stdatomic.h>

#include "donor.h"
#include "siphash.h"

enum { PAGE = NE_PAGE_BYTES, BIG = NE_CLUSTER_BYTES, OTHER_SESSION = 78 };

static uint8_t page[PAGE], big[BIG];

/* A raw connection of the given session, so that a test can send what no link would. */
static int raw_conn(struct donor *donor, uint64_t session)
{
	int pair[2];

	unix_pair(pair, 0);
	CHECK(ne_export_conn(donor->exp, session, pair[1], NULL) == 0);
	return pair[0];
}

static struct ne_wire_request good_request(int op)
{
	return (struct ne_wire_request){
		.magic = NE_WIRE_REQUEST_MAGIC,
		.op = op,
		.lease = LEASE,
		.length = PAGE,
		.token = TOKEN,
		.cookie = 4711,
	};
}

static void send_all(int sock, const void *data, size_t bytes)
{
	CHECK(send(sock, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

static bool receive_all(int sock, void *data, size_t bytes)
{
	return recv(sock, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* Sends one request (a WRITE with a page of 0x5a behind it); returns the status it is answered with. */
static uint32_t ask(int sock, const struct ne_wire_request *request)
{
	struct ne_wire_reply reply;

	send_all(sock, request, sizeof(*request));
	memset(page, 0x5a, PAGE);
	if (request->op == NE_WIRE_WRITE)
		send_all(sock, page, PAGE);
	CHECK(receive_all(sock, &reply, sizeof(reply)));
	CHECK(reply.magic == NE_WIRE_REPLY_MAGIC);
	CHECK(reply.cookie == request->cookie);
	if (request->op == NE_WIRE_READ)
		CHECK(receive_all(sock, page, PAGE));
	return reply.status;
}

static bool is_zero(const uint8_t *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (p[i])
			return false;
	return true;
}

/*
 * The request, as a READ and as a WRITE, gets this status; a READ's answer is zeros; the slab stays zero; and the
 * connection goes on.
 */
static void expect_refusal(uint64_t session, struct ne_wire_request request, uint32_t status)
{
	struct ne_export_stats stats;
	struct donor donor;
	int sock;

	donor_create(&donor);
	sock = raw_conn(&donor, session);
	request.op = NE_WIRE_WRITE;
	CHECK(ask(sock, &request) == status);
	CHECK(is_zero(donor.slab, SLAB_BYTES));
	memset(donor.slab, 0xee, SLAB_BYTES);
	request.op = NE_WIRE_READ;
	CHECK(ask(sock, &request) == status);
	CHECK(is_zero(page, PAGE));
	request = good_request(NE_WIRE_READ);
	CHECK(ask(sock, &request) == (session == SESSION ? 0 : EACCES));
	CHECK(ne_export_stats_get(donor.exp, &stats) == 0);
	CHECK(stats.refused == (session == SESSION ? 2 : 3));
	CHECK(stats.writes == 0);
	close(sock);
	donor_destroy(&donor);
}

TEST(a_wrong_token_is_refused_with_eacces)
{
	struct ne_wire_request request = good_request(0);

	request.token ^= 1;
	expect_refusal(SESSION, request, EACCES);
}

TEST(a_lease_of_another_session_is_refused_with_eacces)
{
	expect_refusal(OTHER_SESSION, good_request(0), EACCES);
}

TEST(a_lease_that_does_not_exist_is_refused_with_enoent)
{
	struct ne_wire_request request = good_request(0);

	request.lease = LEASE + 1;
	expect_refusal(SESSION, request, ENOENT);
	request.lease = UINT32_MAX;
	expect_refusal(SESSION, request, ENOENT);
}

TEST(an_operation_past_the_slabs_end_is_refused_with_einval)
{
	struct ne_wire_request request = good_request(0);

	request.offset = SLAB_BYTES - PAGE + 1;
	expect_refusal(SESSION, request, EINVAL);
	request.offset = SLAB_BYTES + 1;
	expect_refusal(SESSION, request, EINVAL);
	request.offset = UINT64_MAX - 100;
	expect_refusal(SESSION, request, EINVAL);
}

static void expect_closed(struct ne_wire_request request)
{
	struct ne_export_stats stats;
	struct donor donor;
	uint8_t byte;
	int sock;

	donor_create(&donor);
	sock = raw_conn(&donor, SESSION);
	send_all(sock, &request, sizeof(request));
	CHECK(recv(sock, &byte, 1, 0) == 0);
	CHECK(ne_export_stats_get(donor.exp, &stats) == 0);
	CHECK(stats.refused == 1);
	CHECK(stats.connections == 0 || stats.connections == 1);
	close(sock);
	donor_destroy(&donor);
}

TEST(a_malformed_header_closes_the_connection)
{
	struct ne_wire_request request = good_request(NE_WIRE_READ);

	request.magic ^= 1;
	expect_closed(request);
	request = good_request(NE_WIRE_READ);
	request.flags = 1;
	expect_closed(request);
	expect_closed(good_request(3));
	expect_closed(good_request(0));
	request = good_request(NE_WIRE_WRITE);
	request.length = 0;
	expect_closed(request);
	request.length = NE_WIRE_LENGTH_MAX + 1;
	expect_closed(request);
}

/* ------------------------------------------------------------------ codes [H1] */

static uint64_t code_of(int key, const void *head, size_t bytes)
{
	uint64_t words[2];

	memcpy(words, KEYS + key * 16, sizeof(words));
	return htole64(siphash(words, head, bytes));
}

static int coded_conn(struct donor *donor)
{
	int pair[2];

	unix_pair(pair, 0);
	CHECK(ne_export_conn(donor->exp, SESSION, pair[1], KEYS) == 0);
	return pair[0];
}

/* A READ of a page with its code and that cookie; the code is over `signed_as`. */
static void send_coded(int sock, struct ne_wire_request request, struct ne_wire_request signed_as)
{
	uint64_t code = code_of(0, &signed_as, sizeof(signed_as));

	send_all(sock, &request, sizeof(request));
	send_all(sock, &code, sizeof(code));
}

/* A reply with its code, and the page behind it. False: the connection ended. */
static bool receive_coded(int sock)
{
	struct ne_wire_reply reply;
	uint64_t code;

	if (!receive_all(sock, &reply, sizeof(reply)))
		return false;
	CHECK(receive_all(sock, &code, sizeof(code)));
	CHECK(code == code_of(1, &reply, sizeof(reply)));
	return receive_all(sock, page, PAGE);
}

TEST(siphash_gives_its_published_answers)
{
	uint8_t bytes[16];
	uint64_t key[2];

	for (int i = 0; i < 16; i++)
		bytes[i] = i;
	memcpy(key, bytes, sizeof(key));
	CHECK(siphash(key, bytes, 0) == 0x726fdb47dd0e0e31);
	CHECK(siphash(key, bytes, 8) == 0x93f5f5799a932462);
	CHECK(siphash(key, bytes, 16) == 0x3f2acc7f57c29bdb);
}

TEST(heads_with_their_codes_are_served_in_their_order)
{
	struct donor donor;
	struct ne_wire_request request = good_request(NE_WIRE_READ);
	int sock;

	donor_create(&donor);
	sock = coded_conn(&donor);
	for (request.cookie = 0; request.cookie < 3; request.cookie++) {
		send_coded(sock, request, request);
		CHECK(receive_coded(sock));
	}
	close(sock);
	donor_destroy(&donor);
}

TEST(a_head_that_was_changed_repeated_or_left_out_ends_the_connection)
{
	struct donor donor;
	struct ne_wire_request first = good_request(NE_WIRE_READ), changed;

	donor_create(&donor);
	first.cookie = 0;
	for (int how = 0; how < 3; how++) {
		int sock = coded_conn(&donor);

		changed = first;
		send_coded(sock, first, first);
		CHECK(receive_coded(sock));
		changed.cookie = how == 0 ? 1 : how == 1 ? 0 : 2; /* right, repeated, one left out */
		if (how == 0)
			changed.offset += PAGE;
		first.cookie = how == 0 ? 1 : changed.cookie;
		send_coded(sock, changed, how == 0 ? first : changed);
		CHECK(!receive_coded(sock));
		first.cookie = 0;
		close(sock);
	}
	donor_destroy(&donor);
}

TEST(requests_before_a_malformed_one_are_answered)
{
	struct ne_wire_request requests[2] = {good_request(NE_WIRE_READ), {0}};
	struct ne_wire_reply reply;
	struct donor donor;
	int sock;

	donor_create(&donor);
	sock = raw_conn(&donor, SESSION);
	send_all(sock, requests, sizeof(requests));
	CHECK(receive_all(sock, &reply, sizeof(reply)));
	CHECK(reply.status == 0);
	CHECK(receive_all(sock, page, PAGE));
	CHECK(recv(sock, page, 1, 0) == 0);
	close(sock);
	donor_destroy(&donor);
}

TEST(a_peer_that_ends_in_the_middle_of_a_write_leaves_only_what_it_sent)
{
	struct ne_wire_request request = good_request(NE_WIRE_WRITE);
	struct donor donor;
	uint8_t byte;
	int sock;

	donor_create(&donor);
	sock = raw_conn(&donor, SESSION);
	send_all(sock, &request, sizeof(request));
	memset(page, 0x5a, PAGE);
	send_all(sock, page, 100);
	shutdown(sock, SHUT_WR);
	CHECK(recv(sock, &byte, 1, 0) == 0);
	CHECK(is_zero(donor.slab + 100, PAGE - 100));
	close(sock);
	donor_destroy(&donor);
}

TEST(a_revoked_lease_is_refused_and_may_be_leased_anew)
{
	struct ne_wire_request request = good_request(NE_WIRE_WRITE);
	struct donor donor;
	int sock;

	donor_create(&donor);
	sock = raw_conn(&donor, SESSION);
	CHECK(ask(sock, &request) == 0);
	CHECK(ne_export_lease(donor.exp, LEASE, SESSION, TOKEN, donor.slab, SLAB_BYTES) == -EEXIST);
	CHECK(ne_export_revoke(donor.exp, LEASE) == 0);
	CHECK(ne_export_revoke(donor.exp, LEASE) == -ENOENT);
	CHECK(ask(sock, &request) == ENOENT);
	CHECK(ne_export_lease(donor.exp, LEASE, SESSION, TOKEN + 1, donor.slab, SLAB_BYTES) == 0);
	CHECK(ask(sock, &request) == EACCES);
	request.token++;
	CHECK(ask(sock, &request) == 0);
	close(sock);
	donor_destroy(&donor);
}

TEST(a_revoke_in_the_middle_of_a_write_does_not_wait_for_the_rest_of_it)
{
	struct ne_wire_request request = good_request(NE_WIRE_WRITE);
	struct ne_wire_reply reply;
	struct donor donor;
	int sock;

	donor_create(&donor);
	sock = raw_conn(&donor, SESSION);
	memset(page, 0x5a, PAGE);
	send_all(sock, &request, sizeof(request));
	send_all(sock, page, 100);
	while (__atomic_load_n(&donor.slab[99], __ATOMIC_ACQUIRE) != 0x5a)
		usleep(100);
	CHECK(ne_export_revoke(donor.exp, LEASE) == 0);
	memset(donor.slab, 0, PAGE);
	send_all(sock, page, PAGE - 100);
	CHECK(receive_all(sock, &reply, sizeof(reply)));
	CHECK(reply.status == ENOENT);
	CHECK(is_zero(donor.slab, PAGE));
	close(sock);
	donor_destroy(&donor);
}

TEST(a_revoke_does_not_wait_for_a_peer_that_takes_no_answers)
{
	struct ne_wire_request request = good_request(NE_WIRE_READ);
	struct ne_wire_reply reply;
	struct donor donor;
	int sock;

	donor_create(&donor);
	memset(donor.slab, 0xee, SLAB_BYTES);
	sock = raw_conn(&donor, SESSION);
	request.length = BIG;
	send_all(sock, &request, sizeof(request));
	CHECK(receive_all(sock, &reply, sizeof(reply)));
	CHECK(reply.status == 0);
	CHECK(ne_export_revoke(donor.exp, LEASE) == 0);
	memset(donor.slab, 0, SLAB_BYTES);
	CHECK(receive_all(sock, big, BIG)); /* what was promised: the bytes from before the revoke */
	for (int i = 0; i < BIG; i++)
		CHECK(big[i] == 0xee);
	close(sock);
	donor_destroy(&donor);
}

TEST(a_fence_ends_the_sessions_connections_and_no_other)
{
	struct ne_wire_request request = good_request(NE_WIRE_READ);
	struct ne_export_stats stats;
	struct donor donor;
	int first, second, other;

	donor_create(&donor);
	first = raw_conn(&donor, SESSION);
	second = raw_conn(&donor, SESSION);
	other = raw_conn(&donor, OTHER_SESSION);
	CHECK(ne_export_fence(donor.exp, SESSION) == 0);
	CHECK(recv(first, page, 1, 0) == 0);
	CHECK(recv(second, page, 1, 0) == 0);
	CHECK(ask(other, &request) == EACCES);
	CHECK(ne_export_stats_get(donor.exp, &stats) == 0);
	CHECK(stats.connections == 1);
	close(first);
	close(second);
	close(other);
	donor_destroy(&donor);
}

TEST(a_borrower_that_opens_too_many_connections_loses_its_oldest)
{
	struct ne_wire_request request = good_request(NE_WIRE_READ);
	int socks[NE_SESSION_CONNS_MAX + 1], other;
	struct ne_export_stats stats;
	struct donor donor;

	donor_create(&donor);
	other = raw_conn(&donor, OTHER_SESSION);
	for (int i = 0; i <= NE_SESSION_CONNS_MAX; i++)
		socks[i] = raw_conn(&donor, SESSION);
	CHECK(recv(socks[0], page, 1, 0) == 0);
	CHECK(ask(socks[1], &request) == 0);
	CHECK(ask(socks[NE_SESSION_CONNS_MAX], &request) == 0);
	CHECK(ask(other, &request) == EACCES);
	CHECK(ne_export_stats_get(donor.exp, &stats) == 0);
	CHECK(stats.connections == NE_SESSION_CONNS_MAX + 1);
	for (int i = 0; i <= NE_SESSION_CONNS_MAX; i++)
		close(socks[i]);
	close(other);
	donor_destroy(&donor);
}

/* Writes pages of 0x5a all over the lease until the connection is gone or it is told to stop. */
struct writer {
	struct donor *donor;
	struct ne_link *link;
	_Atomic bool stop;
	_Atomic uint32_t done;
};

static void *write_on(void *arg)
{
	struct writer *writer = arg;
	static uint8_t fives[16][PAGE];
	struct ne_io ios[16];

	memset(fives, 0x5a, sizeof(fives));
	for (uint32_t i = 0; !writer->stop; i++) {
		for (int k = 0; k < 16; k++) {
			uint64_t offset = (i * 16 + k) % (SLAB_BYTES / PAGE) * (uint64_t)PAGE;

			ios[k] = make_io(writer->donor, NE_IO_WRITE, offset, fives[k], PAGE);
			if (writer->link->ops->post(writer->link, &ios[k]))
				return NULL;
		}
		CHECK(collect(writer->link, 16));
		writer->done++;
	}
	return NULL;
}

static void expect_silence(int (*stop)(struct donor *donor))
{
	struct writer writer = {.done = 0};
	struct donor donor;
	pthread_t thread;

	donor_create(&donor);
	for (int round = 0; round < 20; round++) {
		writer.donor = &donor;
		writer.link = donor_link(&donor, round % 2, 0);
		writer.stop = false;
		writer.done = 0;
		CHECK(pthread_create(&thread, NULL, write_on, &writer) == 0);
		while (writer.done < 3)
			usleep(100);
		CHECK(stop(&donor) == 0);
		memset(donor.slab, 0, SLAB_BYTES);
		usleep(2000);
		CHECK(is_zero(donor.slab, SLAB_BYTES));
		writer.stop = true;
		CHECK(pthread_join(thread, NULL) == 0);
		writer.link->ops->destroy(writer.link);
		ne_export_revoke(donor.exp, LEASE);
		CHECK(ne_export_lease(donor.exp, LEASE, SESSION, TOKEN, donor.slab, SLAB_BYTES) == 0);
	}
	donor_destroy(&donor);
}

static int stop_by_revoke(struct donor *donor)
{
	return ne_export_revoke(donor->exp, LEASE);
}

static int stop_by_fence(struct donor *donor)
{
	return ne_export_fence(donor->exp, SESSION);
}

TEST(after_a_revoke_under_load_nothing_lands)
{
	expect_silence(stop_by_revoke);
}

TEST(after_a_fence_under_load_nothing_lands)
{
	expect_silence(stop_by_fence);
}

TEST(what_was_served_is_counted)
{
	struct ne_wire_request request = good_request(NE_WIRE_WRITE);
	struct ne_export_stats stats;
	struct donor donor;
	int sock;

	donor_create(&donor);
	sock = raw_conn(&donor, SESSION);
	CHECK(ask(sock, &request) == 0);
	request.op = NE_WIRE_READ;
	CHECK(ask(sock, &request) == 0);
	CHECK(ask(sock, &request) == 0);
	CHECK(ne_export_stats_get(donor.exp, &stats) == 0);
	CHECK(stats.writes == 1 && stats.write_bytes == PAGE);
	CHECK(stats.reads == 2 && stats.read_bytes == 2 * PAGE);
	CHECK(stats.refused == 0 && stats.connections == 1 && stats.cpu_ns > 0);
	close(sock);
	CHECK(ne_export_fence(donor.exp, SESSION) == 0);
	CHECK(ne_export_stats_get(donor.exp, &stats) == 0);
	CHECK(stats.reads == 2 && stats.connections == 0 && stats.cpu_ns > 0);
	donor_destroy(&donor);
}

TEST(an_idle_connection_uses_no_cpu)
{
	struct ne_wire_request request = good_request(NE_WIRE_READ);
	struct ne_export_stats before, after;
	struct donor donor;
	int sock;

	donor_create(&donor);
	sock = raw_conn(&donor, SESSION);
	for (int i = 0; i < 100; i++)
		CHECK(ask(sock, &request) == 0);
	CHECK(ne_export_stats_get(donor.exp, &before) == 0);
	usleep(200000);
	CHECK(ne_export_stats_get(donor.exp, &after) == 0);
	CHECK(after.cpu_ns - before.cpu_ns < 1000000); /* 0.5 % of 200 ms */
	close(sock);
	donor_destroy(&donor);
}

TEST(destroying_nothing_is_fine)
{
	ne_export_destroy(NULL);
}
