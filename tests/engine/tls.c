/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of a client's connection: both streams whole, whatever the socket takes, whoever changes keys, and however it
 * ends. */
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <sys/socket.h>

#include "check.h"
#include "tls.h"

enum { BYTES = 1 << 20, PIECES = 400, TINY_BUFFER = 4096 };

static uint8_t in[BYTES], out[BYTES];
static const uint8_t key[32] = "a key of thirty-two bytes, it is";

struct pair {
	struct ne_tls *tls;
	struct ne_tls_session *server;
	gnutls_session_t client;
	gnutls_psk_client_credentials_t psk;
	int socks[2];
	bool spoils; /* the client's next record has another byte on its way */
};

static ssize_t push(gnutls_transport_ptr_t ptr, const void *from, size_t bytes)
{
	struct pair *pair = ptr;
	uint8_t copy[32 << 10];

	CHECK(bytes <= sizeof(copy));
	memcpy(copy, from, bytes);
	if (pair->spoils)
		copy[bytes - 1] ^= 1;
	pair->spoils = false;
	return send(pair->socks[0], copy, bytes, MSG_NOSIGNAL);
}

static ssize_t pull(gnutls_transport_ptr_t ptr, void *to, size_t bytes)
{
	struct pair *pair = ptr;

	return recv(pair->socks[0], to, bytes, 0);
}

static struct ne_tls *tls_of(const char *user)
{
	struct ne_tls_psk psk = {.user = user,
				 .user_bytes = (uint32_t)strlen(user),
				 .key = key,
				 .key_bytes = sizeof(key)};
	struct ne_tls_keys keys = {.psk = &psk, .psks = 1};
	char reason[NE_TLS_REASON_BYTES];
	struct ne_tls *tls;

	CHECK(ne_tls_create(&keys, reason, &tls) == 0);
	return tls;
}

/* Ends whose client is `user` with this key; the engine's knows n1 and `key`. */
static void pair_create(struct pair *pair, const char *versions, const char *user, const uint8_t *with)
{
	gnutls_datum_t secret = {.data = (unsigned char *)with, .size = sizeof(key)};
	char text[128];

	*pair = (struct pair){.tls = tls_of("n1")};
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair->socks) == 0);
	CHECK(ne_tls_begin(pair->tls, pair->socks[1], &pair->server) == 0);
	snprintf(text, sizeof(text), "NORMAL:-VERS-ALL:%s:-KX-ALL:+ECDHE-PSK", versions);
	CHECK(gnutls_init(&pair->client, GNUTLS_CLIENT | GNUTLS_NONBLOCK) == 0);
	CHECK(gnutls_priority_set_direct(pair->client, text, NULL) == 0);
	CHECK(gnutls_psk_allocate_client_credentials(&pair->psk) == 0);
	CHECK(gnutls_psk_set_client_credentials(pair->psk, user, &secret, GNUTLS_PSK_KEY_RAW) == 0);
	CHECK(gnutls_credentials_set(pair->client, GNUTLS_CRD_PSK, pair->psk) == 0);
	gnutls_transport_set_ptr(pair->client, pair);
	gnutls_transport_set_push_function(pair->client, push);
	gnutls_transport_set_pull_function(pair->client, pull);
}

/* What the engine's end says of the client in the end. */
static int shake_hands(struct pair *pair, char *reason)
{
	int ours = NE_TLS_WANTS_READ, theirs = GNUTLS_E_AGAIN;

	while (ours > 0 || theirs == GNUTLS_E_AGAIN) {
		if (theirs == GNUTLS_E_AGAIN)
			theirs = gnutls_handshake(pair->client);
		if (ours > 0)
			ours = ne_tls_handshake(pair->server, reason);
		if (ours < 0)
			return ours;
	}
	CHECK(theirs == 0);
	return ours;
}

static void pair_begin(struct pair *pair, const char *versions)
{
	char reason[NE_TLS_REASON_BYTES] = "";

	pair_create(pair, versions, "n1", key);
	CHECK(shake_hands(pair, reason) == 0);
}

static void pair_end(struct pair *pair)
{
	ne_tls_end(pair->server);
	ne_tls_destroy(pair->tls);
	gnutls_deinit(pair->client);
	gnutls_psk_free_client_credentials(pair->psk);
	close(pair->socks[0]);
	close(pair->socks[1]);
}

/* As nbd.c receives: two places, of which the second may be empty. What came, or -errno. */
static int receive(struct pair *pair, uint8_t *to, size_t bytes)
{
	struct iovec iov[2] = {{to, bytes / 3}, {to + bytes / 3, bytes - bytes / 3}};
	struct mmsghdr m = {.msg_hdr = {.msg_iov = iov, .msg_iovlen = 2}};
	int rc = ne_tls_recvmmsg(pair->server, &m);

	return rc < 0 ? -errno : (int)m.msg_len;
}

