import java.io.RandomAccessFile;
import java.math.BigInteger;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * StoreDigest FOLDER: walks the files of a commit log with RocketMQ's decoder and prints the number of messages and,
 * for each column, the sum of the first 8 bytes of the SHA-256 of each value with its physical offset, as JSON.
 */
public class StoreDigest {
    static final Map<String, Long> SUMS = new TreeMap<>();
    static long count;

    public static void main(String[] args) throws Exception {
        for (Path path : Files.list(Paths.get(args[0])).sorted().collect(Collectors.toList())) {
            try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "r")) {
                walk(file.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, file.length()));
            }
        }
        String sums = SUMS.entrySet().stream()
            .map(entry -> "\"" + entry.getKey() + "\":\"" + Long.toHexString(entry.getValue()) + "\"")
            .collect(Collectors.joining(","));
        System.out.println("{\"count\":" + count + ",\"sums\":{" + sums + "}}");
        System.exit(0);
    }

    static void walk(ByteBuffer file) throws Exception {
        int at = 0;
        while (at + 8 <= file.limit() && file.getInt(at + 4) == 0xdaa320a7) {
            int size = file.getInt(at);
            ByteBuffer one = file.duplicate();
            one.position(at).limit(at + size);
            add(MessageDecoder.decode(one.slice(), true, true));
            at += size;
        }
    }

    static void add(MessageExt message) throws Exception {
        count++;
        long place = message.getCommitLogOffset();
        sum(place, "body", message.getBody());
        sum(place, "topic", message.getTopic());
        sum(place, "queueId", message.getQueueId());
        sum(place, "queueOffset", message.getQueueOffset());
        sum(place, "physicalOffset", place);
        sum(place, "tags", message.getTags());
        sum(place, "keys", message.getKeys());
        String unique = message.getProperty("UNIQ_KEY");
        sum(place, "msgId", unique != null ? unique : message.getMsgId());
        sum(place, "bornTimestamp", message.getBornTimestamp());
        sum(place, "storeTimestamp", message.getStoreTimestamp());
        sum(place, "bornHost", host(message.getBornHost()));
        sum(place, "storeHost", host(message.getStoreHost()));
        sum(place, "reconsumeTimes", message.getReconsumeTimes());
        sum(place, "sysFlag", message.getSysFlag());
        sum(place, "flag", message.getFlag());
        sum(place, "preparedTransactionOffset", message.getPreparedTransactionOffset());
        String properties = new TreeMap<>(message.getProperties()).entrySet().stream()
            .map(entry -> entry.getKey() + "\u0001" + entry.getValue()).collect(Collectors.joining("\u0002"));
        sum(place, "properties", properties);
    }

    static String host(SocketAddress address) {
        InetSocketAddress found = (InetSocketAddress) address;
        return found.getAddress().getHostAddress() + ":" + found.getPort();
    }

    static void sum(long place, String column, Object value) throws Exception {
        byte[] bytes = value instanceof byte[] ? (byte[]) value : String.valueOf(value).getBytes(StandardCharsets.UTF_8);
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        digest.update((place + " ").getBytes(StandardCharsets.UTF_8));
        SUMS.merge(column, new BigInteger(digest.digest(bytes)).shiftRight(192).longValue(), Long::sum);
    }
}
