import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/**
 * Driver NAMESRV: many Java clients in one JVM, told what to do by JSON lines on the standard input. Each line has "do"
 * (see `run`) and "id"; what happens is told in JSON lines with that id under "for". Ends when its input does.
 */
public class Driver {
    static String namesrv;
    static final Map<String, Runnable> CLOSERS = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject todo = JSON.parseObject(line);
            new Thread(() -> {
                try {
                    run(todo);
                } catch (Throwable error) {
                    error.printStackTrace();
                    tell(todo, "error", error.toString().split("\n")[0]);
                }
            }).start();
        }
        System.exit(0);
    }

    static void run(JSONObject todo) throws Exception {
        switch (todo.getString("do")) {
            case "send": send(todo); break;
            case "transact": transact(todo); break;
            case "pour": pour(todo); break;
            case "gather": gather(todo); break;
            case "consume": consume(todo); break;
            case "lite": lite(todo); break;
            case "ask": ask(todo); break;
            case "recall": recall(todo); break;
            case "stop":
                CLOSERS.remove(todo.getString("id")).run();
                tell(todo, "stopped", true);
                break;
            default: throw new IllegalArgumentException(todo.getString("do"));
        }
    }

    static void tell(JSONObject todo, Object... pairs) {
        JSONObject row = new JSONObject(true);
        row.put("for", todo.getString("id"));
        for (int i = 0; i < pairs.length; i += 2) {
            row.put((String) pairs[i], pairs[i + 1]);
        }
        synchronized (System.out) {
            System.out.println(row.toJSONString());
        }
    }

    static void tellMessage(JSONObject todo, MessageExt message) {
        tell(todo, "body", text(message), "size", message.getBody().length, "topic", message.getTopic(), "queue", message.getQueueId(),
            "offset", message.getQueueOffset(), "times", message.getReconsumeTimes(), "id", message.getMsgId(), "at", System.currentTimeMillis(),
            "properties", new TreeMap<>(message.getProperties()));
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8).trim();
    }

    static Message message(JSONObject todo, String text) {
        StringBuilder body = new StringBuilder(text);
        while (body.length() < todo.getIntValue("size")) {
            body.append(' ');
        }
        Message message = new Message(todo.getString("topic"), todo.getString("tags"), text, body.toString().getBytes(StandardCharsets.UTF_8));
        if (todo.containsKey("delay")) {
            message.setDelayTimeLevel(todo.getIntValue("delay"));
        }
        if (todo.containsKey("properties")) {
            todo.getJSONObject("properties").forEach((name, value) -> put(message, name, value.toString()));
        }
        return message;
    }

    /** Sets a property; 5.x takes times of a delivery by methods only, which 4.9 has not. */
    static void put(Message message, String name, String value) {
        String setter = name.equals("TIMER_DELIVER_MS") ? "setDeliverTimeMs" : name.equals("TIMER_DELAY_MS") ? "setDelayTimeMs" : "";
        try {
            Message.class.getMethod(setter, long.class).invoke(message, Long.parseLong(value));
        } catch (ReflectiveOperationException missing) {
            message.putUserProperty(name, value);
        }
    }

    static List<String> bodies(JSONObject todo) {
        return todo.getJSONArray("bodies").toJavaList(String.class);
    }

    // --- producers ---

    /** send: "bodies" to "topic"; "key" orders them, "batch" sends them in one request, "delay" is a level. */
    static void send(JSONObject todo) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(todo.getString("namespace"), "driver-" + todo.getString("id"), null,
            todo.getBooleanValue("trace"), null);
        open(producer, todo);
        producer.start();
        if (todo.getBooleanValue("batch")) {
            List<Message> batch = new ArrayList<>();
            for (String body : bodies(todo)) {
                batch.add(message(todo, body));
            }
            tellSent(todo, "", producer.send(batch));
        } else {
            for (String body : bodies(todo)) {
                Message message = message(todo, body);
                String key = todo.getString("key");
                tellSent(todo, body, key == null ? producer.send(message) : producer.send(message, new SelectMessageQueueByHash(), key));
            }
        }
        producer.shutdown();
        tell(todo, "done", true);
    }

    static void open(DefaultMQProducer producer, JSONObject todo) {
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10000);
        producer.setInstanceName("driver-" + todo.getString("id") + "-" + ProcessHandle.current().pid());
    }

    static void tellSent(JSONObject todo, String body, SendResult result) {
        tell(todo, "sent", body, "status", result.getSendStatus().name(), "queue", result.getMessageQueue().getQueueId(),
            "offset", result.getQueueOffset(), "id", result.getMsgId(), "handle", handle(result));
    }

    /** What recalls a timed message; 4.9 has none. */
    static Object handle(SendResult result) {
        try {
            return SendResult.class.getMethod("getRecallHandle").invoke(result);
        } catch (ReflectiveOperationException missing) {
            return null;
        }
    }

    /** recall: takes back the message of "handle" in "topic", with 5.x. */
    static void recall(JSONObject todo) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("driver-" + todo.getString("id"));
        open(producer, todo);
        producer.start();
        Object id = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
            .invoke(producer, todo.getString("topic"), todo.getString("handle"));
        producer.shutdown();
        tell(todo, "recalled", id, "done", true);
    }

    /** transact: "decisions" of bodies, and in "checks" what the check-back says of a body; lives until stopped. */
    static void transact(JSONObject todo) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(todo.getString("group"));
        open(producer, todo);
        JSONObject decisions = todo.getJSONObject("decisions");
        JSONObject checks = todo.getJSONObject("checks");
        producer.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.valueOf(decisions.getString(text(message)));
            }

            @Override public LocalTransactionState checkLocalTransaction(MessageExt message) {
                tell(todo, "checked", text(message), "id", message.getTransactionId());
                return LocalTransactionState.valueOf(checks.getString(text(message)));
            }
        });
        producer.start();
        CLOSERS.put(todo.getString("id"), producer::shutdown);
        for (String body : decisions.keySet()) {
            tellSent(todo, body, producer.sendMessageInTransaction(message(todo, body), null));
        }
        tell(todo, "done", true);
    }

    /** ask: sends "bodies" as questions, one after the other, and tells the answers. */
    static void ask(JSONObject todo) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("driver-" + todo.getString("id"));
        open(producer, todo);
        producer.start();
        boolean waits = !todo.getBooleanValue("callback");
        MessageQueue queue = waits ? null : producer.fetchPublishMessageQueues(todo.getString("topic")).get(0);
        for (String body : bodies(todo)) {
            if (waits) {
                tell(todo, "answer", text(producer.request(message(todo, body), 15_000)));
            } else {
                tell(todo, "answer", text(answered(producer, message(todo, body), queue)));
            }
        }
        producer.shutdown();
        tell(todo, "done", true);
    }

    /** Asks by the method that takes a queue and a callback: others of 5.3.0 to 5.3.3 do not wait for the reply. */
    static Message answered(DefaultMQProducer producer, Message question, MessageQueue queue) throws Exception {
        CompletableFuture<Message> reply = new CompletableFuture<>();
        producer.request(question, queue, new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                reply.complete(message);
            }

            @Override
            public void onException(Throwable error) {
                reply.completeExceptionally(error);
            }
        }, 15_000);
        return reply.get(20, TimeUnit.SECONDS);
    }

    /**
     * pour: "threads" that send to "topic" one message after the other until stopped. Then it tells the bodies that were
     * acknowledged, how many sends failed, why the first did, and pauses of more than half a second between acknowledgements: when
     * each ended and how long it was, in ms. "poll" is how often it asks for routes, in ms.
     */
    static void pour(JSONObject todo) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("driver-" + todo.getString("id"));
        open(producer, todo);
        producer.setSendMsgTimeout(3000);
        if (todo.containsKey("poll")) {
            producer.setPollNameServerInterval(todo.getIntValue("poll"));
        }
        producer.start();
        String id = todo.getString("id");
        List<String> acknowledged = new ArrayList<>();
        List<List<Long>> pauses = new ArrayList<>();
        List<String> why = Collections.synchronizedList(new ArrayList<>());
        long[] state = {System.currentTimeMillis(), 0};
        List<Thread> threads = new ArrayList<>();
        CLOSERS.put(id, () -> { });
        for (int number = 0; number < todo.getIntValue("threads"); number++) {
            String name = id + "-" + number + "-";
            threads.add(new Thread(() -> {
                for (int count = 0; CLOSERS.containsKey(id); count++) {
                    String body = name + count;
                    boolean good = false;
                    try {
                        good = producer.send(message(todo, body)).getSendStatus() == SendStatus.SEND_OK;
                    } catch (Exception error) {
                        why.add(error.getMessage().split("\n")[0] + ": " + error.getCause());
                        sleep(20);
                    }
                    synchronized (acknowledged) {
                        if (good) {
                            long now = System.currentTimeMillis();
                            if (now - state[0] > 500) {
                                pauses.add(List.of(now, now - state[0]));
                            }
                            state[0] = now;
                            acknowledged.add(body);
                        } else {
                            state[1]++;
                        }
                    }
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        producer.shutdown();
        tellAll(todo, "acknowledged", acknowledged);
        tell(todo, "why", why.subList(0, Math.min(why.size(), 20)));
        tell(todo, "failed", state[1], "pauses", pauses);
        tell(todo, "done", true);
    }

    static void sleep(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    static void tellAll(JSONObject todo, String key, List<String> bodies) {
        for (int at = 0; at < bodies.size(); at += 2000) {
            tell(todo, key, bodies.subList(at, Math.min(at + 2000, bodies.size())));
        }
    }

    // --- consumers ---

    /**
     * gather: a push consumer of "group" and "topic" that keeps the bodies; tells how many different ones there are whenever that
     * has changed, and when it is stopped which, and its pauses since the first message. "poll" and they are as for pour. "beat"
     * is how many ms after the last it says again what it subscribes to. "late" are the ages in ms of messages that came more than
     * half a second after they were stored, the most of those together.
     */
    static void gather(JSONObject todo) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(todo.getString("group"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("driver-" + todo.getString("id") + "-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (todo.containsKey("poll")) {
            consumer.setPollNameServerInterval(todo.getIntValue("poll"));
        }
        if (todo.containsKey("beat")) {
            consumer.setHeartbeatBrokerInterval(todo.getIntValue("beat"));
        }
        consumer.subscribe(todo.getString("topic"), "*");
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        List<List<Long>> pauses = new ArrayList<>();
        List<long[]> late = new ArrayList<>();
        Map<Integer, long[]> stalls = new HashMap<>();
        long[] state = {0};
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            synchronized (pauses) {
                long now = System.currentTimeMillis();
                for (MessageExt message : messages) {
                    long age = now - message.getStoreTimestamp();
                    if (bodies.add(text(message)) && age > 500) {
                        long[] stall = stalls.get(message.getQueueId());
                        if (stall == null || now - stall[1] > 1000) {
                            stall = new long[2];
                            stalls.put(message.getQueueId(), stall);
                            late.add(stall);
                        }
                        stall[0] = Math.max(stall[0], age);
                        stall[1] = now;
                    }
                }
                if (state[0] > 0 && now - state[0] > 500) {
                    pauses.add(List.of(now, now - state[0]));
                }
                state[0] = now;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        CLOSERS.put(todo.getString("id"), consumer::shutdown);
        consumer.start();
        for (int last = -1; CLOSERS.containsKey(todo.getString("id")); sleep(200)) {
            if (bodies.size() != last) {
                last = bodies.size();
                tell(todo, "count", last);
            }
        }
        tellAll(todo, "got", new ArrayList<>(bodies));
        tell(todo, "pauses", pauses, "late", late.stream().map(stall -> stall[0]).collect(Collectors.toList()));
        tell(todo, "done", true);
    }

    /**
     * consume: a push consumer of "group" and "topic" until it is stopped. "ordered", "broadcasting", "tags", "sql",
     * "namespace", "trace"; bodies in "fail" fail always, "most" is how often they are tried again; "answer" replies.
     */
    static void consume(JSONObject todo) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(todo.getString("namespace"), todo.getString("group"), null,
            new org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely(), todo.getBooleanValue("trace"), null);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("driver-" + todo.getString("id") + "-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setSuspendCurrentQueueTimeMillis(200);
        if (todo.containsKey("most")) {
            consumer.setMaxReconsumeTimes(todo.getIntValue("most"));
        }
        if (todo.getBooleanValue("broadcasting")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        if (todo.containsKey("sql")) {
            consumer.subscribe(todo.getString("topic"), MessageSelector.bySql(todo.getString("sql")));
        } else {
            consumer.subscribe(todo.getString("topic"), todo.containsKey("tags") ? todo.getString("tags") : "*");
        }
        Set<String> failing = new HashSet<>(todo.containsKey("fail") ? todo.getJSONArray("fail").toJavaList(String.class) : new ArrayList<>());
        DefaultMQProducer replier = todo.getBooleanValue("answer") ? replier(todo) : null;
        if (todo.getBooleanValue("ordered")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                take(todo, messages, failing, replier) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                take(todo, messages, failing, replier) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        CLOSERS.put(todo.getString("id"), consumer::shutdown);
        consumer.start();
        tell(todo, "started", true);
        watch(todo, consumer);
    }

    static DefaultMQProducer replier(JSONObject todo) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("replier-" + todo.getString("id"));
        open(producer, todo);
        producer.setInstanceName("replier-" + producer.getInstanceName());
        producer.start();
        return producer;
    }

    static boolean take(JSONObject todo, List<MessageExt> messages, Set<String> failing, DefaultMQProducer replier) {
        boolean good = true;
        for (MessageExt message : messages) {
            tellMessage(todo, message);
            good &= !failing.contains(text(message));
            if (replier != null) {
                try {
                    byte[] answer = ("a" + text(message)).getBytes(StandardCharsets.UTF_8);
                    replier.send(MessageUtil.createReplyMessage(message, answer), 3000);
                } catch (Exception error) {
                    tell(todo, "error", error.toString().split("\n")[0]);
                }
            }
        }
        return good;
    }

    /** Tells the queues of the topic whenever they have changed: for an ordered consumer those that it has locked. */
    static void watch(JSONObject todo, DefaultMQPushConsumer consumer) throws Exception {
        Map<Integer, Boolean> last = new HashMap<>();
        while (CLOSERS.containsKey(todo.getString("id"))) {
            Map<Integer, Boolean> now = new TreeMap<>();
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().forEach((queue, window) -> {
                if (!queue.getTopic().startsWith("%RETRY%")) {
                    now.put(queue.getQueueId(), window.isLocked());
                }
            });
            if (!now.equals(last)) {
                last = now;
                tell(todo, "assigned", now.keySet(), "locked", now.values());
            }
            Thread.sleep(50);
        }
    }

    /** lite: a pull consumer with all queues of "topic" assigned, reading from "offset" on until "count" messages came. */
    static void lite(JSONObject todo) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(todo.getString("group"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("driver-" + todo.getString("id") + "-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        int count = todo.getIntValue("count");
        if (todo.getBooleanValue("subscribe")) {
            consumer.subscribe(todo.getString("topic"), "*");
            consumer.start();
        } else {
            consumer.start();
            List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(todo.getString("topic")));
            consumer.assign(queues);
            for (MessageQueue queue : queues) {
                consumer.seek(queue, todo.getLongValue("offset"));
            }
        }
        while (count > 0) {
            for (MessageExt message : consumer.poll(500)) {
                tellMessage(todo, message);
                count--;
            }
        }
        consumer.commitSync();
        if (todo.getBooleanValue("stay")) {
            CLOSERS.put(todo.getString("id"), consumer::shutdown);
        } else {
            consumer.shutdown();
        }
        tell(todo, "done", true);
    }
}
