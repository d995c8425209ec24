/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA links and the donor behind them, over an adapter that is a piece of this process (fake_verbs.h): what is written
 * comes back, keys open what they should and nothing else, and whatever the adapter does, nobody waits for ever.
 */
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>

#include "exercise.h"
#include "fake_verbs.h"
#include "verbs.h"

enum { LIMIT_MS = 20000, OTHER_SESSION = 78, OTHER_LEASE = 6 };

/* The borrower connects in this thread, while the donor's thread answers. */
static struct ne_link *rdma_link(struct donor *donor, uint64_t session)
{
	struct ne_link *link;
	int pair[2];

	tcp_pair(pair, 0);
	CHECK(ne_export_conn_rdma(donor->exp, session, pair[1], NULL) == 0);
	CHECK(ne_rdma_connect(pair[0], LIMIT_MS, &link) == 0);
	return link;
}

static void begin(struct donor *donor)
{
	fake_reset();
	donor_create(donor);
}

/* Nothing is left over, and no rule of the adapter was broken. */
static void end(struct donor *donor)
{
	donor_destroy(donor);
	if (fake.broken[0] || fake.objects)
		fprintf(stderr, "%s; %d objects left\n", fake.broken, fake.objects);
	CHECK(!fake.broken[0]);
	CHECK(fake.objects == 0);
}

static struct ne_export_stats stats_of(const struct donor *donor)
{
	struct ne_export_stats stats;

	CHECK(ne_export_stats_get(donor->exp, &stats) == 0);
	return stats;
}

/* The registrar works beside us. */
static void await_registered(const struct donor *donor, uint64_t bytes)
{
	uint64_t until = now_ns() + 10000000000ull;

	while (stats_of(donor).rdma_registered_bytes != bytes && now_ns() < until)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	CHECK(stats_of(donor).rdma_registered_bytes == bytes);
}

/* What the donor's thread has taken, once it has put away what it answered last. */
static uint64_t settled_cpu_ns(const struct donor *donor)
{
	uint64_t until = now_ns() + 10000000000ull, last, cpu_ns = stats_of(donor).cpu_ns;

	do {
		last = cpu_ns;
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
		cpu_ns = stats_of(donor).cpu_ns;
	} while (cpu_ns != last && now_ns() < until);
	return cpu_ns;
}

static void exercise(bool has_windows)
{
	struct donor donor;
	struct ne_link *link;

	begin(&donor);
	fake.has_windows = has_windows;
	link = rdma_link(&donor, SESSION);
	write_and_read(&donor, link);
	crowd(&donor, link);
	CHECK(link->ops->alive(link));
	CHECK(fake.in_flight_max == 16);
	link->ops->destroy(link);
	end(&donor);
}

TEST(rdma_gives_back_what_was_written)
{
	exercise(true);
}

TEST(rdma_without_windows_gives_back_what_was_written)
{
	exercise(false);
}

TEST(a_thousand_pages_take_one_key_and_none_of_the_donors_time)
{
	struct donor donor;
	struct ne_link *link;
	uint64_t before;

	begin(&donor);
	link = rdma_link(&donor, SESSION);
	struct ne_io io = make_io(&donor, NE_IO_WRITE, 0, out, PAGE);
	CHECK(do_io(link, &io) == 0);
	before = settled_cpu_ns(&donor);
	for (int i = 0; i < 1000; i++)
		CHECK(do_io(link, &io) == 0);
	CHECK(stats_of(&donor).rdma_keys == 1);
	CHECK(stats_of(&donor).cpu_ns == before);
	link->ops->destroy(link);
	end(&donor);
}

