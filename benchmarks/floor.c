/* SPDX-License-Identifier: Apache-2.0 */
/*
 * floor.c - an NBD server with nothing behind it: what a request costs before anybody stores anything.
 *
 * Reads are answered from one fixed buffer, writes are swallowed; one thread a connection, one recv and one send a
 * request, no batching. The difference to it at depth 1 is what a real server adds to the socket's own time.
 *
 *   floor SOCKET SIZE_BYTES
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/un.h>
#include <unistd.h>

#include "nbd_wire.h"

enum { REQUEST_MAX_BYTES = 4 << 20 };

static uint64_t size_bytes;
static char fixed[REQUEST_MAX_BYTES];

static int reply_option(int sock, uint32_t option, uint32_t type, void *data, uint32_t length)
{
	struct nbd_option_reply head = {htobe64(NBD_OPTION_REPLY_MAGIC), htobe32(option), htobe32(type),
					htobe32(length)};
	struct iovec iov[2] = {{&head, sizeof(head)}, {data, length}};

	return send_all(sock, iov, length ? 2 : 1);
}

/* Answers options until GO is through: 0, or -errno. */
static int shake_hands(int sock)
{
	struct {
		uint64_t magic, option_magic;
		uint16_t flags;
	} __attribute__((packed))
	hello = {htobe64(NBD_MAGIC), htobe64(NBD_OPTION_MAGIC), htobe16(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES)};
	struct iovec iov = {&hello, sizeof(hello)};
	uint32_t client_flags;
	int ret = send_all(sock, &iov, 1);

	if (ret == 0)
		ret = recv_all(sock, &client_flags, sizeof(client_flags));
	while (ret == 0) {
		struct nbd_info_export export = {htobe16(NBD_INFO_EXPORT), htobe64(size_bytes),
						 htobe16(NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH |
							 NBD_FLAG_CAN_MULTI_CONN)};
		struct nbd_option head;
		uint32_t option, length;

		ret = recv_all(sock, &head, sizeof(head));
		if (ret)
			break;
		option = be32toh(head.option);
		length = be32toh(head.length);
		if (be64toh(head.magic) != NBD_OPTION_MAGIC || length > sizeof(fixed))
			return -EPROTO;
		if (length) { /* the export's name and what is asked: there is one export, and one answer */
			char skipped[4096];

			if (length > sizeof(skipped))
				return -EPROTO;
			ret = recv_all(sock, skipped, length);
			if (ret)
				break;
		}
		if (option == NBD_OPT_EXPORT_NAME) { /* what fio's and older clients ask */
			struct iovec plain = {&export.size, sizeof(export.size) + sizeof(export.flags)};

			return send_all(sock, &plain, 1);
		}
		if (option == NBD_OPT_GO || option == NBD_OPT_INFO) {
			ret = reply_option(sock, option, NBD_REP_INFO, &export, sizeof(export));
			if (ret == 0)
				ret = reply_option(sock, option, NBD_REP_ACK, NULL, 0);
			if (ret == 0 && option == NBD_OPT_GO)
				return 0;
		} else {
			ret = reply_option(sock, option, option == NBD_OPT_ABORT ? NBD_REP_ACK : NBD_REP_ERR_UNSUP,
					   NULL, 0);
			if (option == NBD_OPT_ABORT)
				return -EPIPE;
		}
	}
	return ret;
}

static int serve(int sock, char *swallow)
{
	for (;;) {
		struct nbd_request request;
		int ret = recv_all(sock, &request, sizeof(request));
		uint32_t length;
		uint16_t type;

		if (ret)
			return ret;
		length = be32toh(request.length);
		type = be16toh(request.type);
		if (be32toh(request.magic) != NBD_REQUEST_MAGIC || type == NBD_CMD_DISC || length > REQUEST_MAX_BYTES)
			return -EPROTO;
		if (type == NBD_CMD_WRITE)
			ret = recv_all(sock, swallow, length);

		struct nbd_reply reply = {htobe32(NBD_REPLY_MAGIC), 0, request.handle};
		struct iovec iov[2] = {{&reply, sizeof(reply)}, {fixed, length}};

		if (ret == 0)
			ret = send_all(sock, iov, type == NBD_CMD_READ ? 2 : 1);
		if (ret)
			return ret;
	}
}

static void *connection(void *arg)
{
	int sock = (int)(intptr_t)arg;
	char *swallow = malloc(REQUEST_MAX_BYTES);

	if (swallow && shake_hands(sock) == 0)
		serve(sock, swallow);
	free(swallow);
	close(sock);
	return NULL;
}

int main(int argc, char **argv)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listener;

	if (argc != 3 || strlen(argv[1]) >= sizeof(address.sun_path)) {
		fprintf(stderr, "usage: floor SOCKET SIZE_BYTES\n");
		return 2;
	}
	size_bytes = strtoull(argv[2], NULL, 10);
	strcpy(address.sun_path, argv[1]);
	for (size_t i = 0; i < sizeof(fixed); i++)
		fixed[i] = (char)(i * 2654435761U >> 13);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 64)) {
		perror("floor");
		return 1;
	}
	for (;;) {
		int sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		pthread_t thread;

		if (sock < 0)
			continue;
		if (pthread_create(&thread, NULL, connection, (void *)(intptr_t)sock))
			close(sock);
		else
			pthread_detach(thread);
	}
}
