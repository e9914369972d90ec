import com.alibaba.fastjson.JSON;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Acl NAMESRV TOPIC GROUP WHO...: each WHO is ACCOUNT:SECRET, or - for no account. For each it sends one message, a
 * batch of two and pulls once, and prints the JSON line {"who", "send", "batch", "pull"} with what came of each. Then
 * the first one consumes the topic in order until the standard input ends, printing {"body"} for each message.
 */
public class Acl {
    interface Step {
        Object run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        for (int i = 3; i < args.length; i++) {
            tryAll(args[0], args[1], args[2], args[i], i);
        }
        consume(args[0], args[1], args[2], hook(args[3]));
        while (System.in.read() >= 0) {
            Thread.onSpinWait();
        }
        System.exit(0);
    }

    static RPCHook hook(String who) {
        if (who.equals("-")) {
            return null;
        }
        String[] parts = who.split(":");
        return new AclClientRPCHook(new SessionCredentials(parts[0], parts[1]));
    }

    static void tryAll(String namesrv, String topic, String group, String who, int number) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("acl-producer", hook(who));
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("p" + number);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, hook(who));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("c" + number);
        consumer.start();
        Object send = text(() -> producer.send(message(topic, "one-" + number)).getSendStatus());
        List<Message> batch = new ArrayList<>(List.of(message(topic, "two-" + number), message(topic, "three-" + number)));
        Object sendBatch = text(() -> producer.send(batch).getSendStatus());
        Object pull = text(() -> {
            PullResult result = consumer.pull(new MessageQueue(topic, "interop-a", 0), "*", 0, 32);
            return result.getPullStatus();
        });
        System.out.println(JSON.toJSONString(Map.of("who", who.split(":")[0], "send", send, "batch", sendBatch, "pull", pull)));
        producer.shutdown();
        consumer.shutdown();
    }

    static Message message(String topic, String body) {
        return new Message(topic, "T", body, body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(Step step) {
        try {
            return String.valueOf(step.run());
        } catch (Exception error) {
            StringBuilder text = new StringBuilder();
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                text.append(cause.getMessage()).append(' ');
            }
            return text.toString();
        }
    }

    static void consume(String namesrv, String topic, String group, RPCHook hook) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                System.out.println(JSON.toJSONString(Map.of("body", new String(message.getBody(), StandardCharsets.UTF_8))));
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
    }
}