/* It goes through the blocks in rounds; the end of one must bring on the next, also where wait() sees it. */
TEST(an_operation_of_more_pieces_than_may_be_under_way_does_not_fall_asleep)
{
	struct donor donor;
	struct ne_link *link;
	uint64_t timeout_ns;
	short events;

	begin(&donor);
	link = rdma_link(&donor, SESSION);
	struct ne_io io = make_io(&donor, NE_IO_WRITE, 0, out, PAGE), *done;
	CHECK(do_io(link, &io) == 0); /* the key is known from here on */
	io = make_io(&donor, NE_IO_WRITE, 0, out, BIG);
	CHECK(link->ops->post(link, &io) == 0);
	for (int rounds = 0; rounds < 4; rounds++) {
		link->ops->submit(link);
		link->ops->wait(link, &events, &timeout_ns);
		CHECK(timeout_ns == 0);
		if (link->ops->poll(link, &done, 1))
			break;
	}
	link->ops->destroy(link);
	end(&donor);
}

TEST(a_batch_of_writes_asks_for_one_completion_and_a_batch_of_reads_for_all)
{
	static struct ne_io ios[16];
	struct donor donor;
	struct ne_link *link;
	int before;

	begin(&donor);
	link = rdma_link(&donor, SESSION);
	ios[0] = make_io(&donor, NE_IO_WRITE, 0, out, PAGE);
	CHECK(do_io(link, &ios[0]) == 0); /* the key is there */
	for (int op = NE_IO_READ; op <= NE_IO_WRITE; op++) {
		before = fake.signalled;
		for (int i = 0; i < 16; i++) {
			ios[i] = make_io(&donor, op, i * PAGE, pages[i], PAGE);
			CHECK(link->ops->post(link, &ios[i]) == 0);
		}
		CHECK(collect(link, 16));
		CHECK(fake.signalled - before == (op == NE_IO_READ ? 16 : 1));
	}
	link->ops->destroy(link);
	end(&donor);
}

TEST(a_link_takes_256_operations_by_rdma_and_then_says_eagain)
{
	static struct ne_io ios[257];
	struct donor donor;
	struct ne_link *link;

	begin(&donor);
	link = rdma_link(&donor, SESSION);
	for (int i = 0; i <= 256; i++)
		ios[i] = make_io(&donor, NE_IO_READ, 0, pages[0], PAGE);
	for (int i = 0; i < 256; i++)
		CHECK(link->ops->post(link, &ios[i]) == 0);
	CHECK(link->ops->post(link, &ios[256]) == -EAGAIN);
	CHECK(collect(link, 256));
	CHECK(do_io(link, &ios[256]) == 0);
	link->ops->destroy(link);
	end(&donor);
}

/* --- keys and registrations */

