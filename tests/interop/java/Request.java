import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Request NAMESRV TOPIC ask COUNT: asks so many questions, one after the other, and prints a JSON line for each answer.
 * Request NAMESRV TOPIC answer: answers them, printing what the broker said to each answer, until its input ends.
 */
public class Request {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("request-" + args[2]);
        producer.setNamesrvAddr(args[0]);
        producer.setInstanceName(args[2] + "-" + ProcessHandle.current().pid());
        producer.start();
        if (args[2].equals("ask")) {
            ask(producer, args[1], Integer.parseInt(args[3]));
        } else {
            answer(producer, args[0], args[1]);
        }
        producer.shutdown();
        System.exit(0);
    }

    static void ask(DefaultMQProducer producer, String topic, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            Message question = new Message(topic, ("q" + i).getBytes(StandardCharsets.UTF_8));
            Message answer = producer.request(question, 15_000);
            System.out.printf("{\"answer\":\"%s\"}%n", new String(answer.getBody(), StandardCharsets.UTF_8));
        }
    }

    static void answer(DefaultMQProducer producer, String namesrv, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("answerers");
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("a" + new String(message.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
                    SendResult result = producer.send(MessageUtil.createReplyMessage(message, body), 3000);
                    System.out.printf("{\"replied\":\"%s\"}%n", result.getSendStatus());
                } catch (Exception error) {
                    System.out.printf("{\"failed\":\"%s\"}%n", error.getClass().getSimpleName());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("{\"ready\":true}");
        while (System.in.read() >= 0) {
            Thread.onSpinWait();
        }
        consumer.shutdown();
    }
}