static int transmit(struct pair *pair, const uint8_t *from, size_t bytes)
{
	struct iovec iov = {(uint8_t *)from, bytes};
	struct mmsghdr m = {.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1}};
	int rc = ne_tls_sendmmsg(pair->server, &m);

	return rc < 0 ? -errno : (int)m.msg_len;
}

static uint32_t next(uint32_t *seed, uint32_t below)
{
	*seed = *seed * 1664525u + 1013904223u;
	return (*seed >> 8) % below;
}

/* The client sends all of `out` in pieces, and we receive them in others. */
static void to_us(struct pair *pair, uint32_t seed)
{
	size_t sent = 0, got = 0, piece = 0;

	fill(out, BYTES, seed);
	while (got < BYTES) {
		int n;

		if (!piece)
			piece = 1 + next(&seed, 40000);
		if (piece > BYTES - sent)
			piece = BYTES - sent;
		if (piece) {
			ssize_t done = gnutls_record_send(pair->client, out + sent, piece);

			CHECK(done > 0 || done == GNUTLS_E_AGAIN);
			sent += done > 0 ? (size_t)done : 0;
			piece -= done > 0 ? (size_t)done : 0;
		}
		n = receive(pair, in + got, 3 + next(&seed, 70000) % (BYTES - got + 1));
		CHECK(n > 0 || n == -EAGAIN || n == 0);
		got += n > 0 ? (size_t)n : 0;
	}
	CHECK(!memcmp(in, out, BYTES));
}

/* The other way; what was not taken is offered again with more behind it, as answers grow meanwhile. */
static void from_us(struct pair *pair, uint32_t seed)
{
	size_t ready = 0, sent = 0, got = 0;

	fill(out, BYTES, seed);
	while (got < BYTES) {
		ssize_t n;

		ready += next(&seed, 90000);
		if (ready > BYTES)
			ready = BYTES;
		if (ready > sent) {
			int done = transmit(pair, out + sent, ready - sent);

			CHECK(done > 0 || done == -EAGAIN);
			sent += done > 0 ? (size_t)done : 0;
		}
		n = gnutls_record_recv(pair->client, in + got, 1 + next(&seed, 30000));
		CHECK(n > 0 || n == GNUTLS_E_AGAIN);
		got += n > 0 ? (size_t)n : 0;
		CHECK(got <= ready);
	}
	CHECK(!memcmp(in, out, BYTES));
}

static void both_ways(const char *versions)
{
	struct pair pair;

	pair_begin(&pair, versions);
	for (uint32_t seed = 1; seed < 4; seed++) {
		to_us(&pair, seed);
		from_us(&pair, seed + 100);
	}
	pair_end(&pair);
}

TEST(bytes_come_whole_both_ways_by_tls_1_3)
{
	both_ways("+VERS-TLS1.3");
}

TEST(bytes_come_whole_both_ways_by_tls_1_2)
{
	both_ways("+VERS-TLS1.2");
}

TEST(a_tls_1_2_client_has_a_cipher_whose_keys_last)
{
	struct pair pair;

	pair_begin(&pair, "+VERS-TLS1.2");
	CHECK(gnutls_protocol_get_version(pair.client) == GNUTLS_TLS1_2);
	CHECK(gnutls_cipher_get(pair.client) == GNUTLS_CIPHER_CHACHA20_POLY1305);
	pair_end(&pair);
}

TEST(a_pre_shared_key_has_a_cipher_that_processors_do_themselves)
{
	struct pair pair;

	pair_begin(&pair, "+VERS-TLS1.3");
	CHECK(gnutls_cipher_get(pair.client) == GNUTLS_CIPHER_AES_128_GCM);
	pair_end(&pair);
}

TEST(a_socket_that_takes_little_takes_each_byte_once)
{
	struct pair pair;
	int bytes = TINY_BUFFER;

	pair_begin(&pair, "+VERS-TLS1.3");
	for (int i = 0; i < 2; i++)
		CHECK(!setsockopt(pair.socks[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)));
	to_us(&pair, 5);
	from_us(&pair, 6);
	pair_end(&pair);
}

TEST(keys_that_the_client_has_changed_on_both_sides_lose_nothing)
{
	struct pair pair;

	pair_begin(&pair, "+VERS-TLS1.3");
	for (uint32_t i = 0; i < 3; i++) {
		CHECK(gnutls_session_key_update(pair.client, GNUTLS_KU_PEER) == 0);
		to_us(&pair, 10 + i);
		from_us(&pair, 20 + i);
	}
	pair_end(&pair);
}

TEST(a_change_of_keys_alone_does_not_hide_what_is_behind_it)
{
	struct pair pair;

	pair_begin(&pair, "+VERS-TLS1.3");
	CHECK(gnutls_session_key_update(pair.client, 0) == 0);
	CHECK(gnutls_record_send(pair.client, "behind", 6) == 6);
	CHECK(receive(&pair, in, BYTES) == 6 && !memcmp(in, "behind", 6));
	CHECK(receive(&pair, in, BYTES) == -EAGAIN);
	pair_end(&pair);
}

