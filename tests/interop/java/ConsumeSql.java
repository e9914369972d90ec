import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * ConsumeSql NAMESRV TOPIC GROUP EXPRESSION: a push consumer with an SQL92 filter. Prints a JSON line for each message until
 * its input ends, or one that says why it cannot start.
 */
public class ConsumeSql {
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setMqClientApiTimeout(30_000); // its start fails when the first route takes longer
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], MessageSelector.bySql(args[3]));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                System.out.printf("{\"body\":\"%s\",\"times\":%d}%n",
                    new String(message.getBody(), StandardCharsets.UTF_8).trim(), message.getReconsumeTimes());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try {
            consumer.start();
        } catch (Exception error) {
            System.out.printf("{\"refused\":\"%s\"}%n", error.getMessage().split("\n")[0].replace("\"", "'"));
            System.exit(0);
        }
        while (System.in.read() >= 0) {
            Thread.onSpinWait();
        }
        consumer.shutdown();
        System.exit(0);
    }
}
