import java.util.Base64;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingTimeoutException;

/** ReadAll NAMESRV TOPIC: prints each queue's bounds and each message from the minimum to the maximum offset, as JSON lines. */
public class ReadAll {
    @SuppressWarnings("deprecation")
    public static void main(String[] args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop-reader");
        consumer.setNamesrvAddr(args[0]);
        consumer.start();
        try {
            for (MessageQueue queue : queues(consumer, args[1])) {
                read(consumer, queue);
            }
        } finally {
            consumer.shutdown();
        }
        System.exit(0);
    }

    /** The queues of a topic: on a busy machine a Java name server takes longer to answer than the client waits. */
    @SuppressWarnings("deprecation")
    static Set<MessageQueue> queues(DefaultMQPullConsumer consumer, String topic) throws Exception {
        for (int left = 10; ; left--) {
            try {
                return consumer.fetchSubscribeMessageQueues(topic);
            } catch (MQClientException error) {
                if (left == 0 || !(error.getCause() instanceof RemotingTimeoutException)) throw error;
            }
        }
    }

    @SuppressWarnings("deprecation")
    static void read(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        long next = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        System.out.printf("{\"queue\":%d,\"min\":%d,\"max\":%d}%n", queue.getQueueId(), next, end);
        while (next < end) {
            PullResult result = consumer.pull(queue, "*", next, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    print(message);
                }
            }
            if (result.getNextBeginOffset() <= next) {
                throw new IllegalStateException("no progress at " + queue + " " + next + ": " + result.getPullStatus());
            }
            next = result.getNextBeginOffset();
        }
    }

    static void print(MessageExt message) {
        StringBuilder properties = new StringBuilder();
        for (Map.Entry<String, String> entry : new TreeMap<>(message.getProperties()).entrySet()) {
            properties.append(properties.length() > 0 ? "," : "").append('"').append(entry.getKey()).append("\":\"").append(entry.getValue()).append('"');
        }
        System.out.printf("{\"body\":\"%s\",\"queue\":%d,\"offset\":%d,\"physical\":%d,\"size\":%d,\"born\":%d,\"stored\":%d,\"sys\":%d,\"id\":\"%s\",\"properties\":{%s}}%n",
            Base64.getEncoder().encodeToString(message.getBody()), message.getQueueId(), message.getQueueOffset(), message.getCommitLogOffset(),
            message.getStoreSize(), message.getBornTimestamp(), message.getStoreTimestamp(), message.getSysFlag(), message.getMsgId(), properties);
    }
}
