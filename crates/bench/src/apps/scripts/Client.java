/* Queries PostgreSQL through JDBC from threads with a connection each, in the simple protocol, as psycopg2 does.
 * Options, pacing and report are those of client.py. */
import java.lang.management.ManagementFactory;
import java.sql.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;

public class Client {
    static final int ACCOUNTS = 100_000, FIRST = 2000; // of pgbench at scale 1; queries until code is compiled
    static final Map<String, Double> options = new HashMap<>();
    static final LongStream.Builder latencies = LongStream.builder();
    static long start, cpu, made, inWindow;

    static void query(Statement statement) throws SQLException {
        int account = ThreadLocalRandom.current().nextInt(1, ACCOUNTS + 1);
        try (ResultSet rows = statement.executeQuery("SELECT abalance FROM pgbench_accounts WHERE aid = " + account)) {
            if (!rows.next()) throw new IllegalStateException("the server answered something else");
        }
    }

    static Void send(int number, int threads, double rate, CyclicBarrier barrier) throws Exception {
        String url = "jdbc:postgresql://127.0.0.1:%.0f/postgres?preferQueryMode=simple&sslmode=disable";
        try (Connection connection = DriverManager.getConnection(url.formatted(options.get("--port")), "postgres", "");
                Statement statement = connection.createStatement()) {
            for (int count = 0; count <= FIRST / threads; count++) query(statement);
            barrier.await(60, TimeUnit.SECONDS);
            double window = options.get("--window") * 1e9, first = start + options.get("--warm-up") * 1e9;
            double interval = threads / rate * 1e9, last = first + window, done = start, sent = 0, inside = 0;
            LongStream.Builder own = LongStream.builder();
            double due = start + (rate > 0 ? number / rate * 1e9 : 0);
            for (; due < last; due = rate > 0 ? due + interval : done) {
                long early = (long) (due - System.nanoTime());
                if (early > 0) TimeUnit.NANOSECONDS.sleep(early);
                boolean patient = System.nanoTime() < last + window;
                if (patient) { query(statement); sent++; }
                done = System.nanoTime();
                if (due >= first) { own.add((long) (done - due)); if (patient && done < last) inside++; }
            }
            synchronized (latencies) { own.build().forEach(latencies); made += sent; inWindow += inside; }
        }
        return null;
    }

    static String quantile(long[] sorted, double share) {
        return sorted.length * (1 - share) < 1 ? "null" : "" + sorted[(int) (sorted.length * share)] / 1e3;
    }

    public static void main(String[] arguments) throws Exception {
        for (int at = 1; at < arguments.length; at += 2) options.put(arguments[at], Double.valueOf(arguments[at + 1]));
        int threads = options.get("--threads").intValue();
        var system = ManagementFactory.getPlatformMXBean(com.sun.management.OperatingSystemMXBean.class);
        CyclicBarrier barrier = new CyclicBarrier(threads, () -> {
            cpu = system.getProcessCpuTime();
            start = System.nanoTime();
        });
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        double rate = options.getOrDefault("--rate", 0.0);
        var all = IntStream.range(0, threads).<Callable<Void>>mapToObj(number -> () -> send(number, threads, rate, barrier));
        for (Future<Void> one : pool.invokeAll(all.toList())) one.get();
        double used = (system.getProcessCpuTime() - cpu) / 1e9;
        pool.shutdown();
        long[] sorted = latencies.build().sorted().toArray();
        String report = "{\"requests_per_s\": %f, \"requests\": %d, \"p50_us\": %s, \"p99_us\": %s, \"p999_us\": %s, \"cpu_s\": %f}";
        System.out.println(String.format(Locale.ROOT, report, inWindow / options.get("--window"), made, quantile(sorted, 0.5),
                quantile(sorted, 0.99), quantile(sorted, 0.999), used));
    }
}
