<?php
/* Asks Redis through phpredis, from processes with a connection each: PHP has no threads. Options, pacing and report
 * are those of client.py. */
$value = str_repeat('0123456789abcdef', 4);
$options = array_column(array_chunk(array_slice($argv, 2), 2), 1, 0);
[$processes, $rate] = [(int) $options['--threads'], (float) ($options['--rate'] ?? 0)];

function clock(): float
{
    return hrtime(true) / 1e9;
}

function cpu(): float
{
    $used = getrusage();
    return $used['ru_utime.tv_sec'] + $used['ru_stime.tv_sec']
        + ($used['ru_utime.tv_usec'] + $used['ru_stime.tv_usec']) / 1e6;
}

/* One process: reports that it is ready, reads when to start, reports what it did. */
function send(int $number, $parent): void
{
    global $value, $options, $processes, $rate;
    $redis = new Redis();
    $redis->connect('127.0.0.1', (int) $options['--port']) && $redis->set('key', $value) || exit(1);
    fwrite($parent, "ready\n");
    $start = (float) fgets($parent);
    [$first, $cpu] = [$start + (float) $options['--warm-up'], cpu()];
    [$last, $latencies, $made, $inside] = [$first + (float) $options['--window'], [], 0, 0];
    $due = $start + ($rate ? $number / $rate : 0);
    while ($due < $last) {
        $early = $due - clock();
        if ($early > 0) {
            time_nanosleep((int) $early, (int) (fmod($early, 1) * 1e9));
        }
        $patient = clock() < $last + (float) $options['--window'];
        if ($patient) {
            $redis->get('key') === $value || exit(1);
            $made++;
        }
        $done = clock();
        if ($due >= $first) {
            $latencies[] = $done - $due;
            $inside += (int) ($patient && $done < $last);
        }
        $due = $rate ? $due + $processes / $rate : $done;
    }
    fwrite($parent, serialize([$latencies, $made, $inside, cpu() - $cpu]));
}

function quantile(array $sorted, float $share): ?float
{
    return count($sorted) * (1 - $share) < 1 ? null : $sorted[(int) (count($sorted) * $share)] * 1e6;
}

$children = [];
for ($number = 0; $number < $processes; $number++) {
    [$parent, $child] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    if (pcntl_fork() === 0) {
        fclose($child);
        send($number, $parent);
        exit(0);
    }
    fclose($parent);
    $children[] = $child;
}
foreach ($children as $child) {
    fgets($child) === "ready\n" || exit(1);
}
$start = sprintf("%.9f\n", clock() + 0.01);
array_map(fn ($child) => fwrite($child, $start), $children);
[$latencies, $made, $inside, $cpu] = [[], 0, 0, 0.0];
foreach ($children as $child) {
    [$own, $sent, $counted, $used] = unserialize(stream_get_contents($child)) ?: exit(1);
    $latencies[] = $own;
    [$made, $inside, $cpu] = [$made + $sent, $inside + $counted, $cpu + $used];
}
while (pcntl_wait($status) > 0);
$latencies = array_merge(...$latencies);
sort($latencies);
echo json_encode([
    'requests_per_s' => $inside / (float) $options['--window'], 'requests' => $made,
    'p50_us' => quantile($latencies, 0.5), 'p99_us' => quantile($latencies, 0.99),
    'p999_us' => quantile($latencies, 0.999), 'cpu_s' => $cpu,
]), "\n";
