import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The stock Java client as load.
 *
 *   Load NAMESRV sync|async|batch TOPIC SIZE THREADS WARM SECONDS
 *   Load NAMESRV push|pull TOPIC COUNT
 *
 * Prints {"event":"measuring"} when the warm-up is over (push and pull: at the first message) and one line of
 * results.
 */
public class Load {
    static final int BATCH = 32;
    static final int IN_FLIGHT = 1024;
    static final AtomicLong answered = new AtomicLong();
    static final AtomicLong errors = new AtomicLong();
    static final AtomicInteger latencyCount = new AtomicInteger();
    static final long[] latencies = new long[1 << 22];
    static volatile boolean measuring;

    public static void main(String[] args) throws Exception {
        if (args[1].equals("push")) {
            push(args[0], args[2], Long.parseLong(args[3]));
        } else if (args[1].equals("pull")) {
            pull(args[0], args[2], Long.parseLong(args[3]));
        } else {
            produce(args);
        }
        System.exit(errors.get() == 0 ? 0 : 1);
    }

    static void produce(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("load");
        producer.setNamesrvAddr(args[0]);
        producer.setVipChannelEnabled(false);
        producer.setSendMsgTimeout(10000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        byte[] body = new byte[Integer.parseInt(args[3])];
        Arrays.fill(body, (byte) 'x');
        makeTopic(producer, args[2], body);
        long begin = System.nanoTime();
        long measureFrom = begin + (long) (Double.parseDouble(args[5]) * 1e9);
        long end = measureFrom + (long) (Double.parseDouble(args[6]) * 1e9);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(args[4]); i++) {
            Thread thread = new Thread(() -> send(producer, args[1], args[2], body, end));
            threads.add(thread);
            thread.start();
        }
        Thread.sleep((measureFrom - System.nanoTime()) / 1_000_000);
        long before = answered.get();
        long from = System.nanoTime();
        measuring = true;
        event();
        for (Thread thread : threads) {
            thread.join();
        }
        report(answered.get() - before, (System.nanoTime() - from) / 1e9);
        producer.shutdown();
    }

    static void makeTopic(DefaultMQProducer producer, String topic, byte[] body) throws Exception {
        for (int i = 0; ; i++) {
            try {
                producer.send(new Message(topic, "T", body));
                return;
            } catch (Exception error) {
                if (i == 20) {
                    throw error;
                }
                Thread.sleep(250);
            }
        }
    }

    static void send(DefaultMQProducer producer, String mode, String topic, byte[] body, long end) {
        Semaphore room = new Semaphore(IN_FLIGHT);
        while (System.nanoTime() < end) {
            long start = System.nanoTime();
            try {
                switch (mode) {
                    case "sync":
                        producer.send(new Message(topic, "T", body));
                        done(start, 1);
                        break;
                    case "batch":
                        List<Message> messages = new ArrayList<>(BATCH);
                        for (int i = 0; i < BATCH; i++) {
                            messages.add(new Message(topic, "T", body));
                        }
                        producer.send(messages);
                        done(start, BATCH);
                        break;
                    case "async":
                        room.acquire();
                        sendAsync(producer, new Message(topic, "T", body), room);
                        break;
                    default:
                        throw new IllegalArgumentException(mode);
                }
            } catch (Exception error) {
                failed(error);
            }
        }
        try {
            room.tryAcquire(IN_FLIGHT, 10, TimeUnit.SECONDS);
        } catch (InterruptedException error) {
            failed(error);
        }
    }

    static void sendAsync(DefaultMQProducer producer, Message message, Semaphore room) throws Exception {
        long start = System.nanoTime();
        producer.send(message, new SendCallback() {
            @Override public void onSuccess(SendResult result) {
                done(start, 1);
                room.release();
            }

            @Override public void onException(Throwable error) {
                failed(error);
                room.release();
            }
        });
    }

    static void done(long start, int messages) {
        answered.addAndGet(messages);
        if (measuring) {
            int at = latencyCount.getAndIncrement();
            if (at < latencies.length) {
                latencies[at] = System.nanoTime() - start;
            }
        }
    }

    static void failed(Throwable error) {
        if (errors.getAndIncrement() == 0) {
            System.err.println(error);
        }
    }

    static void push(String namesrv, String topic, long count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("load_push_" + System.nanoTime());
        consumer.setNamesrvAddr(namesrv);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        AtomicLong from = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (from.compareAndSet(0, System.nanoTime())) {
                event();
            }
            if (answered.addAndGet(messages.size()) >= count) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!done.await(120, TimeUnit.SECONDS)) {
            failed(new IllegalStateException("only " + answered.get() + " of " + count + " messages came"));
        }
        report(answered.get(), (System.nanoTime() - from.get()) / 1e9);
        consumer.shutdown();
    }

    static void pull(String namesrv, String topic, long count) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("load_pull_" + System.nanoTime());
        consumer.setNamesrvAddr(namesrv);
        consumer.setVipChannelEnabled(false);
        consumer.start();
        long from = 0;
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = consumer.minOffset(queue);
            while (answered.get() < count) {
                PullResult found = consumer.pull(queue, "*", offset, BATCH);
                if (found.getPullStatus() != PullStatus.FOUND) {
                    break;
                }
                if (from == 0) {
                    from = System.nanoTime();
                    event();
                }
                answered.addAndGet(found.getMsgFoundList().size());
                offset = found.getNextBeginOffset();
            }
        }
        if (answered.get() < count) {
            failed(new IllegalStateException("only " + answered.get() + " of " + count + " messages are there"));
        }
        report(answered.get(), (System.nanoTime() - from) / 1e9);
        consumer.shutdown();
    }

    static void event() {
        System.out.println("{\"event\":\"measuring\"}");
        System.out.flush();
    }

    static void report(long messages, double seconds) {
        int count = Math.min(latencyCount.get(), latencies.length);
        Arrays.sort(latencies, 0, count);
        double p50 = count == 0 ? 0 : latencies[(int) (count * 0.5)] / 1e3;
        double p99 = count == 0 ? 0 : latencies[(int) (count * 0.99)] / 1e3;
        System.out.printf(Locale.ROOT, "{\"messages\":%d,\"seconds\":%.3f,\"rate\":%.0f,\"errors\":%d,\"p50_us\":%.1f,\"p99_us\":%.1f}%n",
            messages, seconds, messages / seconds, errors.get(), p50, p99);
    }
}
