import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Odd NAMESRV TOPIC SEED COUNT: sends messages at the limits, then COUNT by chance, each to queue 0, and prints a JSON
 * line for each: its name, and the place where it is stored, or the code of the refusal.
 */
public class Odd {
    static final String[] ALPHABETS = {"abcXYZ019", "\u00e9\u00df\u0130", "\u4e2d\u6587", "\u0003\u001b\u007f\u2028", "\ud83d\ude00"};

    public static void main(String[] args) {
        try {
            send(args);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void send(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("odd-producer");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(20000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        for (Map.Entry<String, Message> one : messages(args[1], new Random(Long.parseLong(args[2])), Integer.parseInt(args[3])).entrySet()) {
            print(one.getKey(), producer, one.getValue());
        }
        for (int count : new int[] {1, 100, 3000}) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                batch.add(new Message(args[1], "tag", "key-" + i, ("body-" + i).getBytes(StandardCharsets.UTF_8)));
            }
            try {
                SendResult result = producer.send(batch, queue(producer, args[1]));
                said("batch of " + count, result.getOffsetMsgId().split(",")[0], 0);
            } catch (MQBrokerException error) {
                said("batch of " + count, "", error.getResponseCode());
            }
        }
        producer.shutdown();
    }

    static org.apache.rocketmq.common.message.MessageQueue queue(DefaultMQProducer producer, String topic) throws Exception {
        return producer.fetchPublishMessageQueues(topic).stream().filter(one -> one.getQueueId() == 0).findFirst().get();
    }

    static void print(String name, DefaultMQProducer producer, Message message) throws Exception {
        try {
            said(name, producer.send(message, queue(producer, message.getTopic())).getOffsetMsgId(), 0);
        } catch (MQBrokerException error) {
            said(name, "", error.getResponseCode());
        } catch (org.apache.rocketmq.client.exception.MQClientException error) {
            said(name, "", 10000 + error.getResponseCode());
        }
    }

    static void said(String name, String place, int code) {
        System.out.printf("{\"sent\":\"%s\",\"place\":\"%s\",\"code\":%d}%n", name, place, code);
    }

    static String repeated(String text, int count) {
        StringBuilder whole = new StringBuilder();
        for (int i = 0; i < count; i++) {
            whole.append(text);
        }
        return whole.toString();
    }

    static Map<String, Message> messages(String topic, Random chance, int count) {
        Map<String, Message> all = new LinkedHashMap<>();
        for (int size : new int[] {1, 1000, 30000, 32600, 32700, 33000, 65000}) {
            all.put(size + " letters", with(topic, repeated("x", size)));
        }
        for (int size : new int[] {100, 10800, 11000, 20000}) {
            all.put(size + " Chinese characters", with(topic, repeated("\u4e2d", size)));
        }
        all.put("8,000 emoji", with(topic, repeated("\ud83d\ude00", 8000)));
        all.put("half of an emoji", with(topic, "a\ud83d"));
        all.put("11,000 control characters", with(topic, "a" + repeated("\u0003", 11000) + "b"));
        Message small = new Message(topic, new byte[] {1});
        for (int i = 0; i < 4400; i++) {
            small.putUserProperty(String.format("%04x", i), "a");
        }
        all.put("4,400 properties", small);
        for (int size : new int[] {1, 4095, 4096, 100000, 4 * 1024 * 1024}) {
            byte[] body = new byte[size];
            chance.nextBytes(body);
            all.put("body of " + size, new Message(topic, body));
            all.put("zeros of " + size, new Message(topic, new byte[size]));
        }
        for (int level : new int[] {1, 18, 19, 99}) {
            Message delayed = new Message(topic, new byte[] {1});
            delayed.setDelayTimeLevel(level);
            all.put("level " + level, delayed);
        }
        for (int flag : new int[] {1, -1, Integer.MAX_VALUE, Integer.MIN_VALUE}) {
            all.put("flag " + flag, new Message(topic, "t", "k", flag, new byte[] {1}, false));
        }
        all.put("keys", new Message(topic, "\u0442\u0435\u0433", "\u043a\u043b\u044e\u0447 \u30ad\u30fc", new byte[] {1}));
        for (int i = 0; i < count; i++) {
            byte[] body = new byte[1 + chance.nextInt(3000)];
            chance.nextBytes(body);
            Message message = new Message(topic, word(chance, 20), word(chance, 60), body);
            for (int j = chance.nextInt(12); j > 0; j--) {
                message.putUserProperty(word(chance, 12) + j, word(chance, 200) + "!");
            }
            message.setFlag(chance.nextInt());
            all.put("drawn " + i, message);
        }
        return all;
    }

    static Message with(String topic, String value) {
        Message message = new Message(topic, new byte[] {1});
        message.putUserProperty("k", value);
        return message;
    }

    static String word(Random chance, int longest) {
        return repeated(ALPHABETS[chance.nextInt(ALPHABETS.length)], chance.nextInt(longest) / 4);
    }
}
