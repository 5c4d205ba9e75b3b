#include "receiver.h"

#define BYTES 2500
#define SEGMENT 1000

/* Whether this kernel sends trains (Linux 4.18). */
static int sends_trains(int fd)
{
	int segment;
	socklen_t len = sizeof(segment);

	return getsockopt(fd, IPPROTO_UDP, 103 /* UDP_SEGMENT */, &segment, &len) == 0;
}

int main(void)
{
	struct mp_receiver_config config = { .size = sizeof(config),
					     .buffer_size = 1 << 16,
					     .flags = MP_RECEIVER_GRO };
	union {
		struct cmsghdr header;
		char bytes[MP_GSO_ROOM];
	} room;
	char data[BYTES], got[BYTES];
	struct iovec piece = { data, sizeof(data) };
	struct mmsghdr msg;
	struct mmep eps[2];
	struct sockaddr_in addr;
	struct mp_message message;
	mp_receiver *receiver = make_receiver(&config);
	int plain = bound_socket(SOCK_DGRAM, 0, &addr), total = 0;

	for (int i = 0; i < BYTES; i++)
		data[i] = (char)(i / 7);
	memset(&msg, 0, sizeof(msg));
	msg.msg_hdr.msg_iov = &piece;
	msg.msg_hdr.msg_iovlen = 1;
	EQUAL(mp_gso_set(NULL, &room, sizeof(room), SEGMENT), -EINVAL);
	EQUAL(mp_gso_set(&msg.msg_hdr, NULL, sizeof(room), SEGMENT), -EINVAL);
	EQUAL(mp_gso_set(&msg.msg_hdr, &room, 16, SEGMENT), -EINVAL);
	EQUAL(mp_gso_set(&msg.msg_hdr, &room, sizeof(room), 0), -EINVAL);
	EQUAL(mp_gso_set(&msg.msg_hdr, room.bytes + 1, sizeof(room), SEGMENT), -EFAULT);
	CHECK(msg.msg_hdr.msg_control == NULL);

	/* One train down two sockets. */
	eps[0] = (struct mmep){ .sockfd = socket(AF_INET, SOCK_DGRAM, 0), .num = 1 };
	EQUAL(connect(eps[0].sockfd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	udp_of(receiver, NULL, &eps[1].sockfd);
	eps[1].num = 1;
	eps[1].offset = 0;
	if (!sends_trains(plain))
		SKIP("the kernel has no UDP_SEGMENT");
	EQUAL(mp_gso_set(&msg.msg_hdr, &room, sizeof(room), SEGMENT), 0);
	EQUAL(sendmmmsg(eps, 2, &msg, 1, 0), 2);
	EQUAL(msg.msg_len, BYTES);

	/* Datagrams for who knows nothing of it. */
	for (int i = 0; i < BYTES; i += SEGMENT) {
		int len = BYTES - i < SEGMENT ? BYTES - i : SEGMENT;

		EQUAL(recv(plain, got, sizeof(got), 0), len);
		EQUAL(memcmp(got, data + i, (size_t)len), 0);
	}
	/* A train, or its parts, for who asked for trains. */
	while (total < BYTES) {
		message = next_message(receiver);
		CHECK(message.size > 0 && message.size <= BYTES - total);
		CHECK(message.segment == SEGMENT || message.size <= SEGMENT);
		EQUAL(memcmp(message.buf, data + total, (size_t)message.size), 0);
		total += (int)message.size;
	}
	EQUAL(wait_on(receiver, &message, 1, 0), 0);
	EQUAL(mp_receiver_destroy(receiver), 0);
	return 0;
}
