/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls.c - TLS of NBD connections, by GnuTLS: who may come, the handshake, and the bytes of both streams.
 *
 * How it works
 *   GnuTLS works on two buffers of a session, and never on the socket. What it reads is received as far as there is
 *   room, so that a small request costs one system call. What it writes is encrypted when the buffer is empty, some
 *   records at once, and counts as sent when the kernel has all of them. So GnuTLS never meets a socket that is full,
 *   and none of its rules for a send that has to be repeated apply.
 *
 *   One thread at a time has a session: the one that negotiates, then the worker, which receives and sends in turn. So
 *   a change of keys that the client asks for (TLS 1.3) meets no other call. GnuTLS changes ours after 2^24 records. In
 *   TLS 1.2 keys can't be changed, and AES-GCM's are worn out after as many records: there it is ChaCha20-Poly1305
 *   alone, whose keys last longer than any connection.
 *
 *   The library is loaded by the first ne_tls_create(): donors, and users' jobs, which load this engine too, have no
 * use for it. It allocates and frees memory for each record, of at most 17 KiB: what was freed by the record before.
 *
 * Rejected: a process that decrypts (swap that is served by this one would wait for it); TLS in the kernel (not in each
 * kernel, and not for each cipher); resumed sessions (a certificate that was revoked would go on).
 */
#include <dlfcn.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tls.h"

#define LIBRARY	     "libgnutls.so.30"
#define RECORD_BYTES (16u << 10)	  /* the most that a record has */
#define RECORD_ROOM  (RECORD_BYTES + 512) /* encrypted, with a message that changes keys before it */
#define IN_BYTES     (64u << 10)
#define OUT_BYTES    (4 * RECORD_ROOM)
#define AGAIN_MAX    1024u /* records without data, one after the other: nobody needs so many */

/* ------------------------------------------------------------------ the library */

#define FUNCTIONS(X)                                       \
	X(gnutls_alert_send_appropriate)                   \
	X(gnutls_bye)                                      \
	X(gnutls_certificate_allocate_credentials)         \
	X(gnutls_certificate_free_credentials)             \
	X(gnutls_certificate_get_peers)                    \
	X(gnutls_certificate_server_set_request)           \
	X(gnutls_certificate_set_x509_crl_mem)             \
	X(gnutls_certificate_set_x509_key_mem2)            \
	X(gnutls_certificate_set_x509_trust_mem)           \
	X(gnutls_certificate_verification_status_print)    \
	X(gnutls_credentials_set)                          \
	X(gnutls_deinit)                                   \
	X(gnutls_free)                                     \
	X(gnutls_handshake)                                \
	X(gnutls_handshake_set_post_client_hello_function) \
	X(gnutls_init)                                     \
	X(gnutls_malloc)                                   \
	X(gnutls_priority_deinit)                          \
	X(gnutls_priority_init)                            \
	X(gnutls_priority_set)                             \
	X(gnutls_protocol_get_version)                     \
	X(gnutls_psk_allocate_server_credentials)          \
	X(gnutls_psk_free_server_credentials)              \
	X(gnutls_psk_set_server_credentials_function2)     \
	X(gnutls_record_get_direction)                     \
	X(gnutls_record_recv)                              \
	X(gnutls_record_send)                              \
	X(gnutls_session_get_ptr)                          \
	X(gnutls_session_get_verify_cert_status)           \
	X(gnutls_session_set_ptr)                          \
	X(gnutls_session_set_verify_cert2)                 \
	X(gnutls_strerror)                                 \
	X(gnutls_transport_set_ptr)                        \
	X(gnutls_transport_set_pull_function)              \
	X(gnutls_transport_set_pull_timeout_function)      \
	X(gnutls_transport_set_push_function)              \
	X(gnutls_x509_crt_deinit)                          \
	X(gnutls_x509_crt_get_dn)                          \
	X(gnutls_x509_crt_import)                          \
	X(gnutls_x509_crt_init)

/* A pointer to each; to the library's variable in the case of gnutls_malloc and gnutls_free. */
#define DECLARE(name) __typeof__(&name) name;
static struct {
	FUNCTIONS(DECLARE)
} lib;
#undef DECLARE

