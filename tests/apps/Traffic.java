/* Checksummed traffic within one process: `java Traffic.java blocking|nio PORT CONNECTIONS`. Threads
 * ask, with blocking sockets or channels; one answers with a selector, or one for each connection.
 * Exit status 0: every byte was right. */
import java.io.*;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.util.*;
import java.util.concurrent.*;

public class Traffic {
    static final int BLOCKS = 200, LARGEST = 70000;

    static byte[] block(Random random, int number) {
        byte[] block = new byte[1 + random.nextInt(number % 8 == 0 ? LARGEST : 200)];
        random.nextBytes(block);
        return block;
    }

    static void check(boolean right, String what) {
        if (!right)
            throw new IllegalStateException(what);
    }

    static Void askBlocking(InetSocketAddress there, int seed) throws IOException {
        Random random = new Random(seed);
        try (Socket socket = new Socket()) {
            socket.connect(there);
            socket.setSoTimeout(60000);
            socket.setTcpNoDelay(seed % 2 == 0);
            DataInputStream input = new DataInputStream(socket.getInputStream());
            for (int number = 0; number < BLOCKS; number++) {
                byte[] sent = block(random, number), got = new byte[sent.length];
                socket.getOutputStream().write(sent);
                input.readFully(got);
                check(Arrays.equals(sent, got), "other bytes came back");
            }
            socket.shutdownOutput();
            check(input.read() == -1, "more came than was sent");
        }
        return null;
    }

    static Void askChannel(InetSocketAddress there, int seed) throws IOException {
        Random random = new Random(seed);
        try (SocketChannel channel = SocketChannel.open(there)) {
            for (int number = 0; number < BLOCKS; number++) {
                byte[] sent = block(random, number);
                ByteBuffer[] pieces = {ByteBuffer.wrap(sent, 0, sent.length / 2),
                    ByteBuffer.allocateDirect(sent.length - sent.length / 2).put(sent, sent.length / 2,
                        sent.length - sent.length / 2).flip()};
                while (pieces[1].hasRemaining())
                    channel.write(pieces);
                ByteBuffer got = ByteBuffer.allocateDirect(sent.length);
                while (got.hasRemaining())
                    check(channel.read(got) > 0, "it ended early");
                check(got.flip().equals(ByteBuffer.wrap(sent)), "other bytes came back");
            }
            channel.shutdownOutput();
            check(channel.read(ByteBuffer.allocate(1)) == -1, "more came than was sent");
        }
        return null;
    }

    static Void echo(Socket socket) throws IOException {
        try (socket) {
            socket.getInputStream().transferTo(socket.getOutputStream());
        }
        return null;
    }

    static Void serveBlocking(ServerSocket listener, int connections, ExecutorService pool) throws Exception {
        List<Future<Void>> echoes = new ArrayList<>();
        for (int number = 0; number < connections; number++) {
            Socket socket = listener.accept();
            echoes.add(pool.submit(() -> echo(socket)));
        }
        for (Future<Void> echo : echoes)
            echo.get();
        return null;
    }

    static Void serveSelector(ServerSocketChannel listener, int connections) throws IOException {
        Selector selector = Selector.open();
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        for (int done = 0; done < connections;) {
            check(selector.select(60000) > 0, "nothing comes");
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); keys.remove()) {
                SelectionKey key = keys.next(), mine = key;
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    if (channel == null)
                        continue;
                    channel.configureBlocking(false);
                    mine = channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(1 << 17));
                }
                if (!move(mine)) {
                    mine.channel().close();
                    done++;
                }
            }
        }
        return null;
    }

    /** Whether there is more to come. */
    static boolean move(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer bytes = (ByteBuffer) key.attachment();
        int count = channel.read(bytes);
        bytes.flip();
        channel.write(bytes);
        boolean ends = count == -1 && !bytes.hasRemaining();
        key.interestOps(bytes.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
        bytes.compact();
        return !ends;
    }

    public static void main(String[] arguments) throws Exception {
        boolean blocking = arguments[0].equals("blocking");
        int port = Integer.parseInt(arguments[1]), connections = Integer.parseInt(arguments[2]);
        InetSocketAddress here = new InetSocketAddress("127.0.0.1", port);
        ExecutorService pool = Executors.newCachedThreadPool();
        ServerSocketChannel listener = ServerSocketChannel.open().bind(here);
        List<Future<Void>> all = new ArrayList<>();
        all.add(pool.submit(() -> blocking ? serveBlocking(listener.socket(), connections, pool)
            : serveSelector(listener, connections)));
        for (int number = 0; number < connections; number++) {
            int seed = number;
            all.add(pool.submit(() -> blocking ? askBlocking(here, seed) : askChannel(here, seed)));
        }
        for (Future<Void> one : all)
            one.get(60, TimeUnit.SECONDS);
        pool.shutdown();
    }
}
