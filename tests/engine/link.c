/* SPDX-License-Identifier: Apache-2.0 */
/* The links: what is written comes back, over shared memory, unix sockets and TCP, in pieces and in crowds. */
#include "exercise.h"

enum { TINY_BUFFER = 4096 };

static void exercise(bool tcp, int buffer_bytes)
{
	struct donor donor;
	struct ne_link *link;

	donor_create(&donor);
	link = donor_link(&donor, tcp, buffer_bytes);
	write_and_read(&donor, link);
	crowd(&donor, link);
	CHECK(link->ops->alive(link));
	link->ops->destroy(link);
	donor_destroy(&donor);
}

TEST(shared_memory_gives_back_what_was_written)
{
	struct donor donor;
	struct ne_link *link;

	donor_create(&donor);
	CHECK(ne_shm_create(&link) == 0);
	CHECK(link->ops->direct);
	write_and_read(&donor, link);
	crowd(&donor, link);
	link->ops->destroy(link);
	donor_destroy(&donor);
}

TEST(shared_memory_without_a_mapping_is_refused_with_einval)
{
	struct ne_link *link;
	struct ne_io io = {.op = NE_IO_READ, .length = PAGE, .buf = in};

	CHECK(ne_shm_create(&link) == 0);
	CHECK(do_io(link, &io) == -EINVAL);
	link->ops->destroy(link);
}

TEST(a_unix_socket_gives_back_what_was_written)
{
	exercise(false, 0);
}

TEST(tcp_gives_back_what_was_written)
{
	exercise(true, 0);
}

TEST(tiny_unix_buffers_only_make_it_slower)
{
	exercise(false, TINY_BUFFER);
}

TEST(tiny_tcp_buffers_only_make_it_slower)
{
	exercise(true, TINY_BUFFER);
}

TEST(a_link_takes_256_operations_and_then_says_eagain)
{
	static struct ne_io ios[257];
	struct donor donor;
	struct ne_link *link;

	donor_create(&donor);
	link = donor_link(&donor, false, 0);
	for (int i = 0; i < 256; i++) {
		ios[i] = make_io(&donor, NE_IO_READ, 0, in, PAGE);
		CHECK(link->ops->post(link, &ios[i]) == 0);
	}
	ios[256] = make_io(&donor, NE_IO_READ, 0, in, PAGE);
	CHECK(link->ops->post(link, &ios[256]) == -EAGAIN);
	CHECK(collect(link, 256));
	CHECK(link->ops->post(link, &ios[256]) == 0);
	CHECK(collect(link, 1));
	link->ops->destroy(link);
	donor_destroy(&donor);
}

/* A link whose other end the test itself holds; one READ and one WRITE are under way. */
static struct ne_link *half_open(struct ne_io ios[2], int *peer)
{
	static const struct donor nobody;
	struct ne_link *link;
	int pair[2];

	unix_pair(pair, 0);
	CHECK(ne_tcp_create(pair[0], NULL, &link) == 0);
	ios[0] = make_io(&nobody, NE_IO_READ, 0, in, PAGE);
	ios[1] = make_io(&nobody, NE_IO_WRITE, 0, out, PAGE);
	CHECK(link->ops->post(link, &ios[0]) == 0);
	CHECK(link->ops->post(link, &ios[1]) == 0);
	link->ops->submit(link);
	*peer = pair[1];
	return link;
}

TEST(a_peer_that_goes_away_fails_everything_once_with_econnreset)
{
	struct ne_io ios[2];
	int peer;
	struct ne_link *link = half_open(ios, &peer);
	uint8_t swallowed[3 * PAGE];

	CHECK(read(peer, swallowed, sizeof(swallowed)) > 0);
	close(peer);
	expect_death(link, ios, -ECONNRESET);
	link->ops->destroy(link);
}

TEST(an_idle_link_notices_that_its_peer_went_away)
{
	struct ne_link *link;
	struct ne_io *done[1];
	int pair[2];

	unix_pair(pair, 0);
	CHECK(ne_tcp_create(pair[0], NULL, &link) == 0);
	CHECK(link->ops->poll(link, done, 1) == 0);
	CHECK(link->ops->alive(link));
	close(pair[1]);
	CHECK(link->ops->poll(link, done, 1) == 0);
	CHECK(!link->ops->alive(link));
	link->ops->destroy(link);
}

