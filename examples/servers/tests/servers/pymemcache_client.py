"""What an application does with pymemcache, against the server at HOST PORT."""

import sys
import threading
import time

from pymemcache import serde
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.exceptions import MemcacheClientError, MemcacheServerError

server = (sys.argv[1], int(sys.argv[2]))


def connect(**settings):
    return Client(server, connect_timeout=10, timeout=30, no_delay=True, **settings)


def refused(error, call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except error:
        return
    raise AssertionError(f"{call} is not refused")


client = connect(default_noreply=False)
assert client.version().startswith(b"1.6")

# Storage.
assert client.set("key", "value") is True
assert client.get("key") == b"value"
assert client.get("none") is None and client.get("none", default=7) == 7
assert client.add("key", "other") is False and client.add("new", "value") is True
assert client.replace("none", "value") is False and client.replace("new", "other") is True
assert client.append("new", "!") is True and client.prepend("new", "?") is True
assert client.get("new") == b"?other!"
assert client.set("flagged", b"x", flags=4_000_000_000) is True
assert client.set("empty", b"") is True and client.get("empty") == b""
binary = bytes(range(256)) * 10
assert client.set("binary", binary) is True and client.get("binary") == binary
assert client.set("k" * 250, b"x") is True and client.get("k" * 250) == b"x"

# Check and set.
value, unique = client.gets("key")
assert client.cas("key", "second", unique) is True
assert client.cas("key", "third", unique) is False
assert client.cas("none", "value", unique) is None

# Many at once.
many = {f"many{number}": str(number) * number for number in range(300)}
assert client.set_many(many) == []
assert client.get_many(list(many) + ["none"]) == {key: value.encode() for key, value in many.items()}
assert len(client.gets_many(list(many))) == 300
assert client.delete_many(list(many)) is True
assert client.get_many(list(many)) == {}

# Numbers.
assert client.set("number", 10) is True
assert client.incr("number", 5) == 15 and client.decr("number", 20) == 0
assert client.incr("none", 1) is None
refused(MemcacheClientError, client.incr, "binary", 1)

# Deletion and expiry.
assert client.delete("key") is True and client.delete("key") is False
assert client.touch("new", 1000) is True and client.touch("none", 1000) is False
assert client.set("short", "x", expire=1) is True
deadline = time.monotonic() + 30
while client.get("short") is not None:
    assert time.monotonic() < deadline
    time.sleep(0.05)
assert client.set("past", "x", expire=-1) is True and client.get("past") is None
assert client.set("absolute", "x", expire=int(time.time()) + 100) is True and client.get("absolute") == b"x"

# Sizes.
largest = b"x" * (1 << 20)
assert client.set("largest", largest) is True and client.get("largest") == largest
refused(MemcacheServerError, client.set, "larger", largest + b"x")
assert client.get("larger") is None
assert client.get("largest") == largest

# No reply.
quiet = connect(default_noreply=True)
for number in range(1000):
    quiet.set("quiet", number)
quiet.append("quiet", "!")
quiet.delete("new")
quiet.incr("number", 3, noreply=True)
assert quiet.get("quiet") == b"999!" and quiet.get("new") is None and quiet.get("number").strip() == b"3"

# Objects.
objects = connect(serde=serde.compressed_serde)
for value in ["text", b"bytes", 17, {"a": [1, 2, 3]}, "long" * 100_000]:
    objects.set("object", value, noreply=False)
    assert objects.get("object") == value

# Statistics, and the rest.
statistics = client.stats()
assert statistics[b"curr_items"] > 0 and statistics[b"threads"] == 2
assert client.flush_all() is True and client.get("largest") is None

# A pool and a ring of servers, used by threads.
pool = PooledClient(server, max_pool_size=4, timeout=30)
ring = HashClient([server], use_pooling=True, timeout=30)
failures = []


def work(name):
    try:
        for number in range(200):
            key = f"{name}-{number}"
            for shared in (pool, ring):
                shared.set(key, key, noreply=False)
                if shared.get(key) != key.encode():
                    failures.append(key)
    except Exception as error:  # noqa: BLE001 - reported below
        failures.append(error)


threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures

client.quit()
