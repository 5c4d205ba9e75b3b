"""Sends requests to a server with the client library that its users have, from a number of threads.

Prints one JSON object: requests a second, latencies in microseconds, CPU time of this process.
With --rate, request number n is due n/rate seconds after the start, whatever the server does, and
its latency counts from then. Without, each thread sends its next request after the last answer.
"""

import argparse
import ctypes
import json
import random
import threading
import time

VALUE = b"0123456789abcdef" * 4
LARGE = b"0123456789abcdef" * (1 << 16)  # 1 MiB
PIPELINE = 100
ACCOUNTS = 100_000  # of pgbench at scale 1


def redis_get(port):
    client = redis_client(port)
    client.set("key", VALUE)
    return lambda thread: lambda: check(client.get("key") == VALUE)


def redis_large(port):
    client = redis_client(port)
    client.set("large", LARGE)
    return lambda thread: lambda: check(len(client.get("large")) == len(LARGE))


def redis_pipeline(port):
    client = redis_client(port)
    client.set("key", VALUE)

    def request():
        with client.pipeline(transaction=False) as pipeline:
            for _ in range(PIPELINE):
                pipeline.get("key")
            check(len(pipeline.execute()) == PIPELINE)

    return lambda thread: request


def redis_publish(port):
    client = redis_client(port)

    def prepare(thread):
        channel = f"channel-{thread}"
        subscriber = client.pubsub(ignore_subscribe_messages=True)
        subscriber.subscribe(channel)
        messages = subscriber.listen()

        def request():
            client.publish(channel, VALUE)
            check(next(messages)["data"] == VALUE)

        # The answer to the subscription comes first; listen() would wait for a message after it.
        while subscriber.get_message(timeout=1) is not None:
            pass
        return request

    return prepare


def redis_client(port):
    import redis

    return redis.Redis(host="127.0.0.1", port=port)


def psycopg2_select(port):
    import psycopg2

    def prepare(thread):
        connection = psycopg2.connect(host="127.0.0.1", port=port, user="postgres", dbname="postgres")
        connection.autocommit = True
        cursor = connection.cursor()

        def request():
            account = random.randint(1, ACCOUNTS)
            cursor.execute("SELECT abalance FROM pgbench_accounts WHERE aid = %s", (account,))
            check(cursor.fetchone() is not None)

        return request

    return prepare


def grpc_unary(port):
    import grpc

    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    grpc.channel_ready_future(channel).result(timeout=10)
    call = channel.unary_unary("/bench.Echo/Call")
    return lambda thread: lambda: check(call(VALUE) == VALUE)


OPERATIONS = {
    "redis-py-get": (redis_get, 1),
    "redis-py-large": (redis_large, 1),
    "redis-py-pipeline": (redis_pipeline, PIPELINE),
    "redis-py-publish": (redis_publish, 1),
    "psycopg2-select": (psycopg2_select, 1),
    "grpc-unary": (grpc_unary, 1),
}


def check(answered):
    if not answered:
        raise RuntimeError("the server answered something else")


class Thread(threading.Thread):
    """One of those that send requests."""

    def __init__(self, number, request, arguments, barrier):
        super().__init__(daemon=True)
        self.number, self.request, self.arguments, self.barrier = number, request, arguments, barrier
        self.latencies, self.made, self.in_window, self.error = [], 0, 0, None

    def run(self):
        try:
            self.request()  # whatever is made on first use
            self.barrier.wait()
            self.send()
        except Exception as error:
            self.error = error
            self.barrier.abort()

    def send(self):
        clock = time.perf_counter
        start = self.barrier.start
        first, last = start + self.arguments.warm_up, start + self.arguments.warm_up + self.arguments.window
        patience = last + self.arguments.window
        interval = self.arguments.threads / self.arguments.rate if self.arguments.rate else None
        due = start + (self.number / self.arguments.rate if interval else 0)
        while due < last:
            now = clock()
            if now < due:
                time.sleep(due - now)
            if now < patience:
                self.request()
                self.made += 1
            done = clock()
            if due >= first:
                self.latencies.append(done - due)
                self.in_window += now < patience and done < last
            due = due + interval if interval else done


class Barrier(threading.Barrier):
    """All threads start together, and agree on when."""

    def __init__(self, parties):
        super().__init__(parties, action=self.begin)

    def begin(self):
        self.start = time.perf_counter()
        self.cpu = time.process_time()


def quantile(latencies, share):
    """In microseconds; none of so few that it would be their maximum."""
    if len(latencies) * (1 - share) < 1:
        return None
    return latencies[int(len(latencies) * share)] * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("operation", choices=OPERATIONS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--warm-up", type=float, required=True)
    parser.add_argument("--window", type=float, required=True)
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second; 0: after each answer")
    arguments = parser.parse_args()
    # prctl(PR_SET_TIMERSLACK): sleeps end when they should, not up to 50 microseconds later.
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)
    operation, each = OPERATIONS[arguments.operation]
    arguments.rate /= each
    prepare = operation(arguments.port)
    barrier = Barrier(arguments.threads)
    threads = [Thread(number, prepare(number), arguments, barrier) for number in range(arguments.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu = time.process_time() - barrier.cpu if hasattr(barrier, "cpu") else 0.0
    for thread in threads:
        if thread.error and not isinstance(thread.error, threading.BrokenBarrierError):
            raise thread.error
    latencies = sorted(latency for thread in threads for latency in thread.latencies)
    if not latencies:
        raise SystemExit("no request was answered in the time")
    report = {
        "requests_per_s": sum(thread.in_window for thread in threads) * each / arguments.window,
        "requests": sum(thread.made for thread in threads) * each,
        "p50_us": quantile(latencies, 0.5),
        "p99_us": quantile(latencies, 0.99),
        "p999_us": quantile(latencies, 0.999),
        "cpu_s": cpu,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