TEST(a_record_that_was_changed_on_its_way_ends_the_session_behind_what_came_before)
{
	struct pair pair;

	pair_begin(&pair, "+VERS-TLS1.3");
	CHECK(gnutls_record_send(pair.client, "sound", 5) == 5);
	pair.spoils = true;
	CHECK(gnutls_record_send(pair.client, "spoilt", 6) == 6);
	CHECK(gnutls_record_send(pair.client, "behind", 6) == 6);
	CHECK(receive(&pair, in, BYTES) == 5 && !memcmp(in, "sound", 5));
	CHECK(ne_tls_is_over(pair.server));
	CHECK(receive(&pair, in, BYTES) == -EPROTO);
	CHECK(transmit(&pair, out, 10) == -EPROTO);
	CHECK(gnutls_record_recv(pair.client, in, BYTES) == GNUTLS_E_FATAL_ALERT_RECEIVED);
	pair_end(&pair);
}

TEST(the_end_of_the_stream_is_heard_behind_the_last_bytes)
{
	struct pair pair;

	pair_begin(&pair, "+VERS-TLS1.3");
	CHECK(gnutls_record_send(pair.client, "last", 4) == 4);
	CHECK(gnutls_bye(pair.client, GNUTLS_SHUT_WR) == 0);
	CHECK(receive(&pair, in, BYTES) == 4 && !memcmp(in, "last", 4));
	CHECK(ne_tls_is_over(pair.server));
	CHECK(receive(&pair, in, BYTES) == 0);
	pair_end(&pair);
}

TEST(a_client_that_hangs_up_without_a_goodbye_is_reset)
{
	struct pair pair;

	pair_begin(&pair, "+VERS-TLS1.3");
	CHECK(gnutls_record_send(pair.client, "cut", 3) == 3);
	shutdown(pair.socks[0], SHUT_WR);
	CHECK(receive(&pair, in, BYTES) == 3);
	CHECK(receive(&pair, in, BYTES) == -ECONNRESET);
	pair_end(&pair);
}

TEST(our_end_says_goodbye)
{
	struct pair pair;

	pair_begin(&pair, "+VERS-TLS1.3");
	ne_tls_end(pair.server);
	pair.server = NULL;
	CHECK(gnutls_record_recv(pair.client, in, BYTES) == 0);
	pair_end(&pair);
}

TEST(clear_bytes_before_the_handshake_are_not_taken_for_anything)
{
	struct pair pair;
	char reason[NE_TLS_REASON_BYTES] = "";

	pair_create(&pair, "+VERS-TLS1.3", "n1", key);
	CHECK(send(pair.socks[0], "IHAVEOPT and more", 17, 0) == 17);
	CHECK(shake_hands(&pair, reason) == -EACCES);
	CHECK(!strncmp(reason, "TLS: ", 5));
	CHECK(ne_tls_read(pair.server, in, BYTES) == -EPROTO);
	pair_end(&pair);
}

TEST(a_key_that_is_another_one_is_told_from_a_user_that_is_not_there)
{
	for (int i = 0; i < 2; i++) {
		struct pair pair;
		char reason[NE_TLS_REASON_BYTES] = "";
		uint8_t wrong[sizeof(key)] = {1};

		pair_create(&pair, "+VERS-TLS1.3", i ? "n2" : "n1", wrong);
		CHECK(shake_hands(&pair, reason) == -EACCES);
		CHECK(strstr(reason,
			     i ? "there is no PSK user n2" : "its key is another one than that of PSK user n1"));
		pair_end(&pair);
	}
}

TEST(keys_that_can_not_be_used_are_refused_whole)
{
	struct ne_tls_psk psk = {.user = "n1", .user_bytes = 2, .key = key, .key_bytes = NE_TLS_KEY_BYTES_MIN - 1};
	struct ne_tls_keys none = {.psks = 0}, weak = {.psk = &psk, .psks = 1};
	struct ne_tls_keys half = {.cert = "-----BEGIN CERTIFICATE-----", .key = "-----BEGIN PRIVATE KEY-----"};
	struct ne_tls_keys bad = {.cert = "nothing", .key = "nothing", .client_ca = "nothing"};
	char reason[NE_TLS_REASON_BYTES];
	struct ne_tls *tls = NULL;

	CHECK(ne_tls_create(&none, reason, &tls) == -EINVAL);
	CHECK(ne_tls_create(&weak, reason, &tls) == -EINVAL);
	CHECK(ne_tls_create(&half, reason, &tls) == -EINVAL);
	CHECK(ne_tls_create(&bad, reason, &tls) == -EINVAL && strstr(reason, "tls_cert and tls_key: "));
	CHECK(!tls);
}

TEST(a_session_outlives_the_keys_that_it_was_begun_with)
{
	struct pair pair;

	pair_begin(&pair, "+VERS-TLS1.3");
	ne_tls_destroy(pair.tls);
	pair.tls = NULL;
	to_us(&pair, 30);
	pair_end(&pair);
}
