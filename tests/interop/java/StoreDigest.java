import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.net.Inet6Address;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.DigestOutputStream;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * StoreDigest FOLDER BROKER SIZE: walks the files of a commit log with RocketMQ's decoder and prints for each block,
 * the messages that begin in the same SIZE bytes, their number and a digest of each column, as a JSON line.
 *
 * StoreDigest FOLDER BROKER SIZE BLOCK: prints the messages of one block instead, each as a JSON line.
 *
 * What a digest is made of: test_spark_store.py, function streams. Times are microseconds, a body that is missing is
 * an empty one, hosts are written like RFC 5952 says.
 */
public class StoreDigest {
    static final List<String> COLUMNS = Arrays.asList("topic", "brokerName", "queueId", "queueOffset", "physicalOffset",
        "body", "tags", "keys", "msgId", "properties", "bornTimestamp", "storeTimestamp", "bornHost", "storeHost",
        "reconsumeTimes", "sysFlag", "flag", "preparedTransactionOffset");
    static final int MESSAGE = 0xdaa320a7;
    static final int BLANK = 0xcbd43194;
    static final Map<SocketAddress, String> HOSTS = new ConcurrentHashMap<>();
    static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    static String broker;
    static long blockSize;
    static long onlyBlock;

    public static void main(String[] args) throws Exception {
        broker = args[1];
        blockSize = Long.parseLong(args[2]);
        onlyBlock = args.length > 3 ? Long.parseLong(args[3]) : -1;
        List<Path> files = Files.list(Paths.get(args[0])).sorted().collect(Collectors.toList());
        files.parallelStream().forEach(StoreDigest::walk);
        System.exit(0);
    }

