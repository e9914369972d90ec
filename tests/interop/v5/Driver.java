import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** RocketMQ's 5.x client for Java: Driver ENDPOINTS ACTION KEY=VALUE ..., one line for each thing that happens. */
public class Driver {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    static String text(MessageView message) {
        byte[] bytes = new byte[message.getBody().remaining()];
        message.getBody().get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static synchronized void say(String line) {
        System.out.println(line.replace('\n', ' '));
        System.out.flush();
    }

    static String name(MessageView message) {
        return text(message).split("\\.", 2)[0];
    }

    static void said(MessageView message) {
        String keys = String.join(",", message.getKeys());
        say("message " + name(message) + " " + message.getDeliveryAttempt() + " " + message.getTag().orElse("-")
            + " " + (keys.isEmpty() ? "-" : keys) + " " + message.getProperties().getOrDefault("colour", "-")
            + " " + message.getMessageGroup().orElse("-") + " " + message.getBody().remaining());
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int i = 2; i < args.length; i++) {
            given.put(args[i].split("=", 2)[0], args[i].split("=", 2)[1]);
        }
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(args[0])
            .enableSsl(given.containsKey("tls")).setRequestTimeout(Duration.ofSeconds(10));
        if (given.containsKey("user")) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(given.get("user"), given.get("secret")));
        }
        ClientConfiguration configuration = builder.build();
        try {
            switch (args[1]) {
                case "send": send(configuration, given); break;
                case "simple": simple(configuration, given); break;
                case "push": push(configuration, given); break;
                default: throw new IllegalArgumentException(args[1]);
            }
        } catch (Exception error) {
            say("error " + error);
            System.exit(1);
        }
        System.exit(0);
    }

    static Message message(String body, Map<String, String> given) {
        String whole = body + ".".repeat(Integer.parseInt(given.getOrDefault("padding", "0")));
        MessageBuilder made = PROVIDER.newMessageBuilder().setTopic(given.get("topic"))
            .setBody(whole.getBytes(StandardCharsets.UTF_8)).setTag(given.getOrDefault("tag", "t"))
            .setKeys("key-" + body).addProperty("colour", given.getOrDefault("colour", "red"));
        if (given.containsKey("group")) {
            made.setMessageGroup(given.get("group"));
        }
        if (given.containsKey("delay")) {
            made.setDeliveryTimestamp(System.currentTimeMillis() + Long.parseLong(given.get("delay")));
        }
        return made.build();
    }

    /** Send; say an error, and with `retry` send again until it works. */
    static SendReceipt tried(Producer producer, Message message, Map<String, String> given) throws Exception {
        while (true) {
            try {
                return producer.send(message);
            } catch (Exception error) {
                say("error " + error.getMessage());
                if (!given.containsKey("retry")) {
                    return null;
                }
                Thread.sleep(500);
            }
        }
    }

    static void send(ClientConfiguration configuration, Map<String, String> given) throws Exception {
        String topic = given.get("topic");
        ProducerBuilder builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic);
        String end = given.getOrDefault("end", "");
        builder.setTransactionChecker(message -> {
            say("check " + text(message));
            return TransactionResolution.COMMIT;
        });
        Producer producer = builder.build();
        say("started");
        for (String body : given.get("bodies").split(",")) {
            if (body.isEmpty()) {
                continue;
            }
            Message message = message(body, given);
            if (end.isEmpty()) {
                SendReceipt receipt = tried(producer, message, given);
                if (receipt != null) {
                    say("sent " + body + " " + receipt.getMessageId());
                    if (given.containsKey("recall")) {
                        producer.recallMessage(topic, receipt.getRecallHandle());
                        say("recalled " + body);
                    }
                }
                Thread.sleep(Long.parseLong(given.getOrDefault("every", "0")));
                continue;
            }
            Transaction transaction = producer.beginTransaction();
            say("sent " + body + " " + producer.send(message, transaction).getMessageId());
            if (end.equals("commit")) {
                transaction.commit();
            } else if (end.equals("rollback")) {
                transaction.rollback();
            }
        }
        if (end.equals("orphan")) {
            Thread.sleep(60_000);
        }
        producer.close();
    }

    static FilterExpression filter(Map<String, String> given) {
        if (given.containsKey("sql")) {
            return new FilterExpression(given.get("sql"), FilterExpressionType.SQL92);
        }
        return new FilterExpression(given.getOrDefault("filter", "*"));
    }

    static void simple(ClientConfiguration configuration, Map<String, String> given) throws Exception {
        Map<String, FilterExpression> wanted = new HashMap<>();
        wanted.put(given.get("topic"), filter(given));
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(given.get("consumer")).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(wanted).build();
        say("started");
        long end = System.currentTimeMillis() + Long.parseLong(given.get("seconds")) * 1000;
        int left = Integer.parseInt(given.getOrDefault("count", "1000000"));
        int batch = Integer.parseInt(given.getOrDefault("batch", "16"));
        while (System.currentTimeMillis() < end && left > 0) {
            try {
                for (MessageView message : consumer.receive(batch, Duration.ofSeconds(10))) {
                    said(message);
                    left--;
                    if (given.containsKey("change") && message.getDeliveryAttempt() == 1) {
                        consumer.changeInvisibleDuration(message, Duration.ofSeconds(Long.parseLong(given.get("change"))));
                    } else if (!given.getOrDefault("ack", "yes").equals("no")) {
                        consumer.ack(message);
                        say("acked " + name(message));
                    }
                }
            } catch (Exception error) {
                say("error " + error.getMessage());
                Thread.sleep(1_000);
            }
        }
        consumer.close();
    }

    static void push(ClientConfiguration configuration, Map<String, String> given) throws Exception {
        Map<String, FilterExpression> wanted = new HashMap<>();
        wanted.put(given.get("topic"), filter(given));
        AtomicInteger calls = new AtomicInteger();
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(given.get("consumer")).setSubscriptionExpressions(wanted)
            .setMessageListener(message -> {
                said(message);
                boolean fails = name(message).equals(given.get("fails"))
                    && calls.incrementAndGet() <= Integer.parseInt(given.getOrDefault("times", "1"));
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
        say("started");
        Thread.sleep(Long.parseLong(given.get("seconds")) * 1000);
        consumer.close();
    }
}