static bool lib_load(char *reason)
{
	static bool is_loaded;
	const char *missing = NULL;
	void *handle = is_loaded ? NULL : dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	if (is_loaded)
		return true;
	if (!handle) {
		snprintf(reason, NE_TLS_REASON_BYTES, "%.150s; install it (Debian: apt-get install libgnutls30)",
			 dlerror());
		return false;
	}
#define LOAD(name)                       \
	lib.name = dlsym(handle, #name); \
	missing = lib.name ? missing : #name;
	FUNCTIONS(LOAD)
#undef LOAD
	if (missing)
		snprintf(reason, NE_TLS_REASON_BYTES, LIBRARY " has no %s; install GnuTLS 3.6.13 or later", missing);
	is_loaded = !missing;
	return is_loaded;
}

bool ne_tls_is_built(void)
{
	return true;
}

/* ------------------------------------------------------------------ who may come */

struct user {
	uint32_t name_bytes, key_bytes;
	char name[NE_TLS_USER_BYTES_MAX];
	uint8_t key[NE_TLS_KEY_BYTES_MAX];
};

struct ne_tls {
	_Atomic uint32_t holders; /* the caller, and each session */
	gnutls_psk_server_credentials_t psk;
	gnutls_certificate_credentials_t certificate;
	gnutls_priority_t of_13, of_12; /* what is taken of a client that speaks TLS 1.3, and of one that does not */
	uint32_t users_n;
	struct user users[];
};

struct ne_tls_session {
	struct ne_tls *tls;
	gnutls_session_t session;
	int sock;
	int error;	     /* errno after which nothing goes any more; 0: none */
	bool is_done;	     /* the handshake */
	bool is_over;	     /* the client's stream has ended */
	bool is_dry;	     /* the socket had no more when it was last asked */
	bool is_known;	     /* there is such a user */
	uint32_t name_bytes; /* of the user that the client named last; 0: it has named none */
	char name[NE_TLS_USER_BYTES_MAX];
	uint32_t in_at, in_end, out_at, out_end;
	uint32_t held; /* clear bytes whose records are in `out` */
	uint8_t in[IN_BYTES], out[OUT_BYTES];
};

/* GnuTLS frees the key. 1: there is no such user, and it goes on with a random key. */
static int key_of(gnutls_session_t session, const gnutls_datum_t *name, gnutls_datum_t *key)
{
	struct ne_tls_session *s = lib.gnutls_session_get_ptr(session);

	s->name_bytes = name->size < sizeof(s->name) ? name->size : sizeof(s->name);
	memcpy(s->name, name->data, s->name_bytes);
	s->is_known = false;
	for (uint32_t i = 0; i < s->tls->users_n; i++) {
		const struct user *user = &s->tls->users[i];

		if (user->name_bytes != name->size || memcmp(user->name, name->data, name->size))
			continue;
		key->data = (*lib.gnutls_malloc)(user->key_bytes);
		if (!key->data)
			return -1;
		memcpy(key->data, user->key, user->key_bytes);
		key->size = user->key_bytes;
		s->is_known = true;
		return 0;
	}
	return 1;
}

static int refuse(char *reason, const char *what, int code)
{
	snprintf(reason, NE_TLS_REASON_BYTES, "%.120s: %.120s", what, lib.gnutls_strerror(code));
	return code == GNUTLS_E_MEMORY_ERROR ? -ENOMEM : -EINVAL;
}

static gnutls_datum_t datum_of(const char *text)
{
	return (gnutls_datum_t){.data = (unsigned char *)text, .size = (unsigned)strlen(text)};
}

static int take_certificates(struct ne_tls *tls, const struct ne_tls_keys *keys, char *reason)
{
	gnutls_datum_t cert = datum_of(keys->cert), key = datum_of(keys->key), ca = datum_of(keys->client_ca);
	int rc = lib.gnutls_certificate_allocate_credentials(&tls->certificate);

	if (rc < 0)
		return refuse(reason, "certificates", rc);
	rc = lib.gnutls_certificate_set_x509_key_mem2(tls->certificate, &cert, &key, GNUTLS_X509_FMT_PEM, NULL, 0);
	if (rc < 0)
		return refuse(reason, "tls_cert and tls_key", rc);
	rc = lib.gnutls_certificate_set_x509_trust_mem(tls->certificate, &ca, GNUTLS_X509_FMT_PEM);
	if (rc <= 0)
		return refuse(reason, "tls_client_ca", rc ? rc : GNUTLS_E_NO_CERTIFICATE_FOUND);
	if (!strstr(keys->client_ca, "-----BEGIN X509 CRL-----"))
		return 0;
	rc = lib.gnutls_certificate_set_x509_crl_mem(tls->certificate, &ca, GNUTLS_X509_FMT_PEM);
	return rc < 0 ? refuse(reason, "revocation lists of tls_client_ca", rc) : 0;
}

static int take_users(struct ne_tls *tls, const struct ne_tls_keys *keys, char *reason)
{
	int rc = lib.gnutls_psk_allocate_server_credentials(&tls->psk);

	if (rc < 0)
		return refuse(reason, "pre-shared keys", rc);
	lib.gnutls_psk_set_server_credentials_function2(tls->psk, key_of);
	for (uint32_t i = 0; i < keys->psks; i++) {
		const struct ne_tls_psk *psk = &keys->psk[i];
		struct user *user = &tls->users[tls->users_n++];

		*user = (struct user){.name_bytes = psk->user_bytes, .key_bytes = psk->key_bytes};
		memcpy(user->name, psk->user, psk->user_bytes);
		memcpy(user->key, psk->key, psk->key_bytes);
	}
	return 0;
}

/*
 * Key exchanges that leave no key behind, and of these only such as the client can prove itself by. With pre-shared
 * keys it is AES-128-GCM, the first whose hash is theirs.
 */
static int take_priorities(struct ne_tls *tls, char *reason)
{
	static const char *const of_13 = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:-CIPHER-ALL"
					 ":+AES-256-GCM:+AES-128-GCM:+CHACHA20-POLY1305";
	static const char *const of_12 = "NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:-CIPHER-ALL:+CHACHA20-POLY1305";
	const char *psk = tls->psk ? ":+ECDHE-PSK" : "", *x509 = tls->certificate ? ":+ECDHE-ECDSA:+ECDHE-RSA" : "";
	char text[256];
	int rc;

	snprintf(text, sizeof(text), "%s%s%s:%%SERVER_PRECEDENCE", of_13, psk, x509);
	rc = lib.gnutls_priority_init(&tls->of_13, text, NULL);
	if (rc < 0)
		return refuse(reason, text, rc);
	snprintf(text, sizeof(text), "%s%s%s:%%SERVER_PRECEDENCE", of_12, psk, x509);
	rc = lib.gnutls_priority_init(&tls->of_12, text, NULL);
	return rc < 0 ? refuse(reason, text, rc) : 0;
}

static bool are_sound(const struct ne_tls_keys *keys)
{
	bool has_certificate = keys->cert && keys->key && keys->client_ca;

	if (keys->psks > NE_TLS_USERS_MAX || !(keys->psks || has_certificate))
		return false;
	for (uint32_t i = 0; i < keys->psks; i++) {
		const struct ne_tls_psk *psk = &keys->psk[i];

		if (!psk->user_bytes || psk->user_bytes > NE_TLS_USER_BYTES_MAX)
			return false;
		if (psk->key_bytes < NE_TLS_KEY_BYTES_MIN || psk->key_bytes > NE_TLS_KEY_BYTES_MAX)
			return false;
	}
	return has_certificate || !(keys->cert || keys->key || keys->client_ca);
}

int ne_tls_create(const struct ne_tls_keys *keys, char *reason, struct ne_tls **ret)
{
	struct ne_tls *tls;
	int rc = 0;

	snprintf(reason, NE_TLS_REASON_BYTES,
		 "keys without a name, too long or too short, too many, or half a certificate");
	if (!are_sound(keys))
		return -EINVAL;
	if (!lib_load(reason))
		return -EOPNOTSUPP;
	tls = calloc(1, sizeof(*tls) + keys->psks * sizeof(tls->users[0]));
	if (!tls)
		return -ENOMEM;
	atomic_store(&tls->holders, 1);
	if (keys->psks)
		rc = take_users(tls, keys, reason);
	if (!rc && keys->cert)
		rc = take_certificates(tls, keys, reason);
	if (!rc)
		rc = take_priorities(tls, reason);
	if (rc) {
		ne_tls_destroy(tls);
		return rc;
	}
	*ret = tls;
	return 0;
}

void ne_tls_destroy(struct ne_tls *tls)
{
	if (!tls || atomic_fetch_sub(&tls->holders, 1) > 1)
		return;
	if (tls->psk)
		lib.gnutls_psk_free_server_credentials(tls->psk);
	if (tls->certificate)
		lib.gnutls_certificate_free_credentials(tls->certificate);
	if (tls->of_13)
		lib.gnutls_priority_deinit(tls->of_13);
	if (tls->of_12)
		lib.gnutls_priority_deinit(tls->of_12);
	explicit_bzero(tls->users, tls->users_n * sizeof(tls->users[0]));
	free(tls);
}

/* ------------------------------------------------------------------ between GnuTLS and the socket */

static ssize_t pull(gnutls_transport_ptr_t ptr, void *to, size_t bytes)
{
	struct ne_tls_session *s = ptr;

	if (s->in_at == s->in_end) {
		ssize_t n = recv(s->sock, s->in, IN_BYTES, MSG_DONTWAIT);

		s->is_dry = n < 0 && errno == EAGAIN;
		if (n <= 0)
			return n;
		s->in_at = 0;
		s->in_end = (uint32_t)n;
	}
	if (bytes > s->in_end - s->in_at)
		bytes = s->in_end - s->in_at;
	memcpy(to, s->in + s->in_at, bytes);
	s->in_at += (uint32_t)bytes;
	return (ssize_t)bytes;
}

/* GnuTLS asks for it only where it may wait, and here it never may. */
static int pull_timeout(gnutls_transport_ptr_t ptr, unsigned int ms)
{
	struct ne_tls_session *s = ptr;
	struct pollfd p = {.fd = s->sock, .events = POLLIN};

	(void)ms;
	return s->in_at < s->in_end ? 1 : poll(&p, 1, 0);
}

/* 0: the kernel has all of it; -1 and errno. */
static int out_flush(struct ne_tls_session *s)
{
	while (s->out_at < s->out_end) {
		ssize_t n = send(s->sock, s->out + s->out_at, s->out_end - s->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		s->out_at += (uint32_t)n;
	}
	s->out_at = s->out_end = 0;
	return 0;
}

static ssize_t push(gnutls_transport_ptr_t ptr, const void *from, size_t bytes)
{
	struct ne_tls_session *s = ptr;

	/* A handshake with long certificates; what is encrypted in transmission has room. */
	if (OUT_BYTES - s->out_end < bytes && out_flush(s) < 0 && OUT_BYTES == s->out_end)
		return -1;
	if (bytes > OUT_BYTES - s->out_end)
		bytes = OUT_BYTES - s->out_end;
	memcpy(s->out + s->out_end, from, bytes);
	s->out_end += (uint32_t)bytes;
	return (ssize_t)bytes;
}

static bool is_gone(int code)
{
	return code == GNUTLS_E_PREMATURE_TERMINATION || code == GNUTLS_E_PULL_ERROR || code == GNUTLS_E_PUSH_ERROR;
}

/* Tells the client why, as far as the socket takes it, and that nothing goes any more. */
static int fail(struct ne_tls_session *s, int code)
{
	if (!s->error) {
		lib.gnutls_alert_send_appropriate(s->session, code);
		out_flush(s);
	}
	s->error = is_gone(code) ? ECONNRESET : EPROTO;
	errno = s->error;
	return -1;
}

/* ------------------------------------------------------------------ sessions */

/* The client's versions are known here, and its ciphers not chosen yet. */
static int choose_priority(gnutls_session_t session)
{
	struct ne_tls_session *s = lib.gnutls_session_get_ptr(session);

	if (lib.gnutls_protocol_get_version(session) != GNUTLS_TLS1_2)
		return 0;
	return lib.gnutls_priority_set(session, s->tls->of_12);
}

/* By certificates: the client must show one, of these CAs, valid now, and for clients if it says what it is for. */
static int ask_for_certificate(struct ne_tls_session *s)
{
	/* It is looked at in the handshake. */
	static gnutls_typed_vdata_st purpose = {.type = GNUTLS_DT_KEY_PURPOSE_OID,
						.data = (unsigned char *)GNUTLS_KP_TLS_WWW_CLIENT};

	lib.gnutls_certificate_server_set_request(s->session, GNUTLS_CERT_REQUIRE);
	lib.gnutls_session_set_verify_cert2(s->session, &purpose, 1, 0);
	return lib.gnutls_credentials_set(s->session, GNUTLS_CRD_CERTIFICATE, s->tls->certificate);
}

int ne_tls_begin(struct ne_tls *tls, int sock, struct ne_tls_session **ret)
{
	struct ne_tls_session *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return -ENOMEM;
	memset(s->in, 1, sizeof(s->in)); /* it is there from now on, where memory is locked as it is touched */
	memset(s->out, 1, sizeof(s->out));
	s->tls = tls;
	s->sock = sock;
	atomic_fetch_add(&tls->holders, 1);
	rc = lib.gnutls_init(&s->session, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_TICKETS);
	if (rc < 0)
		s->session = NULL;
	if (rc >= 0)
		rc = lib.gnutls_priority_set(s->session, tls->of_13);
	if (rc >= 0 && tls->psk)
		rc = lib.gnutls_credentials_set(s->session, GNUTLS_CRD_PSK, tls->psk);
	if (rc >= 0 && tls->certificate)
		rc = ask_for_certificate(s);
	if (rc < 0) {
		ne_tls_end(s);
		return rc == GNUTLS_E_MEMORY_ERROR ? -ENOMEM : -EINVAL;
	}
	lib.gnutls_session_set_ptr(s->session, s);
	lib.gnutls_handshake_set_post_client_hello_function(s->session, choose_priority);
	lib.gnutls_transport_set_ptr(s->session, s);
	lib.gnutls_transport_set_pull_function(s->session, pull);
	lib.gnutls_transport_set_pull_timeout_function(s->session, pull_timeout);
	lib.gnutls_transport_set_push_function(s->session, push);
	*ret = s;
	return 0;
}

void ne_tls_end(struct ne_tls_session *s)
{
	if (!s)
		return;
	if (s->is_done && !s->error && lib.gnutls_bye(s->session, GNUTLS_SHUT_WR) >= 0)
		out_flush(s);
	if (s->session)
		lib.gnutls_deinit(s->session);
	ne_tls_destroy(s->tls);
	explicit_bzero(s, sizeof(*s));
	free(s);
}

static void say_why(struct ne_tls_session *s, int code, char *reason)
{
	gnutls_datum_t text = {0};
	unsigned status = 0;

	if (code == GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR)
		status = lib.gnutls_session_get_verify_cert_status(s->session);
	if (status && !lib.gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &text, 0)) {
		snprintf(reason, NE_TLS_REASON_BYTES, "TLS: its certificate: %s", (const char *)text.data);
		(*lib.gnutls_free)(text.data);
	} else if (s->name_bytes) {
		snprintf(reason, NE_TLS_REASON_BYTES, "TLS: %s%.*s: %s",
			 s->is_known ? "its key is another one than that of PSK user " : "there is no PSK user ",
			 (int)s->name_bytes, s->name, lib.gnutls_strerror(code));
	} else {
		snprintf(reason, NE_TLS_REASON_BYTES, "TLS: %s", lib.gnutls_strerror(code));
	}
}

int ne_tls_handshake(struct ne_tls_session *s, char *reason)
{
	while (!s->error) {
		int code = s->is_done ? 0 : lib.gnutls_handshake(s->session);

		s->is_done = !code;
		if (code == GNUTLS_E_INTERRUPTED)
			continue;
		if (code < 0 && code != GNUTLS_E_AGAIN) {
			fail(s, code);
			/* A client that has gone may have the key: nothing is said of its proof. */
			if (is_gone(code))
				return -s->error;
			say_why(s, code, reason);
			return -EACCES;
		}
		if (out_flush(s) < 0)
			return errno == EAGAIN ? NE_TLS_WANTS_WRITE : -errno;
		if (s->is_done)
			return 0;
		if (!lib.gnutls_record_get_direction(s->session)) /* otherwise it had no room in `out` */
			return NE_TLS_WANTS_READ;
	}
	return -s->error;
}

int ne_tls_describe(struct ne_tls_session *s, char *text)
{
	const char *version = lib.gnutls_protocol_get_version(s->session) == GNUTLS_TLS1_2 ? "TLS 1.2" : "TLS 1.3";
	const gnutls_datum_t *chain;
	gnutls_x509_crt_t shown;
	char name[160] = "?";
	size_t bytes = sizeof(name);
	unsigned n = 0;

	chain = s->tls->certificate ? lib.gnutls_certificate_get_peers(s->session, &n) : NULL;
	if (!n) {
		snprintf(text, NE_TLS_REASON_BYTES, "%s, PSK user %.*s", version, (int)s->name_bytes, s->name);
		return 0;
	}
	if (lib.gnutls_x509_crt_init(&shown) < 0)
		return -ENOMEM;
	if (!lib.gnutls_x509_crt_import(shown, &chain[0], GNUTLS_X509_FMT_DER) &&
	    lib.gnutls_x509_crt_get_dn(shown, name, &bytes) < 0)
		snprintf(name, sizeof(name), "a long name");
	lib.gnutls_x509_crt_deinit(shown);
	snprintf(text, NE_TLS_REASON_BYTES, "%s, certificate of %s", version, name);
	return 0;
}

/* ------------------------------------------------------------------ bytes */

/* Clear bytes, 0 for the end of the client's stream, or -1 and errno. */
static ssize_t take(struct ne_tls_session *s, void *to, size_t bytes)
{
	for (uint32_t i = 0; i < AGAIN_MAX; i++) {
		ssize_t n;

		s->is_dry = false;
		n = lib.gnutls_record_recv(s->session, to, bytes);
		if (n > 0)
			return n;
		if (!n) {
			s->is_over = true;
			return 0;
		}
		if (n != GNUTLS_E_AGAIN && n != GNUTLS_E_INTERRUPTED)
			return fail(s, (int)n);
		if (n == GNUTLS_E_AGAIN && s->is_dry) {
			errno = EAGAIN;
			return -1;
		}
		/* A record without data, such as one that changes keys: the next may be here already. */
	}
	return fail(s, GNUTLS_E_TOO_MANY_EMPTY_PACKETS);
}

/* Clear bytes of which the kernel has all records, or -1 and errno. */
static ssize_t give(struct ne_tls_session *s, const uint8_t *from, size_t bytes)
{
	size_t sent = 0;

	while (!out_flush(s)) {
		sent += s->held;
		s->held = 0;
		if (sent == bytes)
			return (ssize_t)sent;
		while (sent + s->held < bytes && OUT_BYTES - s->out_end >= RECORD_ROOM) {
			size_t left = bytes - sent - s->held;
			ssize_t n = lib.gnutls_record_send(s->session, from + sent + s->held,
							   left < RECORD_BYTES ? left : RECORD_BYTES);

			if (n <= 0)
				return fail(s, n ? (int)n : GNUTLS_E_INTERNAL_ERROR);
			s->held += (uint32_t)n;
		}
	}
	return sent ? (ssize_t)sent : -1;
}

int ne_tls_read(struct ne_tls_session *s, void *to, uint32_t bytes)
{
	ssize_t n;

	if (s->error)
		return -s->error;
	n = s->is_over ? 0 : take(s, to, bytes);
	return n < 0 ? -errno : (int)n;
}

int ne_tls_write(struct ne_tls_session *s, const void *from, uint32_t bytes)
{
	ssize_t n;

	if (s->error)
		return -s->error;
	n = give(s, from, bytes);
	return n < 0 ? -errno : (int)n;
}

int ne_tls_recvmmsg(struct ne_tls_session *s, struct mmsghdr *m)
{
	size_t total = 0;
	ssize_t n = s->is_over ? 0 : 1;

	for (size_t i = 0; i < m->msg_hdr.msg_iovlen && n > 0; i++) {
		struct iovec iov = m->msg_hdr.msg_iov[i];

		for (size_t at = 0; at < iov.iov_len && n > 0; at += n > 0 ? (size_t)n : 0) {
			errno = s->error;
			n = s->error ? -1 : take(s, (uint8_t *)iov.iov_base + at, iov.iov_len - at);
			total += n > 0 ? (size_t)n : 0;
		}
	}
	if (n < 0 && !total)
		return -1;
	m->msg_len = (unsigned)total;
	return 1;
}

int ne_tls_sendmmsg(struct ne_tls_session *s, struct mmsghdr *m)
{
	const struct iovec *iov = m->msg_hdr.msg_iov; /* one: answers stand in a row */
	ssize_t n;

	errno = s->error;
	n = s->error ? -1 : give(s, iov->iov_base, iov->iov_len);
	if (n < 0)
		return -1;
	m->msg_len = (unsigned)n;
	return 1;
}

bool ne_tls_is_over(const struct ne_tls_session *s)
{
	return s->is_over || s->error;
}