TEST(an_answer_with_a_wrong_magic_kills_the_link)
{
	struct ne_wire_reply reply = {.magic = NE_WIRE_REQUEST_MAGIC};
	struct ne_io ios[2];
	int peer;
	struct ne_link *link = half_open(ios, &peer);

	CHECK(write(peer, &reply, sizeof(reply)) == sizeof(reply));
	expect_death(link, ios, -EPROTO);
	link->ops->destroy(link);
	close(peer);
}

TEST(an_answer_with_a_wrong_cookie_kills_the_link)
{
	struct ne_wire_reply reply = {.magic = NE_WIRE_REPLY_MAGIC, .cookie = 1};
	struct ne_io ios[2];
	int peer;
	struct ne_link *link = half_open(ios, &peer);

	CHECK(write(peer, &reply, sizeof(reply)) == sizeof(reply));
	expect_death(link, ios, -EPROTO);
	link->ops->destroy(link);
	close(peer);
}

/* A relay on the wire [H1]: the head is right in all but the code, which it can't make. */
TEST(an_answer_with_a_wrong_code_kills_the_link)
{
	struct {
		struct ne_wire_reply head;
		uint64_t code;
	} reply = {.head = {.magic = NE_WIRE_REPLY_MAGIC}};
	struct ne_io io = {.op = NE_IO_READ, .length = PAGE, .buf = in}, *done[1];
	struct ne_link *link;
	int pair[2];

	unix_pair(pair, 0);
	CHECK(ne_tcp_create(pair[0], KEYS, &link) == 0);
	CHECK(link->ops->post(link, &io) == 0);
	link->ops->submit(link);
	CHECK(write(pair[1], &reply, sizeof(reply)) == sizeof(reply));
	CHECK(link->ops->poll(link, done, 1) == 1);
	CHECK(io.status == -EPROTO);
	CHECK(!link->ops->alive(link));
	link->ops->destroy(link);
	close(pair[1]);
}

TEST(an_answer_nobody_asked_for_kills_the_link)
{
	struct ne_link *link;
	struct ne_io *done[1];
	int pair[2];

	unix_pair(pair, 0);
	CHECK(ne_tcp_create(pair[0], NULL, &link) == 0);
	CHECK(write(pair[1], "x", 1) == 1);
	CHECK(link->ops->poll(link, done, 1) == 0);
	CHECK(!link->ops->alive(link));
	link->ops->destroy(link);
	close(pair[1]);
}

TEST(answers_that_come_byte_by_byte_are_put_together)
{
	struct ne_wire_reply reply[2] = {{.magic = NE_WIRE_REPLY_MAGIC},
					 {.magic = NE_WIRE_REPLY_MAGIC, .status = EACCES, .cookie = 1}};
	uint8_t stream[2 * sizeof(*reply) + PAGE];
	struct ne_io ios[2], *done[2];
	int peer, count = 0;
	struct ne_link *link = half_open(ios, &peer);

	memcpy(stream, &reply[0], sizeof(*reply));
	fill(stream + sizeof(*reply), PAGE, 9);
	memcpy(stream + sizeof(*reply) + PAGE, &reply[1], sizeof(*reply));
	for (size_t i = 0; i < sizeof(stream); i++) {
		CHECK(write(peer, stream + i, 1) == 1);
		count += link->ops->poll(link, done + count, 2 - count);
	}
	CHECK(count == 2);
	CHECK(ios[0].status == 0);
	CHECK(ios[1].status == -EACCES);
	CHECK(is_filled(in, PAGE, 9));
	CHECK(link->ops->alive(link));
	link->ops->destroy(link);
	close(peer);
}

TEST(after_a_kill_nothing_lands_in_the_buffers)
{
	struct ne_wire_reply reply = {.magic = NE_WIRE_REPLY_MAGIC};
	struct ne_io ios[2];
	int peer;
	struct ne_link *link = half_open(ios, &peer);

	memset(in, 0x5a, PAGE);
	CHECK(write(peer, &reply, sizeof(reply)) == sizeof(reply));
	CHECK(write(peer, out, PAGE) == PAGE);
	link->ops->kill(link, ETIMEDOUT);
	expect_death(link, ios, -ETIMEDOUT);
	for (int i = 0; i < PAGE; i++)
		CHECK(in[i] == 0x5a);
	link->ops->destroy(link);
	close(peer);
}
