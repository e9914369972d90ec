import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

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

    /** By the method that takes a queue and a callback: others of 5.3.0 to 5.3.3 do not wait for the reply. */
    static void ask(DefaultMQProducer producer, String topic, int count) throws Exception {
        MessageQueue queue = producer.fetchPublishMessageQueues(topic).get(0);
        for (int i = 0; i < count; i++) {
            Message question = new Message(topic, ("q" + i).getBytes(StandardCharsets.UTF_8));
            CompletableFuture<Message> answer = new CompletableFuture<>();
            producer.request(question, queue, new RequestCallback() {
                @Override
                public void onSuccess(Message message) {
                    answer.complete(message);
                }

                @Override
                public void onException(Throwable error) {
                    answer.completeExceptionally(error);
                }
            }, 15_000);
            byte[] body = answer.get(20, TimeUnit.SECONDS).getBody();
            System.out.printf("{\"answer\":\"%s\"}%n", new String(body, StandardCharsets.UTF_8));
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