TEST(a_slab_is_registered_before_it_is_leased)
{
	struct donor donor;
	struct ne_link *link;
	uint8_t *ready;
	int before;

	begin(&donor);
	link = rdma_link(&donor, SESSION);
	await_registered(&donor, SLAB_BYTES);
	ready = mmap(NULL, SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(ne_export_offer(donor.exp, ready, SLAB_BYTES) == 0);
	await_registered(&donor, 2 * SLAB_BYTES);

	before = fake.registrations;
	CHECK(ne_export_lease(donor.exp, OTHER_LEASE, SESSION, TOKEN, ready, SLAB_BYTES) == 0);
	struct ne_io io = make_io(&donor, NE_IO_WRITE, 0, out, PAGE);
	io.lease = OTHER_LEASE;
	CHECK(do_io(link, &io) == 0);
	CHECK(fake.registrations == before);

	CHECK(ne_export_revoke(donor.exp, OTHER_LEASE) == 0);
	CHECK(ne_export_withdraw(donor.exp, ready) == 0);
	await_registered(&donor, SLAB_BYTES);
	munmap(ready, SLAB_BYTES);
	link->ops->destroy(link);
	end(&donor);
}

TEST(what_is_offered_is_not_registered_where_that_alone_would_be_a_key)
{
	struct donor donor;
	struct ne_link *link;

	begin(&donor);
	fake.has_windows = false;
	link = rdma_link(&donor, SESSION);
	CHECK(ne_export_offer(donor.exp, pages, sizeof(pages)) == 0);
	struct ne_io io = make_io(&donor, NE_IO_READ, 0, out, PAGE);
	CHECK(do_io(link, &io) == 0); /* the registrar has looked at both */
	await_registered(&donor, SLAB_BYTES);
	CHECK(ne_export_withdraw(donor.exp, pages) == 0);
	link->ops->destroy(link);
	end(&donor);
}

TEST(what_is_leased_to_one_session_is_registered_for_no_other)
{
	struct donor donor;
	struct ne_link *ours, *others;

	begin(&donor);
	CHECK(ne_export_offer(donor.exp, pages, sizeof(pages)) == 0);
	ours = rdma_link(&donor, SESSION);
	others = rdma_link(&donor, OTHER_SESSION);
	await_registered(&donor, SLAB_BYTES + 2 * sizeof(pages));
	CHECK(ne_export_lease(donor.exp, OTHER_LEASE, OTHER_SESSION, TOKEN, pages, sizeof(pages)) == 0);
	await_registered(&donor, SLAB_BYTES + sizeof(pages));
	CHECK(ne_export_revoke(donor.exp, OTHER_LEASE) == 0);
	CHECK(ne_export_withdraw(donor.exp, pages) == 0);
	ours->ops->destroy(ours);
	others->ops->destroy(others);
	end(&donor);
}

/* An operation that is refused a key ends with the errno; the link lives on. */
static void expect_refused(uint64_t session, uint32_t lease, uint64_t token, uint64_t offset, int err)
{
	struct donor donor;
	struct ne_link *link, *good;

	begin(&donor);
	good = rdma_link(&donor, SESSION);
	link = rdma_link(&donor, session);
	struct ne_io io = make_io(&donor, NE_IO_WRITE, offset, out, PAGE);
	io.lease = lease;
	io.token = token;
	fill(out, PAGE, 7);
	CHECK(do_io(link, &io) == err);
	CHECK(link->ops->alive(link));
	CHECK(donor.slab[0] == 0);
	io = make_io(&donor, NE_IO_READ, 0, in, PAGE);
	CHECK(do_io(good, &io) == 0);
	link->ops->destroy(link);
	good->ops->destroy(good);
	end(&donor);
}

TEST(a_wrong_token_gets_no_key)
{
	expect_refused(SESSION, LEASE, TOKEN + 1, 0, -EACCES);
}

TEST(another_session_gets_no_key)
{
	expect_refused(OTHER_SESSION, LEASE, TOKEN, 0, -EACCES);
}

TEST(a_lease_that_is_not_there_has_no_key)
{
	expect_refused(SESSION, LEASE + 1, TOKEN, 0, -ENOENT);
}

TEST(an_operation_beyond_the_slab_is_refused_by_the_link_itself)
{
	expect_refused(SESSION, LEASE, TOKEN, SLAB_BYTES - 1, -EINVAL);
}

TEST(refused_operations_come_back_in_their_turn)
{
	static struct ne_io ios[6];
	struct donor donor;
	struct ne_link *link;

	begin(&donor);
	link = rdma_link(&donor, SESSION);
	for (int i = 0; i < 6; i++) {
		ios[i] = make_io(&donor, NE_IO_READ, 0, pages[i], PAGE);
		ios[i].token += i % 2;
		CHECK(link->ops->post(link, &ios[i]) == 0);
	}
	CHECK(collect(link, 6));
	for (int i = 0; i < 6; i++)
		CHECK(ios[i].status == (i % 2 ? -EACCES : 0));
	link->ops->destroy(link);
	end(&donor);
}

static void revoked(bool has_windows)
{
	struct donor donor;
	struct ne_link *link;

	begin(&donor);
	fake.has_windows = has_windows;
	link = rdma_link(&donor, SESSION);
	fill(out, PAGE, 3);
	struct ne_io io = make_io(&donor, NE_IO_WRITE, 0, out, PAGE);
	CHECK(do_io(link, &io) == 0);
	CHECK(ne_export_revoke(donor.exp, LEASE) == 0);
	memset(donor.slab, 0, PAGE); /* it is somebody else's now */
	CHECK(do_io(link, &io) == -EACCES);
	CHECK(!link->ops->alive(link));
	CHECK(donor.slab[0] == 0);
	link->ops->destroy(link);
	end(&donor);
}

TEST(a_revoked_key_opens_nothing)
{
	revoked(true);
}

TEST(a_revoked_key_opens_nothing_without_windows_either)
{
	revoked(false);
}

TEST(a_lease_number_that_is_used_again_needs_its_own_key)
{
	struct donor donor;
	struct ne_link *link;

	begin(&donor);
	link = rdma_link(&donor, SESSION);
	struct ne_io io = make_io(&donor, NE_IO_WRITE, 0, out, PAGE);
	CHECK(do_io(link, &io) == 0);
	CHECK(ne_export_revoke(donor.exp, LEASE) == 0);
	CHECK(ne_export_lease(donor.exp, LEASE, SESSION, TOKEN + 9, donor.slab, SLAB_BYTES) == 0);
	io.token = TOKEN + 9;
	CHECK(do_io(link, &io) == 0);
	CHECK(stats_of(&donor).rdma_keys == 2);
	link->ops->destroy(link);
	end(&donor);
}

TEST(memory_that_cannot_be_registered_refuses_its_key_and_may_be_tried_again)
{
	struct donor donor;
	struct ne_link *link;

	begin(&donor);
	link = rdma_link(&donor, SESSION);
	await_registered(&donor, SLAB_BYTES);
	fake.register_errno = ENOMEM;
	CHECK(ne_export_lease(donor.exp, OTHER_LEASE, SESSION, TOKEN, pages, sizeof(pages)) == 0);
	struct ne_io io = make_io(&donor, NE_IO_READ, 0, out, PAGE);
	io.lease = OTHER_LEASE;
	CHECK(do_io(link, &io) == -EIO);
	CHECK(link->ops->alive(link));
	fake.register_errno = 0;
	CHECK(do_io(link, &io) == 0);
	CHECK(ne_export_revoke(donor.exp, OTHER_LEASE) == 0);
	link->ops->destroy(link);
	end(&donor);
}

/* --- bad days */

/* A READ and a WRITE are under way and stay so. */
static struct ne_link *held(struct donor *donor, struct ne_io ios[2])
{
	struct ne_link *link;

	begin(donor);
	link = rdma_link(donor, SESSION);
	ios[0] = make_io(donor, NE_IO_READ, 0, in, PAGE);
	CHECK(do_io(link, &ios[0]) == 0); /* the key is there */
	fill(out, PAGE, 5);
	memset(in, 0xee, PAGE);
	ios[1] = make_io(donor, NE_IO_WRITE, PAGE, out, PAGE);
	fake.holds = true;
	CHECK(link->ops->post(link, &ios[0]) == 0);
	CHECK(link->ops->post(link, &ios[1]) == 0);
	link->ops->submit(link);
	return link;
}

/* It dies, and nothing has landed. */
static void expect_clean_death(struct ne_link *link, struct ne_io ios[2], int err)
{
	expect_death(link, ios, err);
	CHECK(in[0] == 0xee);
	link->ops->destroy(link);
}

TEST(operations_that_never_complete_fail_when_the_link_is_killed)
{
	struct donor donor;
	struct ne_io ios[2];
	struct ne_link *link = held(&donor, ios);
	struct ne_io *done[2];

	CHECK(link->ops->poll(link, done, 2) == 0);
	link->ops->kill(link, ETIMEDOUT);
	fake_release();
	CHECK(donor.slab[PAGE] == 0); /* nor did the WRITE come later */
	expect_clean_death(link, ios, -ETIMEDOUT);
	end(&donor);
}

TEST(an_error_completion_fails_everything_once)
{
	struct donor donor;
	struct ne_io ios[2];
	struct ne_link *link = held(&donor, ios);

	fake.fails = IBV_WC_RETRY_EXC_ERR;
	fake_release();
	expect_clean_death(link, ios, -ETIMEDOUT);
	end(&donor);
}

TEST(completions_out_of_order_kill_the_link)
{
	struct donor donor;
	struct ne_io ios[2];
	struct ne_link *link = held(&donor, ios);

	fake.reorders = true;
	fake_release();
	expect_clean_death(link, ios, -EPROTO);
	end(&donor);
}

TEST(completions_that_get_lost_are_the_deadlines_business)
{
	struct donor donor;
	struct ne_io ios[2];
	struct ne_link *link = held(&donor, ios);
	struct ne_io *done[2];

	fake.loses_answers = true;
	fake_release();
	CHECK(link->ops->poll(link, done, 2) == 0);
	CHECK(link->ops->outstanding(link) == 2);
	link->ops->kill(link, ETIMEDOUT);
	expect_clean_death(link, ios, -ETIMEDOUT);
	end(&donor);
}

TEST(a_fenced_session_lands_nothing_any_more)
{
	struct donor donor;
	struct ne_io ios[2];
	struct ne_link *link = held(&donor, ios);

	CHECK(ne_export_fence(donor.exp, SESSION) == 0);
	CHECK(stats_of(&donor).rdma_connections == 0);
	fake_release(); /* it was on its way all the time */
	CHECK(donor.slab[PAGE] == 0);
	CHECK(collect(link, 2));
	CHECK(ios[0].status < 0 && ios[1].status < 0);
	CHECK(!link->ops->alive(link));
	link->ops->destroy(link);
	end(&donor);
}

TEST(a_fence_leaves_other_sessions_alone)
{
	struct donor donor;
	struct ne_link *link, *others;

	begin(&donor);
	link = rdma_link(&donor, SESSION);
	others = rdma_link(&donor, OTHER_SESSION);
	CHECK(ne_export_fence(donor.exp, OTHER_SESSION) == 0);
	struct ne_io io = make_io(&donor, NE_IO_READ, 0, in, PAGE);
	CHECK(do_io(link, &io) == 0);
	link->ops->destroy(link);
	others->ops->destroy(others);
	end(&donor);
}

TEST(a_donor_that_goes_away_fails_everything_with_econnreset)
{
	struct donor donor;
	struct ne_io ios[2];
	struct ne_link *link = held(&donor, ios);

	donor_destroy(&donor);
	expect_clean_death(link, ios, -ECONNRESET);
	CHECK(!fake.broken[0]);
	CHECK(fake.objects == 0);
}

TEST(an_idle_rdma_link_notices_that_its_donor_went_away)
{
	struct donor donor;
	struct ne_link *link;
	struct ne_io *done[1];
	struct pollfd pfd;
	uint64_t timeout_ns;

	begin(&donor);
	link = rdma_link(&donor, SESSION);
	CHECK(link->ops->poll(link, done, 1) == 0);
	CHECK(link->ops->alive(link));
	CHECK(ne_export_fence(donor.exp, SESSION) == 0);
	pfd.fd = link->ops->wait(link, &pfd.events, &timeout_ns);
	CHECK(pfd.fd >= 0 && timeout_ns == UINT64_MAX);
	CHECK(poll(&pfd, 1, 10000) == 1);
	CHECK(link->ops->poll(link, done, 1) == 0);
	CHECK(!link->ops->alive(link));
	link->ops->destroy(link);
	end(&donor);
}

TEST(a_borrower_that_goes_away_leaves_no_queue_pair_behind)
{
	struct donor donor;
	struct ne_link *link;
	uint64_t until = now_ns() + 10000000000ull;

	begin(&donor);
	link = rdma_link(&donor, SESSION);
	struct ne_io io = make_io(&donor, NE_IO_READ, 0, in, PAGE);
	CHECK(do_io(link, &io) == 0);
	CHECK(stats_of(&donor).rdma_connections == 1);
	link->ops->destroy(link);
	while (stats_of(&donor).rdma_connections && now_ns() < until)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	CHECK(stats_of(&donor).rdma_connections == 0);
	end(&donor);
}

/* --- asleep */

static void *release_later(void *arg)
{
	(void)arg;
	fake_release();
	return NULL;
}

TEST(a_sleeper_is_woken_by_a_completion)
{
	struct donor donor;
	struct ne_io ios[2];
	struct ne_link *link = held(&donor, ios);
	struct pollfd pfd;
	uint64_t timeout_ns;
	pthread_t thread;

	pfd.fd = link->ops->wait(link, &pfd.events, &timeout_ns);
	CHECK(pfd.fd >= 0 && timeout_ns == UINT64_MAX);
	CHECK(poll(&pfd, 1, 0) == 0);
	CHECK(pthread_create(&thread, NULL, release_later, NULL) == 0);
	CHECK(poll(&pfd, 1, 10000) == 1);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(collect(link, 2));
	CHECK(ios[0].status == 0 && ios[1].status == 0);
	link->ops->destroy(link);
	end(&donor);
}

TEST(a_completion_just_before_the_sleep_is_not_slept_through)
{
	struct donor donor;
	struct ne_io ios[2];
	struct ne_link *link = held(&donor, ios);
	uint64_t timeout_ns;
	short events;

	fake_release();
	link->ops->wait(link, &events, &timeout_ns);
	CHECK(timeout_ns == 0);
	CHECK(collect(link, 2));
	link->ops->destroy(link);
	end(&donor);
}

TEST(an_old_wake_up_does_not_look_like_the_end_of_an_idle_link)
{
	struct donor donor;
	struct ne_io ios[2];
	struct ne_link *link = held(&donor, ios);
	struct pollfd pfd;
	uint64_t timeout_ns;

	link->ops->wait(link, &pfd.events, &timeout_ns); /* armed */
	fake_release();
	CHECK(collect(link, 2));
	pfd.fd = link->ops->wait(link, &pfd.events, &timeout_ns);
	CHECK(poll(&pfd, 1, 0) == 0);
	CHECK(link->ops->alive(link));
	link->ops->destroy(link);
	end(&donor);
}

/* --- making one */

TEST(without_a_device_there_is_no_queue_pair_and_the_socket_stays_the_callers)
{
	struct donor donor;
	struct ne_link *link;
	int pair[2];

	begin(&donor);
	fake.devices = 0;
	CHECK(ne_rdma_devices() == 0);
	tcp_pair(pair, 0);
	CHECK(ne_export_conn_rdma(donor.exp, SESSION, pair[1], NULL) == 0);
	CHECK(ne_rdma_connect(pair[0], LIMIT_MS, &link) == -ENODEV);
	CHECK(close(pair[0]) == 0);
	end(&donor);
}

TEST(a_donor_that_says_nothing_is_given_up_in_time)
{
	struct ne_link *link;
	int pair[2];

	fake_reset();
	tcp_pair(pair, 0);
	CHECK(ne_rdma_connect(pair[0], 50, &link) == -ETIMEDOUT);
	CHECK(close(pair[0]) == 0);
	CHECK(close(pair[1]) == 0);
	CHECK(fake.objects == 0);
}

TEST(a_donor_that_talks_nonsense_is_left)
{
	struct ne_verbs_place place = {.magic = NE_VERBS_HELLO_MAGIC};
	struct ne_link *link;
	int pair[2];

	fake_reset();
	tcp_pair(pair, 0);
	CHECK(write(pair[1], &place, sizeof(place)) == sizeof(place));
	CHECK(ne_rdma_connect(pair[0], LIMIT_MS, &link) == -EPROTO);
	CHECK(close(pair[0]) == 0);
	CHECK(close(pair[1]) == 0);
	CHECK(fake.objects == 0);
}

TEST(a_stranger_who_does_not_know_the_nonce_gets_no_queue_pair)
{
	struct ne_verbs_hello hello = {.magic = NE_VERBS_HELLO_MAGIC};
	struct ne_verbs_private say = {.magic = NE_VERBS_PRIVATE_MAGIC, .nonce = 1};
	struct rdma_conn_param param = {.private_data = &say,
					.private_data_len = sizeof(say),
					.responder_resources = 16,
					.initiator_depth = 16,
					.retry_count = 6};
	struct sockaddr_in to = {.sin_family = AF_INET};
	struct rdma_event_channel *channel;
	struct rdma_cm_event *event;
	struct ne_verbs_place place;
	struct rdma_cm_id *id;
	struct donor donor;
	int pair[2], kind;

	begin(&donor);
	tcp_pair(pair, 0);
	CHECK(ne_export_conn_rdma(donor.exp, SESSION, pair[1], NULL) == 0);
	CHECK(write(pair[0], &hello, sizeof(hello)) == sizeof(hello));
	CHECK(read(pair[0], &place, sizeof(place)) == sizeof(place));
	CHECK(place.status == 0);
	to.sin_port = htons(place.port);
	channel = rdma_create_event_channel();
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 100) == 0);
	CHECK(rdma_connect(id, &param) == 0);
	do { /* blocks: the channel is the test's own */
		CHECK(rdma_get_cm_event(channel, &event) == 0);
		kind = event->event;
		rdma_ack_cm_event(event);
	} while (kind == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(kind == RDMA_CM_EVENT_REJECTED);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
	close(pair[0]);
	end(&donor);
}

