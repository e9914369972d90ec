import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Consume NAMESRV TOPIC GROUP [TAGS]: a concurrent push consumer. Prints a JSON line for each message and whenever the
 * queues of the topic assigned to it have changed; ends, handing its offsets in, when its standard input ends.
 * -Dtrace=true sends traces. -Dask=true asks a broker for its queues (clientRebalance=false, RocketMQ 5), which may say POP.
 */
public class Consume {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            args[2], null, new AllocateMessageQueueAveragely(), Boolean.getBoolean("trace"), null);
        consumer.setNamesrvAddr(args[0]);
        consumer.setMqClientApiTimeout(30_000); // its start fails when the first route takes longer
        consumer.setInstanceName("consume-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, args.length > 3 ? args[3] : "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                print(message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        if (Boolean.getBoolean("ask")) {
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        consumer.start();
        Thread watcher = new Thread(() -> watch(consumer, topic));
        watcher.setDaemon(true);
        watcher.start();
        while (System.in.read() >= 0) {
            Thread.onSpinWait();
        }
        consumer.shutdown();
        System.exit(0);
    }

    static synchronized void print(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8).trim();
        System.out.printf("{\"body\":\"%s\",\"size\":%d,\"tags\":\"%s\",\"keys\":\"%s\",\"broker\":\"%s\",\"queue\":%d,\"offset\":%d,\"id\":\"%s\",\"times\":%d}%n",
            body, message.getBody().length, message.getTags(), message.getKeys(), message.getBrokerName(), message.getQueueId(),
            message.getQueueOffset(), message.getMsgId(), message.getReconsumeTimes());
    }

    static void watch(DefaultMQPushConsumer consumer, String topic) {
        Set<Integer> last = null;
        while (true) {
            Set<Integer> now = new TreeSet<>();
            for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
                if (queue.getTopic().equals(topic)) {
                    now.add(queue.getQueueId());
                }
            }
            if (!now.equals(last)) {
                last = now;
                System.out.println("{\"assigned\":" + now + "}");
            }
            try {
                Thread.sleep(50);
            } catch (InterruptedException end) {
                return;
            }
        }
    }
}
