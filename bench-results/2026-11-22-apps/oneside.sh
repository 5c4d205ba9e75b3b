#!/bin/bash
# One end under `megapipe run`, the other plain: redis GET, both plain, the client alone, the server alone, in turn.
# usage: oneside.sh MEGAPIPE ROUNDS > oneside.tsv   (taskset: server on CPU 0, client on CPU 1)
set -u
M=$1; ROUNDS=$2
server() { taskset -c 0 "$@" redis-server --port $PORT --bind 127.0.0.1 --save '' --appendonly no --protected-mode no >/dev/null 2>&1 & }
printf 'round\tconnections\twho\trequests_per_s\tserver_cpu_us_per_request\n'
for round in $(seq "$ROUNDS"); do
  for c in 1 50; do
    for who in plain client server; do
      PORT=$((20000 + RANDOM % 10000))
      case $who in
        server) server "$M" run -- ;;
        *) server env ;;
      esac
      pid=$!
      until redis-cli -p $PORT ping >/dev/null 2>&1; do sleep 0.1; done
      n=$([ $c = 1 ] && echo 60000 || echo 200000)
      client=(env); [ $who = client ] && client=("$M" run --)
      before=$(awk '{print $14+$15}' /proc/$pid/stat)
      rps=$(taskset -c 1 "${client[@]}" redis-benchmark -p $PORT -c $c -n $n -t get --csv 2>/dev/null | awk -F'"' '/GET/{print $4}')
      after=$(awk '{print $14+$15}' /proc/$pid/stat)
      printf '%s\t%s\t%s\t%s\t%s\n' "$round" "$c" "$who" "$rps" "$(awk -v a=$before -v b=$after -v n=$n 'BEGIN{printf "%.2f",(b-a)*10000/n}')"
      kill $pid; wait $pid 2>/dev/null
    done
  done
done
