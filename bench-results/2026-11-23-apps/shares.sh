#!/usr/bin/env bash
# The library's part of the CPU time of programs that have nothing to gain by it, sampled by perf: one end alone has it, or
# both have and each connection carries one request. MEGAPIPE_MONITOR names the socket of a monitor that allows promotion.
set -euo pipefail
MEGAPIPE=${MEGAPIPE:-target/release/megapipe}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cat >"$folder/nginx.conf" <<END
daemon off; pid $folder/pid; error_log $folder/errors;
events { worker_connections 2048; }
http {
    access_log off; keepalive_requests 1000000;
    client_body_temp_path $folder/b; proxy_temp_path $folder/p; fastcgi_temp_path $folder/f; uwsgi_temp_path $folder/u;
    scgi_temp_path $folder/s;
    server { listen 127.0.0.1:8099 backlog=1024; location / { return 200 "hello world\n"; } }
}
END
redis="redis-server --port 7799 --save 3600 1000000000 --dir $folder"
bench="redis-benchmark -p 7799 -n 100000000 -t get -q"
nginx="nginx -p $folder -c $folder/nginx.conf"
wrk="wrk -t1 -d30"
url=http://127.0.0.1:8099/

share() {
    perf record -e cpu-clock -F 4000 -o "$folder/perf" -p "$2" -- sleep 2.5 >/dev/null 2>&1
    perf report -i "$folder/perf" --no-children --sort dso 2>/dev/null |
        awk -v what="$1" '/libmegapipe_preload/ { part = $1 } END { printf "%-48s %s\n", what, part == "" ? "0" : part }'
}

# What is measured; the ends that have the library, of which each is sampled; the server; the client.
sample() {
    local run="$MEGAPIPE run --" server client
    # shellcheck disable=SC2086 # commands of several words
    {
        if [[ $2 == *server* ]]; then taskset -c 0 $run $3 >/dev/null & else taskset -c 0 $3 >/dev/null & fi
        server=$!
        sleep 1
        if [[ $2 == *client* ]]; then taskset -c 1 $run $4 >/dev/null & else taskset -c 1 $4 >/dev/null & fi
        client=$!
    }
    sleep 1.5
    # nginx works in a child.
    [[ $2 != *server* ]] || share "${3%% *}, $1" "$(pgrep -P $server || echo $server)"
    [[ $2 != *client* ]] || share "${4%% *}, $1" $client
    kill $client $server
    wait $client $server || true
}

for count in 1 50 500; do
    sample "GET at $count, alone" client "$redis" "$bench -c $count"
    sample "GET at $count, alone" server "$redis" "$bench -c $count"
    sample "keep-alive at $count, alone" client "$nginx" "$wrk -c$count $url"
    sample "keep-alive at $count, alone" server "$nginx" "$wrk -c$count $url"
done
sample "short connections, 50 at a time" "server client" "$redis" "$bench -c 50 -k 0"
sample "short connections, 50 at a time" "server client" "$nginx" "$wrk -c50 -H Connection:close $url"
