/* A game server: many players with a UDP port each, small packets. Usage: game_server [PLAYERS] [FIRST_PORT]
 * A player sends where it is (x and y, a byte each) to its port; 20 times a second everybody hears of everybody who
 * is there (two bytes for the player, x, y), all with the same message, in datagrams of 1200 bytes. */
#define _GNU_SOURCE
#include <errno.h>
#include <megapipe_mmsg.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PLAYERS_MAX 10000
#define DATAGRAM 1200
#define TICK INT64_C(50000000)

static struct player {
	int fd, is_here;
	struct { uint16_t player; unsigned char xy[2]; } place;
} players[PLAYERS_MAX];

static int64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static int make_port(mp_receiver *receiver, struct player *player, int port)
{
	struct sockaddr_in addr = {AF_INET, htons((uint16_t)port), {htonl(INADDR_LOOPBACK)}, {0}};
	socklen_t len = sizeof(addr);

	player->place.player = htons((uint16_t)(player - players));
	player->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (bind(player->fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
	    getsockname(player->fd, (struct sockaddr *)&addr, &len) != 0)
		return -1;
	printf("port %d\n", ntohs(addr.sin_port));
	return mp_receiver_add(receiver, player->fd, player) < 0 ? -1 : 0;
}

static void hear(struct player *player, const struct mp_message *message)
{
	/* The first who sends has the port alone from then on. */
	if (message->size == 2 && !player->is_here)
		player->is_here = connect(player->fd, message->addr, message->addrlen) == 0;
	if (message->size == 2 && player->is_here)
		memcpy(player->place.xy, message->buf, 2);
}

/* One message down every socket, in a few system calls. */
static void tell(int count)
{
	static char world[4 * PLAYERS_MAX];
	static struct mmep eps[PLAYERS_MAX];
	_Alignas(struct cmsghdr) char room[MP_GSO_ROOM];
	struct iovec piece = {world, 0};
	struct mmsghdr msg = {.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}};
	int here = 0;

	for (struct player *player = players; player < players + count; player++) {
		eps[here] = (struct mmep){.sockfd = player->fd, .num = 1};
		memcpy(world + 4 * here, &player->place, 4);
		here += player->is_here;
	}
	piece.iov_len = 4 * (size_t)here;
	if (piece.iov_len > DATAGRAM)
		mp_gso_set(&msg.msg_hdr, room, sizeof(room), DATAGRAM);
	/* A player that has gone, or does not read, misses this one. */
	sendmmmsg(eps, here, &msg, 1, 0);
}

int main(int argc, char **argv)
{
	int count = 1000, port = 7777, got;
	struct mp_message messages[256];
	int64_t next = now() + TICK, left;
	mp_receiver *receiver;
	char rest;

	if (argc > 3 || (argc > 1 && sscanf(argv[1], "%d%c", &count, &rest) != 1) || count < 1 || count > PLAYERS_MAX ||
	    (argc > 2 && sscanf(argv[2], "%d%c", &port, &rest) != 1) || port < 0 || port > 65536 - count)
		return fputs("usage: game_server [PLAYERS] [FIRST_PORT]\n", stderr), 2;
	struct mp_receiver_config config = {.size = sizeof(config), .sockets = (uint32_t)count, .flags = MP_RECEIVER_ADDRESSES};
	got = mp_receiver_create(&config, &receiver);
	for (int i = 0; i < count && got == 0; i++)
		got = make_port(receiver, &players[i], port ? port + i : 0);
	fflush(stdout);
	while (got >= 0 || got == -EINTR) {
		left = next - now();
		got = mp_receiver_wait(receiver, messages, 256, left > 0 ? left : 0);
		for (int i = 0; i < got; i++)
			hear(messages[i].cookie, &messages[i]);
		for (; next <= now(); next += TICK)
			tell(count);
	}
	return 1;
}
