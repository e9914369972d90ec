import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Produce NAMESRV TOPIC MODE COUNT PREFIX [SIZE]: sends PREFIX-0, PREFIX-1 ... and prints one JSON line for each answer.
 * MODE is sync, async, oneway, batch, or steady (one every 10 ms, until COUNT or a byte on the standard input); message i carries the tag T(i mod 3) and its body's start as the key.
 * SIZE pads the bodies with spaces (4096 and more are compressed by the client). -Dtrace=true sends traces.
 */
public class Produce {
    static DefaultMQProducer producer;
    static String topic;
    static String prefix;
    static int size;

    public static void main(String[] args) throws Exception {
        topic = args[1];
        prefix = args[4];
        size = args.length > 5 ? Integer.parseInt(args[5]) : 0;
        producer = new DefaultMQProducer("interop-producer", null, Boolean.getBoolean("trace"), null);
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(10000);
        producer.start();
        try {
            send(args[2], Integer.parseInt(args[3]));
        } finally {
            producer.shutdown();
        }
        System.exit(0);
    }

    static Message message(int number) {
        String text = prefix + "-" + number;
        StringBuilder body = new StringBuilder(text);
        while (body.length() < size) {
            body.append(' ');
        }
        return new Message(topic, "T" + number % 3, text, body.toString().getBytes(StandardCharsets.UTF_8));
    }

    static synchronized void print(String text, SendResult result) {
        System.out.printf("{\"sent\":\"%s\",\"status\":\"%s\",\"broker\":\"%s\",\"queue\":%d,\"offset\":%d,\"id\":\"%s\",\"offset_id\":\"%s\"}%n",
            text, result.getSendStatus(), result.getMessageQueue().getBrokerName(), result.getMessageQueue().getQueueId(),
            result.getQueueOffset(), result.getMsgId(), result.getOffsetMsgId());
    }

    static void send(String mode, int count) throws Exception {
        switch (mode) {
            case "sync":
                for (int i = 0; i < count; i++) {
                    print(prefix + "-" + i, producer.send(message(i)));
                }
                break;
            case "oneway":
                for (int i = 0; i < count; i++) {
                    producer.sendOneway(message(i));
                }
                Thread.sleep(1000); // nothing answers: let the last frames leave
                break;
            case "steady":
                steady(count);
                break;
            case "async":
                async(count);
                break;
            case "batch":
                for (int i = 0; i < count; i += 16) {
                    List<Message> batch = new ArrayList<>();
                    for (int j = i; j < Math.min(i + 16, count); j++) {
                        batch.add(message(j));
                    }
                    print(prefix + "-" + i, producer.send(batch));
                }
                break;
            default:
                throw new IllegalArgumentException(mode);
        }
    }

    static void steady(int count) throws Exception {
        for (int i = 0; i < count && System.in.available() == 0; i++) {
            try {
                print(prefix + "-" + i, producer.send(message(i)));
            } catch (Exception error) {
                System.out.printf("{\"failed\":\"%s-%d\"}%n", prefix, i);
                System.err.println(prefix + "-" + i + ": " + error);
            }
            Thread.sleep(10);
        }
    }

    static void async(int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            String text = prefix + "-" + i;
            producer.send(message(i), new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    print(text, result);
                    left.countDown();
                }

                @Override public void onException(Throwable error) {
                    System.err.println(text + ": " + error);
                    left.countDown();
                }
            });
        }
        left.await();
    }
}