    static void walk(Path path) {
        try (FileChannel channel = FileChannel.open(path)) {
            walk(channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size()), Long.parseLong(path.getFileName().toString()));
        } catch (Exception error) {
            throw new IllegalStateException(path + ": " + error, error);
        }
    }

    static void walk(ByteBuffer file, long base) throws Exception {
        Block block = null;
        int at = 0;
        while (at + 8 <= file.limit() && file.getInt(at + 4) == MESSAGE) {
            int size = file.getInt(at);
            long number = (base + at) / blockSize;
            if (block == null || block.number != number) {
                print(block);
                block = new Block(number);
            }
            if (onlyBlock < 0 || onlyBlock == number) {
                add(block, file.slice(at, size), base + at);
            }
            at += size;
        }
        print(block);
        boolean full = at + 8 <= file.limit() && file.getInt(at + 4) == BLANK && at + file.getInt(at) == file.limit();
        boolean unused = at == file.limit() || file.getInt(at) == 0;
        if (!full && !unused) {
            throw new IllegalStateException("neither a message nor the end at " + (base + at));
        }
    }

    static void add(Block block, ByteBuffer record, long place) throws Exception {
        MessageExt message = MessageDecoder.decode(record, true, true);
        if (message == null || record.hasRemaining()) {
            throw new IllegalStateException("the decoder refuses the message at " + place);
        }
        if (onlyBlock < 0) {
            block.add(columns(message));
        } else {
            print(columns(message));
        }
    }

    /** The values in the order of COLUMNS: numbers as Long, texts, bytes and a map of texts. */
    static Object[] columns(MessageExt message) {
        String unique = message.getProperty("UNIQ_KEY");
        Map<String, String> properties = message.getProperties();
        return new Object[] {
            message.getTopic(), broker, (long) message.getQueueId(), message.getQueueOffset(), message.getCommitLogOffset(),
            message.getBody() == null ? new byte[0] : message.getBody(),
            message.getTags(), message.getKeys(), unique != null ? unique : message.getMsgId(),
            properties == null ? Collections.emptyMap() : properties,
            message.getBornTimestamp() * 1000, message.getStoreTimestamp() * 1000,
            HOSTS.computeIfAbsent(message.getBornHost(), StoreDigest::host),
            HOSTS.computeIfAbsent(message.getStoreHost(), StoreDigest::host),
            (long) message.getReconsumeTimes(), (long) message.getSysFlag(), (long) message.getFlag(),
            message.getPreparedTransactionOffset(),
        };
    }

    static String host(SocketAddress address) {
        InetSocketAddress found = (InetSocketAddress) address;
        String text = found.getAddress().getHostAddress();
        return (found.getAddress() instanceof Inet6Address ? "[" + shortened(text) + "]" : text) + ":" + found.getPort();
    }

    /** An IPv6 address without its longest run of zeros. */
    static String shortened(String address) {
        for (int length = 8; length > 1; length--) {
            String zeros = String.join(":", Collections.nCopies(length, "0"));
            String shorter = address.replaceFirst("(^|:)" + zeros + "(:|$)", "::");
            if (!shorter.equals(address)) {
                return shorter;
            }
        }
        return address;
    }

    static void print(Object[] row) {
        Map<String, Object> named = new LinkedHashMap<>();
        for (int place = 0; place < row.length; place++) {
            named.put(COLUMNS.get(place), row[place] instanceof byte[] ? hex((byte[]) row[place]) : row[place]);
        }
        OUT.println(JSON.toJSONString(named, SerializerFeature.WriteMapNullValue));
    }

    static void print(Block block) throws Exception {
        if (block == null || onlyBlock >= 0) {
            return;
        }
        Map<String, String> digests = new LinkedHashMap<>();
        for (int place = 0; place < block.columns.length; place++) {
            digests.put(COLUMNS.get(place), hex(block.columns[place].digest()));
        }
        OUT.println(JSON.toJSONString(Map.of("block", block.number, "rows", block.rows, "digests", digests)));
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder(2 * bytes.length);
        for (byte each : bytes) {
            text.append(Character.forDigit(each >> 4 & 15, 16)).append(Character.forDigit(each & 15, 16));
        }
        return text.toString();
    }

    /** The messages of a block so far. */
    static class Block {
        final long number;
        final Column[] columns = new Column[COLUMNS.size()];
        long rows;

        Block(long number) throws Exception {
            this.number = number;
            for (int place = 0; place < columns.length; place++) {
                columns[place] = new Column();
            }
        }

        void add(Object[] row) throws IOException {
            rows++;
            for (int place = 0; place < row.length; place++) {
                columns[place].add(row[place]);
            }
        }
    }

    /** The streams of a column: lengths and content, or sizes of maps, lengths and content of names and of values. */
    static class Column {
        final MessageDigest[] digests = new MessageDigest[5];
        final DataOutputStream[] streams = new DataOutputStream[5];
        int used = 2;

        Column() throws Exception {
            for (int place = 0; place < streams.length; place++) {
                digests[place] = MessageDigest.getInstance("SHA-256");
                OutputStream digested = new DigestOutputStream(OutputStream.nullOutputStream(), digests[place]);
                streams[place] = new DataOutputStream(new BufferedOutputStream(digested, 2048));
            }
        }

        void add(Object value) throws IOException {
            if (value instanceof Map) {
                addMap((Map<?, ?>) value);
            } else if (value instanceof Long) {
                streams[0].writeInt(8);
                streams[1].writeLong((Long) value);
            } else {
                addBytes(0, value instanceof String ? utf8(value) : (byte[]) value);
            }
        }

        void addMap(Map<?, ?> map) throws IOException {
            used = 5;
            streams[0].writeInt(map.size());
            byte[][] names = map.keySet().stream().map(StoreDigest.Column::utf8).sorted(Arrays::compareUnsigned).toArray(byte[][]::new);
            for (byte[] name : names) {
                addBytes(1, name);
                addBytes(3, utf8(map.get(new String(name, StandardCharsets.UTF_8))));
            }
        }

        void addBytes(int stream, byte[] bytes) throws IOException {
            streams[stream].writeInt(bytes == null ? -1 : bytes.length);
            if (bytes != null) {
                streams[stream + 1].write(bytes);
            }
        }

        static byte[] utf8(Object text) {
            return text.toString().getBytes(StandardCharsets.UTF_8);
        }

        byte[] digest() throws Exception {
            MessageDigest whole = MessageDigest.getInstance("SHA-256");
            for (int place = 0; place < used; place++) {
                streams[place].flush();
                whole.update(digests[place].digest());
            }
            return Arrays.copyOf(whole.digest(), 16);
        }
    }
}