TEST(a_borrower_that_asks_for_nonsense_loses_its_queue_pair)
{
	struct ne_verbs_hello hello = {.magic = NE_VERBS_HELLO_MAGIC, .flags = 1};
	struct donor donor;
	uint8_t byte;
	int pair[2];

	begin(&donor);
	tcp_pair(pair, 0);
	CHECK(ne_export_conn_rdma(donor.exp, SESSION, pair[1], NULL) == 0);
	CHECK(write(pair[0], &hello, sizeof(hello)) == sizeof(hello));
	CHECK(read(pair[0], &byte, 1) <= 0);
	close(pair[0]);
	end(&donor);
}

TEST(an_address_that_is_none_is_refused_at_once)
{
	struct donor donor;
	int pair[2];

	begin(&donor);
	tcp_pair(pair, 0);
	CHECK(ne_export_conn_rdma(donor.exp, SESSION, pair[1], "node7") == -EINVAL);
	close(pair[0]);
	close(pair[1]);
	end(&donor);
}

TEST(faults_before_an_rdma_link_are_the_same_as_before_any)
{
	static struct ne_fault_rules rules;
	struct donor donor;
	struct ne_link *link;

	begin(&donor);
	CHECK(ne_fault_create(rdma_link(&donor, SESSION), &rules, &link) == 0);
	CHECK(!link->asks_kernel);
	rules.every[NE_FAULT_CORRUPT] = 1;
	fill(out, PAGE, 9);
	struct ne_io io = make_io(&donor, NE_IO_WRITE, 0, out, PAGE);
	CHECK(do_io(link, &io) == 0); /* of a private copy, which no arena knows */
	CHECK(memcmp(donor.slab, out, PAGE) != 0);
	rules.every[NE_FAULT_CORRUPT] = 0;
	CHECK(do_io(link, &io) == 0);
	CHECK(memcmp(donor.slab, out, PAGE) == 0);
	link->ops->destroy(link);
	end(&donor);
}
